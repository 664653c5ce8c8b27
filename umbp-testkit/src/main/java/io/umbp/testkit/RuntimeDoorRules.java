package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.TransferJobState.Status;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/**
 * Rules 7 and 8: what is refused at the door, and how the doors close; and what comes in by several
 * doors at once.
 */
abstract class RuntimeDoorRules extends RuntimePoolRules {
  private static final Duration BOUND = Duration.ofMillis(500);

  /** How far past its bound a close may read the clock. */
  private static final Duration READS = Duration.ofMillis(50);

  private static final int CLOSE_ROUNDS = 200;

  /**
   * Loads of one thread in a round; without a limit they could keep a close waiting for its turn.
   */
  private static final int MOST_LOADS = 100;

  @Test
  @DisplayName("rule 7: a transfer with a bad key or block is refused before anything is touched")
  void badTransfers() {
    ToyEngine engine = engine(4);
    engine.put(0);
    engine.fill(3, 3);

    refusesTransfer(engine, engine.keys(new int[] {0, 7}, new int[] {0, 1}), 10, "7");
    refusesTransfer(engine, engine.keys(0, 1), ToyEngine.BLOCKS - 1, "64");
    BlockKeys foreignNamespace =
        BlockKeys.of(
            new UMBPNamespace("foreign"),
            RankTopology.single().localNamespace(),
            0,
            ToyEngine.hashes(0));
    refusesTransfer(engine, foreignNamespace, 10, "foreign", "contract");
    BlockKeys foreignRank =
        BlockKeys.of(
            ToyEngine.NAMESPACE,
            RankTopology.tensorParallel(3, 4).localNamespace(),
            0,
            ToyEngine.hashes(0));
    refusesTransfer(engine, foreignRank, 10, "tp3");

    RuntimeFixture.Counts counts = engine.fixture.counts();
    assertEquals(ToyEngine.OBJECT_BYTES, counts.usedBytes());
    assertEquals(0, counts.leases() + counts.unpublishedObjects() + counts.runningCopies());
    engine.assertUntouched(10);
    engine.assertUntouched(11);
    engine.assertUntouched(ToyEngine.BLOCKS - 1);
  }

  private static void refusesTransfer(
      ToyEngine engine, BlockKeys keys, int firstBlock, Object... parts) {
    refusedNaming(() -> engine.load(firstBlock, keys, DeviceFence.hostComplete()), parts);
    refusedNaming(() -> engine.store(firstBlock, keys, DeviceFence.hostComplete()), parts);
  }

  @Test
  @DisplayName("rule 7: two keys for one destination block are refused, naming the block")
  void duplicateDestination() {
    ToyEngine engine = engine(4);
    engine.put(0, 1);
    List<BlockTransferPlan> plans = List.of(plan(engine, 0, 10), plan(engine, 1, 10));
    refusedNaming(() -> engine.worker.load(plans, DeviceFence.hostComplete()), "block 10");
    engine.assertUntouched(10);

    engine.fill(5, 5);
    List<BlockTransferPlan> oneSource = List.of(plan(engine, 5, 5), plan(engine, 6, 5));
    TransferJobState stored =
        engine.finish(engine.worker.store(oneSource, DeviceFence.hostComplete()));
    assertEquals(2, stored.count(KeyOutcome.COMPLETED), "one source block for two keys is fine");
    engine.worker.cancel(stored);
  }

