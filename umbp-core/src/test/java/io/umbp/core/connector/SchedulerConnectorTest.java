package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.LoadSpec;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.core.connector.ConnectorRig.Step;
import io.umbp.testkit.FakeGpu;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

class SchedulerConnectorTest {
  private static final int FRESH = FakeGpu.FRESH_POISON;

  @Test
  @DisplayName("case 36: a full-prompt hit leaves work to do and is never negative")
  void fullPromptHit() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      SchedulerConnector scheduler = rig.scheduler;
      assertEquals(new LoadSpec(0, 48), scheduler.lookup("r", 64, prompt, 0));
      assertEquals(new LoadSpec(48, 48), scheduler.lookup("r", 64, prompt, 48));
      assertEquals(new LoadSpec(64, 64), scheduler.lookup("r", 64, prompt, 64));
      assertEquals(0, scheduler.lookup("r", 64, prompt, 80).tokensToLoad());
      assertEquals(64, scheduler.lookup("r", 65, prompt, 0).tokensToLoad());
      assertEquals(32, scheduler.lookup("r", 64, prompt, 16).tokensToLoad());
    }
  }

  @Test
  @DisplayName("case 2: another salt, another adapter and a request without tokens hit 0, 0, 0")
  void onlyTheHashesHandedInCount() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.store("salt x", 48, hashes(1, 3), 0, 1, 2);
      assertEquals(48, rig.hit(49, hashes(1, 3)));
      assertEquals(0, rig.hit(48, hashes(2, 3)));
      assertEquals(0, rig.hit(48, hashes(3, 3)));
      assertEquals(0, rig.hit(0, hashes(1, 0)));
      assertEquals(0, rig.hit(48, hashes(1, 0)));
    }
  }

  @Test
  void localTokensInTheMiddleOfABlockLoadNothing() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      assertEquals(0, rig.scheduler.lookup("r", 64, prompt, 20).tokensToLoad());
    }
  }

  @Test
  void aPromptShorterThanABlockLoadsNothing() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      assertEquals(0, rig.scheduler.lookup("r", 0, hashes(1, 0), 0).tokensToLoad());
      assertEquals(0, rig.scheduler.lookup("r", 15, hashes(1, 0), 0).tokensToLoad());
    }
  }

  @Test
  @DisplayName("case 27: presence [1,1,0,1] is a run of 2")
  void aGapEndsTheRun() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 5);
      rig.store("some", 48, prompt.select(0, 1, 3), 0, 1, 2);
      assertEquals(2 * 16, rig.hit(65, prompt));
    }
  }

  @Test
  @DisplayName("case 27: presence [0,0] and 126 ones is no run")
  void aMissingHeadIsNoRun() {
    try (ConnectorRig rig = new ConnectorRig(1, 128, 16, 16)) {
      BlockHashes prompt = hashes(1, 128);
      rig.store("tail", 126 * 16, prompt.slice(2, 128), blocks(0, 126));
      assertEquals(126, rig.runtime.stats().publishedObjects());
      assertEquals(0, rig.hit(128 * 16 + 1, prompt));
    }
  }

  @Test
  @DisplayName("case 27: three steps of 32 blocks store the indexes 0 to 95")
  void chunkedPrefillLeavesNoHole() {
    try (ConnectorRig rig = new ConnectorRig(1, 96, 256, 256)) {
      SchedulerConnector scheduler = rig.scheduler;
      BlockHashes prompt = hashes(1, 96);
      scheduler.lookup("r", 24_576, prompt, 0);
      scheduler.admit("r", 0, blocks(100, 32));
      List<Integer> indexes = new ArrayList<>();
      for (int chunk = 1; chunk <= 3; chunk++) {
        scheduler.planStores("r", chunk * 32 * 256);
        BlockStoreBatch batch = rig.step().metadata().stores().get("r");
        assertEquals(32, batch.size());
        for (int row = 0; row < batch.size(); row++) {
          int index = batch.blockId(row) - 100;
          assertEquals(prompt.get(index), batch.keys().hashes().get(row));
          indexes.add(index);
        }
        if (chunk < 3) {
          scheduler.updateBlocks("r", blocks(100 + chunk * 32, 32));
        }
      }
      assertEquals(IntStream.range(0, 96).boxed().toList(), indexes);
      assertEquals(95 * 256, rig.hit(24_576, prompt));
    }
  }

  @Test
  void aPartlyFilledBlockIsStoredOnceItIsFull() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 3);
      rig.scheduler.lookup("r", 48, prompt, 0);
      rig.scheduler.admit("r", 0, new int[] {5, 6, 7});
      rig.scheduler.planStores("r", 17);
      assertArrayEquals(new int[] {5}, storedBlocks(rig.step(), "r"));
      rig.scheduler.planStores("r", 31);
      assertEquals(UMBPConnectorMetadata.NO_EVENT, rig.step().metadata().storeEvent());
      rig.scheduler.planStores("r", 48);
      assertArrayEquals(new int[] {6, 7}, storedBlocks(rig.step(), "r"));
    }
  }

  @Test
  void tokensWithoutAHashAreNotStored() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.scheduler.lookup("r", 64, hashes(1, 2), 0);
      rig.scheduler.admit("r", 0, new int[] {0, 1, 2, 3});
      rig.scheduler.planStores("r", 64);
      assertArrayEquals(new int[] {0, 1}, storedBlocks(rig.step(), "r"));
    }
  }

  private static int[] storedBlocks(Step step, String request) {
    return step.metadata().stores().get(request).blockIds();
  }

  @Test
  @DisplayName("case 20: a failed store is offered again and leaves no hole")
  void aFailedStoreIsOfferedAgain() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.copies.failNext((row, key) -> key == 2);
      Step first = rig.store("r", 64, prompt, 0, 1, 2, 3);
      assertEquals(
          Map.of(0L, new StoreEventResult(1, Set.of(new StoredObject(0, prompt.get(2))))),
          first.endedEvents());
      assertEquals(2 * 16, rig.hit(65, prompt));
      assertEquals(0, rig.hit(17, prompt.slice(2, 3)));

      rig.scheduler.planStores("r", 64);
      assertArrayEquals(new int[] {2, 3}, storedBlocks(rig.step(), "r"));
      assertEquals(4 * 16, rig.hit(65, prompt));
      rig.scheduler.planStores("r", 64);
      assertEquals(UMBPConnectorMetadata.NO_EVENT, rig.step().metadata().storeEvent());
    }
  }

  @Test
  void anEventEndsOnceAllRanksHaveReported() {
    try (ConnectorRig rig = new ConnectorRig(2, 8, 16, 16)) {
      SchedulerConnector scheduler = rig.scheduler;
      scheduler.lookup("r", 16, hashes(1, 1), 0);
      scheduler.admit("r", 0, new int[] {0});
      scheduler.planStores("r", 16);
      long event = rig.start().storeEvent();
      rig.gpu.runAll();
      UMBPConnectorWorkerMetadata first = rig.workers.get(0).poll().metadata();
      assertEquals(Map.of(), scheduler.update(first));
      assertEquals(0, rig.hit(17, hashes(1, 1)), "only one rank has published");
      UMBPConnectorWorkerMetadata second = rig.workers.get(1).poll().metadata();
      assertEquals(Map.of(event, new StoreEventResult(2, Set.of())), scheduler.update(second));
      assertEquals(16, rig.hit(17, hashes(1, 1)));
      assertEquals(Map.of(), scheduler.update(second), "an event ends once");
    }
  }

  @Test
  void aBlockMissingOnOneRankIsAMissAndIsOfferedAgain() {
    try (ConnectorRig rig = new ConnectorRig(2, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 3);
      rig.copies.failNext((row, key) -> false);
      rig.copies.failNext((row, key) -> key == 1);
      rig.store("r", 48, prompt, 0, 1, 2);
      assertEquals(5, rig.runtime.stats().publishedObjects());
      assertEquals(16, rig.hit(49, prompt));
      rig.scheduler.planStores("r", 48);
      rig.step();
      assertEquals(48, rig.hit(49, prompt));
    }
  }

  @Test
  void aLoadBringsExactlyTheBlocksFromLocalToExternal() {
    try (ConnectorRig rig = new ConnectorRig(2, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 5);
      for (int rank = 0; rank < 2; rank++) {
        for (int block = 0; block < 5; block++) {
          rig.fill(rank, 0, block, 10 * rank + block);
        }
      }
      rig.store("first", 80, prompt, 0, 1, 2, 3, 4);

      assertEquals(48, rig.scheduler.lookup("r", 80, prompt, 16).tokensToLoad());
      rig.scheduler.admit("r", 48, new int[] {20, 21, 22, 23, 24});
      Step step = rig.step();
      BlockLoadBatch batch = step.metadata().loads().get("r");
      assertArrayEquals(new int[] {21, 22, 23}, batch.blockIds());
      assertEquals(Map.of("r", 64), step.validTokens());
      for (int rank = 0; rank < 2; rank++) {
        for (int block = 1; block <= 3; block++) {
          assertTrue(rig.holds(rank, 0, 20 + block, 10 * rank + block), rank + "/" + block);
        }
      }
      assertTrue(rig.holds(0, 0, 20, FRESH), "local block");
      assertTrue(rig.holds(0, 0, 24, FRESH), "block of the last token");
    }
  }

  @Test
  void loadedBlocksAreNotStoredAgain() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 5);
      rig.store("first", 48, prompt, 0, 1, 2);
      rig.scheduler.lookup("r", 80, prompt, 16);
      rig.scheduler.admit("r", 32, new int[] {20, 21, 22, 23, 24});
      rig.scheduler.planStores("r", 80);
      Step loading = rig.step();
      assertFalse(loading.metadata().stores().containsKey("r"), "its load was still under way");
      assertArrayEquals(new int[] {20, 23, 24}, storedBlocks(rig.step(), "r"));
    }
  }

  @Test
  void theEngineMayLoadLessThanWasFound() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      SchedulerConnector scheduler = rig.scheduler;
      assertEquals(48, scheduler.lookup("r", 64, prompt, 0).tokensToLoad());
      int[] table = {20, 21, 22, 23};
      assertThrows(UMBPException.class, () -> scheduler.admit("r", 64, table));
      assertThrows(UMBPException.class, () -> scheduler.admit("r", 24, table));
      assertThrows(UMBPException.class, () -> scheduler.admit("r", -16, table));
      scheduler.admit("r", 32, table);
      Step step = rig.step();
      assertArrayEquals(new int[] {20, 21}, step.metadata().loads().get("r").blockIds());
      assertEquals(Map.of("r", 32), step.validTokens());
    }
  }

  @Test
  @DisplayName("case 23: the first failed block of any rank cuts the prefix")
  void aFailedLoadCutsThePrefix() {
    try (ConnectorRig rig = new ConnectorRig(2, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      rig.scheduler.lookup("r", 65, prompt, 0);
      rig.scheduler.admit("r", 64, new int[] {10, 11, 12, 13});
      rig.copies.failNext((row, key) -> key == 3);
      rig.copies.failNext((row, key) -> key == 1);
      Step step = rig.step();
      assertEquals(Map.of("r", 16), step.validTokens());
      rig.scheduler.planStores("r", 64);
      assertArrayEquals(new int[] {11, 12, 13}, storedBlocks(rig.step(), "r"));
    }
  }

  @Test
  void storesPlannedDuringALoadThatFailsAreDropped() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 32, prompt, 0, 1);
      rig.scheduler.lookup("r", 64, prompt, 0);
      rig.scheduler.admit("r", 32, new int[] {10, 11, 12, 13});
      rig.scheduler.planStores("r", 64);
      rig.copies.failNext((row, key) -> key == 1);
      assertEquals(Map.of("r", 16), rig.step().validTokens());
      assertEquals(Map.of(), rig.step().metadata().stores(), "nothing of it is computed");
      rig.scheduler.planStores("r", 48);
      assertArrayEquals(new int[] {11, 12}, storedBlocks(rig.step(), "r"));
    }
  }

  @Test
  void aTableThatIsTooShortForTheLoadIsRefusedAndChangesNothing() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      rig.scheduler.lookup("r", 64, prompt, 16);
      assertRefused("2 blocks", () -> rig.scheduler.admit("r", 32, new int[] {10, 11}));
      rig.scheduler.admit("r", 32, new int[] {10, 11, 12});
      assertEquals(Map.of("r", 48), rig.step().validTokens());
    }
  }

  @Test
  @DisplayName("case 28: a block that went between lookup and load cuts the prefix")
  void aVanishedBlockCutsThePrefix() {
    try (ConnectorRig rig = new ConnectorRig(1, 4, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      assertEquals(64, rig.scheduler.lookup("r", 65, prompt, 0).tokensToLoad());
      rig.store("other", 32, hashes(2, 2), 4, 5);
      rig.scheduler.admit("r", 64, new int[] {10, 11, 12, 13});
      assertEquals(Map.of("r", 32), rig.step().validTokens());
    }
  }

  @Test
  @DisplayName("case 28: what a lookup found stays until it is loaded, when hits are held")
  void aHeldHitIsLoadedWhole() {
    for (int ranks : new int[] {1, 2}) {
      try (ConnectorRig rig = new ConnectorRig(ranks, 8, 16, 16)) {
        rig.scheduler.holdHits(Duration.ofSeconds(30));
        BlockHashes prompt = hashes(1, 4);
        rig.store("r1", 64, prompt, 0, 1, 2, 3);
        rig.scheduler.finish("r1");
        assertEquals(64, rig.scheduler.lookup("r", 65, prompt, 0).tokensToLoad());
        ConnectorRig.Step other = rig.store("r2", 128, hashes(2, 8), blocks(10, 8));
        int refused = only(other.endedEvents()).failedObjects().size();
        // Of two ranks that share the pool the first takes what is free.
        assertEquals(ranks == 1 ? 4 : 8, refused, "r2 never gets more than 4 blocks in");
        rig.scheduler.admit("r", 64, new int[] {20, 21, 22, 23});
        assertEquals(Map.of("r", 64), rig.step().validTokens());
        assertEquals(0, rig.runtime.stats().leases(), "the hold ends with the load");
        rig.store("r3", 128, hashes(3, 8), blocks(30, 8));
        assertEquals(128, rig.hit(129, hashes(3, 8)), "evictable again");
      }
    }
  }

  @Test
  void aHoldKeepsOnlyWhatIsLoaded() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.scheduler.holdHits(Duration.ofSeconds(30));
      BlockHashes prompt = hashes(1, 6);
      rig.store("first", 96, prompt, blocks(0, 6));
      assertEquals(80, rig.scheduler.lookup("r", 90, prompt, 0).tokensToLoad());
      assertEquals(5, rig.runtime.stats().leases(), "the last token is left to compute");
      rig.scheduler.admit("r", 32, new int[] {20, 21});
      assertEquals(2, rig.runtime.stats().leases());
      assertEquals(Map.of("r", 32), rig.step().validTokens());
      assertEquals(0, rig.runtime.stats().leases());
    }
  }

  @Test
  void aHoldEndsWithItsRequestTheNextLookupOrAMiss() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.scheduler.holdHits(Duration.ofSeconds(30));
      BlockHashes prompt = hashes(1, 4);
      rig.store("first", 64, prompt, 0, 1, 2, 3);
      rig.scheduler.lookup("r", 65, prompt, 0);
      rig.scheduler.lookup("r", 65, prompt, 0);
      assertEquals(4, rig.runtime.stats().leases(), "one hold");
      rig.scheduler.finish("r");
      assertEquals(0, rig.runtime.stats().leases());
      rig.scheduler.lookup("s", 65, hashes(2, 4), 0);
      rig.scheduler.lookup("s", 65, prompt, 0);
      rig.scheduler.admit("s", 0, new int[] {20, 21, 22, 23});
      assertEquals(0, rig.runtime.stats().leases(), "nothing is loaded");
      rig.scheduler.lookup("t", 65, prompt, 0);
      rig.scheduler.close();
      assertEquals(0, rig.runtime.stats().leases(), "the connector is closed");
    }
  }

  @Test
  void limitsOfHoldsAreChecked() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      assertRefused("must be > 0", () -> rig.scheduler.holdHits(Duration.ZERO));
    }
  }

  private static StoreEventResult only(Map<Long, StoreEventResult> events) {
    assertEquals(1, events.size());
    return events.values().iterator().next();
  }

  @Test
  @DisplayName("case 35: the tail of a chain is evicted first")
  void theTailIsEvictedFirst() {
    try (ConnectorRig rig = new ConnectorRig(1, 4, 16, 16)) {
      BlockHashes chain = hashes(1, 4);
      rig.store("chain", 64, chain, 0, 1, 2, 3);
      rig.scheduler.finish("chain");
      rig.store("x", 16, hashes(2, 1), 4);
      assertEquals(3 * 16, rig.hit(65, chain));
      assertEquals(16, rig.hit(17, hashes(2, 1)));

      rig.scheduler.lookup("again", 49, chain, 0);
      rig.scheduler.touch("again", 48);
      rig.store("y", 16, hashes(3, 1), 5);
      assertEquals(3 * 16, rig.hit(65, chain));
      assertEquals(0, rig.hit(17, hashes(2, 1)));
    }
  }

  @Test
  @DisplayName("case 35: without the touch the chain loses its next block")
  void withoutATouchTheChainGetsShorter() {
    try (ConnectorRig rig = new ConnectorRig(1, 4, 16, 16)) {
      BlockHashes chain = hashes(1, 4);
      rig.store("chain", 64, chain, 0, 1, 2, 3);
      rig.store("x", 16, hashes(2, 1), 4);
      rig.store("y", 16, hashes(3, 1), 5);
      assertEquals(2 * 16, rig.hit(65, chain));
    }
  }

  @Test
  void groupsOfDifferentBlockSizesAreHitTogether() {
    try (ConnectorRig rig = new ConnectorRig(2, 64, 8, 16, 24)) {
      BlockHashes prompt = hashes(1, 20);
      SchedulerConnector scheduler = rig.scheduler;
      scheduler.lookup("first", 160, prompt, 0);
      scheduler.admit("first", 0, blocks(0, 10), blocks(100, 6));
      scheduler.planStores("first", 160);
      BlockStoreBatch stored = rig.step().metadata().stores().get("first");
      assertEquals(16, stored.size());
      assertEquals(List.of(0, 1, 0, 0, 1, 0), groupIds(stored).subList(0, 6), "by end of block");

      assertEquals(144, rig.hit(160, prompt));
      assertEquals(96, rig.hit(144, prompt));
      assertEquals(0, scheduler.lookup("r", 160, prompt, 16).tokensToLoad());
      assertEquals(96, scheduler.lookup("r", 160, prompt, 48).tokensToLoad());
      scheduler.admit("r", 96, blocks(20, 10), blocks(120, 6));
      Step step = rig.step();
      BlockLoadBatch load = step.metadata().loads().get("r");
      assertEquals(96 / 16 + 96 / 24, load.size());
      assertEquals(Map.of("r", 144), step.validTokens());
    }
  }

  private static List<Integer> groupIds(BlockStoreBatch batch) {
    return IntStream.range(0, batch.size()).map(batch.keys()::groupId).boxed().toList();
  }

  @Test
  void aBlockMissingInOneGroupIsAMiss() {
    try (ConnectorRig rig = new ConnectorRig(1, 64, 8, 16, 24)) {
      BlockHashes prompt = hashes(1, 20);
      rig.scheduler.lookup("first", 160, prompt, 0);
      rig.scheduler.admit("first", 0, blocks(0, 10), blocks(100, 6));
      rig.scheduler.planStores("first", 160);
      BlockHash failed = prompt.get(48 / 8 - 1);
      rig.copies.failNext((row, key) -> key == 4);
      Step step = rig.step();
      assertEquals(Set.of(new StoredObject(1, failed)), step.endedEvents().get(0L).failedObjects());
      assertEquals(0, rig.hit(160, prompt));
      rig.scheduler.planStores("first", 160);
      BlockStoreBatch again = rig.step().metadata().stores().get("first");
      assertArrayEquals(new int[] {1, 2, 101}, Arrays.copyOf(again.blockIds(), 3), "from token 24");
      assertEquals(144, rig.hit(160, prompt));
    }
  }

  @Test
  void aFinishedRequestLeavesNothing() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      rig.store("r", 64, prompt, 0, 1, 2, 3);
      rig.scheduler.finish("r");
      assertEquals(0, rig.scheduler.requestCount());
      rig.scheduler.lookup("due", 65, prompt, 0);
      rig.scheduler.admit("due", 64, blocks(10, 4));
      rig.scheduler.planStores("due", 64);
      rig.scheduler.finish("due");
      UMBPConnectorMetadata metadata = rig.step().metadata();
      assertEquals(Map.of(), metadata.loads());
      assertEquals(Map.of(), metadata.stores());
      assertEquals(0, rig.scheduler.requestCount());
      rig.scheduler.finish("due");
      assertThrows(UMBPException.class, () -> rig.scheduler.planStores("due", 64));
    }
  }

  @Test
  void aStoreGoesOnWhenItsRequestIsFinished() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.scheduler.lookup("r", 32, prompt, 0);
      rig.scheduler.admit("r", 0, blocks(0, 2));
      rig.scheduler.planStores("r", 32);
      UMBPConnectorMetadata metadata = rig.start();
      rig.scheduler.finish("r");
      rig.gpu.runAll();
      assertEquals(Set.of(0L), rig.collect(metadata).endedEvents().keySet());
      assertEquals(32, rig.hit(33, prompt));
    }
  }

  @Test
  void aLateReportIsNeverTakenForALaterLoadOfTheSameId() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.store("first", 32, prompt, 0, 1);
      rig.scheduler.lookup("r", 33, prompt, 0);
      rig.scheduler.admit("r", 32, blocks(10, 2));
      UMBPConnectorMetadata metadata = rig.start();
      rig.scheduler.finish("r");

      assertEquals(0, rig.scheduler.lookup("r", 33, prompt, 0).tokensToLoad());
      rig.gpu.runAll();
      assertNull(rig.collect(metadata).validTokens().get("r"));
      assertEquals(32, rig.scheduler.lookup("r", 33, prompt, 0).tokensToLoad());
    }
  }

  @Test
  void aNewAdmissionOffersAllStoresAgain() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.store("r", 32, prompt, 0, 1);
      rig.scheduler.lookup("r", 32, prompt, 0);
      rig.scheduler.admit("r", 0, new int[] {5, 6});
      rig.scheduler.planStores("r", 32);
      assertArrayEquals(new int[] {5, 6}, storedBlocks(rig.step(), "r"));
      assertEquals(2, rig.runtime.stats().storedObjects(), "present blocks are not copied");
    }
  }

  @Test
  void wrongInputIsRefused() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      SchedulerConnector scheduler = rig.scheduler;
      BlockHashes prompt = hashes(1, 4);
      assertRefused("-1", () -> scheduler.lookup("r", -1, prompt, 0));
      assertRefused("-16", () -> scheduler.lookup("r", 64, prompt, -16));
      assertRefused("'r'", () -> scheduler.admit("r", 0, blocks(0, 4)));
      scheduler.lookup("r", 64, prompt, 0);
      assertRefused("2 KV cache groups", () -> scheduler.admit("r", 0, blocks(0, 4), blocks(0, 4)));
      assertRefused("4", () -> scheduler.planStores("r", 64));
      scheduler.admit("r", 0, blocks(0, 3));
      assertRefused("without a lookup", () -> scheduler.admit("r", 0, blocks(0, 4)));
      assertRefused("3 blocks", () -> scheduler.planStores("r", 64));
      assertRefused("-5", () -> scheduler.planStores("r", -5));
      assertRefused("unknown", () -> scheduler.touch("other", 16));
      assertEquals(OptionalInt.empty(), scheduler.loadFinished(new LoadResult("r", List.of())));
    }
  }

  @Test
  void aReportOfABlockThatIsNotLoadedIsRefused() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.store("first", 32, prompt, 0, 1);
      rig.scheduler.lookup("r", 33, prompt, 0);
      rig.scheduler.admit("r", 32, blocks(10, 2));
      LoadResult wrong = new LoadResult("r", List.of(new GroupBlock(0, 99)));
      assertRefused("99", () -> rig.scheduler.loadFinished(wrong));
      assertRefused("still loads", () -> rig.scheduler.lookup("r", 33, prompt, 0));
    }
  }

  @Test
  void aHashUnitThatDividesNoBlockIsRefused() {
    assertRefused("24", () -> new ConnectorRig(1, 8, 16, 24));
    assertRefused("0", () -> new ConnectorRig(1, 8, 0, 16));
  }

  private static void assertRefused(String part, Runnable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call::run);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
    assertTrue(refusal.getMessage().contains(part), refusal.getMessage());
  }

  @Test
  void aTouchOfANegativeCountIsRefused() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.scheduler.lookup("r", 32, hashes(1, 2), 0);
      assertThrows(UMBPException.class, () -> rig.scheduler.touch("r", -33));
    }
  }

  @Test
  void stepsGoOnWhenARequestComesBackWithFewerHashesThanItsDueStores() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      BlockHashes hashes = hashes(1, 3);
      rig.scheduler.lookup("r", 48, hashes, 0);
      rig.scheduler.admit("r", 0, blocks(0, 3));
      rig.scheduler.planStores("r", 48);
      rig.scheduler.lookup("r", 32, hashes(1, 2), 0);
      assertEquals(2, rig.step().metadata().stores().get("r").size());
    }
  }
}
