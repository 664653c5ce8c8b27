package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockLoadBatch;
import io.umbp.api.ClearResult;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.ElementType;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankNamespace;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.pool.PoolStats;
import io.umbp.core.runtime.TPEngine.Rank;
import io.umbp.core.runtime.TPEngine.Tensor;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Loads out of the objects of two ranks, and what can go wrong with one of them. */
class ShardedLoadTest {
  private static final Duration LONG = TPEngine.LONG;
  private static final Duration TIMEOUT = Duration.ofSeconds(30);

  /** Bytes of an object of one of the two producers: 2 layers, 4 heads, 4 tokens, K and V. */
  private static final int HALF = 2 * 4 * 4 * 8;

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final FakeGpuCopyEngine copies = gpu.copyEngine();
  private final ManualClock clock = new ManualClock();
  private EmbeddedRuntime runtime = runtime(1 << 20);
  private TPEngine producer = engine("stored", 2, full(2));
  private Rank consumer = engine("loading", 1, full(2)).ranks.get(0);

  private EmbeddedRuntime runtime(long capacityBytes) {
    return EmbeddedRuntime.builder()
        .capacityBytes(capacityBytes)
        .slabBytes(Math.min(capacityBytes, 64 << 10))
        .transferTimeout(TIMEOUT)
        .copyEngine(() -> copies)
        .nanoTime(clock)
        .build();
  }

  private TPEngine engine(String namespace, int tpSize, List<Tensor> tensors) {
    return new TPEngine(gpu, runtime, namespace, tpSize, tensors);
  }

