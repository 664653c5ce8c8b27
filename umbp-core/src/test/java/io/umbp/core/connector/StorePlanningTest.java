package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.GroupBlock;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.ConnectorRig.Step;
import io.umbp.core.connector.ConnectorSettings.Role;
import io.umbp.core.connector.ConnectorSettings.StorePolicy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** Which blocks are stored when, and how long they are pinned. */
class StorePlanningTest {
  private final RecordingPins pins = new RecordingPins();

  private ConnectorSettings.Builder settings() {
    return ConnectorSettings.builder().pins(pins);
  }

  private static ConnectorRig rig(ConnectorSettings settings, int ranks, int... blockSizes) {
    return new ConnectorRig(settings, Shape.of(ranks, 1), 64, 16, blockSizes);
  }

  private static void admit(ConnectorRig rig, String id, BlockHashes hashes, int[]... tables) {
    rig.scheduler.lookup(RequestView.of(id, hashes.size() * 16, hashes), 0);
    rig.scheduler.admit(id, 0, tables);
  }

  private static List<GroupBlock> places(int group, int... blockIds) {
    List<GroupBlock> places = new ArrayList<>();
    for (int blockId : blockIds) {
      places.add(new GroupBlock(group, blockId));
    }
    return places;
  }

  @Test
  void blocksOfAStoreArePinnedOnceAndUnpinnedWhenAllRanksHaveReported() {
    try (ConnectorRig rig = rig(settings().build(), 2, 16)) {
      admit(rig, "r", hashes(1, 2), blocks(5, 2));
      rig.scheduler.planStores("r", 32);
      assertEquals(List.of(), pins.pinned);
      rig.start();
      assertEquals(List.of(places(0, 5, 6)), pins.pinned);
      rig.scheduler.finish("r");
      rig.gpu.runAll();
      rig.scheduler.update(rig.workers.get(0).poll());
      assertEquals(List.of(), pins.unpinned);
      rig.scheduler.update(rig.workers.get(1).poll());
      assertEquals(List.of(places(0, 6, 5)), pins.unpinned, "the tail first");
      assertEquals(Map.of(), pins.counts);
    }
  }

