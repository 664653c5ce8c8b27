package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.ElementType;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import java.util.Map;
import net.jqwik.api.EdgeCasesMode;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;

/** What an engine lays out by the definition of an order, a trial finds where the planner says. */
class LayoutTrialProperties {
  @Property(tries = 300, edgeCases = EdgeCasesMode.NONE)
  void everyOrderSplitKernelBlockAndPaddingPasses(
      @ForAll KVCacheLayout layout,
      @ForAll KVSplit split,
      @ForAll @IntRange(min = 1, max = 4) int kernelBlocks,
      @ForAll @IntRange(min = 1, max = 3) int kernelTokens,
      @ForAll @IntRange(min = 1, max = 5) int heads,
      @ForAll @IntRange(min = 1, max = 12) int size,
      @ForAll @IntRange(min = 1, max = 3) int layers,
      @ForAll @IntRange(min = 0, max = 70) int padding) {
    int tokens = kernelBlocks * kernelTokens;
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "FullAttentionSpec", tokens, ElementType.U8, heads, size, size, TPSharding.SHARDED, 0);
    KVCacheConfig packed = TrialEngine.config(spec, layers, layout, split, kernelBlocks, 0);
    long stride =
        KVLayoutPlanner.tensors(packed, TrialEngine.RANK)
            .get(0)
            .layers()
            .get(0)
            .region()
            .blockStride();
    KVCacheConfig config =
        TrialEngine.config(
            spec, layers, layout, split, kernelBlocks, stride + (long) padding * kernelBlocks);
    try (TrialEngine engine = new TrialEngine(config)) {
      Map<Long, byte[]> before = engine.otherBytes();
      engine.register();
      Map<Long, byte[]> after = engine.otherBytes();
      before.forEach((address, bytes) -> assertArrayEquals(bytes, after.get(address)));
      assertEquals(layers, engine.copies.registered.get());
    }
  }
}
