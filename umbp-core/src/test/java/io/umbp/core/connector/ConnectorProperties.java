package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.ObjectReach;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.ConnectorRig.Step;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.Size;

class ConnectorProperties {
  /**
   * However a prompt is cut into steps and whatever fails on the way, in the end it is all there.
   */
  @Property(tries = 200)
  void storesLeaveNoHole(
      @ForAll @IntRange(min = 1, max = 3) int ranks,
      @ForAll @Size(min = 1, max = 8) List<@IntRange(min = 1, max = 60) Integer> chunks,
      @ForAll long seed) {
    int tokens = chunks.stream().mapToInt(Integer::intValue).sum();
    BlockHashes prompt = hashes(1, tokens / 4);
    try (ConnectorRig rig = new ConnectorRig(ranks, 400, 4, 8, 12)) {
      SchedulerConnector scheduler = rig.scheduler;
      scheduler.lookup(RequestView.of("r", tokens, prompt), 0);
      scheduler.admit("r", 0, blocks(0, 70), blocks(0, 70));
      rig.copies.failRows(0.2, seed);
      int computed = 0;
      for (int chunk : chunks) {
        computed += chunk;
        scheduler.planStores("r", computed);
        rig.step();
      }
      rig.copies.failRows(0, seed);
      scheduler.planStores("r", tokens);
      rig.step();
      assertEquals(
          (long) (tokens / 8 + tokens / 12) * ranks, rig.runtime.stats().publishedObjects());
      assertEquals(tokens / 24 * 24, rig.hit(tokens + 1, prompt));
    }
  }

  /**
   * Whatever is stored, a hit is as long as the keys say that are written out by hand, and in the
   * end there is one object for each of them.
   */
  @Property(tries = 150)
  void hitsOfReplicatedGroupsAreCountedRight(
      @ForAll @IntRange(min = 2, max = 3) int tp,
      @ForAll @IntRange(min = 1, max = 2) int pp,
      @ForAll Set<@IntRange(max = 1) Integer> replicated,
      @ForAll @IntRange(min = 1, max = 90) int tokens,
      @ForAll long seed) {
    BlockHashes prompt = hashes(1, tokens / 4);
    Shape shape = new Shape(tp, pp, replicated, ObjectReach.EVERY_RANK);
    try (ConnectorRig rig = new ConnectorRig(shape, 400, 4, 8, 12)) {
      rig.scheduler.lookup(RequestView.of("r", tokens, prompt), 0);
      rig.scheduler.admit("r", 0, blocks(0, 20), blocks(0, 20));
      rig.copies.failRows(0.03, seed);
      rig.scheduler.planStores("r", tokens);
      rig.step();
      int hit = 0;
      while (hit + 24 <= tokens && hasAll(rig, keysOf(hit, tp, pp, replicated, prompt))) {
        hit += 24;
      }
      assertEquals(hit, rig.hit(tokens + 1, prompt));

      rig.copies.failRows(0, seed);
      rig.scheduler.planStores("r", tokens);
      rig.step();
      long objects = 0;
      for (int group = 0; group < 2; group++) {
        int copies = replicated.contains(group) ? pp : tp * pp;
        objects += (long) copies * (tokens / (group == 0 ? 8 : 12));
      }
      assertEquals(objects, rig.runtime.stats().publishedObjects());
      assertEquals(tokens / 24 * 24, rig.hit(tokens + 1, prompt));
    }
  }

  private static boolean hasAll(ConnectorRig rig, List<String> keys) {
    for (boolean isPresent : rig.store.lookup(keys)) {
      if (!isPresent) {
        return false;
      }
    }
    return true;
  }

  /** The keys of all blocks that end in the 24 tokens from a place on. */
  private static List<String> keysOf(
      int from, int tp, int pp, Set<Integer> replicated, BlockHashes prompt) {
    List<String> keys = new ArrayList<>();
    for (int group = 0; group < 2; group++) {
      int blockSize = group == 0 ? 8 : 12;
      for (int end = from + blockSize; end <= from + 24; end += blockSize) {
        for (int stage = 0; stage < pp; stage++) {
          for (int rank = 0; rank < tp; rank++) {
            String place = replicated.contains(group) ? "*" : Integer.toString(rank);
            keys.add(
                "umbp:vllm:v1:m:tp%s:pcp0:dcp0:pp%d:g%d:%s"
                    .formatted(place, stage, group, prompt.get(end / 4 - 1)));
          }
        }
      }
    }
    return keys;
  }

  /** Whatever fails, the valid prefix of a load holds what was stored, on all ranks. */
  @Property(tries = 200)
  void aLoadedPrefixIsWhole(
      @ForAll @IntRange(min = 1, max = 3) int ranks,
      @ForAll @IntRange(min = 1, max = 20) int count,
      @ForAll @IntRange(min = 0, max = 19) int local,
      @ForAll long seed) {
    BlockHashes prompt = hashes(1, count);
    try (ConnectorRig rig = new ConnectorRig(ranks, 400, 4, 4)) {
      for (int rank = 0; rank < ranks; rank++) {
        for (int block = 0; block < count; block++) {
          rig.fill(rank, 0, block, rank * 40 + block + 1);
        }
      }
      rig.store("first", count * 4, prompt, blocks(0, count));
      int localTokens = Math.min(local, count) * 4;
      int load =
          rig.scheduler
              .lookup(RequestView.of("r", count * 4 + 1, prompt), localTokens)
              .orElseThrow()
              .tokensToLoad();
      assertEquals(count * 4 - localTokens, load);
      if (load == 0) {
        return;
      }
      rig.scheduler.admit("r", load, blocks(100, count));
      rig.copies.failRows(0.1, seed);
      Step step = rig.step();
      int valid = step.validTokens().get("r");
      assertTrue(valid >= localTokens && valid <= count * 4, () -> "valid tokens " + valid);
      for (int rank = 0; rank < ranks; rank++) {
        for (int block = localTokens / 4; block < valid / 4; block++) {
          assertTrue(rig.holds(rank, 0, 100 + block, rank * 40 + block + 1));
        }
      }
    }
  }
}
