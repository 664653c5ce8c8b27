package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.ClearResult;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPException;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.ConnectorRig.Step;
import io.umbp.core.connector.ConnectorSettings.EventPolicy;
import io.umbp.core.connector.KVEvent.AllBlocksCleared;
import io.umbp.core.connector.KVEvent.BlocksRemoved;
import io.umbp.core.connector.KVEvent.BlocksStored;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** What becomes of requests that are preempted, aborted and cleared, and what routers hear. */
class ConnectorLifecycleTest {
  private final RecordingPins pins = new RecordingPins();

  private ConnectorRig rig(int ranks, int poolBlocks) {
    ConnectorSettings settings =
        ConnectorSettings.builder().pins(pins).events(EventPolicy.ON).build();
    return new ConnectorRig(settings, Shape.of(ranks, 1), poolBlocks * ranks, 16, 16);
  }

  private static Step store(ConnectorRig rig, String id, BlockHashes prompt, int... blockIds) {
    Step step = rig.store(id, prompt.size() * 16, prompt, blockIds);
    rig.scheduler.finish(id);
    return step;
  }

  private static void load(ConnectorRig rig, String id, BlockHashes prompt, int... blockIds) {
    int tokens = prompt.size() * 16;
    rig.scheduler.lookup(RequestView.of(id, tokens + 1, prompt), 0);
    assertEquals(new LoadSpec(0, tokens), rig.scheduler.admit(id, tokens, blockIds));
  }

  @Test
  @DisplayName("case 51: the blocks of an aborted load stay pinned until the copy has ended")
  void anAbortedLoadKeepsItsBlocks() {
    try (ConnectorRig rig = rig(1, 64)) {
      BlockHashes prompt = hashes(1, 31);
      store(rig, "first", prompt, blocks(100, 31));
      load(rig, "a", prompt, blocks(14, 31));
      Set<GroupBlock> mine = Set.copyOf(places(14, 31));
      assertEquals(mine, pins.counts.keySet());
      UMBPConnectorMetadata loading = rig.start();
      rig.scheduler.finish("a");
      assertEquals(mine, pins.counts.keySet(), "14 to 44 can't be given to another yet");
      UMBPConnectorMetadata next = rig.start();
      assertEquals(Set.of("a"), next.preempted());
      rig.collect(next);
      assertEquals(mine, pins.counts.keySet());
      assertTrue(rig.scheduler.hasPendingWork());
      rig.gpu.runAll();
      assertEquals(Map.of(), rig.collect(loading).validTokens(), "nobody waits for it");
      assertEquals(Map.of(), pins.counts, "right after the copy");
      assertFalse(rig.scheduler.hasPendingWork());
    }
  }

  private static List<GroupBlock> places(int first, int count) {
    return IntStream.range(first, first + count)
        .mapToObj(block -> new GroupBlock(0, block))
        .toList();
  }