  private static Tensor tensor(String name, int groupId, int elements) {
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "full", 4, ElementType.F16, 8, elements, elements, TPSharding.SHARDED, 0);
    return new Tensor(name, groupId, spec, 2, KVCacheLayout.LBNHC, KVSplit.BLOCKS, 1);
  }

  /** One group of two layers; keys and values of some elements. */
  private static List<Tensor> full(int elements) {
    return List.of(tensor("full", 0, elements));
  }

  @AfterEach
  void nothingIsLeft() {
    copies.releaseCopies();
    runtime.close(LONG);
    PoolStats stats = runtime.stats();
    assertEquals(0, stats.leases());
    assertEquals(0, stats.unpublishedObjects());
    assertEquals(0, stats.doubleReleases());
    assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    assertEquals(0, runtime.runningJobs());
    gpu.close();
    assertEquals(0, gpu.useAfterFreeCount());
  }

  private static int[] ints(int... values) {
    return values;
  }

  private void expect(int... hashesAndBlocks) {
    for (int i = 0; i < hashesAndBlocks.length; i += 2) {
      consumer.expect(0, hashesAndBlocks[i], hashesAndBlocks[i + 1]);
    }
    consumer.assertMemory("after the load");
  }

  @Test
  void bothObjectsOfEachKeyArePinnedUntilTheCopyEnds() {
    producer.storeAll(0, ints(1, 2), 4, 5);
    copies.holdNext(1);
    TransferJobState load =
        consumer.startLoad(consumer.source(producer), 0, ints(1, 2, 1), 7, 8, 9);
    assertEquals(TransferJobState.Status.RUNNING, load.status());
    assertEquals(6, runtime.stats().leases());
    copies.releaseCopies();
    load = consumer.worker.await(load, LONG);
    assertEquals(TransferJobState.Status.COMPLETED, load.status());
    assertEquals(3 * 2 * HALF, load.completedBytes());
    assertEquals(0, runtime.stats().leases());
    expect(1, 7, 2, 8, 1, 9);
  }

  @Test
  void anObjectThatIsNotPublishedMakesItsBlockAMiss() {
    producer.storeAll(0, ints(1, 3), 4, 5);
    producer.ranks.get(0).store(0, ints(2), 6);
    copies.holdNext(1);
    TransferJobState storing = producer.ranks.get(1).startStore(0, ints(2), 6);
    copies.holdNext(1);
    ShardedSource source = consumer.source(producer);
    TransferJobState load = consumer.startLoad(source, 0, ints(1, 2, 3), 7, 8, 9);
    assertFalse(producer.isPresent(0, 2));
    // Two pins for each whole block, one for the store; none for the other half of the miss.
    assertEquals(5, runtime.stats().leases());
    assertEquals(KeyOutcome.MISS, load.outcome(1));
    copies.releaseCopies();
    load = consumer.worker.await(load, LONG);
    assertEquals(
        "the object of tp1:pcp0:dcp0:pp0 in namespace 'stored' is being stored, or stored and not"
            + " published",
        load.detail(1));
    assertEquals(KeyOutcome.COMPLETED, load.outcome(0));
    assertEquals(KeyOutcome.COMPLETED, load.outcome(2));
    expect(1, 7, 3, 9);

    Rank second = producer.ranks.get(1);
    assertEquals(1, second.worker.publish(second.worker.await(storing, LONG)));
    assertTrue(producer.isPresent(0, 2));
    assertEquals(1, consumer.load(source, 0, ints(2), 8).count(KeyOutcome.COMPLETED));
    expect(2, 8);
  }

  @Test
  void anObjectOfAnotherSizeFailsItsBlock() {
    producer.storeAll(0, ints(1, 3), 4, 5);
    producer.ranks.get(0).store(0, ints(2), 6);
    // An engine with longer keys and values was given the same namespace.
    engine("stored", 2, full(3)).ranks.get(1).store(0, ints(2), 6);
    TransferJobState load = consumer.load(consumer.source(producer), 0, ints(1, 2, 3), 7, 8, 9);
    assertEquals(KeyOutcome.FAILED, load.outcome(1));
    assertEquals(KeyReason.SIZE_MISMATCH, load.reason(1));
    assertEquals(
        "the object of tp1:pcp0:dcp0:pp0 in namespace 'stored' has 384 bytes, the source says 256",
        load.detail(1));
    assertEquals(List.of(load.keys().key(1)), load.failedKeys());
    assertEquals(2 * 2 * HALF, load.completedBytes());
    expect(1, 7, 3, 9);
  }

  @Test
  void aPieceThatDoesNotArriveFailsItsBlockOnly() {
    producer.storeAll(0, ints(1, 2, 3), 4, 5, 6);
    boolean[] hasFailed = new boolean[1];
    copies.failNext(
        (row, key) -> {
          boolean fails = key == 1 && !hasFailed[0];
          hasFailed[0] |= fails;
          return fails;
        });
    TransferJobState load = consumer.load(consumer.source(producer), 0, ints(1, 2, 3), 7, 8, 9);
    assertEquals(KeyOutcome.COMPLETED, load.outcome(0));
    assertEquals(KeyOutcome.FAILED, load.outcome(1));
    assertEquals(KeyReason.COPY_FAILED, load.reason(1));
    assertEquals(KeyOutcome.COMPLETED, load.outcome(2));
    assertEquals(
        1, consumer.load(consumer.source(producer), 0, ints(2), 8).count(KeyOutcome.COMPLETED));
    expect(1, 7, 2, 8, 3, 9);
  }

  @Test
  void aCancelledLoadKeepsItsPinsUntilTheCopyEnds() {
    producer.storeAll(0, ints(1), 4);
    copies.holdNext(1);
    TransferJobState load = consumer.startLoad(consumer.source(producer), 0, ints(1), 7);
    load = consumer.worker.cancel(load);
    assertFalse(load.isFinal());
    assertEquals(2, runtime.stats().leases());
    copies.releaseCopies();
    load = consumer.worker.await(load, LONG);
    assertEquals(KeyOutcome.CANCELLED, load.outcome(0));
    assertEquals(0, load.completedBytes());
    assertEquals(0, runtime.stats().leases());
  }

  @Test
  void aLoadPastItsDeadlineIsOverdueUntilTheCopyEnds() {
    producer.storeAll(0, ints(1), 4);
    copies.holdNext(1);
    TransferJobState load = consumer.startLoad(consumer.source(producer), 0, ints(1, 5), 7, 8);
    clock.advance(TIMEOUT);
    load = consumer.worker.await(load, LONG);
    assertEquals(TransferJobState.Status.OVERDUE, load.status());
    assertEquals(KeyOutcome.MISS, load.outcome(1));
    assertEquals(2, runtime.stats().leases());
    copies.releaseCopies();
    while (!load.isFinal()) {
      load = consumer.worker.await(load, LONG);
    }
    assertEquals(KeyOutcome.TIMED_OUT, load.outcome(0));
    assertEquals(0, runtime.stats().leases());
    // The bytes did arrive, but nobody may take them for a hit.
    assertEquals(0, load.completedBytes());
  }

  @Test
  void aClearLeavesTheObjectsToTheCopyThatReadsThem() {
    producer.storeAll(0, ints(1, 2), 4, 5);
    copies.holdNext(1);
    TransferJobState load = consumer.startLoad(consumer.source(producer), 0, ints(1), 7);
    assertEquals(new ClearResult(2, 2, 0), producer.scheduler.clear());
    assertEquals(2 * HALF, runtime.stats().usedBytes());
    assertFalse(producer.isPresent(0, 1));
    copies.releaseCopies();
    load = consumer.worker.await(load, LONG);
    assertEquals(KeyOutcome.COMPLETED, load.outcome(0));
    assertEquals(0, runtime.stats().usedBytes());
    expect(1, 7);
  }

  @Test
  void evictionPassesByTheObjectsOfALoad() {
    runtime.close(LONG);
    FakeGpuCopyEngine engine = gpu.openCopyEngine();
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(4 * HALF)
            .slabBytes(4 * HALF)
            .copyEngine(() -> engine)
            .nanoTime(clock)
            .build();
    producer = engine("stored", 2, full(2));
    consumer = engine("loading", 1, full(2)).ranks.get(0);
    producer.storeAll(0, ints(1, 2), 4, 5);
    engine.holdNext(1);
    TransferJobState load = consumer.startLoad(consumer.source(producer), 0, ints(1), 7);
    // Hash 1 is the oldest, but pinned on both ranks: hash 2 makes room, then nothing can.
    producer.storeAll(0, ints(3), 6);
    Rank first = producer.ranks.get(0);
    TransferJobState unpublished = first.worker.await(first.startStore(0, ints(5), 6), LONG);
    TransferJobState alsoUnpublished =
        producer.ranks.get(1).worker.await(producer.ranks.get(1).startStore(0, ints(5), 6), LONG);
    TransferJobState refused = first.worker.await(first.startStore(0, ints(6), 8), LONG);
    assertEquals(KeyReason.POOL_BUSY, refused.reason(0));
    assertFalse(producer.isPresent(0, 2));
    assertTrue(producer.isPresent(0, 1));
    engine.releaseCopies();
    assertEquals(KeyOutcome.COMPLETED, consumer.worker.await(load, LONG).outcome(0));
    expect(1, 7);
    first.store(0, ints(6), 8);
    assertFalse(producer.isPresent(0, 1));
    first.worker.cancel(unpublished);
    producer.ranks.get(1).worker.cancel(alsoUnpublished);
  }

  @Test
  void aLoadThatIsNotSubmittedHoldsNothing() {
    runtime.close(LONG);
    FaultyCopyEngine engine = new FaultyCopyEngine(gpu.openCopyEngine());
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(1 << 20)
            .slabBytes(64 << 10)
            .copyEngine(() -> engine)
            .nanoTime(clock)
            .build();
    producer = engine("stored", 2, full(2));
    consumer = engine("loading", 1, full(2)).ranks.get(0);
    producer.storeAll(0, ints(1), 4);
    engine.breakNext();
    ShardedSource source = consumer.source(producer);
    assertThrows(OutOfMemoryError.class, () -> consumer.startLoad(source, 0, ints(1, 5), 7, 8));
    assertEquals(0, runtime.stats().leases());
    assertEquals(KeyOutcome.COMPLETED, consumer.load(source, 0, ints(1), 7).outcome(0));
    expect(1, 7);
  }

  @Test
  void aCloseByItsBoundLeavesAllObjectsToTheCopy() {
    producer.storeAll(0, ints(1), 4);
    copies.holdNext(1);
    TransferJobState load = consumer.startLoad(consumer.source(producer), 0, ints(1), 7);
    assertEquals(new CloseResult(1, 2 * HALF), consumer.worker.close(Duration.ZERO));
    assertEquals(2, runtime.stats().leases());
    copies.releaseCopies();
    TransferJobState ended = consumer.worker.await(load, LONG);
    assertEquals(KeyOutcome.CANCELLED, ended.outcome(0));
    assertEquals(0, runtime.stats().leases());
  }

  @Test
  void layersArriveOneAfterTheOther() {
    runtime.close(LONG);
    try (FakeGpu stepped = FakeGpu.stepped(1)) {
      runtime =
          EmbeddedRuntime.builder()
              .capacityBytes(1 << 20)
              .copyEngine(stepped::copyEngine)
              .nanoTime(clock)
              .build();
      List<Tensor> tensors = List.of(tensor("other", 0, 1), tensor("mine", 1, 2));
      TPEngine stored = new TPEngine(stepped, runtime, "stored", 2, tensors);
      Rank loading = new TPEngine(stepped, runtime, "loading", 1, tensors).ranks.get(0);
      for (Rank rank : stored.ranks) {
        TransferJobState store = rank.startStore(1, ints(1), 4);
        stepped.runAll();
        assertEquals(1, rank.worker.publish(rank.worker.poll(store)));
      }
      TransferJobState load = loading.startLoad(loading.source(stored), 1, ints(1), 7);
      assertFalse(loading.worker.isLayerLoaded(load, "mine.0"));
      while (!loading.worker.isLayerLoaded(load, "mine.0")) {
        assertTrue(stepped.step());
      }
      assertFalse(loading.worker.isLayerLoaded(load, "mine.1"));
      stepped.runAll();
      assertTrue(loading.worker.isLayerLoaded(load, "mine.1"));
      assertEquals(KeyOutcome.COMPLETED, loading.worker.poll(load).outcome(0));
      loading.expect(1, 1, 7);
      loading.assertMemory("after the load");
      runtime.close(LONG);
    }
  }

  private static ShardedSource source(int groupId, long producerBytes, Slice... slices) {
    return new ShardedSource(
        new UMBPNamespace("stored"),
        List.of(
            new ShardedSource.Group(
                groupId, List.of(new RankNamespace(0, 0, 0, 0)), producerBytes, List.of(slices))));
  }

  private void assertRefused(
      UMBPException.Reason reason, String message, ShardedSource source, DeviceFence fence) {
    BlockLoadBatch batch = BlockLoadBatch.of("r", consumer.keys(0, 1), 7);
    UMBPException e =
        assertThrows(UMBPException.class, () -> consumer.worker.load(batch, source, fence));
    assertEquals(reason, e.reason());
    assertEquals(message, e.getMessage());
  }

  @Test
  void wrongSourcesAreRefusedBeforeAnythingIsTouched() {
    producer.storeAll(0, ints(1), 4);
    UMBPException.Reason invalid = UMBPException.Reason.INVALID_ARGUMENT;
    DeviceFence fence = DeviceFence.hostComplete();
    assertRefused(
        invalid,
        "group 0: the pieces cover 256 of the 512 bytes of an object, 256 are uncovered",
        source(0, 256, new Slice(0, 0, 0, 256)),
        fence);
    assertRefused(
        invalid,
        "group 0: the pieces are 513 bytes, an object of this layout has 512",
        source(0, 513, new Slice(0, 0, 0, 513)),
        fence);
    assertRefused(
        invalid, "group 3 is not in the layout", source(3, 512, new Slice(0, 0, 0, 512)), fence);
    ShardedSource good = consumer.source(producer);
    assertRefused(
        UMBPException.Reason.FENCE_REQUIRED,
        "LOAD on device 0 needs a fence",
        good,
        DeviceFence.none());
    ShardedSource foreign = new ShardedSource(new UMBPNamespace("stored").foreign(), good.groups());
    assertRefused(
        invalid,
        "namespace 'foreign.stored' may hold foreign KV, but the buffers are said to hold the"
            + " engine's own",
        foreign,
        fence);
    assertEquals(2, runtime.jobs.size(), "jobs, the two stores included");
    consumer.assertMemory("after refusals");
    assertTrue(consumer.worker.unregisterBuffers(Duration.ZERO));
    UMBPException e =
        assertThrows(UMBPException.class, () -> consumer.startLoad(good, 0, ints(1), 7));
    assertEquals(UMBPException.Reason.NOT_REGISTERED, e.reason());
  }

  @Test
  void aGroupWithoutPiecesIsRefused() {
    List<Tensor> tensors = List.of(tensor("one", 0, 2), tensor("two", 1, 2));
    Rank rank = engine("both", 1, tensors).ranks.get(0);
    ShardedSource source = source(1, 512, new Slice(0, 0, 0, 512));
    UMBPException e =
        assertThrows(UMBPException.class, () -> rank.startLoad(source, 0, ints(1), 7));
    assertEquals("group 0 is not in the source", e.getMessage());
    TransferJobState load = rank.load(source, 1, ints(1), 7);
    assertEquals(KeyOutcome.MISS, load.outcome(0));
    assertEquals(
        "the object of tp0:pcp0:dcp0:pp0 in namespace 'stored' is not there", load.detail(0));
  }
}
