package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.core.connector.ConnectorRig.Step;
import java.util.List;
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
      scheduler.lookup("r", tokens, prompt, 0);
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
      int load = rig.scheduler.lookup("r", count * 4 + 1, prompt, localTokens).tokensToLoad();
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