  @Test
  void aLoadThatNeverBeganGivesItsBlocksBackAtOnce() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 2);
      store(rig, "first", prompt, 0, 1);
      load(rig, "a", prompt, 10, 11, 12);
      assertEquals(2, pins.counts.size());
      rig.scheduler.finish("a");
      assertEquals(Map.of(), pins.counts);
      UMBPConnectorMetadata step = rig.start();
      assertEquals(Map.of(), step.loads());
      assertEquals(Set.of(), step.preempted());
    }
  }

  @Test
  void aPreemptedRequestBeginsAgain() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 4);
      store(rig, "first", prompt.slice(0, 2), 0, 1);
      load(rig, "r", prompt.slice(0, 2), 10, 11, 12);
      UMBPConnectorMetadata loading = rig.start();
      rig.scheduler.preempt("r");
      assertEquals(
          new LoadSpec(0, 0),
          rig.scheduler.lookup(RequestView.of("r", 64, prompt), 0).orElseThrow(),
          "its old load is under way");
      assertTrue(rig.scheduler.explain("r").detail().contains("is under way"));
      rig.start();
      rig.gpu.runAll();
      assertEquals(Map.of(), rig.collect(loading).validTokens());
      assertEquals(Map.of(), pins.counts);
      assertEquals(
          new LoadSpec(0, 32),
          rig.scheduler.lookup(RequestView.of("r", 64, prompt), 0).orElseThrow());
      rig.scheduler.admit("r", 32, blocks(20, 4));
      assertEquals(Map.of("r", 32), rig.step().validTokens());
      rig.scheduler.planStores("r", 64);
      assertArrayEquals(new int[] {22, 23}, rig.step().metadata().stores().get("r").blockIds());
    }
  }

  @Test
  @DisplayName("case 47: the blocks of a preempted store stay pinned, and its stores are cancelled")
  void aPreemptedStoreKeepsItsBlocks() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 1);
      rig.scheduler.lookup(RequestView.of("r1", 16, prompt), 0);
      rig.scheduler.admit("r1", 0, new int[] {5});
      rig.scheduler.planStores("r1", 16);
      UMBPConnectorMetadata storing = rig.start();
      rig.scheduler.preempt("r1");
      UMBPConnectorMetadata next = rig.start();
      assertEquals(Set.of("r1"), next.preempted());
      rig.collect(next);
      assertEquals(Set.of(new GroupBlock(0, 5)), pins.counts.keySet());
      rig.gpu.runAll();
      assertEquals(1, rig.collect(storing).endedEvents().get(0L).failedObjects().size());
      assertEquals(Map.of(), pins.counts);
      assertEquals(0, rig.hit(17, prompt));
    }
  }

  @Test
  @DisplayName("case 52: a reused id, an unknown one and 1,000 starts and aborts leave nothing")
  void reusedIdsAndAborts() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 2);
      store(rig, "first", prompt, 0, 1);
      load(rig, "x", prompt, 10, 11, 12);
      UMBPConnectorMetadata loading = rig.start();
      rig.scheduler.finish("x");
      rig.scheduler.lookup(RequestView.of("x", 32, hashes(2, 2)), 0);
      rig.scheduler.admit("x", 0, blocks(20, 2));
      rig.gpu.runAll();
      assertEquals(Map.of(), rig.collect(loading).validTokens(), "the second x is not done");
      rig.scheduler.planStores("x", 32);
      assertEquals(1, rig.step().endedEvents().size());
      rig.scheduler.finish("x");
      rig.scheduler.finish("never seen");
      int threads = Thread.activeCount();
      for (int i = 0; i < 1000; i++) {
        load(rig, "r" + i, prompt, 30, 31, 32);
        if (i % 2 == 0) {
          rig.start();
        }
        rig.scheduler.finish("r" + i);
      }
      rig.gpu.runAll();
      rig.collect(rig.scheduler.takeStep());
      rig.gpu.runAll();
      rig.collect(rig.start());
      assertEquals(0, rig.scheduler.requestCount());
      assertFalse(rig.scheduler.hasPendingWork());
      assertEquals(Map.of(), pins.counts);
      assertEquals(threads, Thread.activeCount());
    }
  }

  @Test
  @DisplayName("case 25: 100 short requests in one step; one is finished in between")
  void manyShortRequestsInOneStep() {
    ConnectorSettings settings = ConnectorSettings.builder().pins(pins).build();
    try (ConnectorRig rig = new ConnectorRig(settings, Shape.of(1, 1), 128, 2, 10)) {
      for (int i = 0; i < 100; i++) {
        BlockHashes prompt = hashes(i, 5);
        rig.scheduler.lookup(RequestView.of("r" + i, 10, prompt), 0);
        rig.scheduler.admit("r" + i, 0, new int[] {i});
        rig.scheduler.planStores("r" + i, 10);
        rig.fill(0, 0, i, i);
      }
      UMBPConnectorMetadata step = rig.start();
      assertEquals(100, step.stores().size());
      rig.scheduler.finish("r17");
      rig.gpu.runAll();
      assertEquals(Set.of(), rig.collect(step).endedEvents().get(0L).failedObjects());
      for (int i = 0; i < 100; i++) {
        assertEquals(10, rig.hit(11, hashes(i, 5)), "request " + i);
        if (i != 17) {
          rig.scheduler.touch("r" + i, 10);
        }
      }
    }
  }

  @Test
  @DisplayName("case 33: a clear removes all, and what was stored is offered again")
  void aClearTellsTheTruth() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.scheduler.lookup(RequestView.of("r", 64, prompt), 0);
      rig.scheduler.admit("r", 0, blocks(0, 4));
      rig.scheduler.planStores("r", 32);
      rig.step();
      rig.scheduler.planStores("r", 48);
      UMBPConnectorMetadata storing = rig.start();
      ClearResult result = rig.scheduler.clear();
      assertEquals(new ClearResult(2, 0, 1), result);
      rig.gpu.runAll();
      rig.collect(storing);
      assertEquals(0, rig.hit(65, prompt));
      rig.scheduler.planStores("r", 64);
      assertArrayEquals(new int[] {0, 1, 2, 3}, rig.step().metadata().stores().get("r").blockIds());
      assertEquals(64, rig.hit(65, prompt));
    }
  }

  @Test
  void loadedBlocksAreOfferedAfterAClear() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, "first", prompt.slice(0, 2), 0, 1);
      load(rig, "r", prompt.slice(0, 2), 10, 11, 12);
      rig.step();
      rig.scheduler.extend(RequestView.of("r", 48, prompt));
      rig.scheduler.clear();
      rig.scheduler.planStores("r", 48);
      assertArrayEquals(new int[] {10, 11, 12}, rig.step().metadata().stores().get("r").blockIds());
      assertEquals(48, rig.hit(49, prompt));
    }
  }

  @Test
  void aClearBeforeTheAdoptionRemovesNothing() {
    try (ConnectorRig rig = rig(1, 16)) {
      SchedulerConnector early =
          new SchedulerConnector(
              rig.runtime,
              RankTopology.single(),
              16,
              ConnectorSettings.builder().events(EventPolicy.ON).build());
      assertEquals(ClearResult.NOTHING, early.clear());
      assertEquals(List.of(), early.takeEvents());
      early.close();
    }
  }

  @Test
  void drainingEndsWhatIsUnderWayAndBeginsNothing() {
    try (ConnectorRig rig = rig(1, 16)) {
      BlockHashes prompt = hashes(1, 2);
      store(rig, "first", prompt, 0, 1);
      load(rig, "r", prompt, 10, 11, 12);
      rig.scheduler.lookup(RequestView.of("s", 16, hashes(2, 1)), 0);
      rig.scheduler.admit("s", 0, new int[] {20});
      rig.scheduler.planStores("s", 16);
      rig.scheduler.drain();
      assertTrue(rig.scheduler.hasPendingWork());
      Step step = rig.step();
      assertEquals(Map.of("r", 32), step.validTokens(), "what was due");
      assertEquals(1, step.endedEvents().size());
      assertFalse(rig.scheduler.hasPendingWork());
      assertEquals(0, rig.hit(33, prompt));
      rig.scheduler.lookup(RequestView.of("t", 16, hashes(3, 1)), 0);
      rig.scheduler.admit("t", 0, new int[] {21});
      rig.scheduler.planStores("t", 16);
      assertFalse(rig.scheduler.hasPendingWork());
      assertEquals(Map.of(), rig.step().metadata().stores());
    }
  }

  private static List<BlockHash> hashList(BlockHashes hashes, int from, int to) {
    List<BlockHash> list = new ArrayList<>();
    for (int i = from; i < to; i++) {
      list.add(hashes.get(i));
    }
    return list;
  }

  @Test
  void routersHearOfStoresOnceWithTokensAndParents() {
    try (ConnectorRig rig = rig(2, 16)) {
      BlockHashes prompt = hashes(1, 3);
      int[] tokens = IntStream.range(1000, 1048).toArray();
      rig.scheduler.lookup(RequestView.of("r", 48, prompt).withTokenIds(tokens), 0);
      rig.scheduler.admit("r", 0, blocks(0, 3));
      rig.scheduler.planStores("r", 32);
      UMBPConnectorMetadata step = rig.start();
      rig.gpu.runAll();
      rig.scheduler.update(rig.workers.get(0).poll());
      assertEquals(List.of(), rig.scheduler.takeEvents(), "one rank has not stored it");
      rig.collect(step);
      List<Integer> ids = IntStream.range(1000, 1032).boxed().toList();
      assertEquals(
          List.of(new BlocksStored(0, hashList(prompt, 0, 2), Optional.empty(), ids, 16, "cpu")),
          rig.scheduler.takeEvents());
      rig.scheduler.planStores("r", 48);
      rig.step();
      rig.store("again", 48, prompt, 10, 11, 12);
      assertEquals(
          List.of(
              new BlocksStored(
                  0,
                  hashList(prompt, 2, 3),
                  Optional.of(prompt.get(1)),
                  IntStream.range(1032, 1048).boxed().toList(),
                  16,
                  "cpu")),
          rig.scheduler.takeEvents());
      assertEquals(List.of(), rig.scheduler.takeEvents());
    }
  }

  @Test
  void routersHearOfEvictionsAndOfWhatComesBack() {
    try (ConnectorRig rig = rig(1, 4)) {
      BlockHashes first = hashes(1, 3);
      BlockHashes second = hashes(2, 2);
      store(rig, "first", first, 0, 1, 2);
      store(rig, "second", second, 10, 11);
      assertEquals(
          List.of(
              new BlocksStored(0, hashList(first, 0, 2), Optional.empty(), List.of(), 16, "cpu"),
              new BlocksStored(0, hashList(second, 0, 2), Optional.empty(), List.of(), 16, "cpu")),
          rig.scheduler.takeEvents(),
          "the tail was gone before anybody heard of it");
      store(rig, "third", hashes(3, 2), 20, 21);
      List<KVEvent> events = rig.scheduler.takeEvents();
      assertEquals(
          List.of(
              new BlocksRemoved(0, List.of(first.get(1), first.get(0)), "cpu"),
              new BlocksStored(
                  0, hashList(hashes(3, 2), 0, 2), Optional.empty(), List.of(), 16, "cpu")),
          events);
      store(rig, "first", first.slice(0, 1), 0);
      store(rig, "fourth", hashes(4, 3), 30, 31, 32);
      store(rig, "second", second, 10, 11);
      events = rig.scheduler.takeEvents();
      Set<BlockHash> there = new HashSet<>();
      for (KVEvent event : events) {
        if (event instanceof BlocksStored stored) {
          there.addAll(stored.hashes());
        }
      }
      assertFalse(there.contains(hashes(4, 3).get(2)), "stored and evicted in between");
      assertEquals(32, rig.hit(33, second));
    }
  }

  @Test
  void aStoreThatWasEvictedAndStoredAgainInBetweenIsToldRight() {
    try (ConnectorRig rig = rig(1, 2)) {
      BlockHashes mine = hashes(1, 1);
      store(rig, "a", mine, 0);
      rig.scheduler.takeEvents();
      store(rig, "b", hashes(2, 2), 1, 2);
      store(rig, "c", mine, 0);
      List<KVEvent> events = rig.scheduler.takeEvents();
      assertEquals(1, events.size(), events.toString());
      assertEquals(
          new BlocksStored(0, List.of(hashes(2, 2).get(0)), Optional.empty(), List.of(), 16, "cpu"),
          events.get(0),
          "of the others; mine was and is there");
    }
  }

  @Test
  void routersHearOfAClear() {
    try (ConnectorRig rig = rig(1, 8)) {
      BlockHashes prompt = hashes(1, 2);
      store(rig, "a", prompt, 0, 1);
      rig.scheduler.lookup(RequestView.of("b", 16, hashes(2, 1)), 0);
      rig.scheduler.admit("b", 0, new int[] {5});
      rig.scheduler.planStores("b", 16);
      UMBPConnectorMetadata storing = rig.start();
      rig.scheduler.takeEvents();
      rig.scheduler.clear();
      rig.gpu.runAll();
      rig.collect(storing);
      store(rig, "a", prompt, 0, 1);
      assertEquals(
          List.of(
              new AllBlocksCleared(),
              new BlocksStored(0, hashList(prompt, 0, 2), Optional.empty(), List.of(), 16, "cpu")),
          rig.scheduler.takeEvents());
      assertThrows(
          UMBPException.class,
          () -> RequestView.of("r", 2, BlockHashes.empty()).withTokenIds(1, 2, 3));
    }
  }
}
