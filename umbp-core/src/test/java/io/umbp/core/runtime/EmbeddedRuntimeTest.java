package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.pool.PoolStats;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** What is particular to the embedded runtime; the rules are checked by the contract suite. */
class EmbeddedRuntimeTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final RankNamespace RANK = TOPOLOGY.localNamespace();
  private static final int BLOCKS = 32;
  private static final Duration LONG = Duration.ofSeconds(20);

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final FakeGpuCopyEngine engine = gpu.copyEngine();
  private final ManualClock clock = new ManualClock();
  private final List<EmbeddedRuntime> runtimes = new ArrayList<>();

  @AfterEach
  void nothingIsLeft() {
    engine.releaseCopies();
    for (EmbeddedRuntime runtime : runtimes) {
      runtime.close(LONG);
      PoolStats stats = runtime.stats();
      assertEquals(0, stats.leases());
      assertEquals(0, stats.unpublishedObjects());
      assertEquals(0, stats.doubleReleases());
      assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    }
    gpu.close();
  }

  private EmbeddedRuntime runtime(EmbeddedRuntime.Builder builder) {
    EmbeddedRuntime runtime = builder.copyEngine(() -> engine).nanoTime(clock).build();
    runtimes.add(runtime);
    return runtime;
  }

  private static KVLayoutDescriptor layout(long blockBytes) {
    return new KVLayoutDescriptor(
        List.of(
            new KVRegion("layer0", 0, blockBytes, blockBytes, 0, 16),
            new KVRegion("layer1", 0, blockBytes, blockBytes, blockBytes, 16)),
        TOPOLOGY);
  }

  /** A worker with two layers of its own GPU memory. */
  private final class Rig {
    final long blockBytes;
    final long[] base = new long[2];
    final UMBPWorkerHandle worker;
    final UMBPSchedulerHandle scheduler;

    Rig(EmbeddedRuntime runtime, long blockBytes) {
      this.blockBytes = blockBytes;
      worker = runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, layout(blockBytes));
      scheduler = runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, layout(blockBytes));
      worker.registerBuffers(tensors());
    }

    Map<String, KVCacheTensor> tensors() {
      for (int layer = 0; layer < 2; layer++) {
        base[layer] = gpu.malloc(0, BLOCKS * blockBytes);
      }
      return Map.of("layer0", tensor(base[0]), "layer1", tensor(base[1]));
    }

    private KVCacheTensor tensor(long address) {
      return KVCacheTensor.device(address, BLOCKS * blockBytes, 0)
          .blocks(BLOCKS, blockBytes)
          .build();
    }

    void write(int block, int seed) {
      for (int layer = 0; layer < 2; layer++) {
        gpu.write(base[layer] + block * blockBytes, pattern(layer, seed));
      }
    }

    byte[] pattern(int layer, int seed) {
      byte[] bytes = new byte[(int) blockBytes];
      for (int offset = 0; offset < bytes.length; offset++) {
        bytes[offset] = (byte) ((67 * layer + 29 * seed + 3 * offset + 11) % 251);
      }
      return bytes;
    }

    void assertHas(int block, int seed) {
      for (int layer = 0; layer < 2; layer++) {
        assertArrayEquals(
            pattern(layer, seed), gpu.read(base[layer] + block * blockBytes, (int) blockBytes));
      }
    }

    TransferJobState store(int... hashesAndBlocks) {
      return worker.store(
          BlockStoreBatch.of("r", keys(hashesAndBlocks), hashesAndBlocks),
          DeviceFence.hostComplete());
    }

    TransferJobState load(int[] hashes, int... blocks) {
      return worker.load(BlockLoadBatch.of("r", keys(hashes), blocks), DeviceFence.hostComplete());
    }

    int storeAndPublish(int... hashesAndBlocks) {
      for (int block : hashesAndBlocks) {
        write(block, block);
      }
      return worker.publish(worker.await(store(hashesAndBlocks), LONG));
    }

    boolean[] lookup(int... hashes) {
      return scheduler.lookup(keys(hashes));
    }
  }

  private static BlockHash hash(int number) {
    byte[] bytes = new byte[32];
    bytes[0] = (byte) number;
    bytes[31] = (byte) 0xAB;
    return BlockHash.of(bytes);
  }

  private static BlockKeys keys(int... numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(hash(number));
    }
    return BlockKeys.of(NAMESPACE, RANK, 0, BlockHashes.of(hashes));
  }

  private static int[] ints(int... values) {
    return values;
  }

  @Test
  void storedBlocksComeBackInOtherBlocks() {
    Rig rig = new Rig(runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20)), 1000);
    assertEquals(3, rig.storeAndPublish(1, 2, 3));
    assertArrayEquals(new boolean[] {true, true, true, false}, rig.lookup(1, 2, 3, 4));
    assertArrayEquals(
        new boolean[] {true, false},
        rig.scheduler.lookup(List.of(keys(2).get(0), "umbp:v0:older-format")));

    TransferJobState load = rig.worker.await(rig.load(ints(3, 1, 9), 10, 11, 12), LONG);
    assertEquals(KeyOutcome.COMPLETED, load.outcome(0));
    assertEquals(KeyOutcome.COMPLETED, load.outcome(1));
    assertEquals(KeyOutcome.MISS, load.outcome(2));
    assertArrayEquals(ints(12), load.failedBlockIds());
    assertEquals(4000, load.completedBytes());
    rig.assertHas(10, 3);
    rig.assertHas(11, 1);
    assertTrue(rig.worker.isLayerLoaded(load, "layer1"));
  }

  @Test
  void case4AnObjectOfAnotherSizeIsRefusedAndNothingIsWritten() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig wide = new Rig(runtime, 65_536);
    Rig narrow = new Rig(runtime, 32_768);
    wide.storeAndPublish(1);
    narrow.write(5, 77);

    TransferJobState load = narrow.worker.await(narrow.load(ints(1), 5), LONG);
    assertEquals(KeyOutcome.FAILED, load.outcome(0));
    assertEquals(KeyReason.SIZE_MISMATCH, load.reason(0));
    assertEquals(
        "the stored object has 131072 bytes, an object of group 0 in this layout has 65536",
        load.detail(0));
    narrow.assertHas(5, 77);

    TransferJobState store = narrow.worker.await(narrow.store(1), LONG);
    assertEquals(KeyReason.SIZE_MISMATCH, store.reason(0));
    assertEquals(0, narrow.worker.publish(store));
    wide.worker.await(wide.load(ints(1), 6), LONG);
    wide.assertHas(6, 1);
  }

  @Test
  void case4AnotherByteFormatOrRevisionIsAnotherNamespace() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig rig = new Rig(runtime, 65_536);
    rig.storeAndPublish(1);
    for (String other : List.of("m-fp8", "m-r2")) {
      UMBPNamespace namespace = new UMBPNamespace(other);
      UMBPSchedulerHandle scheduler =
          runtime.createSchedulerHandle(namespace, TOPOLOGY, layout(32_768));
      BlockKeys sameHash = BlockKeys.of(namespace, RANK, 0, BlockHashes.of(List.of(hash(1))));
      assertArrayEquals(new boolean[] {false}, scheduler.lookup(sameHash));
      assertArrayEquals(new boolean[] {false}, scheduler.lookup(keys(1)));
    }
    assertArrayEquals(new boolean[] {true}, rig.lookup(1));
  }

  @Test
  void case5EachPipelineStageHasItsOwnObjects() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    List<RankTopology> stages = new ArrayList<>();
    List<UMBPWorkerHandle> workers = new ArrayList<>();
    long[] bases = new long[2];
    for (int stage = 0; stage < 2; stage++) {
      RankTopology topology = RankTopology.ofGlobalRank(stage, 1, 1, 1, 2);
      UMBPWorkerHandle worker =
          runtime.createWorkerHandle(
              NAMESPACE,
              topology,
              new KVLayoutDescriptor(
                  List.of(new KVRegion("layer" + stage, 0, 100, 100, 0, 16)), topology));
      bases[stage] = gpu.malloc(0, 400);
      gpu.fill(bases[stage], 100, (byte) (stage + 1));
      worker.registerBuffers(
          Map.of(
              "layer" + stage, KVCacheTensor.device(bases[stage], 400, 0).blocks(4, 100).build()));
      stages.add(topology);
      workers.add(worker);
    }
    UMBPSchedulerHandle scheduler =
        runtime.createSchedulerHandle(
            NAMESPACE,
            stages.get(0),
            new KVLayoutDescriptor(
                List.of(new KVRegion("layer0", 0, 100, 100, 0, 16)), stages.get(0)));
    BlockKeys allStages = keys(1).onRanks(stages.get(0).allNamespaces());
    for (int stage = 0; stage < 2; stage++) {
      BlockKeys own = keys(1).onRanks(List.of(stages.get(stage).localNamespace()));
      TransferJobState stored =
          workers
              .get(stage)
              .await(
                  workers
                      .get(stage)
                      .store(BlockStoreBatch.of("r", own, 0), DeviceFence.hostComplete()),
                  LONG);
      assertEquals(1, workers.get(stage).publish(stored), "a stage is not skipped");
      assertArrayEquals(new boolean[] {true, stage == 1}, scheduler.lookup(allStages));
    }
    assertEquals(2, runtime.stats().publishedObjects());
    for (int stage = 0; stage < 2; stage++) {
      BlockKeys own = keys(1).onRanks(List.of(stages.get(stage).localNamespace()));
      UMBPWorkerHandle worker = workers.get(stage);
      worker.await(worker.load(BlockLoadBatch.of("r", own, 3), DeviceFence.hostComplete()), LONG);
      byte[] expected = new byte[100];
      Arrays.fill(expected, (byte) (stage + 1));
      assertArrayEquals(expected, gpu.read(bases[stage] + 300, 100));
    }
  }

  @Test
  void case32WithoutMemoryTheRestOfABatchIsRefusedKeyByKey() {
    EmbeddedRuntime runtime =
        runtime(EmbeddedRuntime.builder().capacityBytes(10 * 2048).slabBytes(2048));
    engine.limitSlabBytes(3 * 2048);
    Rig rig = new Rig(runtime, 1024);
    TransferJobState store = rig.worker.await(rig.store(1, 2, 3, 4, 5), LONG);
    assertEquals(3, store.count(KeyOutcome.COMPLETED));
    assertEquals(2, store.count(KeyOutcome.REJECTED));
    assertEquals(KeyReason.POOL_BUSY, store.reason(4));
    assertEquals(3, rig.worker.publish(store));
    assertEquals(3 * 2048, runtime.stats().usedBytes());
    assertEquals(3, rig.storeAndPublish(6, 7, 8));
  }

  @Test
  void explicitRangesAreAcceptedOnlyWhenTheyAreTheLayoutsOwn() {
    Rig rig = new Rig(runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20)), 1000);
    BlockKey key = keys(1).key(0);
    BlockTransferPlan whole = new BlockTransferPlan(key, 3, "r");
    TransferJobState store = rig.worker.store(List.of(whole), DeviceFence.hostComplete());
    assertTrue(rig.worker.await(store, LONG).isFinal());

    BlockTransferPlan clipped =
        new BlockTransferPlan(
            key,
            3,
            List.of(new io.umbp.api.KVRange("layer0", 0, 3, rig.base[0] + 3000, 1000, 500, 0)),
            "r");
    UMBPException refused =
        assertThrows(
            UMBPException.class,
            () -> rig.worker.load(List.of(clipped), DeviceFence.hostComplete()));
    assertTrue(refused.getMessage().contains("block 3"), refused.getMessage());
  }

  @Test
  void buffersCanBeTakenBackAndRegisteredAgainElsewhere() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig rig = new Rig(runtime, 1000);
    rig.storeAndPublish(1);
    engine.holdCopies();
    TransferJobState held = rig.load(ints(1), 4);
    assertFalse(rig.worker.unregisterBuffers(Duration.ofMillis(1)));
    UMBPException refused = assertThrows(UMBPException.class, () -> rig.store(2));
    assertEquals(UMBPException.Reason.NOT_REGISTERED, refused.reason());
    engine.releaseCopies();
    assertTrue(rig.worker.unregisterBuffers(LONG));
    assertEquals(KeyOutcome.COMPLETED, rig.worker.poll(held).outcome(0));
    gpu.free(rig.base[0]);
    gpu.free(rig.base[1]);

    rig.worker.registerBuffers(rig.tensors());
    rig.worker.await(rig.load(ints(1), 7), LONG);
    rig.assertHas(7, 1);
    assertEquals(0, gpu.useAfterFreeCount());
  }

  @Test
  void aClosedWorkersHeldCopyKeepsItsBuffersAndTheRuntimeGoesOn() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig first = new Rig(runtime, 1000);
    Rig second = new Rig(runtime, 1000);
    first.storeAndPublish(1);
    engine.holdNext(1);
    TransferJobState held = first.load(ints(1), 4);
    assertEquals(new CloseResult(1, 2000), first.worker.close(Duration.ofMillis(1)));
    assertEquals(new CloseResult(1, 2000), first.worker.close(LONG));
    assertEquals(
        UMBPException.Reason.CLOSED,
        assertThrows(UMBPException.class, () -> first.load(ints(1), 5)).reason());
    second.worker.await(second.load(ints(1), 9), LONG);
    second.assertHas(9, 1);
    engine.releaseCopies();
    TransferJobState ended = first.worker.await(held, LONG);
    assertTrue(ended.isFinal());
    assertEquals(0, runtime.stats().leases());
  }

  @Test
  void evictionsAreToldToEveryScheduler() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(4000));
    Rig rig = new Rig(runtime, 1000);
    rig.storeAndPublish(1);
    rig.storeAndPublish(2);
    rig.storeAndPublish(3);
    assertEquals(List.of(keys(1).key(0)), rig.scheduler.takeEvictedKeys());
    assertEquals(List.of(), rig.scheduler.takeEvictedKeys());
  }

  @Test
  void anExecutorFollowsCopiesThatNobodyPolls() throws Exception {
    ExecutorService executor = Executors.newSingleThreadExecutor();
    try {
      EmbeddedRuntime runtime =
          runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20).executor(executor));
      Rig rig = new Rig(runtime, 1000);
      rig.storeAndPublish(1);
      engine.holdCopies();
      rig.load(ints(1), 4);
      engine.releaseCopies();
      // The follower gives the pin back on its own; the tasks queued behind it see that in the end.
      long pins = 1;
      for (int i = 0; i < 100_000 && pins > 0; i++) {
        pins =
            executor
                .submit(
                    () -> {
                      runtime.lock.lock();
                      try {
                        return runtime.pool.stats().leases();
                      } finally {
                        runtime.lock.unlock();
                      }
                    })
                .get();
      }
      assertEquals(0, pins);
    } finally {
      executor.shutdown();
    }
  }

  @Test
  void anExecutorThatRunsInTheCallerDoesNotRecurse() {
    AtomicInteger rounds = new AtomicInteger();
    EmbeddedRuntime runtime =
        runtime(
            EmbeddedRuntime.builder()
                .capacityBytes(1 << 20)
                .executor(
                    task -> {
                      rounds.incrementAndGet();
                      task.run();
                    }));
    Rig rig = new Rig(runtime, 1000);
    engine.holdCopies();
    TransferJobState held = rig.store(1);
    assertFalse(held.isFinal());
    assertTrue(rounds.get() <= 2, rounds + " rounds inside one call");
    engine.releaseCopies();
    assertEquals(1, rig.worker.publish(rig.worker.await(held, LONG)));
  }

  @Test
  void jobsThatAreOverAndReadAreForgotten() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(4000));
    Rig rig = new Rig(runtime, 1000);
    TransferJobState first = rig.worker.await(rig.store(0), LONG);
    for (int round = 0; round < 700; round++) {
      int hash = round % 5;
      rig.storeAndPublish(hash);
      rig.worker.await(rig.load(ints(hash, 9), 10, 11), LONG);
    }
    assertTrue(runtime.jobs.size() <= 1025, runtime.jobs.size() + " jobs are known");

    // Never published: dropped at its deadline, though nobody asks for it again.
    clock.advance(Duration.ofSeconds(31));
    assertEquals(0, runtime.stats().unpublishedObjects());
    assertEquals(first, rig.worker.poll(first));
    assertEquals(0, rig.worker.publish(first));
  }

  @Test
  void aForgottenPublishShowsInTheMissAndInTheCounts() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig rig = new Rig(runtime, 1000);
    TransferJobState stored = rig.worker.await(rig.store(1), LONG);
    assertEquals(KeyOutcome.COMPLETED, stored.outcome(0));
    TransferJobState load = rig.load(ints(1, 2), 4, 5);
    assertEquals(KeyOutcome.MISS, load.outcome(0));
    assertEquals("the object is being stored, or stored and not published", load.detail(0));
    assertEquals("", load.detail(1));
    assertEquals(1, runtime.stats().unpublishedObjects());
    clock.advance(Duration.ofSeconds(30));
    assertEquals(0, rig.worker.publish(stored));
    TransferJobState dropped = rig.worker.poll(stored);
    assertEquals(KeyOutcome.COMPLETED, dropped.outcome(0));
    assertEquals(KeyReason.NOT_PUBLISHED, dropped.reason(0));
    assertEquals(1, runtime.stats().droppedObjects());
    assertEquals(0, runtime.stats().usedBytes());
  }

  @Test
  void wrongInputIsRefusedWithValueAndLimit() {
    EmbeddedRuntime runtime = runtime(EmbeddedRuntime.builder().capacityBytes(1 << 20));
    Rig rig = new Rig(runtime, 1000);
    assertRefused("block 32 is outside [0, 32) of group 0", () -> rig.store(32));
    assertRefused(
        "block 4 of group 0 is the destination of two keys", () -> rig.load(ints(1, 2), 4, 4));
    assertRefused(
        "keys of namespace 'other' were given to a handle of 'm'",
        () ->
            rig.worker.load(
                BlockLoadBatch.of(
                    "r",
                    BlockKeys.of(
                        new UMBPNamespace("other"), RANK, 0, BlockHashes.of(List.of(hash(1)))),
                    1),
                DeviceFence.hostComplete()));
    assertRefused(
        "were given to the handle of",
        () ->
            rig.worker.load(
                BlockLoadBatch.of("r", keys(1).onRanks(List.of(new RankNamespace(1, 0, 0, 0))), 1),
                DeviceFence.hostComplete()));
    UMBPException noFence =
        assertThrows(
            UMBPException.class,
            () -> rig.worker.store(BlockStoreBatch.of("r", keys(1), 1), DeviceFence.none()));
    assertEquals(UMBPException.Reason.FENCE_REQUIRED, noFence.reason());
    assertRefused(
        "more than the pool's capacity",
        () ->
            runtime(EmbeddedRuntime.builder().capacityBytes(1999).slabBytes(4096))
                .createWorkerHandle(NAMESPACE, TOPOLOGY, layout(1000)));
    assertRefused("capacity of -1 bytes", () -> EmbeddedRuntime.builder().capacityBytes(-1));
    assertRefused(
        "slab of 1073741825 bytes", () -> EmbeddedRuntime.builder().slabBytes((1L << 30) + 1));
    assertEquals(0, runtime.stats().usedBytes());
  }

  @Test
  void hostMemoryDoesNotWaitForAStream() {
    KVLayoutDescriptor layout = layout(1000);
    EmbeddedRuntime host = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();
    UMBPWorkerHandle worker = host.createWorkerHandle(NAMESPACE, TOPOLOGY, layout);
    worker.registerBuffers(HostKVPages.create(layout, 4).tensors());
    UMBPException refused =
        assertThrows(
            UMBPException.class,
            () -> worker.store(BlockStoreBatch.of("r", keys(1), 1), DeviceFence.onStream(0, 7)));
    assertEquals(UMBPException.Reason.UNSUPPORTED, refused.reason());
    host.close(LONG);
  }

  private static void assertRefused(
      String message, org.junit.jupiter.api.function.Executable call) {
    UMBPException refused = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refused.reason());
    assertTrue(refused.getMessage().contains(message), refused.getMessage());
  }
}
