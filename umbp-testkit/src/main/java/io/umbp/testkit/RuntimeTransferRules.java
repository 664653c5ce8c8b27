package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockKeys;
import io.umbp.api.DeviceFence;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.TransferJobState.Status;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.UMBPNamespace;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** Rules 1, 2, 5 and 9: how a transfer begins and ends. */
abstract class RuntimeTransferRules extends RuntimeRules {
  private static final int ROUNDS = 1_000;

  @Test
  @DisplayName("rule 1: a load is not final before its copy has ended, a layer not loaded")
  void loadEndsWithItsCopy() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.put(0, 1);
    engine.fixture.holdNextCopies(1);

    TransferJobState job = engine.load(10, 0, 1);

    assertNotFinal(engine.linger(job));
    assertEquals(2, engine.worker.poll(job).count(KeyOutcome.PENDING));
    assertEquals(0, engine.worker.poll(job).completedBytes());
    assertFalse(engine.worker.isLayerLoaded(job, "layer.1"));
    engine.assertUntouched(10);

    engine.fixture.releaseCopy();
    TransferJobState done = engine.finish(job);
    assertStatus(Status.COMPLETED, done);
    assertEquals(2 * ToyEngine.OBJECT_BYTES, done.completedBytes());
    assertTrue(engine.worker.isLayerLoaded(done, "layer.1"));
    engine.assertHolds(10, 0);
    engine.assertHolds(11, 1);
  }

  @Test
  @DisplayName("rule 1: a store is not final before its copy has ended")
  void storeEndsWithItsCopy() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(5, 5);
    engine.fixture.holdNextCopies(1);

    TransferJobState job = engine.store(5, 5);
    assertNotFinal(engine.linger(job));
    refused(Reason.INVALID_ARGUMENT, () -> engine.worker.publish(job));

    engine.fixture.releaseCopy();
    TransferJobState done = engine.finish(job);
    engine.fill(5, 6);
    assertEquals(1, engine.worker.publish(done));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 5)));
    engine.assertHolds(10, 5);
  }

  @Test
  @DisplayName("rule 1: blocks of an aborted load are given back after its copy (case 51)")
  void abortDuringLoad() {
    ToyEngine engine = engine(31);
    assumeHeldCopies(engine);
    engine.put(ToyEngine.range(0, 31));
    engine.fixture.holdNextCopies(1);

    TransferJobState a = engine.load(14, ToyEngine.range(0, 31));
    assertNotFinal(engine.worker.cancel(a));
    TransferJobState asked = engine.linger(a);
    assertNotFinal(asked);
    assertEquals(31, asked.count(KeyOutcome.PENDING), "blocks 14..44 are not yet releasable");
    assertEquals(31, engine.fixture.counts().leases());

    engine.fixture.releaseCopy();
    TransferJobState ended = engine.finish(a);
    assertStatus(Status.CANCELLED, ended);
    assertEquals(31, ended.count(KeyOutcome.CANCELLED));
    assertArrayEquals(ToyEngine.range(14, 45), ended.failedBlockIds());

    for (int block = 1; block <= 32; block++) {
      engine.clean(block);
      engine.fill(block, 100 + block);
    }
    engine.put(50);
    for (int block = 1; block <= 32; block++) {
      engine.assertHolds(block, 100 + block);
    }
  }

  @Test
  @DisplayName("rule 1: a preempted request's block is reused after its store only (case 47)")
  void preemptionDuringStore() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(5, 5);
    engine.fill(6, 6);
    engine.fixture.holdNextCopies(1);

    TransferJobState preempted = engine.store(5, 5);
    TransferJobState other = engine.store(6, 6);
    assertNotFinal(engine.worker.cancel(preempted));
    TransferJobState otherDone = engine.finish(other);
    assertEquals(1, engine.worker.publish(otherDone), "other stores keep running");
    assertNotFinal(engine.linger(preempted));

    engine.fixture.releaseCopy();
    TransferJobState ended = engine.finish(preempted);
    engine.fill(5, 9);
    assertStatus(Status.CANCELLED, ended);
    assertEquals(0, engine.worker.publish(ended));
    assertEquals(0, engine.hit(5));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(20, 6)));
    engine.assertHolds(20, 6);
  }

  @Test
  @DisplayName("rule 1: the end of an aborted job says nothing of its successor (case 52)")
  void reusedRequestId() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.put(0);
    engine.fixture.holdNextCopies(2);

    TransferJobState first = engine.load(10, 0);
    engine.worker.cancel(first);
    TransferJobState second = engine.load(11, 0);
    assertEquals(first.requestId(), second.requestId());
    assertNotEquals(first.jobId(), second.jobId());

    engine.fixture.releaseCopy();
    assertStatus(Status.CANCELLED, engine.finish(first));
    assertNotFinal(engine.linger(second));
    engine.assertUntouched(11);

    engine.fixture.releaseCopy();
    assertStatus(Status.COMPLETED, engine.finish(second));
    engine.assertHolds(11, 0);
    assertStatus(Status.CANCELLED, engine.worker.poll(first));
  }

  @Test
  @DisplayName(
      "rule 1: a request without blocks is over at once, and ending it again is harmless (case 52)")
  void requestWithoutBlocks() {
    ToyEngine engine = engine(1);
    TransferJobState load = engine.load(0);
    TransferJobState store = engine.store(0);
    assertTrue(load.isFinal() && store.isFinal());
    assertStatus(Status.COMPLETED, engine.worker.cancel(load));
    assertStatus(Status.COMPLETED, engine.worker.cancel(engine.worker.cancel(store)));
    assertEquals(0, engine.worker.publish(store));
  }

  @Test
  @DisplayName("rule 1: 1,000 loads started and aborted leave nothing, no thread either (case 52)")
  void manyAborts() {
    ToyEngine engine = engine(4);
    engine.put(0, 1);
    startAndAbort(engine, 10);
    int threads = Thread.getAllStackTraces().size();
    startAndAbort(engine, 990);
    assertTrue(Thread.getAllStackTraces().size() <= threads, "more threads than before");
    assertEquals(0, engine.fixture.counts().leases());
    assertEquals(2, engine.hit(0, 1));
  }

  private static void startAndAbort(ToyEngine engine, int times) {
    for (int i = 0; i < times; i++) {
      TransferJobState ended = engine.finish(engine.worker.cancel(engine.load(10, 0, 1)));
      assertEquals(2, ended.count(KeyOutcome.CANCELLED) + ended.count(KeyOutcome.COMPLETED));
    }
  }

  @Test
  @DisplayName("rule 1: buffers are given back when no copy uses them any more, not before")
  void unregisterWaitsForCopies() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.put(0);
    engine.fixture.holdNextCopies(1);
    TransferJobState job = engine.load(10, 0);

    engine.fixture.tickOnRead(TICK);
    assertFalse(engine.worker.unregisterBuffers(Duration.ofMillis(50)));
    engine.fixture.tickOnRead(Duration.ZERO);
    refused(Reason.NOT_REGISTERED, () -> engine.load(12, 0));
    refused(Reason.NOT_REGISTERED, () -> engine.store(12, 3));

    engine.fixture.releaseCopy();
    assertStatus(Status.COMPLETED, engine.finish(job));
    assertTrue(engine.worker.unregisterBuffers(TIMEOUT));
    assertTrue(engine.worker.unregisterBuffers(TIMEOUT));
    engine.assertHolds(10, 0);

    engine.worker.registerBuffers(engine.tensors);
    assertStatus(Status.COMPLETED, engine.finish(engine.load(12, 0)));
    engine.assertHolds(12, 0);
  }

  @Test
  @DisplayName("rule 2: a store reads its blocks after the producer on the stream (case 17)")
  void storeWaitsForProducer() {
    ToyEngine engine = engine(2);
    assumeStreams(engine);
    RuntimeFixture.Stream compute = engine.fixture.newStream();
    compute.stall();
    engine.fillOn(compute, 3, 7);

    TransferJobState job = engine.store(3, engine.keys(7), compute.fence());
    assertNotFinal(engine.linger(job));
    assertEquals(0, engine.hit(7));

    compute.resume();
    assertEquals(1, engine.worker.publish(engine.finish(job)));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName("rule 2: 1,000 stores behind a busy stream hold no stale byte (case 17)")
  void noStaleBytes() {
    ToyEngine engine = engine(2);
    assumeStreams(engine);
    RuntimeFixture.Stream compute = engine.fixture.newStream();
    for (int round = 0; round < ROUNDS; round++) {
      engine.fillOn(compute, 3, round);
      TransferJobState job = engine.finish(engine.store(3, engine.keys(round), compute.fence()));
      assertEquals(1, engine.worker.publish(job));
      assertStatus(Status.COMPLETED, engine.finish(engine.load(10, round)));
      engine.assertHolds(10, round);
    }
  }

  @Test
  @DisplayName("rule 2: a store from device memory without a fence is refused (case 17)")
  void storeWithoutFence() {
    ToyEngine engine = engine(2);
    engine.fill(3, 7);
    if (engine.tensor(0).isDevice()) {
      refused(Reason.FENCE_REQUIRED, () -> engine.store(3, engine.keys(7), DeviceFence.none()));
      assertEquals(0, engine.fixture.counts().usedBytes());
    } else {
      TransferJobState job = engine.finish(engine.store(3, engine.keys(7), DeviceFence.none()));
      assertEquals(1, engine.worker.publish(job));
      assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
      engine.assertHolds(10, 7);
    }
  }

  @Test
  @DisplayName("rule 5: a load is a failure for exactly the blocks that failed (case 23)")
  void failedLoadNamesItsBlocks() {
    ToyEngine engine = engine(3);
    engine.put(0, 1, 2);
    engine.fixture.failCopies(engine.tensor(1), 12);

    TransferJobState job = engine.finish(engine.load(10, 0, 1, 2));

    assertStatus(Status.FAILED, job);
    assertArrayEquals(new int[] {12}, job.failedBlockIds());
    assertEquals(2, job.count(KeyOutcome.COMPLETED));
    assertEquals(1, job.count(KeyOutcome.FAILED));
    assertEquals(KeyReason.COPY_FAILED, job.reason(2));
    assertFalse(job.detail(2).isEmpty(), "the failure's text is lost");
    assertEquals(2 * ToyEngine.OBJECT_BYTES, job.completedBytes());
    assertEquals(List.of(engine.keys(2).key(0)), job.failedKeys());
    engine.assertHolds(10, 0);
    engine.assertHolds(11, 1);

    engine.fixture.healCopies();
    assertStatus(Status.COMPLETED, engine.finish(engine.load(12, 2)));
    engine.assertHolds(12, 2);
  }

  @Test
  @DisplayName("rule 5: a miss is a miss: its block stays as it was, its siblings arrive")
  void missTouchesNothing() {
    ToyEngine engine = engine(3);
    engine.put(0, 2);

    TransferJobState job = engine.finish(engine.load(10, 0, 1, 2));

    assertEquals(KeyOutcome.COMPLETED, job.outcome(0));
    assertEquals(KeyOutcome.MISS, job.outcome(1));
    assertEquals(KeyOutcome.COMPLETED, job.outcome(2));
    assertArrayEquals(new int[] {11}, job.failedBlockIds());
    engine.assertHolds(10, 0);
    engine.assertUntouched(11);
    engine.assertHolds(12, 2);
  }

  @Test
  @DisplayName("rule 5: an object of another size is a failure, never a clipped copy (case 4)")
  void sizeMismatch() {
    RuntimeFixture fixture = fixture(131_072, TIMEOUT);
    UMBPNamespace forced = new UMBPNamespace("forced");
    ToyEngine wide =
        engine(fixture, forced, ToyEngine.layout(RankTopology.single(), 65_536, 65_536, 0, 0), 2);
    ToyEngine narrow =
        engine(fixture, forced, ToyEngine.layout(RankTopology.single(), 32_768, 32_768, 0, 0), 2);
    wide.put(1);

    TransferJobState job = narrow.finish(narrow.load(1, 1));

    assertEquals(KeyOutcome.FAILED, job.outcome(0));
    assertEquals(KeyReason.SIZE_MISMATCH, job.reason(0));
    assertTrue(job.detail(0).contains("131072"), job.detail(0));
    assertTrue(job.detail(0).contains("65536"), job.detail(0));
    narrow.assertUntouched(1);
  }

  @Test
  @DisplayName("rule 5: an error on the way of a copy ends its job and nothing else (case 24)")
  void errorDuringCopy() {
    ToyEngine engine = engine(2);
    engine.fill(0, 0);
    engine.fill(1, 1);
    engine.fixture.breakNextCopy();
    try {
      TransferJobState broken = engine.finish(engine.store(0, 0));
      assertStatus(Status.FAILED, broken);
      assertEquals(KeyReason.COPY_FAILED, broken.reason(0));
      assertFalse(broken.detail(0).isEmpty(), "the error's text is lost");
      assertEquals(0, engine.worker.publish(broken));
    } catch (OutOfMemoryError e) {
      assertEquals(0, engine.fixture.counts().leases());
    }
    engine.fixture.healCopies();

    assertEquals(0, engine.hit(0));
    assertEquals(0, engine.fixture.counts().leases());
    TransferJobState next = engine.finish(engine.store(0, 0, 1));
    assertEquals(2, engine.worker.publish(next), "the next store works");
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0, 1)));
    engine.assertHolds(10, 0);
    engine.assertHolds(11, 1);
  }

  @Test
  @DisplayName(
      "rule 5: a store that never ends is overdue at its deadline, its key a miss (case 24)")
  void storeHeldForEver() {
    ToyEngine engine = engine(2, Duration.ofMillis(200));
    assumeHeldCopies(engine);
    engine.fill(0, 0);
    engine.fill(1, 1);
    engine.fixture.holdNextCopies(1);

    TransferJobState held = engine.store(0, 0);
    engine.fixture.advance(Duration.ofMillis(199));
    assertStatus(Status.RUNNING, engine.worker.poll(held));
    engine.fixture.advance(Duration.ofMillis(1));
    TransferJobState overdue = engine.worker.poll(held);
    assertStatus(Status.OVERDUE, overdue);
    assertStatus(Status.OVERDUE, engine.worker.await(held, TIMEOUT));
    assertEquals(KeyOutcome.PENDING, overdue.outcome(0));
    assertEquals(0, engine.hit(0));
    assertEquals(1, engine.fixture.counts().leases(), "the slot stays pinned until the copy ends");

    TransferJobState other = engine.finish(engine.store(1, 1));
    assertEquals(1, engine.worker.publish(other), "another store goes on");

    engine.fixture.releaseCopy();
    TransferJobState late = engine.finish(held);
    assertEquals(KeyOutcome.TIMED_OUT, late.outcome(0));
    assertEquals(0, engine.worker.publish(late));
    assertEquals(0, engine.hit(0));
    assertEquals(0, engine.fixture.counts().leases());
    assertEquals(ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());
  }

  @Test
  @DisplayName(
      "rule 5: a load past its deadline is overdue, then timed out, never completed (case 51)")
  void lateLoad() {
    ToyEngine engine = engine(2, Duration.ofMillis(200));
    assumeHeldCopies(engine);
    engine.put(0);
    engine.fixture.holdNextCopies(1);

    TransferJobState job = engine.load(10, 0);
    engine.fixture.advance(Duration.ofMillis(201));
    assertStatus(Status.OVERDUE, engine.worker.poll(job));
    assertStatus(Status.OVERDUE, engine.worker.await(job, TIMEOUT));
    assertEquals(1, engine.fixture.counts().leases());
    engine.assertUntouched(10);

    engine.fixture.releaseCopy();
    TransferJobState late = engine.finish(job);
    assertStatus(Status.FAILED, late);
    assertEquals(KeyOutcome.TIMED_OUT, late.outcome(0));
    assertArrayEquals(new int[] {10}, late.failedBlockIds());
    assertEquals(0, late.completedBytes());
    assertTrue(engine.isVisible(0), "the object itself is whole");
  }

  @Test
  @DisplayName(
      "rule 5: a late store's bytes reach neither its key nor a newer store of it (case 51)")
  void lateStoreDoesNotReachItsSuccessor() {
    ToyEngine engine = engine(2, Duration.ofMillis(200));
    assumeHeldCopies(engine);
    engine.fill(0, 0);
    engine.fill(1, 77);
    engine.fixture.holdNextCopies(1);
    TransferJobState late = engine.store(0, 0);
    engine.fixture.advance(Duration.ofMillis(201));
    assertStatus(Status.OVERDUE, engine.worker.poll(late));

    TransferJobState fresh = engine.finish(engine.store(1, engine.keys(0), hostComplete()));
    assertStatus(Status.COMPLETED, fresh);
    assertEquals(2 * ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes(), "a fresh slot");
    assertEquals(1, engine.worker.publish(fresh));

    engine.fill(0, 55);
    engine.fixture.releaseCopy();
    TransferJobState ended = engine.finish(late);
    assertEquals(KeyOutcome.TIMED_OUT, ended.outcome(0));
    assertEquals(0, engine.worker.publish(ended));
    assertEquals(1, engine.hit(0));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0)));
    engine.assertHolds(10, 77);
  }

  @Test
  @DisplayName("rule 5: lookup answers key by key, so that hits are a leading run (case 27)")
  void lookupSeesGaps() {
    ToyEngine engine = engine(129);
    engine.put(0, 1, 3);
    boolean[] withGap = engine.lookup(0, 1, 2, 3);
    assertArrayEquals(new boolean[] {true, true, false, true}, withGap);
    assertEquals(2, ToyEngine.hit(withGap));

    engine.put(ToyEngine.range(102, 228));
    boolean[] withoutHead = engine.lookup(ToyEngine.range(100, 228));
    assertEquals(128, withoutHead.length);
    assertEquals(0, ToyEngine.hit(withoutHead));
    for (int i = 0; i < withoutHead.length; i++) {
      assertEquals(i >= 2, withoutHead[i], "key " + i);
    }
    assertArrayEquals(
        withGap, engine.scheduler.lookup(new ArrayList<>(engine.keys(0, 1, 2, 3))), "as text");
    assertArrayEquals(
        new boolean[] {false, false}, engine.scheduler.lookup(List.of("", "umbp:vllm:v1:x")));
  }

  @Test
  @DisplayName("rule 5: each rank reports its own failed blocks, again at each poll (case 50)")
  void failedBlocksOfRanks() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine rank0 = rankOfTwo(fixture, 0);
    ToyEngine rank1 = rankOfTwo(fixture, 1);
    rank0.put(0, 1);
    rank1.put(0, 1);
    fixture.failCopies(rank1.tensor(0), 9);

    TransferJobState whole = rank0.finish(rank0.load(8, 0, 1));
    TransferJobState partial = rank1.finish(rank1.load(8, 0, 1));
    TransferJobState sharing = rank1.finish(rank1.load(9, 1));

    assertArrayEquals(new int[0], whole.failedBlockIds());
    assertArrayEquals(new int[] {9}, partial.failedBlockIds());
    assertArrayEquals(new int[] {9}, rank1.worker.poll(partial).failedBlockIds());
    assertArrayEquals(new int[] {9}, sharing.failedBlockIds(), "the second request is told too");
    rank1.assertHolds(8, 0);

    BlockKeys foreign = rank0.keys(0, 1, 0);
    refusedNaming(() -> rank1.load(20, foreign, hostComplete()), "tp");
    rank1.assertUntouched(20);
    rank1.assertUntouched(21);
    rank1.assertUntouched(22);
  }

  @Test
  @DisplayName("rule 5: a block is there when the objects of all its ranks are")
  void blockOfTwoRanks() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine rank0 = rankOfTwo(fixture, 0);
    ToyEngine rank1 = rankOfTwo(fixture, 1);
    rank0.put(0, 1);
    rank1.put(0);
    BlockKeys onAllRanks = rank0.keys(0, 1).onRanks(rank0.layout.topology().allNamespaces());
    assertArrayEquals(new boolean[] {true, true, true, false}, rank0.scheduler.lookup(onAllRanks));
  }

  static ToyEngine rankOf(RuntimeRules rules, RuntimeFixture fixture, int rank) {
    return rules.engine(
        fixture, ToyEngine.NAMESPACE, ToyEngine.layout(RankTopology.tensorParallel(rank, 2)));
  }

  private ToyEngine rankOfTwo(RuntimeFixture fixture, int rank) {
    return rankOf(this, fixture, rank);
  }

  private static DeviceFence hostComplete() {
    return DeviceFence.hostComplete();
  }

  @Test
  @DisplayName("rule 9: a load writes its blocks after their last user on the stream")
  void loadWaitsForLastUser() {
    ToyEngine engine = engine(2);
    assumeStreams(engine);
    engine.put(0);
    engine.fill(4, 99);
    RuntimeFixture.Stream compute = engine.fixture.newStream();
    compute.stall();
    List<Supplier<byte[]>> seen = new ArrayList<>();
    for (int layer = 0; layer < 2; layer++) {
      seen.add(
          compute.read(engine.tensor(layer), engine.offset(layer, 4), (int) ToyEngine.PAYLOAD));
    }

    TransferJobState job = engine.load(4, engine.keys(0), compute.fence());
    assertNotFinal(engine.linger(job));
    engine.assertHolds(4, 99);

    compute.resume();
    assertStatus(Status.COMPLETED, engine.finish(job));
    assertArrayEquals(engine.pattern(0, 99), seen.get(0).get());
    assertArrayEquals(engine.pattern(1, 99), seen.get(1).get());
    engine.assertHolds(4, 0);
  }

  @Test
  @DisplayName("rule 9: the readers before 500 loads see what was there before each")
  void readersSeeTheirBytes() {
    ToyEngine engine = engine(1);
    assumeStreams(engine);
    engine.put(0);
    RuntimeFixture.Stream compute = engine.fixture.newStream();
    for (int round = 1; round <= 500; round++) {
      engine.fillOn(compute, 4, round);
      Supplier<byte[]> seen =
          compute.read(engine.tensor(1), engine.offset(1, 4), (int) ToyEngine.PAYLOAD);
      assertStatus(
          Status.COMPLETED, engine.finish(engine.load(4, engine.keys(0), compute.fence())));
      assertArrayEquals(engine.pattern(1, round), seen.get());
      engine.assertHolds(4, 0);
    }
  }

  @Test
  @DisplayName("rule 9: a load into device memory without a fence is refused")
  void loadWithoutFence() {
    ToyEngine engine = engine(2);
    engine.put(0);
    if (engine.tensor(0).isDevice()) {
      refused(Reason.FENCE_REQUIRED, () -> engine.load(4, engine.keys(0), DeviceFence.none()));
      engine.assertUntouched(4);
      assertEquals(0, engine.fixture.counts().leases());
    } else {
      assertStatus(
          Status.COMPLETED, engine.finish(engine.load(4, engine.keys(0), DeviceFence.none())));
      engine.assertHolds(4, 0);
    }
  }
}
