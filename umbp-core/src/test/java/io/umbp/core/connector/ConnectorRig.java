package io.umbp.core.connector;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHashes;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
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
import java.util.Set;
import java.util.stream.IntStream;

/**
 * Connectors of all ranks of an engine over embedded runtimes and a stepped GPU for each rank. Each
 * group has one layer on each rank. All bytes of a stored block are the same.
 */
final class ConnectorRig implements AutoCloseable {
  static final int BLOCK_BYTES = 64;
  static final int BLOCKS = 256;
  static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");

  final FakeGpu gpu;
  final FakeGpuCopyEngine copies;
  final EmbeddedRuntime runtime;

  /** The runtime of each rank, one and the same unless each rank reaches only its own. */
  final List<EmbeddedRuntime> runtimes = new ArrayList<>();

  final UMBPSchedulerHandle store;
  final SchedulerConnector scheduler;
  final List<UMBPWorkerHandle> handles = new ArrayList<>();
  final List<WorkerConnector> workers = new ArrayList<>();
  private final List<KVLayoutDescriptor> layouts = new ArrayList<>();
  private final List<Map<String, KVCacheTensor>> tensors = new ArrayList<>();

  /** What one engine step brought. */
  record Step(
      UMBPConnectorMetadata metadata,
      Map<String, Integer> validTokens,
      Map<Long, StoreEventResult> endedEvents) {}

  /** How the ranks of an engine are laid out, and what they share. */
  record Shape(int tp, int pp, Set<Integer> replicatedGroups, ObjectReach reach) {
    static Shape of(int tp, int pp, Integer... replicatedGroups) {
      return new Shape(tp, pp, Set.of(replicatedGroups), ObjectReach.EVERY_RANK);
    }

    Shape withPrivatePools() {
      return new Shape(tp, pp, replicatedGroups, ObjectReach.OWN_RANK);
    }
  }

  /** A tensor-parallel rig with a pool for that many blocks of one group on all ranks. */
  ConnectorRig(int ranks, int poolBlocks, int hashUnit, int... blockSizes) {
    this(Shape.of(ranks, 1), poolBlocks * ranks, hashUnit, blockSizes);
  }

  /** A rig whose pools have room for so many objects each. */
  ConnectorRig(Shape shape, int poolObjects, int hashUnit, int... blockSizes) {
    this(ConnectorSettings.defaults(), shape, poolObjects, hashUnit, blockSizes);
  }

  /** A rig whose scheduler has these settings. */
  ConnectorRig(
      ConnectorSettings settings, Shape shape, int poolObjects, int hashUnit, int... blockSizes) {
    int ranks = shape.tp * shape.pp;
    gpu = FakeGpu.stepped(ranks);
    copies = gpu.copyEngine();
    runtime = runtime(copies, shape.reach, poolObjects);
    for (int rank = 0; rank < ranks; rank++) {
      boolean isShared = rank == 0 || shape.reach == ObjectReach.EVERY_RANK;
      runtimes.add(isShared ? runtime : runtime(gpu.copyEngine(), shape.reach, poolObjects));
      KVLayoutDescriptor layout =
          layout(
              RankTopology.ofGlobalRank(rank, shape.tp, 1, 1, shape.pp),
              shape.replicatedGroups,
              blockSizes);
      UMBPWorkerHandle handle =
          runtimes.get(rank).createWorkerHandle(NAMESPACE, layout.topology(), layout);
      layouts.add(layout);
      tensors.add(tensors(rank, layout));
      handle.registerBuffers(tensors.get(rank));
      handles.add(handle);
      workers.add(new WorkerConnector(handle, new UMBPHandshakeMetadata(NAMESPACE, "", layout)));
    }
    scheduler = new SchedulerConnector(runtime, layouts.get(0).topology(), hashUnit, settings);
    scheduler.adopt(handshakes());
    store = runtime.createSchedulerHandle(NAMESPACE, layouts.get(0).topology(), layouts.get(0));
  }

  private static EmbeddedRuntime runtime(
      FakeGpuCopyEngine copies, ObjectReach reach, int poolObjects) {
    return EmbeddedRuntime.builder()
        .capacityBytes((long) poolObjects * BLOCK_BYTES)
        .copyEngine(() -> copies)
        .reach(reach)
        .build();
  }

  List<UMBPHandshakeMetadata> handshakes() {
    return workers.stream().map(WorkerConnector::handshake).toList();
  }

  static KVLayoutDescriptor layout(
      RankTopology topology, Set<Integer> replicatedGroups, int... blockSizes) {
    List<KVRegion> regions = new ArrayList<>();
    for (int group = 0; group < blockSizes.length; group++) {
      String layer = "stage" + topology.ppRank() + ".group" + group;
      regions.add(new KVRegion(layer, group, BLOCK_BYTES, BLOCK_BYTES, 0, blockSizes[group]));
    }
    return new KVLayoutDescriptor(
        regions, topology, replicatedGroups, KVLayoutDescriptor.RANK_LOCAL);
  }

  private Map<String, KVCacheTensor> tensors(int device, KVLayoutDescriptor layout) {
    Map<String, KVCacheTensor> byLayer = new HashMap<>();
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
    String layer = layouts.get(rank).regions().get(group).layerName();
    return tensors.get(rank).get(layer).address() + (long) block * BLOCK_BYTES;
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
    scheduler.lookup(RequestView.of(request, tokens, hashes), 0);
    scheduler.admit(request, 0, blockIds);
    scheduler.planStores(request, tokens);
    return step();
  }

  /** Tokens of a prompt that the store has, as a request of its own would see it. */
  int hit(int tokens, BlockHashes hashes) {
    int external =
        scheduler.lookup(RequestView.of("probe", tokens, hashes), 0).orElseThrow().tokensToLoad();
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
    UMBPConnectorWorkerMetadata sum = UMBPConnectorWorkerMetadata.NOTHING;
    for (WorkerConnector worker : workers) {
      sum = sum.plus(worker.poll());
    }
    ConnectorUpdate update = scheduler.update(sum);
    Map<String, Integer> validTokens = new HashMap<>();
    update.loads().forEach((request, prefix) -> validTokens.put(request, prefix.validTokens()));
    return new Step(metadata, validTokens, update.storeEvents());
  }

  /** Checks that nothing is held any more, and ends everything. */
  @Override
  public void close() {
    gpu.runAll();
    collect(scheduler.takeStep());
    for (EmbeddedRuntime each : runtimes) {
      PoolStats stats = each.stats();
      assertEquals(0, stats.leases(), "leases");
      assertEquals(0, stats.unpublishedObjects(), "unpublished objects");
      assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    }
    for (WorkerConnector worker : workers) {
      assertEquals(0, worker.runningCount(), "running loads and events");
    }
    assertEquals(0, scheduler.storeEventCount(), "store events");
    scheduler.close();
    runtimes.forEach(each -> each.close(Duration.ZERO));
    gpu.close();
  }
}
