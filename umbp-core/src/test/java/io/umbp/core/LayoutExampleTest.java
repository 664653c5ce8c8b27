package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.testkit.FakeGpu;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Runs the example of docs/layouts.md. */
class LayoutExampleTest {
  @Test
  void aHybridCacheInOneAllocation() {
    try (FakeGpu gpu = FakeGpu.asynchronous(1)) {
      EmbeddedRuntime runtime =
          EmbeddedRuntime.builder().capacityBytes(1 << 20).copyEngine(gpu::copyEngine).build();
      UMBPNamespace model = new UMBPNamespace("my-model");
      // example-begin
      KVCacheSpec full = // kind, tokens a block, format, KV heads, key, value, sharding, window
          new KVCacheSpec.Attention(
              "FullAttentionSpec", 16, ElementType.BF16, 8, 128, 128, TPSharding.SHARDED, 0);
      KVCacheSpec window =
          new KVCacheSpec.Attention(
              "SlidingWindowSpec", 16, ElementType.BF16, 8, 128, 128, TPSharding.SHARDED, 1024);
      KVCacheConfig cache =
          new KVCacheConfig(
              List.of(
                  new Group(List.of(new Layer("0", full), new Layer("2", full)), Transfer.ENABLED),
                  new Group(
                      List.of(new Layer("1", window), new Layer("3", window)), Transfer.ENABLED)),
              List.of( // one tensor of two slots; a group of each kind uses both
                  new Tensor(
                      List.of(new Slot(List.of("0", "1")), new Slot(List.of("2", "3"))),
                      KVCacheLayout.BLNHC,
                      KVSplit.BLOCKS,
                      256, // blocks
                      1, // kernel blocks in each
                      Tensor.PACKED)));
      RankTopology rank = RankTopology.tensorParallel(0, 4);
      KVLayoutDescriptor layout = KVLayoutPlanner.describe(cache, rank); // what handles take
      TensorPlan plan = KVLayoutPlanner.tensors(cache, rank).get(0); // what to allocate
      long address = gpu.malloc(0, plan.sizeBytes());
      UMBPWorkerHandle worker = runtime.createWorkerHandle(model, rank, layout);
      worker.registerBuffers(plan.onDevice(address, 0));
      // example-end
      assertEquals(8_388_608, plan.sizeBytes());
      assertEquals(
          Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 256, List.of("0")),
          Tensor.ofShape(List.of(new Layer("0", full)), rank, "BKNHC", 256, 2, 16, 2, 128));
      assertEquals(List.of(0L, 0L, 16_384L, 16_384L), offsets(plan));
      assertEquals(List.of("0", "1", "2", "3"), names(plan));
      assertEquals(32_768, plan.layers().get(0).region().blockStride());
      runtime.close(Duration.ofSeconds(5));
    }
  }

  private static List<Long> offsets(TensorPlan plan) {
    return plan.layers().stream().map(TensorPlan.PlannedLayer::offset).toList();
  }

  private static List<String> names(TensorPlan plan) {
    return plan.layers().stream().map(layer -> layer.region().layerName()).toList();
  }

  @Test
  void theGuideShowsThisVeryExample() throws IOException {
    ExampleText.assertShown(
        "src/test/java/io/umbp/core/LayoutExampleTest.java", "../docs/layouts.md", 6);
  }
}
