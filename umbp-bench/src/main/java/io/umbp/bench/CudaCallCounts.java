package io.umbp.bench;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TensorPlan;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.cuda.CudaCopyEngine;
import io.umbp.cuda.CudaCopyStats;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;

/**
 * Prints how many driver calls of each kind a store and a load of 64 blocks take, for layouts of
 * the model catalogue in their real sizes, with default settings: {@code java -cp umbp.jar
 * io.umbp.bench.CudaCallCounts}. On the fake CUDA driver; calls do not depend on the driver.
 */
public final class CudaCallCounts {
  private static final int BLOCKS = 64;
  private static final int RANKS = 8;
  private static final long SLAB_BYTES = 512L << 20;
  private static final Duration LONG = Duration.ofSeconds(60);

  private record Case(String model, KVCacheLayout layout, KVSplit split) {}

  private static final List<Case> CASES =
      List.of(
          new Case("llama-3.1-8b", KVCacheLayout.LBNHC, KVSplit.PLANES),
          new Case("llama-3.1-70b", KVCacheLayout.BLHNC, KVSplit.BLOCKS),
          new Case("deepseek-v3", KVCacheLayout.LBNHC, KVSplit.BLOCKS),
          new Case("gemma-3-27b", KVCacheLayout.LBHNC, KVSplit.BLOCKS),
          new Case("nemotron-h-8b", KVCacheLayout.LBNHC, KVSplit.BLOCKS));

  private CudaCallCounts() {}

  /**
   * Prints the table.
   *
   * @param arguments none
   */
  public static void main(String[] arguments) {
    TextTable table =
        new TextTable("layout", "job", "ranges", "copies", "strided", "launches", "MiB");
    for (Case each : CASES) {
      count(each, table);
    }
    table.lines().forEach(System.out::println);
  }

  private static void count(Case each, TextTable table) {
    CatalogueModel model = ModelCatalogue.bundled().model(each.model());
    int blockSize = EngineCache.defaultBlockSize(model, RANKS);
    EngineCache cache = EngineCache.of(model, RANKS, each.layout(), each.split(), blockSize);
    int deviceBlocks = 2 * BLOCKS * cache.groupCount();
    KVLayoutDescriptor layout = cache.describe(0, deviceBlocks);
    String name =
        String.format(
            Locale.ROOT, "%s tp %d %s %s", each.model(), RANKS, each.layout(), each.split());
    try (CudaGpus gpus = CudaGpus.fake(1)) {
      CudaCopyEngine engine = (CudaCopyEngine) gpus.copyEngine();
      EmbeddedRuntime runtime =
          EmbeddedRuntime.builder()
              .capacityBytes(Long.MAX_VALUE)
              .slabBytes(SLAB_BYTES)
              .copyEngine(() -> engine)
              .build();
      RankTopology rank = layout.topology();
      UMBPNamespace namespace = new UMBPNamespace("call-counts");
      UMBPWorkerHandle worker = runtime.createWorkerHandle(namespace, rank, layout);
      worker.registerBuffers(tensors(cache, gpus, rank, deviceBlocks));
      BlockKeys keys = keys(cache, namespace, rank).replicating(layout.replicatedGroups());
      int[] blockIds = new Random(1).ints(0, deviceBlocks).distinct().limit(keys.size()).toArray();
      CudaCopyStats before = engine.stats();
      TransferJobState stored =
          worker.await(worker.store(BlockStoreBatch.of("r", keys, blockIds), gpus.fence(0)), LONG);
      worker.publish(stored);
      CudaCopyStats between = engine.stats();
      add(table, name, "store", before, between);
      worker.await(worker.load(BlockLoadBatch.of("r", keys, blockIds), gpus.fence(0)), LONG);
      add(table, name, "load", between, engine.stats());
      runtime.close(LONG);
    }
  }

  private static Map<String, KVCacheTensor> tensors(
      EngineCache cache, ReplayGpus gpus, RankTopology rank, int blocks) {
    Map<String, KVCacheTensor> tensors = new HashMap<>();
    List<TensorPlan> plans = KVLayoutPlanner.tensors(cache.config(blocks), rank);
    for (int i = 0; i < plans.size(); i++) {
      TensorMap map = new TensorMap(cache.tensors().get(i), cache.blockSize(), blocks);
      tensors.putAll(plans.get(i).onDevice(gpus.malloc(0, map.sizeBytes()), 0));
    }
    return tensors;
  }

  /** The keys of all groups of the blocks. */
  private static BlockKeys keys(EngineCache cache, UMBPNamespace namespace, RankTopology rank) {
    int count = BLOCKS * cache.groupCount();
    List<BlockHash> hashes =
        IntStream.range(0, count)
            .mapToObj(i -> BlockHash.fromHex(String.format("%08x", i / cache.groupCount())))
            .toList();
    int[] groups = IntStream.range(0, count).map(i -> i % cache.groupCount()).toArray();
    return BlockKeys.of(namespace, rank.localNamespace(), groups, BlockHashes.of(hashes));
  }

  private static void add(
      TextTable table, String name, String job, CudaCopyStats before, CudaCopyStats after) {
    long bytes =
        after.copyBytes()
            + after.stridedBytes()
            + after.kernelBytes()
            - before.copyBytes()
            - before.stridedBytes()
            - before.kernelBytes();
    table.add(
        name,
        job,
        String.format(Locale.ROOT, "%,d", after.ranges() - before.ranges()),
        String.format(Locale.ROOT, "%,d", after.copyCalls() - before.copyCalls()),
        String.format(Locale.ROOT, "%,d", after.stridedCalls() - before.stridedCalls()),
        String.format(Locale.ROOT, "%,d", after.kernelLaunches() - before.kernelLaunches()),
        String.format(Locale.ROOT, "%,d", bytes >> 20));
  }
}
