package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The trial at registration, with the real sizes of every model of the catalogue. */
class CatalogueTrialTest {
  private static final ModelCatalogue CATALOGUE = ModelCatalogue.bundled();
  private static final int BLOCKS = 3;
  private static final int RANKS = 4;

  static List<String> names() {
    return CATALOGUE.names();
  }

  @ParameterizedTest
  @MethodSource("names")
  void everyModelPasses(String name) {
    CatalogueModel model = CATALOGUE.model(name);
    int blockSize = EngineCache.defaultBlockSize(model, RANKS);
    register(EngineCache.of(model, RANKS, KVCacheLayout.LBNHC, KVSplit.BLOCKS, blockSize));
    register(EngineCache.of(model, RANKS, KVCacheLayout.BHLNC, KVSplit.FUSED, blockSize));
    register(EngineCache.of(model, RANKS, KVCacheLayout.LBHNC, KVSplit.PLANES, blockSize));
  }

  private static void register(EngineCache cache) {
    register(cache, cache.describe(RANKS - 1, BLOCKS));
  }

  private static void register(EngineCache cache, KVLayoutDescriptor layout) {
    FakeGpus gpus = new FakeGpus(RANKS, 0, 1);
    EmbeddedRuntime runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(1L << 30)
            .slabBytes(cache.largestObjectBytes())
            .copyEngine(gpus::copyEngine)
            .build();
    try {
      new GpuRank(gpus, runtime, cache, layout, BLOCKS).synchronize();
      assertEquals(0, runtime.stats().slabBytes());
    } finally {
      assertTrue(runtime.close(Duration.ofSeconds(10)).isClean());
      gpus.close();
    }
  }

  @Test
  void aLayoutThatTheEngineDoesNotUseIsFound() {
    CatalogueModel model = CATALOGUE.model("llama-3.1-8b");
    EngineCache byToken = EngineCache.of(model, RANKS, KVCacheLayout.LBNHC, KVSplit.BLOCKS, 16);
    EngineCache byHead = EngineCache.of(model, RANKS, KVCacheLayout.LBHNC, KVSplit.BLOCKS, 16);
    UMBPException e =
        assertThrows(
            UMBPException.class, () -> register(byToken, byHead.describe(RANKS - 1, BLOCKS)));
    assertEquals(UMBPException.Reason.LAYOUT_MISMATCH, e.reason());
    assertTrue(
        e.getMessage().startsWith("layer 'model.layers.0.self_attn.attn' block 0 key head 0"),
        e.getMessage());
  }
}