  @Test
  @DisplayName("rule 7: explicit ranges are accepted only if they are the layout's own")
  void explicitRanges() {
    ToyEngine engine = engine(4);
    engine.put(0);
    BlockKey key = engine.keys(0).key(0);
    KVCacheTensor tensor = engine.tensor(0);
    KVRange clipped =
        new KVRange(
            "layer.0",
            0,
            10,
            tensor.address() + 10 * ToyEngine.STRIDE,
            ToyEngine.STRIDE,
            ToyEngine.PAYLOAD / 2,
            0);
    BlockTransferPlan part = new BlockTransferPlan(key, 10, List.of(clipped), "r");
    refusedNaming(() -> engine.worker.load(List.of(part), DeviceFence.hostComplete()), "block 10");
    refusedNaming(() -> engine.worker.store(List.of(part), DeviceFence.hostComplete()), "block 10");
    engine.assertUntouched(10);

    assumeTrue(tensor.isDevice(), "host memory's addresses are the copy engine's own");
    List<KVRange> whole = new ArrayList<>();
    for (int layer = 0; layer < 2; layer++) {
      whole.add(
          new KVRange(
              "layer." + layer,
              0,
              10,
              engine.tensor(layer).address() + 10 * ToyEngine.STRIDE,
              ToyEngine.STRIDE,
              ToyEngine.PAYLOAD,
              layer * ToyEngine.PAYLOAD));
    }
    BlockTransferPlan all = new BlockTransferPlan(key, 10, whole, "r");
    assertStatus(
        Status.COMPLETED,
        engine.finish(engine.worker.load(List.of(all), DeviceFence.hostComplete())));
    engine.assertHolds(10, 0);
  }

  @Test
  @DisplayName("rule 7: a list of plans is as good as a batch, if it is of one rank")
  void listOfPlans() {
    ToyEngine engine = engine(4);
    engine.fill(5, 5);
    engine.fill(9, 9);
    TransferJobState stored =
        engine.finish(
            engine.worker.store(
                List.of(plan(engine, 5, 5), plan(engine, 9, 9)), DeviceFence.hostComplete()));
    assertEquals(2, engine.worker.publish(stored));
    TransferJobState loaded =
        engine.finish(
            engine.worker.load(
                List.of(plan(engine, 9, 20), plan(engine, 5, 21)), DeviceFence.hostComplete()));
    assertEquals("r", loaded.requestId());
    engine.assertHolds(20, 9);
    engine.assertHolds(21, 5);
    engine.scheduler.clear();
  }

  private static BlockTransferPlan plan(ToyEngine engine, int content, int block) {
    return new BlockTransferPlan(engine.keys(content).key(0), block, "r");
  }

  @Test
  @DisplayName("rule 7: nothing is transferred before buffers are registered")
  void transferWithoutBuffers() {
    ToyEngine engine = engine(4);
    assertTrue(engine.worker.unregisterBuffers(TIMEOUT));
    refused(Reason.NOT_REGISTERED, () -> engine.load(10, 0));
    refused(Reason.NOT_REGISTERED, () -> engine.store(10, 0));
  }

