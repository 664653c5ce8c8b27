package io.umbp.core.connector;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHashes;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.pool.PoolStats;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/**
 * Connectors of all ranks of an engine over one embedded runtime and a stepped GPU for each rank.
 * Each group has one layer, named after it. All bytes of a stored block are the same.
 */
final class ConnectorRig implements AutoCloseable {
  static final int BLOCK_BYTES = 64;
  static final int BLOCKS = 256;

  final FakeGpu gpu;
  final FakeGpuCopyEngine copies;
  final EmbeddedRuntime runtime;
  final UMBPSchedulerHandle store;
  final SchedulerConnector scheduler;
  final List<UMBPWorkerHandle> handles = new ArrayList<>();
  final List<WorkerConnector> workers = new ArrayList<>();
  private final List<Map<String, KVCacheTensor>> tensors = new ArrayList<>();

  /** What one engine step brought. */
  record Step(
      UMBPConnectorMetadata metadata,
      Map<String, Integer> validTokens,
      Map<Long, StoreEventResult> endedEvents) {}

  /** A rig with a pool for that many blocks of one group on all ranks. */
  ConnectorRig(int ranks, int poolBlocks, int hashUnit, int... blockSizes) {
    gpu = FakeGpu.stepped(ranks);
    copies = gpu.copyEngine();
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes((long) poolBlocks * ranks * BLOCK_BYTES)
            .copyEngine(copies)
            .build();
    UMBPNamespace namespace = new UMBPNamespace("m");
    for (int rank = 0; rank < ranks; rank++) {
      RankTopology topology = RankTopology.tensorParallel(rank, ranks);
      KVLayoutDescriptor layout = layout(topology, blockSizes);
      UMBPWorkerHandle handle = runtime.createWorkerHandle(namespace, topology, layout);
      tensors.add(tensors(layout));
      handle.registerBuffers(tensors.get(rank));
      handles.add(handle);
      workers.add(new WorkerConnector(handle, topology));
    }
    RankTopology topology = RankTopology.tensorParallel(0, ranks);
    KVLayoutDescriptor layout = layout(topology, blockSizes);
    store = runtime.createSchedulerHandle(namespace, topology, layout);
    scheduler =
        new SchedulerConnector(
            store, new BlockIdentityCodec(namespace, topology), layout, hashUnit);
  }

  static KVLayoutDescriptor layout(RankTopology topology, int... blockSizes) {
    List<KVRegion> regions = new ArrayList<>();
    for (int group = 0; group < blockSizes.length; group++) {
      regions.add(
          new KVRegion("group" + group, group, BLOCK_BYTES, BLOCK_BYTES, 0, blockSizes[group]));
    }
    return new KVLayoutDescriptor(regions, topology);
  }

  private Map<String, KVCacheTensor> tensors(KVLayoutDescriptor layout) {
    Map<String, KVCacheTensor> byLayer = new HashMap<>();
    int device = layout.topology().tpRank();
    long bytes = (long) BLOCKS * BLOCK_BYTES;
    for (KVRegion region : layout.regions()) {
      long address = gpu.malloc(device, bytes);
      byLayer.put(
          region.layerName(),
          KVCacheTensor.device(address, bytes, device).blocks(BLOCKS, BLOCK_BYTES).build());
    }
    return byLayer;
  }

  /** Hashes of one chain of blocks: the same chain gives the same hashes, whatever the count. */
  static BlockHashes hashes(int chain, int count) {
    byte[] bytes = new byte[count * 4];
    for (int i = 0; i < count; i++) {
      bytes[i * 4] = (byte) chain;
      bytes[i * 4 + 1] = (byte) (i >> 8);
      bytes[i * 4 + 2] = (byte) i;
    }
    return BlockHashes.of(4, bytes);
  }

  /** The block ids from, from + 1, ... */
  static int[] blocks(int from, int count) {
    return IntStream.range(from, from + count).toArray();
  }

  long address(int rank, int group, int block) {
    return tensors.get(rank).get("group" + group).address() + (long) block * BLOCK_BYTES;
  }

  /** Sets all bytes of a block on a rank. */
  void fill(int rank, int group, int block, int value) {
    gpu.fill(address(rank, group, block), BLOCK_BYTES, (byte) value);
  }

  /** Tells whether all bytes of a block on a rank have a value. */
  boolean holds(int rank, int group, int block, int value) {
    byte[] expected = new byte[BLOCK_BYTES];
    Arrays.fill(expected, (byte) value);
    return gpu.mismatch(address(rank, group, block), expected, 0, BLOCK_BYTES) < 0;
  }

  /** Admits a request of one group without a load, and stores its prompt in one step. */
  Step store(String request, int tokens, BlockHashes hashes, int... blockIds) {
    scheduler.lookup(request, tokens, hashes, 0);
    scheduler.admit(request, 0, blockIds);
    scheduler.planStores(request, tokens);
    return step();
  }

  /** Tokens of a prompt that the store has, as a request of its own would see it. */
  int hit(int tokens, BlockHashes hashes) {
    int external = scheduler.lookup("probe", tokens, hashes, 0).tokensToLoad();
    scheduler.finish("probe");
    return external;
  }

  /** One engine step, until all its copies have ended. */
  Step step() {
    UMBPConnectorMetadata metadata = start();
    gpu.runAll();
    return collect(metadata);
  }

  UMBPConnectorMetadata start() {
    UMBPConnectorMetadata metadata = scheduler.takeStep();
    for (WorkerConnector worker : workers) {
      worker.startLoads(metadata, DeviceFence.hostComplete());
      worker.startStores(metadata, DeviceFence.hostComplete());
    }
    return metadata;
  }

  Step collect(UMBPConnectorMetadata metadata) {
    Map<String, Integer> validTokens = new HashMap<>();
    UMBPConnectorWorkerMetadata sum = new UMBPConnectorWorkerMetadata(Map.of());
    for (WorkerConnector worker : workers) {
      WorkerConnector.Report report = worker.poll();
      for (LoadResult load : report.loads()) {
        scheduler.loadFinished(load).ifPresent(valid -> validTokens.put(load.requestId(), valid));
      }
      sum = sum.plus(report.metadata());
    }
    return new Step(metadata, validTokens, scheduler.update(sum));
  }

  /** Checks that nothing is held any more, and ends everything. */
  @Override
  public void close() {
    gpu.runAll();
    collect(scheduler.takeStep());
    PoolStats stats = runtime.stats();
    assertEquals(0, stats.leases(), "leases");
    assertEquals(0, stats.unpublishedObjects(), "unpublished objects");
    assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    for (WorkerConnector worker : workers) {
      assertEquals(0, worker.runningCount(), "running loads and events");
    }
    assertEquals(0, scheduler.storeEventCount(), "store events");
    runtime.close(Duration.ZERO);
    gpu.close();
  }
}
