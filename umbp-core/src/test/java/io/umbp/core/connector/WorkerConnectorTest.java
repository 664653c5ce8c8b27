package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadResult;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

class WorkerConnectorTest {
  private static final UMBPConnectorWorkerMetadata NOTHING = UMBPConnectorWorkerMetadata.NOTHING;
  private static final LoadResult WHOLE = new LoadResult(1, Set.of(), Set.of());
  private static final DeviceFence DONE = DeviceFence.hostComplete();

  private static BlockKeys keys(BlockHashes hashes) {
    return BlockKeys.of(new UMBPNamespace("m"), RankTopology.single().localNamespace(), 0, hashes);
  }

  private static UMBPConnectorMetadata load(String request, BlockHashes hashes, int... blockIds) {
    BlockLoadBatch batch = BlockLoadBatch.of(request, keys(hashes), blockIds);
    return new UMBPConnectorMetadata(
        Set.of(), Map.of(request, batch), Map.of(), UMBPConnectorMetadata.NO_EVENT);
  }

  private static UMBPConnectorMetadata store(
      long event, String request, BlockHashes hashes, int... blockIds) {
    BlockStoreBatch batch = BlockStoreBatch.of(request, keys(hashes), blockIds);
    return new UMBPConnectorMetadata(Set.of(), Map.of(), Map.of(request, batch), event);
  }

  private static UMBPConnectorWorkerMetadata event(long event, Set<StoredObject> failed) {
    return new UMBPConnectorWorkerMetadata(
        Map.of(), Map.of(event, new StoreEventResult(1, failed)));
  }

  private static LoadResult missing(GroupBlock... blocks) {
    return new LoadResult(1, Set.of(blocks), Set.of());
  }

  @Test
  @DisplayName("case 51: the blocks of an aborted load are named until its copy has ended")
  void anAbortedLoadNamesItsBlocks() {
    try (ConnectorRig rig = new ConnectorRig(1, 64, 16, 16)) {
      BlockHashes first = hashes(1, 31);
      BlockHashes second = hashes(2, 32);
      for (int block = 100; block < 132; block++) {
        rig.fill(0, 0, block, 7);
      }
      rig.store("b", 32 * 16, second, blocks(100, 32));
      rig.store("a", 31 * 16, first, blocks(140, 31));
      WorkerConnector worker = rig.workers.get(0);
      worker.startLoads(load("a", first, blocks(14, 31)), DONE);
      assertEquals(List.of(), worker.preempt(List.of("other")));
      List<GroupBlock> inUse = worker.preempt(List.of("a"));
      assertEquals(
          IntStream.range(14, 45).mapToObj(block -> new GroupBlock(0, block)).toList(), inUse);
      assertEquals(inUse, worker.blocksInUse(List.of("a", "b")));
      rig.gpu.runAll();
      assertEquals(List.of(), worker.blocksInUse(List.of("a", "b")), "right after the copy");
      assertEquals(Set.of("a"), worker.poll().loads().keySet());
      worker.startLoads(load("b", second, blocks(1, 32)), DONE);
      rig.gpu.runAll();
      assertEquals(Map.of("b", WHOLE), worker.poll().loads());
      for (int block = 1; block < 33; block++) {
        assertTrue(rig.holds(0, 0, block, 7), "block " + block);
      }
    }
  }

