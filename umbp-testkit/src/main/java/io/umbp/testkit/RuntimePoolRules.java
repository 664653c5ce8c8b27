package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.ClearResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankTopology;
import io.umbp.api.SupportsHold;
import io.umbp.api.TransferJobState;
import io.umbp.api.TransferJobState.Status;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.UMBPNamespace;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** Rules 3, 4 and 6: which objects there are, and which may go. */
abstract class RuntimePoolRules extends RuntimeTransferRules {
  private static final int THREADS = 6;
  private static final int OPERATIONS = 1_000;

  @Test
  @DisplayName("rule 3: a key is a miss until its bytes have landed and it was published (case 19)")
  void visibleWhenPublished() {
    ToyEngine engine = engine(2);
    engine.fill(3, 7);
    boolean isHeld = engine.fixture.canHoldCopies();
    if (isHeld) {
      engine.fixture.holdNextCopies(1);
    }
    TransferJobState job = engine.store(3, 7);
    if (isHeld) {
      assertNotFinal(engine.linger(job));
      assertEquals(0, engine.hit(7));
      assertEquals(KeyOutcome.MISS, engine.finish(engine.load(10, 7)).outcome(0));
      engine.fixture.releaseCopy();
    }
    TransferJobState done = engine.finish(job);
    assertEquals(0, engine.hit(7), "complete, not published");
    assertEquals(KeyOutcome.MISS, engine.finish(engine.load(10, 7)).outcome(0));
    engine.assertUntouched(10);

    assertEquals(1, engine.worker.publish(done));
    assertEquals(1, engine.hit(7));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName("rule 3: two writers of one 65,536-byte key leave one whole value (case 19)")
  void twoWriters() throws Exception {
    RuntimeFixture fixture = fixture(131_072, TIMEOUT);
    KVLayoutDescriptor layout = ToyEngine.layout(RankTopology.single(), 65_536, 65_536, 0);
    ToyEngine a = engine(fixture, ToyEngine.NAMESPACE, layout, 3);
    ToyEngine b = engine(fixture, ToyEngine.NAMESPACE, layout, 3);
    for (int round = 0; round < 20; round++) {
      int key = round;
      a.fill(0, 100);
      b.fill(0, 200);
      CyclicBarrier together = new CyclicBarrier(2);
      List<Integer> published =
          inParallel(List.of(() -> write(a, key, together), () -> write(b, key, together)));
      assertEquals(1, published.get(0) + published.get(1), "one of them made it visible");
      assertStatus(Status.COMPLETED, a.finish(a.load(2, key)));
      try {
        a.assertHolds(2, 100);
      } catch (AssertionError e) {
        a.assertHolds(2, 200);
      }
    }
  }

  private static int write(ToyEngine engine, int key, CyclicBarrier together) throws Exception {
    together.await();
    TransferJobState job = engine.finish(engine.store(0, key));
    assertStatus(Status.COMPLETED, job);
    return engine.worker.publish(job);
  }

  @Test
  @DisplayName("rule 3: a batch with a failed block publishes what is whole (case 20)")
  void partlyFailedBatch() {
    ToyEngine engine = engine(4);
    for (int block = 0; block < 4; block++) {
      engine.fill(block, block);
    }
    engine.fixture.failCopies(engine.tensor(1), 2);

    TransferJobState job = engine.finish(engine.store(0, 0, 1, 2, 3));

    assertEquals(KeyOutcome.COMPLETED, job.outcome(0));
    assertEquals(KeyOutcome.COMPLETED, job.outcome(1));
    assertEquals(KeyOutcome.FAILED, job.outcome(2));
    assertEquals(KeyOutcome.COMPLETED, job.outcome(3));
    assertEquals(3, engine.worker.publish(job));
    assertEquals(2, engine.hit(0, 1, 2, 3));
    assertEquals(KeyOutcome.MISS, engine.finish(engine.load(10, 2)).outcome(0));
    engine.assertUntouched(10);
    assertEquals(3 * ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());

    engine.fixture.healCopies();
    assertEquals(1, engine.worker.publish(engine.finish(engine.store(2, 2))));
    assertEquals(4, engine.hit(0, 1, 2, 3));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 2)));
    engine.assertHolds(10, 2);
  }

  @Test
  @DisplayName("rule 3: publishing twice changes nothing, publishing a load is refused")
  void publishOnce() {
    ToyEngine engine = engine(2);
    engine.fill(3, 7);
    TransferJobState job = engine.finish(engine.store(3, 7));
    assertEquals(1, engine.worker.publish(job));
    assertEquals(0, engine.worker.publish(job));
    assertEquals(0, engine.worker.publish(engine.worker.poll(job)));
    assertEquals(1, engine.hit(7));
    TransferJobState load = engine.finish(engine.load(10, 7));
    refused(Reason.INVALID_ARGUMENT, () -> engine.worker.publish(load));
  }

  @Test
  @DisplayName(
      "rule 3: a store of a visible key completes without a copy and keeps its bytes (case 22)")
  void storeOfVisibleKey() {
    ToyEngine engine = engine(2);
    engine.put(7);
    engine.fill(3, 99);

    TransferJobState again = engine.store(3, 7);

    assertStatus(Status.COMPLETED, again);
    assertEquals(0, engine.worker.publish(again));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName(
      "rule 3: a second store of a key in flight joins the first and succeeds with it (case 22)")
  void joinedStoreSucceeds() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(0, 7);
    engine.fill(1, 99);
    engine.fixture.holdNextCopies(1);
    TransferJobState r1 = engine.store(0, 7);
    TransferJobState r2 = engine.store(1, 7);

    assertNotFinal(engine.linger(r2));
    assertEquals(ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes(), "one copy, one slot");
    assertEquals(1, engine.fixture.counts().runningCopies());

    engine.fixture.releaseCopy();
    TransferJobState r2Done = engine.finish(r2);
    TransferJobState r1Done = engine.finish(r1);
    assertStatus(Status.COMPLETED, r1Done);
    assertStatus(Status.COMPLETED, r2Done);
    assertEquals(1, engine.worker.publish(r2Done), "either job publishes");
    assertEquals(1, engine.hit(7));
    assertEquals(0, engine.worker.publish(r1Done));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName("rule 3: a second store of a key in flight fails with the first (case 22)")
  void joinedStoreFails() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(0, 7);
    engine.fill(1, 7);
    engine.fixture.failCopies(engine.tensor(0), 0);
    engine.fixture.holdNextCopies(1);
    TransferJobState r1 = engine.store(0, 7);
    TransferJobState r2 = engine.store(1, 7);
    assertNotFinal(engine.linger(r2));

    engine.fixture.releaseCopy();
    TransferJobState r1Done = engine.finish(r1);
    TransferJobState r2Done = engine.finish(r2);
    assertEquals(KeyOutcome.FAILED, r1Done.outcome(0));
    assertEquals(KeyReason.COPY_FAILED, r1Done.reason(0));
    assertEquals(KeyOutcome.FAILED, r2Done.outcome(0));
    assertEquals(KeyReason.WRITER_FAILED, r2Done.reason(0));
    assertEquals(0, engine.worker.publish(r1Done) + engine.worker.publish(r2Done));
    assertEquals(0, engine.hit(7));
    assertEquals(0, engine.fixture.counts().usedBytes());

    TransferJobState again = engine.finish(engine.store(1, 7));
    assertEquals(1, engine.worker.publish(again), "the key is stored when offered again");
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName(
      "rule 3: a cancelled store publishes nothing, but serves whoever joined it (case 22)")
  void cancelledWriterServesJoined() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(0, 7);
    engine.fill(1, 8);
    engine.fixture.holdNextCopies(1);
    TransferJobState r1 = engine.store(0, 7, 8);
    TransferJobState r2 = engine.store(2, 7);

    assertNotFinal(engine.worker.cancel(r1));
    assertNotFinal(engine.linger(r2));
    engine.fixture.releaseCopy();

    TransferJobState r1Done = engine.finish(r1);
    assertStatus(Status.CANCELLED, r1Done);
    assertEquals(2, r1Done.count(KeyOutcome.CANCELLED));
    assertEquals(0, engine.worker.publish(r1Done));
    TransferJobState r2Done = engine.finish(r2);
    assertStatus(Status.COMPLETED, r2Done);
    assertEquals(1, engine.worker.publish(r2Done));
    assertArrayEquals(new boolean[] {true, false}, engine.lookup(7, 8));
    assertEquals(ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 7)));
    engine.assertHolds(10, 7);
  }

  @Test
  @DisplayName("rule 3: nothing of a store that was cancelled when complete becomes visible")
  void cancelledWhenComplete() {
    ToyEngine engine = engine(2);
    engine.fill(0, 7);
    TransferJobState job = engine.finish(engine.store(0, 7));
    engine.worker.cancel(job);
    assertEquals(0, engine.worker.publish(job));
    assertEquals(0, engine.hit(7));
    assertEquals(0, engine.fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 3: a completed key that can't be published any more says why")
  void notPublished() {
    ToyEngine engine = engine(2, Duration.ofMillis(200));
    engine.fill(0, 7);
    TransferJobState cancelled = engine.finish(engine.store(0, 7));
    engine.worker.cancel(cancelled);
    assertNotPublished(KeyReason.NOT_PUBLISHED, engine, cancelled);

    TransferJobState late = engine.finish(engine.store(0, 7));
    engine.fixture.advance(Duration.ofMillis(250));
    assertNotPublished(KeyReason.NOT_PUBLISHED, engine, late);

    TransferJobState cleared = engine.finish(engine.store(0, 7));
    engine.scheduler.clear();
    assertNotPublished(KeyReason.CLEARED, engine, cleared);

    TransferJobState whole = engine.finish(engine.store(0, 7));
    assertEquals(1, engine.worker.publish(whole));
    assertEquals(KeyReason.NONE, engine.worker.poll(whole).reason(0));
    assertEquals(1, engine.hit(7));
  }

  private static void assertNotPublished(
      KeyReason reason, ToyEngine engine, TransferJobState stored) {
    assertStatus(Status.COMPLETED, stored);
    assertEquals(0, engine.worker.publish(stored));
    TransferJobState told = engine.worker.poll(stored);
    assertEquals(KeyOutcome.COMPLETED, told.outcome(0));
    assertEquals(reason, told.reason(0));
    assertEquals(0, engine.hit(7));
  }

  @Test
  @DisplayName("rule 3: the key of a writer that died in its copy is free at the limit (case 41)")
  void writerDiesInCopy() {
    ToyEngine a = engine(3, Duration.ofMillis(200));
    assumeHeldCopies(a);
    ToyEngine b = engine(a.fixture);
    a.fill(0, 1);
    b.fill(0, 2);
    a.fixture.holdNextCopies(1);

    TransferJobState begun = a.store(0, 7);
    assertEquals(0, b.hit(7));
    a.fixture.advance(Duration.ofMillis(50));
    TransferJobState first = b.store(0, 7);
    assertNotFinal(b.worker.poll(first));

    a.fixture.advance(Duration.ofMillis(150));
    assertStatus(Status.OVERDUE, a.worker.poll(begun));
    TransferJobState refused = b.finish(first);
    assertEquals(KeyOutcome.FAILED, refused.outcome(0));
    assertEquals(KeyReason.WRITER_OVERDUE, refused.reason(0));
    assertEquals(0, b.worker.publish(refused));

    a.fixture.advance(Duration.ofMillis(50));
    assertEquals(0, b.hit(7));
    TransferJobState second = b.finish(b.store(0, 7));
    assertEquals(1, b.worker.publish(second));

    a.fixture.releaseCopy();
    assertEquals(0, a.worker.publish(a.finish(begun)));
    assertEquals(ToyEngine.OBJECT_BYTES, a.fixture.counts().usedBytes(), "its space is free");
    assertStatus(Status.COMPLETED, b.finish(b.load(10, 7)));
    b.assertHolds(10, 2);
  }

  @Test
  @DisplayName("rule 3: what is not published by the deadline is dropped (case 41)")
  void writerDiesBeforePublish() {
    ToyEngine a = engine(3, Duration.ofMillis(200));
    ToyEngine b = engine(a.fixture);
    a.fill(0, 1);
    b.fill(0, 2);

    TransferJobState begun = a.finish(a.store(0, 7));
    assertStatus(Status.COMPLETED, begun);
    a.fixture.advance(Duration.ofMillis(199));
    assertEquals(1, a.fixture.counts().unpublishedObjects());
    a.fixture.advance(Duration.ofMillis(51));
    assertEquals(0, b.hit(7));
    TransferJobState second = b.finish(b.store(0, 7));
    assertEquals(1, b.worker.publish(second));

    assertEquals(0, a.worker.publish(begun));
    assertEquals(ToyEngine.OBJECT_BYTES, a.fixture.counts().usedBytes());
    assertStatus(Status.COMPLETED, b.finish(b.load(10, 7)));
    b.assertHolds(10, 2);
  }

  @Test
  @DisplayName("rule 4: eviction during a running copy (case 31)")
  void evictionDuringCopy() {
    ToyEngine engine = engine(2);
    assumeHeldCopies(engine);
    int a = 0;
    int b = 1;
    int c = 2;
    int d = 3;
    engine.put(a, b);
    engine.fill(c, c);
    engine.fill(d, d);

    engine.fixture.holdNextCopies(2);
    TransferJobState loadA = engine.load(10, a);
    TransferJobState storeC = engine.store(c, c);
    assertArrayEquals(new boolean[] {true, false}, engine.lookup(a, b), "C takes B's slot");
    TransferJobState storeD = engine.store(d, d);
    assertEquals(KeyOutcome.REJECTED, storeD.outcome(0));
    assertEquals(KeyReason.POOL_BUSY, storeD.reason(0));

    engine.fixture.releaseCopies();
    assertStatus(Status.COMPLETED, engine.finish(loadA));
    engine.assertHolds(10, a);
    assertEquals(1, engine.worker.publish(engine.finish(storeC)));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(11, c)));
    engine.assertHolds(11, c);

    TransferJobState again = engine.finish(engine.store(d, d));
    assertEquals(1, engine.worker.publish(again));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(12, d)));
    engine.assertHolds(12, d);
    assertEquals(1, engine.hit(a) + engine.hit(c));
  }

  @Test
  @DisplayName("rule 4: without room for a whole batch each key is told (case 32)")
  void noRoomForBatch() {
    ToyEngine engine = engine(3);
    for (int block = 0; block < 5; block++) {
      engine.fill(block, block);
    }
    TransferJobState job = engine.finish(engine.store(0, 0, 1, 2, 3, 4));

    assertEquals(3, job.count(KeyOutcome.COMPLETED), job::toString);
    assertEquals(2, job.count(KeyOutcome.REJECTED), job::toString);
    assertEquals(KeyOutcome.REJECTED, job.outcome(3));
    assertEquals(KeyOutcome.REJECTED, job.outcome(4));
    assertEquals(KeyReason.POOL_BUSY, job.reason(3));
    assertEquals(3 * ToyEngine.OBJECT_BYTES, job.completedBytes());
    RuntimeFixture.Counts full = engine.fixture.counts();
    assertEquals(full.capacityBytes(), full.usedBytes());
    assertEquals(0, full.freeBytes());

    engine.worker.cancel(job);
    assertEquals(0, engine.fixture.counts().usedBytes());
    TransferJobState three = engine.finish(engine.store(0, 0, 1, 2));
    assertEquals(3, engine.worker.publish(three), "the same batch of 3");
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0, 1, 2)));
    engine.assertHolds(12, 2);
  }

  @Test
  @DisplayName("rule 4: blocks that are being loaded stay, whatever is stored (case 28)")
  void leasedBlocksStay() {
    ToyEngine engine = engine(8);
    assumeHeldCopies(engine);
    engine.put(0, 1, 2, 3);
    assertEquals(4, engine.hit(0, 1, 2, 3));
    engine.fixture.holdNextCopies(1);
    TransferJobState r1 = engine.load(40, 0, 1, 2, 3);

    TransferJobState r2 = engine.finish(engine.store(0, ToyEngine.range(10, 18)));
    assertEquals(4, r2.count(KeyOutcome.COMPLETED), r2::toString);
    assertEquals(4, r2.count(KeyOutcome.REJECTED), r2::toString);
    assertEquals(4, engine.worker.publish(r2));
    assertEquals(4, engine.hit(0, 1, 2, 3));

    engine.fixture.releaseCopy();
    assertStatus(Status.COMPLETED, engine.finish(r1));
    for (int i = 0; i < 4; i++) {
      engine.assertHolds(40 + i, i);
    }
  }

  @Test
  @DisplayName("rule 4: held blocks stay until their hold ends, whatever is stored (case 28)")
  void heldBlocksStay() {
    ToyEngine engine = engine(8);
    engine.put(0, 1, 2, 3);
    SupportsHold.Hold hold = hold(engine, Duration.ofSeconds(10), 0, 1, 2, 3, 9);
    assertArrayEquals(new boolean[] {true, true, true, true, false}, hold.present());

    TransferJobState r2 = engine.finish(engine.store(0, ToyEngine.range(10, 18)));
    assertEquals(4, r2.count(KeyOutcome.COMPLETED), r2::toString);
    assertEquals(4, r2.count(KeyOutcome.REJECTED), r2::toString);
    assertEquals(4, engine.worker.publish(r2));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(40, 0, 1, 2, 3)));
    for (int i = 0; i < 4; i++) {
      engine.assertHolds(40 + i, i);
    }

    assertTrue(hold.isHeld());
    hold.close();
    hold.close();
    assertFalse(hold.isHeld());
    engine.put(ToyEngine.range(20, 28));
    assertEquals(0, engine.hit(0, 1, 2, 3));
  }

  @Test
  @DisplayName("rule 4: a hold ends at its limit by itself")
  void holdsEndAtTheirLimit() {
    ToyEngine engine = engine(2);
    engine.put(0, 1);
    SupportsHold.Hold later = hold(engine, Duration.ofSeconds(9), 1);
    SupportsHold.Hold hold = hold(engine, Duration.ofSeconds(3), 0, 1);
    engine.fixture.advance(Duration.ofSeconds(3).minus(TICK));
    assertTrue(hold.isHeld());
    TransferJobState refused = engine.finish(engine.store(10, 10));
    assertEquals(KeyOutcome.REJECTED, refused.outcome(0));

    engine.fixture.advance(TICK);
    assertFalse(hold.isHeld());
    engine.put(11);
    assertEquals(0, engine.hit(0), "the only one without a hold");
    assertEquals(1, engine.hit(1));
    assertTrue(later.isHeld());
    later.close();
  }

  @Test
  @DisplayName("rule 4: a hold lets go of what is not wanted, and touches no recency")
  void holdsKeepTheFirst() {
    ToyEngine engine = engine(4);
    engine.put(0, 1, 2, 3);
    SupportsHold.Hold hold = hold(engine, Duration.ofSeconds(10), 0, 1, 2, 3);
    hold.keepFirst(9);
    hold.keepFirst(1);
    hold.keepFirst(3);
    engine.put(10, 11, 12);
    assertArrayEquals(
        new boolean[] {true, false, false, false}, engine.lookup(0, 1, 2, 3), "only the first");
    hold.close();
    engine.put(13);
    assertEquals(0, engine.hit(0), "the least recent, though it was held");
    refused(UMBPException.Reason.INVALID_ARGUMENT, () -> hold(engine, Duration.ZERO, 0).close());
    refused(UMBPException.Reason.INVALID_ARGUMENT, () -> hold.keepFirst(-1));
  }

  @Test
  @DisplayName("rule 6: clear ends holds, and nothing of what they held is left")
  void clearEndsHolds() {
    ToyEngine engine = engine(4);
    engine.put(0, 1, 2, 3);
    SupportsHold.Hold hold = hold(engine, Duration.ofSeconds(10), 0, 1, 2, 3);
    assertEquals(new ClearResult(4, 0, 0), engine.scheduler.clear());
    assertFalse(hold.isHeld());
    hold.close();
    TransferJobState load = engine.finish(engine.load(40, 0, 1, 2, 3));
    assertEquals(4, load.count(KeyOutcome.MISS));
    assertArrayEquals(new int[] {40, 41, 42, 43}, load.failedBlockIds());
  }

  private static SupportsHold.Hold hold(ToyEngine engine, Duration limit, int... contents) {
    assumeTrue(engine.scheduler instanceof SupportsHold, "the runtime can't hold what it found");
    return ((SupportsHold) engine.scheduler).lookupAndHold(engine.keys(contents), limit);
  }

  @Test
  @DisplayName("rule 4: blocks evicted between lookup and load are named as missing (case 28)")
  void evictedBlocksAreMissing() {
    ToyEngine engine = engine(8);
    engine.put(0, 1, 2, 3);
    assertEquals(4, engine.hit(0, 1, 2, 3));
    engine.put(ToyEngine.range(10, 17));

    TransferJobState r1 = engine.finish(engine.load(40, 0, 1, 2, 3));

    assertEquals(3, r1.count(KeyOutcome.MISS));
    assertArrayEquals(new int[] {40, 41, 42}, r1.failedBlockIds());
    engine.assertUntouched(40);
    engine.assertUntouched(41);
    engine.assertUntouched(42);
    engine.assertHolds(43, 3);
    assertEquals(
        List.of(engine.keys(0).key(0), engine.keys(1).key(0), engine.keys(2).key(0)),
        engine.scheduler.takeEvictedKeys());
    assertEquals(List.<BlockKey>of(), engine.scheduler.takeEvictedKeys());
  }

  @Test
  @DisplayName("rule 4: a block without its side object ends the prefix (case 28)")
  void missingSideObject() {
    RuntimeFixture fixture = fixture(8 * ToyEngine.PAYLOAD, TIMEOUT);
    KVLayoutDescriptor mainAndSide =
        ToyEngine.layout(RankTopology.single(), ToyEngine.STRIDE, ToyEngine.PAYLOAD, 0, 1);
    ToyEngine engine = engine(fixture, ToyEngine.NAMESPACE, mainAndSide);
    int[] groups = {0, 1, 0, 1, 0, 1, 0, 1};
    BlockKeys all = engine.keys(groups, new int[] {0, 0, 1, 1, 2, 2, 3, 3});
    TransferJobState stored = engine.finish(engine.store(0, all, DeviceFence.hostComplete()));
    assertEquals(8, engine.worker.publish(stored));
    engine.scheduler.touch(engine.keys(groups, new int[] {0, 0, 1, 1, 2, 9, 3, 3}));

    engine.put(20);

    boolean[] present = engine.scheduler.lookup(all);
    assertArrayEquals(new boolean[] {true, true, true, true, true, false, true, true}, present);
    assertEquals(2, ToyEngine.hit(present) / 2);
    TransferJobState load = engine.finish(engine.load(40, all, DeviceFence.hostComplete()));
    assertEquals(KeyOutcome.MISS, load.outcome(5));
    assertArrayEquals(new int[] {45}, load.failedBlockIds());
    engine.assertUntouched(45);
  }

  @Test
  @DisplayName("rule 4: a pin belongs to its load, ending one twice releases it once (case 30)")
  void pinsBelongToLoads() {
    ToyEngine engine = engine(1);
    assumeHeldCopies(engine);
    engine.put(0);
    engine.fixture.holdNextCopies(2);
    TransferJobState r1 = engine.load(10, 0);
    TransferJobState r2 = engine.load(11, 0);
    assertEquals(2, engine.fixture.counts().leases());

    engine.fixture.releaseCopy();
    TransferJobState r1Done = engine.finish(r1);
    assertEquals(1, engine.fixture.counts().leases());
    engine.worker.poll(r1);
    engine.worker.cancel(r1Done);
    engine.worker.cancel(r1);
    assertEquals(1, engine.fixture.counts().leases());
    assertEquals(KeyOutcome.REJECTED, engine.store(20, 1).outcome(0), "the first eviction frees 0");
    assertEquals(1, engine.hit(0));

    engine.fixture.releaseCopy();
    assertStatus(Status.COMPLETED, engine.finish(r2));
    engine.worker.cancel(r2);
    assertEquals(0, engine.fixture.counts().leases());
    assertEquals(
        1, engine.worker.publish(engine.finish(engine.store(20, 1))), "the second frees 1");
    assertEquals(0, engine.hit(0));
    engine.assertHolds(10, 0);
    engine.assertHolds(11, 0);
  }

  @Test
  @DisplayName("rule 4: objects that are not published are never evicted")
  void unpublishedObjectsStay() {
    ToyEngine engine = engine(2);
    engine.fill(0, 0);
    engine.fill(1, 1);
    TransferJobState first = engine.finish(engine.store(0, 0));
    TransferJobState second = engine.finish(engine.store(1, 1, 2));
    assertEquals(KeyOutcome.COMPLETED, second.outcome(0));
    assertEquals(KeyOutcome.REJECTED, second.outcome(1));
    assertEquals(2, engine.worker.publish(first) + engine.worker.publish(second));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0, 1)));
    engine.assertHolds(10, 0);
    engine.assertHolds(11, 1);
  }

  @Test
  @DisplayName("rule 4: the tail of a chain goes first (case 35)")
  void tailGoesFirst() {
    ToyEngine engine = engine(4);
    int[] chain = {0, 1, 2, 3};
    engine.put(chain);
    engine.scheduler.touch(engine.keys(chain));
    int x = 10;
    int y = 11;

    engine.put(x);
    assertEquals(3, engine.hit(chain));
    assertFalse(engine.isVisible(3));

    assertEquals(3, engine.hit(0, 1, 2));
    engine.scheduler.touch(engine.keys(0, 1, 2));
    engine.put(y);
    assertEquals(3, engine.hit(chain));
    assertFalse(engine.isVisible(x));
    assertTrue(engine.isVisible(y));
  }

  @Test
  @DisplayName(
      "rule 4: a chain that is looked up and loaded but not touched gets shorter (case 35)")
  void lookupAndLoadTouchNothing() {
    ToyEngine engine = engine(4);
    int[] chain = {0, 1, 2, 3};
    engine.put(chain);
    engine.scheduler.touch(engine.keys(chain));
    engine.put(10);

    assertEquals(3, engine.hit(0, 1, 2));
    assertStatus(Status.COMPLETED, engine.finish(engine.load(20, 0, 1, 2)));
    engine.put(11);
    assertEquals(2, engine.hit(chain));
  }

  @Test
  @DisplayName("rule 4: publishing makes recent in batch order, one victim goes for one need")
  void publishMakesRecent() {
    ToyEngine engine = engine(4);
    engine.put(0, 1, 2, 3);
    engine.put(4);
    assertArrayEquals(new boolean[] {false, true, true, true, true}, engine.lookup(0, 1, 2, 3, 4));
    engine.put(5, 6);
    assertArrayEquals(
        new boolean[] {false, false, true, true, true, true}, engine.lookup(1, 2, 3, 4, 5, 6));
    assertEquals(4 * ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 4: all ranks of a block are touched together")
  void ranksAreTouchedTogether() {
    RuntimeFixture fixture = fixture(4 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine rank0 = rankOf(this, fixture, 0);
    ToyEngine rank1 = rankOf(this, fixture, 1);
    rank0.put(0, 1);
    rank1.put(0, 1);
    BlockKeys block0 = rank0.keys(0).onRanks(rank0.layout.topology().allNamespaces());
    rank0.scheduler.touch(block0);
    rank1.put(2);
    rank0.put(2);
    assertArrayEquals(new boolean[] {true, true}, rank0.scheduler.lookup(block0));
    assertFalse(rank0.isVisible(1));
    assertFalse(rank1.isVisible(1));
  }

  @Test
  @DisplayName("rule 4: under threads that store, load, touch, clear and evict no byte is wrong")
  void threadsOverSmallPool() throws Exception {
    ToyEngine engine = engine(8);
    long seed = Long.getLong("umbp.testkit.seed", 20_240_607L);
    List<Callable<Integer>> threads = new ArrayList<>();
    for (int thread = 0; thread < THREADS; thread++) {
      int firstBlock = thread * 8;
      SplittableRandom random = new SplittableRandom(seed + thread);
      threads.add(() -> work(engine, firstBlock, random));
    }
    int loaded = inParallel(threads).stream().mapToInt(Integer::intValue).sum();
    assertTrue(loaded > 0, "no load completed, seed " + seed);
  }

  /** Returns how many blocks it loaded and checked. */
  private static int work(ToyEngine engine, int firstBlock, SplittableRandom random) {
    int loaded = 0;
    for (int i = 0; i < OPERATIONS; i++) {
      int first = random.nextInt(24);
      int[] contents = ToyEngine.range(first, first + 1 + random.nextInt(4));
      switch (random.nextInt(16)) {
        case 0 -> engine.scheduler.clear();
        case 1, 2 -> engine.scheduler.touch(engine.keys(contents));
        case 3, 4, 5, 6, 7, 8 -> storeOnce(engine, firstBlock, contents, random);
        default -> loaded += loadOnce(engine, firstBlock, contents, random);
      }
    }
    return loaded;
  }

  private static void storeOnce(
      ToyEngine engine, int firstBlock, int[] contents, SplittableRandom random) {
    for (int i = 0; i < contents.length; i++) {
      engine.fill(firstBlock + i, contents[i]);
    }
    TransferJobState job = engine.store(firstBlock, contents);
    if (random.nextInt(8) == 0) {
      engine.worker.cancel(job);
    }
    TransferJobState done = engine.finish(job);
    for (int i = 0; i < contents.length; i++) {
      engine.clean(firstBlock + i);
    }
    if (random.nextInt(8) == 0) {
      engine.worker.cancel(done);
    }
    engine.worker.publish(done);
  }

  private static int loadOnce(
      ToyEngine engine, int firstBlock, int[] contents, SplittableRandom random) {
    for (int i = 0; i < contents.length; i++) {
      engine.clean(firstBlock + i);
    }
    TransferJobState job = engine.load(firstBlock, contents);
    if (random.nextInt(8) == 0) {
      engine.worker.cancel(job);
    }
    TransferJobState done = engine.finish(job);
    int loaded = 0;
    for (int i = 0; i < contents.length; i++) {
      if (done.outcome(i) == KeyOutcome.COMPLETED) {
        engine.assertHolds(firstBlock + i, contents[i]);
        loaded++;
      } else if (done.outcome(i) == KeyOutcome.MISS) {
        engine.assertUntouched(firstBlock + i);
      }
    }
    return loaded;
  }

  /** Runs tasks at the same time; a failure of one is thrown as it is. */
  static <T> List<T> inParallel(List<Callable<T>> tasks) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(tasks.size());
    try {
      List<T> results = new ArrayList<>();
      for (Future<T> result : threads.invokeAll(tasks)) {
        results.add(result.get());
      }
      return results;
    } catch (ExecutionException e) {
      if (e.getCause() instanceof Error error) {
        throw error;
      }
      throw e;
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  @DisplayName("rule 6: clear removes all 64 blocks, on every rank, and says so (case 33)")
  void clearRemovesAll() {
    RuntimeFixture fixture = fixture(128 * ToyEngine.OBJECT_BYTES, TIMEOUT);
    ToyEngine rank0 = rankOf(this, fixture, 0);
    ToyEngine rank1 = rankOf(this, fixture, 1);
    int[] prompt = ToyEngine.range(0, 1_024 / 16);
    rank0.put(prompt);
    rank1.put(prompt);
    assertEquals(64, rank0.hit(prompt));

    ClearResult cleared = rank0.scheduler.clear();

    assertEquals(new ClearResult(128, 0, 0), cleared);
    assertTrue(cleared.isComplete());
    assertEquals(0, rank0.hit(prompt));
    assertEquals(0, rank1.hit(prompt));
    assertEquals(0, fixture.counts().usedBytes());
    assertEquals(new ClearResult(0, 0, 0), rank1.scheduler.clear());
    assertEquals(List.of(), rank0.scheduler.takeEvictedKeys(), "cleared is not evicted");
    rank0.put(1);
    assertEquals(1, rank0.hit(1));
  }

  @Test
  @DisplayName("rule 6: clear with a load running is not complete until that has ended (case 33)")
  void clearDuringLoad() {
    ToyEngine engine = engine(64);
    assumeHeldCopies(engine);
    engine.put(ToyEngine.range(0, 64));
    engine.fixture.holdNextCopies(1);
    TransferJobState job = engine.load(10, 5);

    ClearResult cleared = engine.scheduler.clear();

    assertEquals(new ClearResult(63, 1, 0), cleared);
    assertFalse(cleared.isComplete());
    assertEquals(0, engine.hit(5));
    assertEquals(ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());
    assertFalse(engine.scheduler.clear().isComplete(), "still held at the second clear");

    engine.fixture.releaseCopy();
    TransferJobState done = engine.finish(job);
    if (done.outcome(0) == KeyOutcome.COMPLETED) {
      engine.assertHolds(10, 5);
    }
    assertEquals(0, engine.hit(5));
    assertEquals(0, engine.fixture.counts().usedBytes());
    assertTrue(engine.scheduler.clear().isComplete());
  }

  @Test
  @DisplayName("rule 6: a store begun before a clear never becomes visible (case 33)")
  void storeBegunBeforeClear() {
    ToyEngine engine = engine(4);
    assumeHeldCopies(engine);
    engine.fill(0, 0);
    engine.fill(1, 1);
    engine.fixture.holdNextCopies(1);
    TransferJobState late = engine.store(0, 0);
    TransferJobState joined = engine.store(0, 0);

    ClearResult cleared = engine.scheduler.clear();
    assertEquals(new ClearResult(0, 0, 1), cleared);
    assertFalse(cleared.isComplete());
    TransferJobState fresh =
        engine.finish(engine.store(1, engine.keys(0), DeviceFence.hostComplete()));
    assertStatus(Status.COMPLETED, fresh);

    engine.fixture.releaseCopy();
    TransferJobState lateDone = engine.finish(late);
    assertEquals(KeyOutcome.FAILED, lateDone.outcome(0));
    assertEquals(KeyReason.CLEARED, lateDone.reason(0));
    TransferJobState joinedDone = engine.finish(joined);
    assertEquals(KeyOutcome.FAILED, joinedDone.outcome(0));
    assertEquals(KeyReason.CLEARED, joinedDone.reason(0));
    assertEquals(0, engine.worker.publish(lateDone) + engine.worker.publish(joinedDone));
    assertEquals(0, engine.hit(0));

    assertEquals(1, engine.worker.publish(fresh), "begun after the clear");
    assertStatus(Status.COMPLETED, engine.finish(engine.load(10, 0)));
    engine.assertHolds(10, 1);
  }

  @Test
  @DisplayName("rule 6: a store complete before a clear is not published after it (case 33)")
  void storeCompleteBeforeClear() {
    ToyEngine engine = engine(4);
    engine.fill(0, 0);
    TransferJobState job = engine.finish(engine.store(0, 0));
    assertEquals(new ClearResult(1, 0, 0), engine.scheduler.clear());
    assertEquals(0, engine.worker.publish(job));
    assertEquals(0, engine.hit(0));
    assertEquals(0, engine.fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 6: with 3 of 64 pinned, clear removes 61 and reports 3 (case 33)")
  void clearWithPins() {
    ToyEngine engine = engine(64);
    assumeHeldCopies(engine);
    engine.put(ToyEngine.range(0, 64));
    engine.fixture.holdNextCopies(1);
    TransferJobState job = engine.load(10, 1, 2, 3);
    assertEquals(new ClearResult(61, 3, 0), engine.scheduler.clear());
    assertEquals(3 * ToyEngine.OBJECT_BYTES, engine.fixture.counts().usedBytes());
    engine.fixture.releaseCopies();
    engine.finish(job);
    assertEquals(0, engine.fixture.counts().usedBytes());
  }

  @Test
  @DisplayName("rule 6: clear reports the copy of an overdue store, too")
  void clearWithOverdueStore() {
    ToyEngine engine = engine(4, Duration.ofMillis(200));
    assumeHeldCopies(engine);
    engine.fixture.holdNextCopies(1);
    TransferJobState job = engine.store(0, 0);
    engine.fixture.advance(Duration.ofMillis(201));
    assertStatus(Status.OVERDUE, engine.worker.poll(job));
    assertEquals(new ClearResult(0, 0, 1), engine.scheduler.clear());
    engine.fixture.releaseCopy();
    engine.finish(job);
    assertTrue(engine.scheduler.clear().isComplete());
  }

  @Test
  @DisplayName("rule 6: other namespaces survive a clear, their waiting stores too (case 33)")
  void clearIsOfOneNamespace() {
    ToyEngine engine = engine(8);
    ToyEngine other =
        engine(engine.fixture, new UMBPNamespace("other"), ToyEngine.layout(RankTopology.single()));
    engine.put(0, 1);
    other.put(0, 1);
    other.fill(5, 5);
    boolean isHeld = engine.fixture.canHoldCopies();
    if (isHeld) {
      engine.fixture.holdNextCopies(1);
    }
    TransferJobState waiting = other.store(5, 5);

    assertEquals(new ClearResult(2, 0, 0), engine.scheduler.clear());

    assertEquals(0, engine.hit(0, 1));
    assertEquals(2, other.hit(0, 1));
    if (isHeld) {
      engine.fixture.releaseCopy();
    }
    assertEquals(1, other.worker.publish(other.finish(waiting)));
    assertStatus(Status.COMPLETED, other.finish(other.load(10, 0, 5)));
    other.assertHolds(10, 0);
    other.assertHolds(11, 5);
  }
}