  @Test
  @DisplayName(
      "rule 7: buffers that do not fit the layout are refused, naming the layer; none is kept")
  void badBuffers() {
    ToyEngine engine = engine(4);
    assertTrue(engine.worker.unregisterBuffers(TIMEOUT));
    KVCacheTensor good = engine.tensor(0);
    KVCacheTensor other = engine.tensor(1);

    refusedNaming(() -> register(engine, Map.of("layer.0", good)), "layer.1");
    refusedNaming(
        () -> register(engine, Map.of("layer.0", good, "layer.1", other, "layer.x", other)),
        "layer.x");
    KVCacheTensor otherStride = engine.fixture.allocate(16 * 1_024, 16, 1_024);
    refusedNaming(
        () -> register(engine, Map.of("layer.0", good, "layer.1", otherStride)),
        "layer.1",
        "1024",
        "640");
    long needed = 15 * ToyEngine.STRIDE + ToyEngine.PAYLOAD;
    KVCacheTensor tooSmall = engine.fixture.allocate(needed - 1, 16, ToyEngine.STRIDE);
    refusedNaming(
        () -> register(engine, Map.of("layer.0", good, "layer.1", tooSmall)),
        "layer.1",
        needed,
        needed - 1);
    refusedNaming(
        () -> register(engine, Map.of("layer.0", good, "layer.1", good)), "layer.0", "layer.1");
    refused(Reason.NOT_REGISTERED, () -> engine.load(10, 0));

    engine.worker.registerBuffers(engine.tensors);
    engine.put(0);
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0)));
    engine.assertHolds(10, 0);
  }

  private static void register(ToyEngine engine, Map<String, KVCacheTensor> tensors) {
    engine.worker.registerBuffers(new TreeMap<>(tensors));
  }

  @Test
  @DisplayName("rule 7: a layout is refused whose objects do not fit, or that is of another rank")
  void badLayouts() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    UMBPRuntime runtime = fixture.runtime();
    RankTopology single = RankTopology.single();
    long tooLarge = 4 * ToyEngine.OBJECT_BYTES + 1;
    KVLayoutDescriptor large =
        new KVLayoutDescriptor(
            List.of(new KVRegion("layer.0", 3, tooLarge, tooLarge, 0, 16)), single);
    refusedNaming(
        () -> runtime.createWorkerHandle(ToyEngine.NAMESPACE, single, large), "group 3", tooLarge);
    refusedNaming(
        () -> runtime.createSchedulerHandle(ToyEngine.NAMESPACE, single, large),
        "group 3",
        tooLarge);
    KVLayoutDescriptor ofRank1 = ToyEngine.layout(RankTopology.tensorParallel(1, 2));
    refusedNaming(() -> runtime.createWorkerHandle(ToyEngine.NAMESPACE, single, ofRank1));
    refusedNaming(() -> runtime.createSchedulerHandle(ToyEngine.NAMESPACE, single, ofRank1));
    assertEquals(0, fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 7: a namespace keeps its manifest, and another text for it is refused")
  void manifests() {
    UMBPRuntime runtime = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT).runtime();
    UMBPNamespace one = new UMBPNamespace("one");
    UMBPNamespace other = new UMBPNamespace("other");
    Map<UMBPNamespace, String> none = runtime.manifests();
    assertEquals(Map.of(), none);
    runtime.describeNamespace(one, "model m");
    runtime.describeNamespace(other, "model m");
    runtime.describeNamespace(one, "model m");
    refusedNaming(() -> runtime.describeNamespace(one, "model n"), "one");
    assertEquals(Map.of(one, "model m", other, "model m"), runtime.manifests());
    assertEquals(Map.of(), none, "a snapshot does not change");
  }

  @Test
  @DisplayName("rule 7: KV that may be foreign is rejected by a namespace that is not for it")
  void foreignKV() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine own = engine(fixture);
    own.put(1);
    ToyEngine foreign = foreignEngine(fixture, ToyEngine.NAMESPACE);
    foreign.fill(3, 2);
    TransferJobState stored = foreign.finish(foreign.store(3, 2, 1));
    for (int key = 0; key < 2; key++) {
      assertEquals(KeyOutcome.REJECTED, stored.outcome(key), stored::toString);
      assertEquals(KeyReason.FOREIGN_KV, stored.reason(key), stored::toString);
    }
    assertEquals(0, foreign.worker.publish(stored));
    assertArrayEquals(new boolean[] {true, false}, own.lookup(1, 2));
    assertEquals(ToyEngine.OBJECT_BYTES, fixture.counts().usedBytes());

    assertStatus(Status.COMPLETED, foreign.finish(foreign.load(10, 1)));
    foreign.assertHolds(10, 1);
  }

  @Test
  @DisplayName("rule 7: a namespace for foreign KV takes it, and shares none with the plain one")
  void foreignNamespace() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine own = engine(fixture);
    ToyEngine foreign = foreignEngine(fixture, ToyEngine.NAMESPACE.foreign());
    foreign.put(2);
    assertTrue(foreign.isVisible(2));
    assertEquals(0, own.hit(2));
    assertStatus(Status.COMPLETED, foreign.finish(foreign.load(10, 2)));
    foreign.assertHolds(10, 2);
  }

  @Test
  @DisplayName("rule 7: the engine's own KV is refused by a namespace for foreign KV")
  void ownKVInForeignNamespace() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine foreign = foreignEngine(fixture, ToyEngine.NAMESPACE.foreign());
    assertTrue(foreign.worker.unregisterBuffers(TIMEOUT));
    refusedNaming(
        () -> foreign.worker.registerBuffers(foreign.tensors), ToyEngine.NAMESPACE.foreign());
    refused(Reason.NOT_REGISTERED, () -> foreign.store(3, 2));
  }

  /** One of two tensor-parallel ranks whose group 0 is the same on both; group 1 is not. */
  private ToyEngine halfReplicated(RuntimeFixture fixture, int tpRank) {
    KVLayoutDescriptor plain =
        ToyEngine.layout(
            RankTopology.tensorParallel(tpRank, 2), ToyEngine.STRIDE, ToyEngine.PAYLOAD, 0, 1);
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(plain.regions(), plain.topology(), Set.of(0), plain.format());
    ToyEngine engine = engine(fixture, ToyEngine.NAMESPACE, layout);
    assumeTrue(
        engine.worker.reach() == ObjectReach.EVERY_RANK, "each rank has a pool of its own here");
    return engine;
  }

  @Test
  @DisplayName(
      "rule 3: what all tensor-parallel ranks share is one object, and each of them has it")
  void replicatedObjects() {
    RuntimeFixture fixture = fixture(8 * ToyEngine.PAYLOAD, TIMEOUT);
    ToyEngine rank0 = halfReplicated(fixture, 0);
    ToyEngine rank1 = halfReplicated(fixture, 1);
    BlockKeys both = rank0.keys(new int[] {0, 1}, new int[] {5, 5});
    assertEquals("umbp:vllm:v1:contract:tp*:pcp0:dcp0:pp0:g0:" + both.hashes().get(0), both.get(0));
    rank0.fill(3, 5);
    rank0.fill(4, 5);
    assertEquals(
        2, rank0.worker.publish(rank0.finish(rank0.store(3, both, DeviceFence.hostComplete()))));

    BlockKeys bothOnRank1 = rank1.keys(new int[] {0, 1}, new int[] {5, 5});
    assertArrayEquals(new boolean[] {true, false}, rank1.scheduler.lookup(bothOnRank1));
    assertArrayEquals(
        new boolean[] {true, true, false},
        rank1.scheduler.lookup(both.onRanks(rank1.layout.topology().allNamespaces())));
    TransferJobState loaded = rank1.finish(rank1.load(10, bothOnRank1, DeviceFence.hostComplete()));
    assertEquals(KeyOutcome.COMPLETED, loaded.outcome(0), loaded::toString);
    assertEquals(KeyOutcome.MISS, loaded.outcome(1), loaded::toString);
    rank1.assertHolds(0, 10, 5);

    rank1.fill(3, 5);
    rank1.fill(4, 5);
    TransferJobState again = rank1.finish(rank1.store(3, bothOnRank1, DeviceFence.hostComplete()));
    assertEquals(1, rank1.worker.publish(again), "the shared one is there already");
    assertEquals(3 * ToyEngine.PAYLOAD, fixture.counts().usedBytes());
    assertEquals(3, rank0.scheduler.clear().removed());
    assertArrayEquals(new boolean[2], rank1.scheduler.lookup(bothOnRank1));
  }

  @Test
  @DisplayName("rule 7: keys that replicate other groups than the layout are refused")
  void keysOfOtherReplication() {
    RuntimeFixture fixture = fixture(8 * ToyEngine.PAYLOAD, TIMEOUT);
    ToyEngine engine = halfReplicated(fixture, 1);
    refusesTransfer(engine, engine.keys(5).replicating(Set.of()), 10, "[]", "[0]");
    refusesTransfer(engine, engine.keys(5).replicating(Set.of(1)), 10, "[1]", "[0]");
    engine.assertUntouched(10);
    assertEquals(0, fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 7: questions about layers are for loads and known layers")
  void badLayerQuestions() {
    ToyEngine engine = engine(4);
    engine.put(0);
    TransferJobState load = engine.load(10, 0);
    refusedNaming(() -> engine.worker.isLayerLoaded(load, "layer.x"), "layer.x");
    TransferJobState store = engine.store(3, 0);
    refused(Reason.INVALID_ARGUMENT, () -> engine.worker.isLayerLoaded(store, "layer.0"));
  }

  @Test
  @DisplayName("rule 8: a close with nothing running is clean, and its result stays the same")
  void cleanClose() {
    ToyEngine engine = engine(4);
    engine.put(0, 1);
    CloseResult first = engine.fixture.runtime().close(BOUND);
    assertEquals(CloseResult.CLEAN, first);
    assertTrue(first.isClean());
    assertEquals(first, engine.fixture.runtime().close(BOUND));
    assertEquals(CloseResult.CLEAN, engine.worker.close(BOUND));
    engine.scheduler.close();
    engine.scheduler.close();
  }

  @Test
  @DisplayName("rule 8: every call after the close says that it is closed (case 61)")
  void callsAfterClose() {
    ToyEngine engine = engine(4);
    engine.put(0);
    TransferJobState stored = engine.finish(engine.store(3, 7));
    UMBPRuntime runtime = engine.fixture.runtime();
    runtime.close(BOUND);

    RankTopology single = RankTopology.single();
    List<Executable> calls =
        List.of(
            () -> runtime.createWorkerHandle(ToyEngine.NAMESPACE, single, engine.layout),
            () -> runtime.createSchedulerHandle(ToyEngine.NAMESPACE, single, engine.layout),
            () -> engine.lookup(0),
            () -> engine.scheduler.touch(engine.keys(0)),
            () -> engine.scheduler.clear(),
            () -> engine.scheduler.takeEvictedKeys(),
            () -> engine.load(10, 0),
            () -> engine.store(10, 0),
            () -> engine.worker.publish(stored),
            () -> engine.worker.registerBuffers(engine.tensors),
            () -> runtime.describeNamespace(ToyEngine.NAMESPACE, "model m"),
            () -> runtime.manifests());
    for (Executable call : calls) {
      refused(Reason.CLOSED, call);
    }
    engine.assertUntouched(10);
  }

  @Test
  @DisplayName("rule 8: close returns by its bound while a store is held for ever (case 61)")
  void closeDuringStore() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(3, 3);
    engine.fixture.holdNextCopies(1);
    TransferJobState held = engine.store(3, 3);
    UMBPRuntime runtime = engine.fixture.runtime();

    CloseResult result = closeInTime(engine.fixture, () -> runtime.close(BOUND));

    if (engine.fixture.counts().runningCopies() == 0) {
      assertEquals(CloseResult.CLEAN, result, "the copy was given up before it began");
    } else {
      assertEquals(1, result.unfinishedJobs());
      assertTrue(
          result.handedOverBytes() >= ToyEngine.OBJECT_BYTES,
          () -> "the held copy's memory is not counted: " + result);
    }
    assertEquals(result, runtime.close(BOUND));
    refused(Reason.CLOSED, () -> engine.lookup(3));

    engine.fixture.releaseCopy();
    assertEnds(engine, held);
  }

  @Test
  @DisplayName("rule 8: a worker's close returns by its bound, and its objects stay (case 61)")
  void workerCloseDuringLoad() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    ToyEngine other = engine(engine.fixture);
    engine.put(0, 1);
    engine.fixture.holdNextCopies(1);
    TransferJobState held = engine.load(10, 0);

    CloseResult result = closeInTime(engine.fixture, () -> engine.worker.close(BOUND));

    assertEquals(new CloseResult(1, ToyEngine.OBJECT_BYTES), result);
    assertEquals(result, engine.worker.close(BOUND));
    refused(Reason.CLOSED, () -> engine.load(12, 1));
    engine.assertUntouched(10);
    assertEquals(1, engine.fixture.counts().leases(), "the copy still reads the object");

    engine.fixture.releaseCopy();
    assertEnds(engine, held);
    assertStatus(Status.COMPLETED, other.finish(other.load(20, 0, 1)));
    other.assertHolds(20, 0);
    other.assertHolds(21, 1);
    assertEquals(0, engine.fixture.counts().leases());
  }

  @Test
  @DisplayName("rule 8: a close ends the jobs that it waits for; nothing of them is published")
  void closeEndsJobs() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    ToyEngine other = engine(engine.fixture);
    engine.fill(3, 3);
    engine.fixture.holdNextCopies(1);
    TransferJobState writing = other.store(3, 3);
    TransferJobState joined = engine.store(3, 3);
    assertEquals(CloseResult.CLEAN, engine.worker.close(BOUND), "a joined job copies nothing");
    TransferJobState joinedDone = engine.finish(joined);
    assertEquals(KeyOutcome.FAILED, joinedDone.outcome(0));
    assertEquals(KeyReason.CLOSED, joinedDone.reason(0));
    engine.fixture.releaseCopy();
    assertEquals(1, other.worker.publish(other.finish(writing)));
  }

  private static CloseResult closeInTime(RuntimeFixture fixture, Callable<CloseResult> close) {
    fixture.tickOnRead(TICK);
    long start = fixture.nanoTime();
    CloseResult result;
    try {
      result = close.call();
    } catch (Exception e) {
      throw new AssertionError("close failed", e);
    }
    long tookNanos = fixture.nanoTime() - start;
    fixture.tickOnRead(Duration.ZERO);
    assertTrue(
        tookNanos <= BOUND.plus(READS).toNanos(),
        () -> "close took " + tookNanos + " ns of the runtime's time, its bound is " + BOUND);
    return result;
  }

  private static void assertEnds(ToyEngine engine, TransferJobState held) {
    try {
      TransferJobState ended = engine.finish(held);
      assertEquals(0, ended.count(KeyOutcome.COMPLETED), ended::toString);
    } catch (UMBPException e) {
      assertSame(Reason.CLOSED, e.reason());
    }
  }

  @Test
  @DisplayName("rule 8: 200 rounds of two closes against 8 loading threads (case 61)")
  void closeAgainstLoads() throws Exception {
    for (int round = 0; round < CLOSE_ROUNDS; round++) {
      try (RuntimeFixture fixture =
          open(new RuntimeFixture.Setup(8 * ToyEngine.OBJECT_BYTES, TIMEOUT))) {
        ToyEngine engine =
            ToyEngine.open(
                fixture, ToyEngine.NAMESPACE, ToyEngine.layout(RankTopology.single()), 16);
        engine.put(ToyEngine.range(0, 8));
        CyclicBarrier together = new CyclicBarrier(10);
        List<Callable<CloseResult>> tasks = new ArrayList<>();
        for (int thread = 0; thread < 8; thread++) {
          int content = thread;
          tasks.add(
              () -> {
                together.await();
                loadUntilClosed(engine, content);
                return CloseResult.CLEAN;
              });
        }
        Callable<CloseResult> close =
            () -> {
              together.await();
              return fixture.runtime().close(TIMEOUT);
            };
        tasks.add(close);
        tasks.add(close);
        List<CloseResult> results = inParallel(tasks);
        assertEquals(List.of(CloseResult.CLEAN, CloseResult.CLEAN), results.subList(8, 10));
        assertEquals(0, fixture.counts().leases());
      }
    }
  }

  private static void loadUntilClosed(ToyEngine engine, int content) {
    try {
      for (int i = 0; i < MOST_LOADS; i++) {
        TransferJobState job = engine.finish(engine.load(8 + content, content));
        switch (job.outcome(0)) {
          case COMPLETED -> engine.assertHolds(8 + content, content);
          case CANCELLED -> {}
          default -> {
            assertEquals(KeyOutcome.FAILED, job.outcome(0), job::toString);
            assertSame(KeyReason.CLOSED, job.reason(0));
          }
        }
      }
    } catch (UMBPException e) {
      assertSame(Reason.CLOSED, e.reason(), e::getMessage);
    }
  }

  @Test
  @DisplayName("rule 8: no thread is left when a runtime is closed (case 61)")
  void noThreadIsLeft() {
    Thread[] before = Thread.getAllStackTraces().keySet().toArray(new Thread[0]);
    try (RuntimeFixture fixture =
        open(new RuntimeFixture.Setup(4 * ToyEngine.OBJECT_BYTES, TIMEOUT))) {
      ToyEngine engine =
          ToyEngine.open(fixture, ToyEngine.NAMESPACE, ToyEngine.layout(RankTopology.single()), 16);
      engine.put(0, 1);
      assertEquals(CloseResult.CLEAN, fixture.runtime().close(TIMEOUT));
    }
    List<Thread> left = new ArrayList<>(Thread.getAllStackTraces().keySet());
    left.removeAll(List.of(before));
    left.removeIf(Thread::isDaemon);
    assertEquals(List.of(), left, "threads that keep the process from ending");
  }
}