  @Test
  void blocksOfAFailedStoreAreUnpinnedToo() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      admit(rig, "r", hashes(1, 2), blocks(5, 2));
      rig.scheduler.planStores("r", 32);
      rig.copies.failNext((row, key) -> true);
      Step step = rig.step();
      assertEquals(2, step.endedEvents().get(0L).failedObjects().size());
      assertEquals(Map.of(), pins.counts);
      assertEquals(1, pins.unpinned.size());
    }
  }

  @Test
  @DisplayName("case 16: a table [6,6] pins and releases once")
  void aBlockThatStandsTwiceIsPinnedOnce() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.scheduler.lookup(RequestView.of("r", 32, prompt), 0);
      rig.scheduler.admit("r", 0, blocks(4, 2), new int[] {6, 6});
      rig.scheduler.planStores("r", 32);
      rig.scheduler.takeStep();
      GroupBlock twice = new GroupBlock(1, 6);
      assertEquals(
          List.of(List.of(new GroupBlock(0, 4), twice, new GroupBlock(0, 5))), pins.pinned);
      rig.scheduler.update(
          new UMBPConnectorWorkerMetadata(Map.of(), Map.of(0L, new StoreEventResult(1, Set.of()))));
      assertEquals(
          List.of(List.of(new GroupBlock(0, 5), twice, new GroupBlock(0, 4))), pins.unpinned);
      rig.scheduler.update(
          new UMBPConnectorWorkerMetadata(Map.of(), Map.of(0L, new StoreEventResult(1, Set.of()))));
      assertEquals(1, pins.unpinned.size(), "a second report of the event");
    }
  }

  @Test
  void aPinThatIsRefusedPlansNothing() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      admit(rig, "r", hashes(1, 2), blocks(5, 2));
      rig.scheduler.planStores("r", 32);
      RuntimeException refusal = new IllegalStateException("planted");
      pins.refusal = refusal;
      assertSame(refusal, assertThrows(IllegalStateException.class, rig.scheduler::takeStep));
      assertEquals(0, rig.scheduler.storeEventCount());
      pins.refusal = null;
      assertArrayEquals(
          new int[] {5, 6}, rig.step().metadata().stores().get("r").blockIds(), "still due");
      rig.scheduler.lookup(RequestView.of("s", 33, hashes(1, 2)), 0);
      pins.refusal = refusal;
      assertThrows(IllegalStateException.class, () -> rig.scheduler.admit("s", 32, blocks(10, 3)));
      pins.refusal = null;
      rig.scheduler.admit("s", 32, blocks(10, 3));
      assertEquals(Map.of("s", 32), rig.step().validTokens());
    }
  }

  @Test
  @DisplayName("case 22: an object in flight is stored once; its second request is served by it")
  void anObjectInFlightIsNotStoredAgain() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      BlockHashes shared = hashes(1, 2);
      admit(rig, "r1", shared, blocks(0, 2));
      admit(rig, "r2", hashes(1, 3), blocks(10, 3));
      rig.scheduler.planStores("r1", 32);
      rig.scheduler.planStores("r2", 48);
      UMBPConnectorMetadata step = rig.start();
      assertArrayEquals(new int[] {0, 1}, step.stores().get("r1").blockIds());
      assertArrayEquals(new int[] {12}, step.stores().get("r2").blockIds(), "the same step");
      admit(rig, "r3", shared, blocks(20, 2));
      rig.scheduler.planStores("r3", 32);
      assertEquals(Map.of(), rig.start().stores(), "a later step");
      rig.gpu.runAll();
      rig.collect(step);
      assertEquals(48, rig.hit(49, hashes(1, 3)));
      assertEquals(3, rig.runtime.stats().storedObjects());
      rig.scheduler.planStores("r2", 48);
      rig.scheduler.planStores("r3", 32);
      assertEquals(Map.of(), rig.start().stores(), "nothing is left to do");
    }
  }

  @Test
  @DisplayName("case 22: when the store in flight fails, both requests offer the object again")
  void aFailedObjectIsOfferedByAllWhoWaitedForIt() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      BlockHashes shared = hashes(1, 2);
      admit(rig, "r1", shared, blocks(0, 2));
      admit(rig, "r2", shared, blocks(10, 2));
      rig.scheduler.planStores("r1", 32);
      rig.scheduler.planStores("r2", 32);
      rig.copies.failNext((row, key) -> key == 0);
      Step step = rig.step();
      assertEquals(
          Set.of(new StoredObject(0, shared.get(0))), step.endedEvents().get(0L).failedObjects());
      assertEquals(0, rig.hit(33, shared));
      rig.scheduler.finish("r1");
      rig.scheduler.planStores("r2", 32);
      assertArrayEquals(new int[] {10, 11}, rig.step().metadata().stores().get("r2").blockIds());
      assertEquals(32, rig.hit(33, shared));
    }
  }

  @Test
  void onlyThePromptIsStoredWhenThatIsWanted() {
    try (ConnectorRig rig = rig(settings().stores(StorePolicy.EAGER_PROMPT).build(), 1, 16)) {
      RequestView prompt = RequestView.of("r", 40, hashes(1, 2));
      rig.scheduler.lookup(prompt, 0);
      rig.scheduler.admit("r", 0, blocks(0, 5));
      rig.scheduler.extend(RequestView.of("r", 80, hashes(1, 5)).withPrompt(40));
      rig.scheduler.planStores("r", 80);
      assertArrayEquals(new int[] {0, 1}, rig.step().metadata().stores().get("r").blockIds());
    }
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      rig.scheduler.lookup(RequestView.of("r", 40, hashes(1, 2)), 0);
      rig.scheduler.admit("r", 0, blocks(0, 5));
      rig.scheduler.planStores("r", 80);
      assertArrayEquals(new int[] {0, 1}, rig.step().metadata().stores().get("r").blockIds());
      rig.scheduler.extend(RequestView.of("r", 80, hashes(1, 5)).withPrompt(40));
      rig.scheduler.planStores("r", 80);
      assertArrayEquals(
          new int[] {2, 3, 4},
          rig.step().metadata().stores().get("r").blockIds(),
          "speculated tokens have no hash until they are verified");
    }
  }

  @Test
  void aLazyStoreWaitsForTheEviction() {
    try (ConnectorRig rig = rig(settings().stores(StorePolicy.LAZY).build(), 1, 16)) {
      BlockHashes prompt = hashes(1, 3);
      admit(rig, "r", prompt, blocks(0, 3));
      rig.fill(0, 0, 0, 1);
      rig.scheduler.planStores("r", 32);
      assertEquals(Map.of(), rig.step().metadata().stores());
      rig.scheduler.planStores("r", 48);
      assertEquals(Map.of(), rig.step().metadata().stores());
      rig.scheduler.finish("r");
      assertFalse(rig.scheduler.hasPendingWork());
      assertEquals(2, rig.scheduler.storeBeforeEviction(places(0, 1)), "with its prefix");
      assertEquals(List.of(places(0, 0, 1)), pins.pinned, "at once");
      assertTrue(rig.scheduler.hasPendingWork());
      assertEquals(1, rig.scheduler.storeBeforeEviction(places(0, 2, 1)), "1 is under way");
      Step step = rig.step();
      assertEquals(2, step.metadata().stores().size());
      assertEquals(Map.of(), pins.counts);
      assertEquals(48, rig.hit(49, prompt));
      assertEquals(0, rig.scheduler.storeBeforeEviction(places(0, 0, 1, 2)), "all are there");
    }
  }

  @Test
  void aBlockThatWasGivenAwayIsNeverStoredUnderItsOldHash() {
    try (ConnectorRig rig = rig(settings().stores(StorePolicy.LAZY).build(), 1, 16)) {
      BlockHashes old = hashes(1, 4);
      admit(rig, "old", old, blocks(0, 4));
      rig.scheduler.planStores("old", 64);
      rig.step();
      rig.scheduler.finish("old");
      admit(rig, "new", hashes(2, 6), new int[] {7, 1});
      assertEquals(0, rig.scheduler.storeBeforeEviction(places(0, 1)), "given to another");
      assertEquals(2, rig.scheduler.storeBeforeEviction(places(0, 2)), "0 and 2 are as they were");
      rig.step();
      rig.scheduler.updateBlocks("new", new int[] {2});
      assertEquals(0, rig.scheduler.storeBeforeEviction(places(0, 2)));
      rig.scheduler.setBlocks("new", new int[] {7, 1, 2, 3});
      assertEquals(0, rig.scheduler.storeBeforeEviction(places(0, 3)));
      assertEquals(16, rig.hit(33, old), "a hole ends the run");
      rig.scheduler.planStores("new", 64);
      rig.step();
      assertEquals(4, rig.scheduler.storeBeforeEviction(places(0, 3)), "its new content");
      rig.step();
      assertEquals(64, rig.hit(65, hashes(2, 6)));
    }
  }

  @Test
  void sharedBlocksOfAnotherRequestStayKnown() {
    try (ConnectorRig rig = rig(settings().stores(StorePolicy.LAZY).build(), 1, 16)) {
      BlockHashes prompt = hashes(1, 4);
      admit(rig, "first", prompt, blocks(0, 4));
      rig.scheduler.planStores("first", 64);
      rig.step();
      rig.scheduler.lookup(RequestView.of("second", 64, prompt), 32);
      rig.scheduler.admit("second", 0, new int[] {0, 1, 12, 13});
      assertEquals(4, rig.scheduler.storeBeforeEviction(places(0, 3)));
      rig.step();
    }
  }

  @Test
  void aRequestMayNotBeNamedAsTheConnectorsOwnBatches() {
    UMBPException refusal =
        assertThrows(UMBPException.class, () -> RequestView.of("umbp:0", 1, BlockHashes.empty()));
    assertEquals(
        "request 'umbp:0': names that begin with 'umbp:' are the connector's own",
        refusal.getMessage());
  }

  @Test
  void blocksAreStoredBeforeTheirEvictionOnlyLazily() {
    try (ConnectorRig rig = rig(settings().build(), 1, 16)) {
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> rig.scheduler.storeBeforeEviction(places(0, 1)));
      assertEquals(UMBPException.Reason.UNSUPPORTED, refusal.reason());
      assertTrue(refusal.getMessage().contains("EAGER"), refusal.getMessage());
    }
  }

  @Test
  void aConsumerStoresNothingAndAProducerLoadsNothing() {
    try (ConnectorRig rig = rig(settings().role(Role.CONSUMER).build(), 1, 16)) {
      admit(rig, "r", hashes(1, 2), blocks(0, 2));
      rig.scheduler.planStores("r", 32);
      assertEquals(Map.of(), rig.step().metadata().stores());
      assertFalse(rig.scheduler.hasPendingWork());
    }
    try (ConnectorRig rig = rig(settings().role(Role.PRODUCER).build(), 1, 16)) {
      rig.store("r", 32, hashes(1, 2), blocks(0, 2));
      assertEquals(2, rig.runtime.stats().publishedObjects());
      assertEquals(0, rig.hit(33, hashes(1, 2)));
    }
  }

  @Test
  void aStepHasItsStoresInTheOrderOfTheirPlanning() {
    try (ConnectorRig rig = new ConnectorRig(1, 16, 16, 16)) {
      List<String> planned = new ArrayList<>();
      for (int i = 0; i < 10; i++) {
        String id = "r" + i * 7919 % 13;
        rig.scheduler.lookup(RequestView.of(id, 16, hashes(i, 1)), 0);
        rig.scheduler.admit(id, 0, new int[] {i});
        rig.scheduler.planStores(id, 16);
        planned.add(id);
      }
      assertEquals(planned, List.copyOf(rig.step().metadata().stores().keySet()));
    }
  }
}
