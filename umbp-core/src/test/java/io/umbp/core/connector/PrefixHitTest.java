package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.ElementType;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadSpec;
import io.umbp.api.UMBPException;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.ConnectorSettings.TailPolicy;
import io.umbp.core.connector.ConnectorUpdate.LoadedPrefix;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** Where a hit ends with windows, checkpoints and partly filled blocks, and what it loads. */
class PrefixHitTest {
  private static final int NULL = 0;

  /** Full attention in group 0, a sliding window of 33 tokens in group 1. */
  private static ConnectorRig sliding() {
    return rig(
        ConnectorSettings.builder()
            .hitWindows(Map.of(1, HitWindow.sliding(33)))
            .nullBlock(NULL)
            .build(),
        16,
        16,
        16);
  }

  private static ConnectorRig rig(ConnectorSettings settings, int hashUnit, int... blockSizes) {
    return new ConnectorRig(settings, Shape.of(1, 1), 64, hashUnit, blockSizes);
  }

  private static ConnectorRig withTails(int hashUnit, int... blockSizes) {
    return rig(
        ConnectorSettings.builder()
            .tails(TailPolicy.PARTIAL_TAILS)
            .holdHits(Duration.ofMinutes(1))
            .build(),
        hashUnit,
        blockSizes);
  }

  /** Stores a prompt with these tables, and forgets the request. */
  private static ConnectorRig.Step store(
      ConnectorRig rig, String id, int tokens, BlockHashes hashes, int[]... tables) {
    rig.scheduler.lookup(RequestView.of(id, tokens, hashes), 0);
    rig.scheduler.admit(id, 0, tables);
    rig.scheduler.planStores(id, tokens);
    ConnectorRig.Step step = rig.step();
    rig.scheduler.finish(id);
    return step;
  }

  private static LoadSpec lookup(ConnectorRig rig, String id, int tokens, BlockHashes hashes) {
    return rig.scheduler.lookup(RequestView.of(id, tokens, hashes), 0).orElseThrow();
  }

