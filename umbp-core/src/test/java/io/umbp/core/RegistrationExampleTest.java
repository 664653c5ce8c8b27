package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.ElementType;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Runs the example of docs/registration.md, and holds the two texts against each other. */
class RegistrationExampleTest {
  private static final List<String> LAYERS = List.of("layers.0", "layers.1");

  // example-begin
  /** An engine whose kernels index [layer, block, K or V, token, head, dim], 16-bit elements. */
  static final class Engine implements KVProbe {
    static final int BLOCKS = 32;
    static final int TOKENS = 16;
    static final int HEADS = 8;
    static final int DIM = 64;

    final ByteBuffer cache = ByteBuffer.allocateDirect(2 * BLOCKS * 2 * TOKENS * HEADS * DIM * 2);

    /** The index computation of the kernels, copied from them. */
    int index(int layer, int block, int kv, int token, int head) {
      return ((((layer * BLOCKS + block) * 2 + kv) * TOKENS + token) * HEADS + head) * DIM * 2;
    }

    int index(Place place) {
      int layer = LAYERS.indexOf(place.layerName());
      int kv = place.part() == Part.KEY ? 0 : 1;
      return index(layer, place.blockId(), kv, place.token(), place.head());
    }

    @Override
    public void write(Place place, byte[] value) {
      cache.put(index(place), value);
    }

    @Override
    public void read(Place place, byte[] value) {
      cache.get(index(place), value);
    }
  }

  static void register(EmbeddedRuntime runtime, Engine engine, KVCacheLayout layout) {
    RankTopology rank = RankTopology.single();
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "FullAttentionSpec",
            Engine.TOKENS,
            ElementType.F16,
            Engine.HEADS,
            Engine.DIM,
            Engine.DIM,
            TPSharding.SHARDED,
            0);
    List<Layer> layers = LAYERS.stream().map(name -> new Layer(name, spec)).toList();
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(new Group(layers, Transfer.ENABLED)),
            List.of(Tensor.packed(layout, KVSplit.BLOCKS, Engine.BLOCKS, LAYERS)));
    TensorPlan plan = KVLayoutPlanner.tensors(config, rank).get(0);
    Map<String, KVCacheTensor> tensors = plan.onHost(List.of(engine.cache));
    UMBPWorkerHandle worker =
        runtime.createWorkerHandle(
            new UMBPNamespace("my-model"), rank, KVLayoutPlanner.describe(config, rank));
    // Blocks 0 and 1 are free: no sequence has them yet.
    worker.registerBuffers(tensors, RegistrationOptions.ownWriter().withTrial(engine, 0, 1));
  }

  // example-end

  @Test
  void theRightOrderPassesAndAWrongOneIsTold() {
    EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();
    try {
      register(runtime, new Engine(), KVCacheLayout.LBNHC);
      UMBPException fault =
          assertThrows(
              UMBPException.class, () -> register(runtime, new Engine(), KVCacheLayout.LBHNC));
      assertEquals(UMBPException.Reason.LAYOUT_MISMATCH, fault.reason());
      assertTrue(
          fault
              .getMessage()
              .contains("it is where 'layers.0' block 0 key head 0 token 8 was expected"),
          fault::getMessage);
    } finally {
      runtime.close(Duration.ofSeconds(5));
    }
  }

  @Test
  void theDocumentShowsThisVeryExample() throws IOException {
    ExampleText.assertShown(
        "src/test/java/io/umbp/core/RegistrationExampleTest.java", "../docs/registration.md", 2);
  }
}