  @Test
  @DisplayName("case 47: a preempted store names its block, and is never seen")
  void aPreemptedStoreIsNeverSeen() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.fill(0, 0, 5, 1);
      rig.fill(0, 0, 6, 2);
      WorkerConnector worker = rig.workers.get(0);
      BlockHashes mine = hashes(1, 1);
      BlockHashes others = hashes(2, 1);
      UMBPConnectorMetadata step =
          new UMBPConnectorMetadata(
              Set.of(),
              Map.of(),
              Map.of(
                  "r1", BlockStoreBatch.of("r1", keys(mine), new int[] {5}),
                  "r2", BlockStoreBatch.of("r2", keys(others), new int[] {6})),
              3);
      worker.startStores(step, DONE);
      assertEquals(List.of(new GroupBlock(0, 5)), worker.preempt(List.of("r1")));
      assertEquals(List.of(new GroupBlock(0, 6)), worker.blocksInUse(List.of("r2")));
      rig.gpu.runAll();
      assertEquals(List.of(), worker.blocksInUse(List.of("r1")));
      rig.fill(0, 0, 5, 9);
      Set<StoredObject> failed = Set.of(new StoredObject(0, mine.get(0)));
      assertEquals(event(3, failed), worker.poll());
      assertEquals(0, rig.hit(17, mine));
      assertEquals(16, rig.hit(17, others), "the store of the other request");
    }
  }

  @Test
  void aStoreThatIsGivenUpBeforeItIsPublishedIsReportedAsFailed() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      WorkerConnector worker = rig.workers.get(0);
      BlockHashes mine = hashes(1, 1);
      worker.startStores(store(4, "r", mine, 5), DONE);
      rig.gpu.runAll();
      assertEquals(1, rig.runtime.stats().unpublishedObjects(), "its bytes have landed");
      worker.preempt(List.of("r"));
      assertEquals(event(4, Set.of(new StoredObject(0, mine.get(0)))), worker.poll());
      assertEquals(0, rig.hit(17, mine));
      worker.startStores(store(5, "s", mine, 5), DONE);
      rig.gpu.runAll();
      assertEquals(event(5, Set.of()), worker.poll());
      worker.startStores(store(6, "t", mine, 6), DONE);
      assertEquals(event(6, Set.of()), worker.poll(), "it is there");
    }
  }

  @Test
  void aStepIsStartedOnce() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 1);
      WorkerConnector worker = rig.workers.get(0);
      UMBPConnectorMetadata storing = store(7, "r", hashes, 3);
      worker.startStores(storing, DONE);
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> worker.startStores(storing, DONE));
      assertEquals(
          "rank tp0:pcp0:dcp0:pp0 has started store event 7 before; a step is started once",
          refusal.getMessage());
      rig.gpu.runAll();
      assertEquals(event(7, Set.of()), worker.poll());
      UMBPConnectorMetadata loading = load("q", hashes, 5);
      worker.startLoads(loading, DONE);
      refusal = assertThrows(UMBPException.class, () -> worker.startLoads(loading, DONE));
      assertTrue(refusal.getMessage().contains("a load of request 'q'"), refusal.getMessage());
      assertEquals(1, worker.runningCount());
      rig.gpu.runAll();
      assertEquals(Map.of("q", WHOLE), worker.poll().loads());
    }
  }

  @Test
  void aLayerIsAwaitedWhileLaterLayersLoad() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.scheduler.lookup(RequestView.of("first", 32, prompt), 0);
      rig.scheduler.admit("first", 0, new int[] {0, 1}, new int[] {2, 3});
      rig.scheduler.planStores("first", 32);
      rig.step();
      WorkerConnector worker = rig.workers.get(0);
      assertTrue(worker.awaitLayer("stage0.group0", Duration.ZERO), "nothing is loaded");
      rig.scheduler.lookup(RequestView.of("r", 33, prompt), 0);
      rig.scheduler.admit("r", 32, new int[] {10, 11}, new int[] {12, 13});
      rig.start();
      assertFalse(worker.awaitLayer("stage0.group0", Duration.ZERO));
      assertFalse(worker.awaitLayer("stage0.group1", Duration.ofMillis(1)));
      rig.gpu.runAll();
      assertTrue(worker.awaitLayer("stage0.group0", Duration.ZERO));
      assertTrue(worker.awaitLayer("stage0.group1", Duration.ZERO));
      assertEquals(Map.of("r", 32), rig.step().validTokens());
    }
  }

  @Test
  @DisplayName("case 23: loads into 10, 11, 12 of which 12 fails report exactly {12}, once")
  void aFailedLoadNamesItsBlocksOnce() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 3);
      for (int block = 0; block < 3; block++) {
        rig.fill(0, 0, block, block + 1);
      }
      rig.store("first", 48, hashes, 0, 1, 2);
      WorkerConnector worker = rig.workers.get(0);
      rig.copies.failNext((row, key) -> key == 2);
      worker.startLoads(load("r", hashes, 10, 11, 12), DONE);
      assertEquals(NOTHING, worker.poll(), "the copy has not run");
      assertEquals(1, worker.runningCount());
      rig.gpu.runAll();
      assertEquals(
          Map.of("r", new LoadResult(1, Set.of(), Set.of(new GroupBlock(0, 12)))),
          worker.poll().loads());
      assertEquals(NOTHING, worker.poll());
      assertEquals(0, worker.runningCount());
      assertTrue(rig.holds(0, 0, 10, 1));
      assertTrue(rig.holds(0, 0, 11, 2));
    }
  }

  @Test
  void aMissIsAMissingBlock() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      WorkerConnector worker = rig.workers.get(0);
      worker.startLoads(load("r", hashes(1, 1), 10), DONE);
      assertEquals(Map.of("r", missing(new GroupBlock(0, 10))), worker.poll().loads());
    }
  }

  @Test
  @DisplayName("case 20: of h0..h3 with a failed h2 exactly h0, h1 and h3 are published")
  void onlyWholeObjectsArePublished() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 4);
      WorkerConnector worker = rig.workers.get(0);
      rig.copies.failNext((row, key) -> key == 2);
      worker.startStores(store(7, "r", hashes, 0, 1, 2, 3), DONE);
      assertEquals(NOTHING, worker.poll(), "the copy has not run");
      rig.gpu.runAll();
      assertEquals(event(7, Set.of(new StoredObject(0, hashes.get(2)))), worker.poll());
      assertEquals(NOTHING, worker.poll());
      boolean[] present = rig.store.lookup(keys(hashes));
      assertEquals(
          List.of(true, true, false, true),
          List.of(present[0], present[1], present[2], present[3]));
    }
  }

  @Test
  void nothingIsVisibleBeforeItIsPolled() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 1);
      rig.workers.get(0).startStores(store(0, "r", hashes, 0), DONE);
      rig.gpu.runAll();
      assertEquals(0, rig.hit(17, hashes));
      rig.workers.get(0).poll();
      assertEquals(16, rig.hit(17, hashes));
    }
  }

  @Test
  void anEventWithoutAJobOnThisRankIsReported() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      WorkerConnector worker = rig.workers.get(0);
      worker.startStores(store(3, "r", hashes(1, 0)), DONE);
      assertEquals(event(3, Set.of()), worker.poll());
      assertEquals(NOTHING, worker.poll());
    }
  }

  @Test
  void anEventOfSeveralRequestsEndsWithItsLast() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      WorkerConnector worker = rig.workers.get(0);
      rig.copies.holdNext(1);
      worker.startStores(
          new UMBPConnectorMetadata(
              Set.of(),
              Map.of(),
              Map.of(
                  "a", BlockStoreBatch.of("a", keys(hashes(1, 1)), 0),
                  "b", BlockStoreBatch.of("b", keys(hashes(2, 1)), 1)),
              5),
          DONE);
      rig.gpu.runAll();
      assertEquals(NOTHING, worker.poll(), "one store is held");
      assertEquals(1, rig.runtime.stats().publishedObjects());
      rig.copies.releaseCopies();
      rig.gpu.runAll();
      assertEquals(event(5, Set.of()), worker.poll());
      assertEquals(2, rig.runtime.stats().publishedObjects());
    }
  }

  @Test
  void theKeysAreThoseOfTheRank() {
    try (ConnectorRig rig = new ConnectorRig(2, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 1);
      rig.workers.get(1).startStores(store(0, "r", hashes, 0), DONE);
      rig.gpu.runAll();
      rig.workers.get(1).poll();
      BlockKeys bothRanks = keys(hashes).onRanks(RankTopology.tensorParallel(0, 2).allNamespaces());
      boolean[] present = rig.store.lookup(bothRanks);
      assertEquals(List.of(false, true), List.of(present[0], present[1]));
    }
  }

  @Test
  void aRefusedLoadIsThrownAndReportedAndKeepsNoOtherFromStarting() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 2);
      rig.store("first", 32, hashes, 0, 1);
      WorkerConnector worker = rig.workers.get(0);
      UMBPConnectorMetadata step =
          new UMBPConnectorMetadata(
              Set.of(),
              Map.of(
                  "good", BlockLoadBatch.of("good", keys(hashes), 10, 11),
                  "bad", BlockLoadBatch.of("bad", keys(hashes), 12, ConnectorRig.BLOCKS)),
              Map.of(),
              UMBPConnectorMetadata.NO_EVENT);
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> worker.startLoads(step, DONE));
      assertTrue(refusal.getMessage().contains("256"), refusal.getMessage());
      rig.gpu.runAll();
      assertEquals(
          Map.of(
              "good",
              WHOLE,
              "bad",
              missing(new GroupBlock(0, 12), new GroupBlock(0, ConnectorRig.BLOCKS))),
          worker.poll().loads());
    }
  }

  @Test
  void aRefusedStoreIsThrownAndItsEventEndsAllTheSame() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 1);
      WorkerConnector worker = rig.workers.get(0);
      assertTrue(rig.handles.get(0).unregisterBuffers(Duration.ZERO));
      UMBPException refusal =
          assertThrows(
              UMBPException.class, () -> worker.startStores(store(2, "r", hashes, 0), DONE));
      assertEquals(UMBPException.Reason.NOT_REGISTERED, refusal.reason());
      assertEquals(event(2, Set.of(new StoredObject(0, hashes.get(0)))), worker.poll());
    }
  }

  @Test
  void aStoreWithoutRoomIsAFailedObject() {
    try (ConnectorRig rig = new ConnectorRig(1, 2, 16, 16)) {
      BlockHashes hashes = hashes(1, 3);
      WorkerConnector worker = rig.workers.get(0);
      worker.startStores(store(0, "r", hashes, blocks(0, 3)), DONE);
      rig.gpu.runAll();
      assertEquals(event(0, Set.of(new StoredObject(0, hashes.get(2)))), worker.poll());
    }
  }

  /** A handle whose calls of one method throw what the queue holds, null to let a call through. */
  private static UMBPWorkerHandle failing(
      UMBPWorkerHandle target, String method, List<Throwable> failures) {
    Iterator<Throwable> next = failures.iterator();
    return (UMBPWorkerHandle)
        Proxy.newProxyInstance(
            UMBPWorkerHandle.class.getClassLoader(),
            new Class<?>[] {UMBPWorkerHandle.class},
            (proxy, called, arguments) -> {
              if (called.getName().equals(method) && next.hasNext()) {
                Throwable failure = next.next();
                if (failure != null) {
                  throw failure;
                }
              }
              try {
                return called.invoke(target, arguments);
              } catch (InvocationTargetException e) {
                throw e.getCause();
              }
            });
  }

  @Test
  void aPollThatThrowsLosesNoReport() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      UMBPException planted = new UMBPException(UMBPException.Reason.DRIVER_FAILED, "planted");
      WorkerConnector worker =
          new WorkerConnector(
              failing(rig.handles.get(0), "publish", Arrays.asList(null, planted)),
              rig.handshakes().get(0));
      worker.startStores(store(0, "a", hashes(1, 1), 0), DONE);
      worker.startStores(store(1, "b", hashes(2, 1), 1), DONE);
      rig.gpu.runAll();
      assertThrows(UMBPException.class, worker::poll);
      assertEquals(Set.of(0L, 1L), worker.poll().storeEvents().keySet());
      assertEquals(NOTHING, worker.poll());
      assertEquals(0, worker.runningCount());
    }
  }

  @Test
  void anErrorInOneLoadOrStoreKeepsNoOtherFromStarting() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 1);
      WorkerConnector worker =
          new WorkerConnector(
              failing(
                  failing(rig.handles.get(0), "load", List.of(new LinkageError("planted"))),
                  "store",
                  List.of(new LinkageError("planted"))),
              rig.handshakes().get(0));
      UMBPConnectorMetadata step =
          new UMBPConnectorMetadata(
              Set.of(),
              Map.of(
                  "a", BlockLoadBatch.of("a", keys(hashes), 10),
                  "b", BlockLoadBatch.of("b", keys(hashes), 11)),
              Map.of(
                  "c", BlockStoreBatch.of("c", keys(hashes(2, 1)), 0),
                  "d", BlockStoreBatch.of("d", keys(hashes(3, 1)), 1)),
              0);
      assertThrows(LinkageError.class, () -> worker.startLoads(step, DONE));
      assertThrows(LinkageError.class, () -> worker.startStores(step, DONE));
      rig.gpu.runAll();
      UMBPConnectorWorkerMetadata report = worker.poll();
      assertEquals(2, report.loads().size());
      assertEquals(1, report.storeEvents().get(0L).failedObjects().size());
      assertEquals(1, rig.runtime.stats().publishedObjects());
    }
  }
}