  @Test
  @DisplayName("case 16: of the window table [0,0,6,9] only places 2 and 3 are moved")
  void nullBlocksAreNotMoved() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 4);
      rig.fill(0, 0, 6, 60);
      rig.fill(0, 1, 6, 61);
      rig.fill(0, 1, 9, 91);
      rig.fill(0, 1, NULL, 99);
      ConnectorRig.Step stored =
          store(rig, "first", 64, prompt, new int[] {4, 5, 6, 7}, new int[] {0, 0, 6, 9});
      BlockStoreBatch batch = stored.metadata().stores().get("first");
      assertArrayEquals(new int[] {4, 5, 6, 6, 7, 9}, batch.blockIds(), "6 twice: two places");
      assertEquals(64, lookup(rig, "r", 65, prompt).tokensToLoad());
      rig.scheduler.admit("r", 64, new int[] {14, 15, 16, 17}, new int[] {0, 0, 18, 19});
      ConnectorRig.Step loaded = rig.step();
      BlockLoadBatch load = loaded.metadata().loads().get("r");
      assertArrayEquals(new int[] {14, 15, 16, 18, 17, 19}, load.blockIds());
      assertEquals(Map.of("r", 64), loaded.validTokens());
      assertTrue(rig.holds(0, 0, 16, 60));
      assertTrue(rig.holds(0, 1, 18, 61));
      assertTrue(rig.holds(0, 1, 19, 91));
      assertTrue(rig.holds(0, 1, NULL, 99), "the null block is never written");
    }
  }

  @Test
  void aWindowNeedsOnlyItsLastBlocks() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 8);
      store(rig, "first", 96, prompt, blocks(1, 6), new int[] {0, 0, 3, 4, 0, 6});
      assertEquals(64, lookup(rig, "r", 200, prompt).tokensToLoad(), "blocks 2 and 3 end there");
      assertEquals(64, lookup(rig, "r", 65, prompt).tokensToLoad());
      assertEquals(0, lookup(rig, "r", 64, prompt).tokensToLoad(), "at 48 block 1 is missing");
    }
  }

  @Test
  void aHitThatIsCutShortEndsWhereTheWindowIsThere() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 8);
      store(rig, "first", 96, prompt, blocks(1, 6), new int[] {0, 2, 3, 0, 5, 6});
      assertEquals(new LoadSpec(0, 96), lookup(rig, "r", 97, prompt));
      LoadSpec loaded = rig.scheduler.admit("r", 90, blocks(20, 6), blocks(30, 6));
      assertEquals(new LoadSpec(0, 48), loaded, "at 80 and 64 the window has a gap");
      BlockLoadBatch batch = rig.step().metadata().loads().get("r");
      assertArrayEquals(new int[] {20, 21, 31, 22, 32}, batch.blockIds());
    }
  }

  @Test
  void aLoadToTheNullBlockIsRefused() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 4);
      store(rig, "first", 64, prompt, blocks(1, 4), blocks(1, 4));
      lookup(rig, "r", 65, prompt);
      UMBPException refusal =
          assertThrows(
              UMBPException.class,
              () -> rig.scheduler.admit("r", 64, blocks(10, 4), new int[] {0, 0, 0, 9}));
      assertEquals(
          "request 'r' has the null block 0 in place 2 of group 1, where a block is loaded",
          refusal.getMessage());
      refusal =
          assertThrows(
              UMBPException.class,
              () -> rig.scheduler.admit("r", 64, blocks(10, 4), new int[] {0, 0, 8}));
      assertEquals(
          "request 'r' has 3 blocks in group 1, a load of 64 tokens needs 4", refusal.getMessage());
      rig.scheduler.admit("r", 64, blocks(10, 4), new int[] {0, 0, 8, 9});
      assertEquals(Map.of("r", 64), rig.step().validTokens());
    }
  }

  @Test
  void aBlockThatWasFreedBehindTheWindowIsNotStored() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 6);
      rig.scheduler.lookup(RequestView.of("r", 96, prompt), 0);
      rig.scheduler.admit("r", 0, blocks(1, 6), blocks(1, 6));
      rig.scheduler.planStores("r", 32);
      assertArrayEquals(new int[] {1, 1, 2, 2}, rig.step().metadata().stores().get("r").blockIds());
      rig.scheduler.setBlocks("r", blocks(1, 6), new int[] {0, 0, 0, 4, 5, 6});
      rig.scheduler.planStores("r", 80);
      assertArrayEquals(
          new int[] {3, 4, 4, 5, 5}, rig.step().metadata().stores().get("r").blockIds());
      UMBPException refusal =
          assertThrows(
              UMBPException.class, () -> rig.scheduler.setBlocks("r", blocks(1, 6), blocks(1, 5)));
      assertTrue(refusal.getMessage().contains("group 1 with 5 blocks"), refusal.getMessage());
    }
  }

  @Test
  void aCheckpointStandsForAllBefore() {
    ConnectorSettings settings =
        ConnectorSettings.builder()
            .hitWindows(Map.of(1, HitWindow.CHECKPOINT))
            .nullBlock(NULL)
            .build();
    try (ConnectorRig rig = rig(settings, 16, 16, 32)) {
      BlockHashes prompt = hashes(1, 8);
      store(rig, "first", 128, prompt, blocks(1, 8), new int[] {0, 5, 0, 0});
      assertEquals(64, lookup(rig, "r", 129, prompt).tokensToLoad(), "the only state");
      assertEquals(0, lookup(rig, "r", 64, prompt).tokensToLoad(), "the last token");
      assertEquals(64, lookup(rig, "r", 65, prompt).tokensToLoad());
      rig.scheduler.admit("r", 64, blocks(20, 4), new int[] {0, 30});
      ConnectorRig.Step step = rig.step();
      assertArrayEquals(
          new int[] {20, 21, 22, 23, 30}, step.metadata().loads().get("r").blockIds());
    }
  }

  @Test
  void aLostWindowBlockTakesTheHitBackToTheLocalTokens() {
    try (ConnectorRig rig = sliding()) {
      BlockHashes prompt = hashes(1, 6);
      store(rig, "first", 96, prompt, blocks(1, 6), blocks(1, 6));
      lookup(rig, "r", 97, prompt);
      rig.scheduler.admit("r", 96, blocks(20, 6), new int[] {0, 0, 0, 0, 34, 35});
      rig.copies.failNext((row, key) -> key == 7);
      ConnectorRig.Step step = rig.step();
      assertEquals(34, step.metadata().loads().get("r").blockId(5));
      assertEquals(Map.of("r", 0), step.validTokens());
    }
  }

  @Test
  @DisplayName("case 53: a lost block takes all groups back to a common boundary")
  void aRewindOverGroupsOfDifferentBlockSizes() {
    try (ConnectorRig rig = rig(ConnectorSettings.defaults(), 16, 16, 64)) {
      BlockHashes prompt = hashes(1, 8);
      store(rig, "first", 128, prompt, blocks(0, 8), blocks(0, 2));
      lookup(rig, "r", 129, prompt);
      rig.scheduler.admit("r", 128, blocks(10, 8), new int[] {15, 40});
      // In the order of ends: group 0 has its sixth block, for tokens 80 to 95, as key 6.
      rig.copies.failNext((row, key) -> key == 6);
      rig.start();
      rig.gpu.runAll();
      ConnectorUpdate update = rig.scheduler.update(rig.workers.get(0).poll());
      Set<GroupBlock> invalid =
          Set.of(
              new GroupBlock(0, 14),
              new GroupBlock(0, 15),
              new GroupBlock(0, 16),
              new GroupBlock(0, 17),
              new GroupBlock(1, 40));
      assertEquals(Map.of("r", new LoadedPrefix(64, invalid)), update.loads());
      assertFalse(invalid.contains(new GroupBlock(1, 15)), "the same number in another group");
    }
  }

  @Test
  void aTailIsStoredAndHitAtItsExactBoundary() {
    try (ConnectorRig rig = withTails(4, 16)) {
      BlockHashes answer = hashes(1, 11);
      rig.scheduler.lookup(RequestView.of("first", 44, answer), 0);
      rig.scheduler.admit("first", 0, blocks(1, 3));
      rig.scheduler.planStores("first", 44);
      rig.fill(0, 0, 3, 33);
      rig.step();
      assertTrue(rig.scheduler.storeTail("first", 44));
      rig.scheduler.finish("first");
      assertTrue(rig.scheduler.hasPendingWork(), "the tail waits for the next step");
      ConnectorRig.Step step = rig.step();
      assertArrayEquals(
          new int[] {3}, step.metadata().stores().values().iterator().next().blockIds());
      assertFalse(rig.scheduler.hasPendingWork());
      BlockHashes longer = hashes(1, 20);
      assertEquals(44, lookup(rig, "r", 80, longer).tokensToLoad());
      assertEquals(44, lookup(rig, "r", 45, longer).tokensToLoad());
      assertEquals(32, lookup(rig, "r", 44, longer).tokensToLoad(), "the last token");
      assertEquals(44, lookup(rig, "r", 80, longer).tokensToLoad());
      assertEquals(new LoadSpec(0, 44), rig.scheduler.admit("r", 44, blocks(10, 5)));
      ConnectorRig.Step loaded = rig.step();
      assertArrayEquals(new int[] {10, 11, 12}, loaded.metadata().loads().get("r").blockIds());
      assertEquals(Map.of("r", 44), loaded.validTokens());
      assertTrue(rig.holds(0, 0, 12, 33));
      assertEquals(0, rig.runtime.stats().leases(), "holds end with the load");
      lookup(rig, "s", 80, longer);
      assertEquals(new LoadSpec(0, 32), rig.scheduler.admit("s", 40, blocks(30, 5)));
      assertEquals(2, rig.runtime.stats().leases(), "the tail is let go");
      rig.step();
    }
  }

  @Test
  void theLongestTailIsTakenAndAFullBlockNeedsNone() {
    try (ConnectorRig rig = withTails(4, 16)) {
      for (int end : new int[] {36, 40}) {
        String id = "to" + end;
        rig.scheduler.lookup(RequestView.of(id, end, hashes(1, end / 4)), 0);
        rig.scheduler.admit(id, 0, blocks(1, 3));
        rig.scheduler.planStores(id, end);
        rig.step();
        assertTrue(rig.scheduler.storeTail(id, end));
        rig.step();
        rig.scheduler.finish(id);
      }
      assertEquals(40, lookup(rig, "r", 80, hashes(1, 20)).tokensToLoad());
      assertEquals(36, lookup(rig, "r", 80, hashes(1, 9)).tokensToLoad(), "hashes end there");
      assertEquals(36, lookup(rig, "r", 40, hashes(1, 20)).tokensToLoad());
      store(rig, "full", 48, hashes(1, 12), blocks(1, 3));
      assertEquals(48, lookup(rig, "r", 80, hashes(1, 20)).tokensToLoad());
      assertEquals(32, lookup(rig, "r", 36, hashes(1, 20)).tokensToLoad());
      rig.scheduler.finish("r");
      assertEquals(0, rig.runtime.stats().leases());
    }
  }

  @Test
  void aTailOfOneGroupGoesWithTheFullBlocksOfAnother() {
    try (ConnectorRig rig = withTails(16, 16, 64)) {
      BlockHashes prompt = hashes(1, 5);
      rig.scheduler.lookup(RequestView.of("first", 80, prompt), 0);
      rig.scheduler.admit("first", 0, blocks(1, 5), blocks(1, 2));
      rig.scheduler.planStores("first", 80);
      rig.step();
      assertEquals(64, lookup(rig, "r", 200, hashes(1, 10)).tokensToLoad());
      assertTrue(rig.scheduler.storeTail("first", 80));
      rig.step();
      assertEquals(80, lookup(rig, "r", 200, hashes(1, 10)).tokensToLoad());
      rig.scheduler.admit("r", 80, blocks(10, 5), blocks(20, 2));
      ConnectorRig.Step step = rig.step();
      assertArrayEquals(
          new int[] {10, 11, 12, 13, 20, 14, 21}, step.metadata().loads().get("r").blockIds());
      assertEquals(Map.of("r", 80), step.validTokens());
    }
  }

  @Test
  void aLostTailLeavesTheFullBlocks() {
    try (ConnectorRig rig = withTails(4, 16)) {
      rig.scheduler.lookup(RequestView.of("first", 40, hashes(1, 10)), 0);
      rig.scheduler.admit("first", 0, blocks(1, 3));
      rig.scheduler.planStores("first", 40);
      rig.step();
      rig.scheduler.storeTail("first", 40);
      rig.step();
      lookup(rig, "r", 80, hashes(1, 20));
      rig.scheduler.admit("r", 40, blocks(10, 5));
      rig.copies.failNext((row, key) -> key == 2);
      assertEquals(Map.of("r", 32), rig.step().validTokens());
    }
  }

  @Test
  void whatIsNoTailIsNotStored() {
    try (ConnectorRig rig = withTails(4, 16)) {
      rig.scheduler.lookup(RequestView.of("r", 40, hashes(1, 10)), 0);
      rig.scheduler.admit("r", 0, blocks(1, 3));
      assertFalse(rig.scheduler.storeTail("r", 32), "the end of a block");
      assertFalse(rig.scheduler.storeTail("r", 38), "no end of a hash");
      assertFalse(rig.scheduler.storeTail("r", 44), "no hash");
      assertTrue(
          assertThrows(UMBPException.class, () -> rig.scheduler.storeTail("r", -4))
              .getMessage()
              .contains("-4"));
      rig.scheduler.extend(RequestView.of("r", 60, hashes(1, 15)));
      assertEquals(
          "request 'r' has 3 blocks in group 0, a tail of 60 tokens needs 4",
          assertThrows(UMBPException.class, () -> rig.scheduler.storeTail("r", 60)).getMessage());
      assertTrue(rig.scheduler.storeTail("r", 40));
      assertFalse(rig.scheduler.storeTail("r", 40), "it is under way");
      rig.step();
    }
    try (ConnectorRig rig = rig(ConnectorSettings.defaults(), 4, 16)) {
      rig.scheduler.lookup(RequestView.of("r", 40, hashes(1, 10)), 0);
      rig.scheduler.admit("r", 0, blocks(1, 3));
      assertFalse(rig.scheduler.storeTail("r", 40), "only full blocks are stored");
    }
  }

  @Test
  void windowsComeFromTheCacheOfTheEngine() {
    Layer full = layer("full", 0);
    Layer near = layer("near", 128);
    Layer nearer = layer("nearer", 64);
    Layer state =
        new Layer(
            "state", new KVCacheSpec.State("mamba", 16, ElementType.BF16, 256, TPSharding.SHARDED));
    Layer off = layer("off", 32);
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(
                new Group(List.of(full), Transfer.ENABLED),
                new Group(List.of(nearer, near), Transfer.ENABLED),
                new Group(List.of(state), Transfer.ENABLED),
                new Group(List.of(off), Transfer.DISABLED)),
            List.of(tensor("full"), tensor("near", "nearer"), tensor("state"), tensor("off")));
    assertEquals(
        Map.of(0, HitWindow.FULL, 1, new HitWindow(127), 2, HitWindow.CHECKPOINT),
        HitWindow.of(config));
    assertThrows(UMBPException.class, () -> HitWindow.sliding(0));
    assertThrows(UMBPException.class, () -> new HitWindow(-1));
    assertEquals(
        "group 3 has a hit window, but the layout has the groups [0, 1] only",
        assertThrows(
                UMBPException.class,
                () ->
                    rig(
                        ConnectorSettings.builder()
                            .hitWindows(Map.of(3, HitWindow.CHECKPOINT))
                            .build(),
                        16,
                        16,
                        16))
            .getMessage());
  }

  private static Layer layer(String name, int slidingWindow) {
    return new Layer(
        name,
        new KVCacheSpec.Attention(
            "attention", 16, ElementType.BF16, 1, 8, 8, TPSharding.SHARDED, slidingWindow));
  }

  private static Tensor tensor(String... layers) {
    return Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, List.of(layers));
  }
}
