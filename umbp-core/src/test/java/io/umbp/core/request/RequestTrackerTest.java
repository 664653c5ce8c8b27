package io.umbp.core.request;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.api.LoadSpec;
import io.umbp.api.UMBPException;
import io.umbp.core.Golden;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class RequestTrackerTest {
  static Stream<Arguments> trackers() {
    return Golden.section("trackers");
  }

  @ParameterizedTest(name = "golden tracker {0}")
  @MethodSource("trackers")
  void goldenTracker(int index, JsonNode steps) {
    RequestTracker tracker = new RequestTracker();
    for (JsonNode step : steps) {
      JsonNode argument = step.get("arg");
      switch (step.get("op").textValue()) {
        case "update" -> tracker.updateBlocks(tables(argument));
        case "replace" -> tracker.replaceBlocks(tables(argument));
        case "mark" ->
            assertEquals(
                step.get("saved_tokens").intValue(),
                tracker.markSaved(argument.get(0).intValue(), argument.get(1).intValue()));
        case "reset" -> tracker.reset();
        default -> throw new AssertionError(step.toString());
      }
      assertTables(tracker, tables(step.get("block_ids")));
      assertEquals(step.get("saved_tokens").intValue(), tracker.savedTokens());
    }
  }

  private static int[][] tables(JsonNode groups) {
    int[][] tables = new int[groups.size()][];
    for (int i = 0; i < tables.length; i++) {
      tables[i] = Golden.ints(groups.get(i));
    }
    return tables;
  }

  private static void assertTables(RequestTracker tracker, int[]... expected) {
    assertEquals(expected.length, tracker.groupCount());
    for (int group = 0; group < expected.length; group++) {
      assertEquals(expected[group].length, tracker.blockCount(group));
      assertArrayEquals(expected[group], tracker.blockIds(group));
      for (int i = 0; i < expected[group].length; i++) {
        assertEquals(expected[group][i], tracker.blockId(group, i));
      }
    }
  }

  @Test
  void anUpdateIsTheWholeTableOrItsNewTail() {
    RequestTracker tracker = new RequestTracker();
    tracker.updateBlocks(new int[] {1, 2});
    tracker.updateBlocks(new int[] {1, 2, 3});
    assertTables(tracker, new int[] {1, 2, 3});
    tracker.updateBlocks(new int[] {2, 3});
    tracker.updateBlocks(new int[0]);
    tracker.updateBlocks(new int[] {1, 2, 3});
    assertTables(tracker, new int[] {1, 2, 3});
    tracker.updateBlocks(new int[] {4, 5});
    tracker.updateBlocks(new int[] {1, 2});
    assertTables(tracker, new int[] {1, 2, 3, 4, 5, 1, 2});
  }

  @Test
  void theCallersArraysAreCopied() {
    int[] blocks = {1, 2};
    RequestTracker tracker = new RequestTracker();
    tracker.updateBlocks(blocks);
    blocks[0] = 9;
    tracker.blockIds(0)[1] = 9;
    assertTables(tracker, new int[] {1, 2});
  }

  @Test
  void theWatermarkNeverMovesBack() {
    RequestTracker tracker = new RequestTracker();
    assertEquals(32, tracker.markSaved(47, 16));
    assertEquals(32, tracker.markSaved(31, 16));
    assertEquals(48, tracker.markSaved(48, 16));
    tracker.replaceBlocks(new int[] {1});
    assertEquals(0, tracker.savedTokens());
  }

  @Test
  void resetForgetsTheLoadToo() {
    RequestTracker tracker = new RequestTracker();
    tracker.planLoad(new LoadSpec(16, 64));
    tracker.replaceBlocks(new int[] {1});
    assertEquals(new LoadSpec(16, 64), tracker.loadSpec());
    tracker.dropLoad();
    assertNull(tracker.loadSpec());
    tracker.planLoad(new LoadSpec(0, 16));
    tracker.reset();
    assertNull(tracker.loadSpec());
    assertEquals(0, tracker.groupCount());
  }

  @Test
  void wrongInputIsRefusedAndChangesNothing() {
    RequestTracker tracker = new RequestTracker();
    tracker.updateBlocks(new int[] {1}, new int[] {2});
    assertMessage(
        "blocks of 1 KV cache groups were given, the request has 2",
        () -> tracker.updateBlocks(new int[] {1, 5}));
    assertMessage(
        "block id -3 in group 1 must be >= 0",
        () -> tracker.updateBlocks(new int[] {1, 5}, new int[] {-3}));
    assertMessage(
        "block id -1 in group 0 must be >= 0", () -> tracker.replaceBlocks(new int[] {-1}));
    assertMessage(
        "-1 saved tokens in units of 16; tokens must be >= 0, the unit > 0",
        () -> tracker.markSaved(-1, 16));
    assertMessage(
        "16 saved tokens in units of 0; tokens must be >= 0, the unit > 0",
        () -> tracker.markSaved(16, 0));
    assertMessage("group 2 is outside [0, 2)", () -> tracker.blockCount(2));
    assertMessage("block 1 is outside [0, 1) of group 0", () -> tracker.blockId(0, 1));
    assertTables(tracker, new int[] {1}, new int[] {2});
  }

  private static void assertMessage(String message, Runnable call) {
    assertEquals(message, assertThrows(UMBPException.class, call::run).getMessage());
  }
}
