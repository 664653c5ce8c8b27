package io.umbp.api;

import static io.umbp.api.KeyOutcome.CANCELLED;
import static io.umbp.api.KeyOutcome.COMPLETED;
import static io.umbp.api.KeyOutcome.FAILED;
import static io.umbp.api.KeyOutcome.MISS;
import static io.umbp.api.KeyOutcome.PENDING;
import static io.umbp.api.KeyOutcome.REJECTED;
import static io.umbp.api.KeyOutcome.TIMED_OUT;
import static io.umbp.api.Refusals.assertRefused;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.TransferJobState.Status;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** What a job's snapshot says of its keys. */
class JobStateTest {
  private static final Set<KeyOutcome> COMPLETED_OR_CANCELLED = Set.of(COMPLETED, CANCELLED);

  private static BlockLoadBatch batch(int... blockIds) {
    return BlockLoadBatch.of(
        "r1",
        BlockKeys.of(
            new UMBPNamespace("m"),
            new RankNamespace(0, 0, 0, 0),
            0,
            BlockHashes.of(1, new byte[blockIds.length])),
        blockIds);
  }

  private static TransferJobState state(
      boolean overdue, BlockLoadBatch batch, KeyOutcome... outcomes) {
    KeyReason[] reasons = new KeyReason[outcomes.length];
    Arrays.fill(reasons, KeyReason.NONE);
    return new TransferJobState(
        7, TransferDirection.LOAD, overdue, batch, outcomes, reasons, null, 0);
  }

  private static void assertStatus(Status expected, boolean overdue, KeyOutcome... outcomes) {
    TransferJobState state = state(overdue, batch(new int[outcomes.length]), outcomes);
    assertEquals(expected, state.status());
    assertEquals(expected != Status.RUNNING && expected != Status.OVERDUE, state.isFinal());
  }

  @Test
  void everyCombinationOfThreeOutcomesHasItsStatus() {
    for (KeyOutcome first : KeyOutcome.values()) {
      for (KeyOutcome second : KeyOutcome.values()) {
        for (KeyOutcome third : KeyOutcome.values()) {
          Set<KeyOutcome> all = Set.copyOf(List.of(first, second, third));
          Status ended =
              COMPLETED_OR_CANCELLED.containsAll(all)
                  ? all.contains(CANCELLED) ? Status.CANCELLED : Status.COMPLETED
                  : Status.FAILED;
          boolean pending = all.contains(PENDING);
          assertStatus(pending ? Status.RUNNING : ended, false, first, second, third);
          assertStatus(pending ? Status.OVERDUE : ended, true, first, second, third);
        }
      }
    }
  }

  @Test
  void aPendingKeyKeepsTheJobFromEnding() {
    assertStatus(Status.RUNNING, false, PENDING);
    assertStatus(Status.RUNNING, false, FAILED, CANCELLED, PENDING);
    assertStatus(Status.OVERDUE, true, COMPLETED, PENDING);
    assertStatus(Status.OVERDUE, true, TIMED_OUT, PENDING);
  }

  @Test
  void aJobWhoseKeysAllCompletedIsComplete() {
    assertStatus(Status.COMPLETED, false);
    assertStatus(Status.COMPLETED, false, COMPLETED, COMPLETED);
    assertStatus(Status.COMPLETED, true, COMPLETED);
  }

  @ParameterizedTest
  @EnumSource(names = {"MISS", "FAILED", "TIMED_OUT", "REJECTED"})
  void oneBadKeyFailsTheJob(KeyOutcome bad) {
    assertStatus(Status.FAILED, false, bad);
    assertStatus(Status.FAILED, false, COMPLETED, bad, COMPLETED);
    assertStatus(Status.FAILED, false, CANCELLED, bad);
    assertStatus(Status.FAILED, true, bad, CANCELLED);
  }

  @Test
  void aCancelledKeyCancelsAJobWithoutFailures() {
    assertStatus(Status.CANCELLED, false, CANCELLED);
    assertStatus(Status.CANCELLED, false, COMPLETED, CANCELLED, COMPLETED);
  }

  @Test
  void failedBlocksAreDistinctAndAscending() {
    TransferJobState state =
        state(
            false,
            batch(9, 4, 9, 7, 2, 5, 1, 8),
            FAILED,
            MISS,
            REJECTED,
            COMPLETED,
            TIMED_OUT,
            CANCELLED,
            PENDING,
            COMPLETED);
    assertArrayEquals(new int[] {2, 4, 5, 9}, state.failedBlockIds());
    assertEquals(
        List.of(
            state.keys().key(0),
            state.keys().key(1),
            state.keys().key(2),
            state.keys().key(4),
            state.keys().key(5)),
        state.failedKeys());
    assertEquals(2, state.count(COMPLETED));
    assertEquals(1, state.count(PENDING));
    assertEquals(1, state.count(MISS));
    assertEquals(0, state(false, batch(1), COMPLETED).failedBlockIds().length);
    assertEquals(List.of(), state(false, batch(1), COMPLETED).failedKeys());
  }

  @Test
  void keysHaveReasonsAndDetails() {
    @Nullable String[] details = {"row 3: CUDA_ERROR_ILLEGAL_ADDRESS (700)", null};
    TransferJobState state =
        new TransferJobState(
            42,
            TransferDirection.STORE,
            false,
            batch(5, 6),
            new KeyOutcome[] {FAILED, COMPLETED},
            new KeyReason[] {KeyReason.COPY_FAILED, KeyReason.NONE},
            details,
            4_096);
    assertEquals(42, state.jobId());
    assertEquals(TransferDirection.STORE, state.direction());
    assertEquals("r1", state.requestId());
    assertEquals(2, state.size());
    assertEquals(5, state.blockId(0));
    assertEquals(FAILED, state.outcome(0));
    assertEquals(KeyReason.COPY_FAILED, state.reason(0));
    assertEquals("row 3: CUDA_ERROR_ILLEGAL_ADDRESS (700)", state.detail(0));
    assertEquals(KeyReason.NONE, state.reason(1));
    assertEquals("", state.detail(1));
    assertEquals(4_096, state.completedBytes());
    assertEquals("", state(false, batch(1), FAILED).detail(0));
    assertEquals(
        "TransferJobState[job 42, STORE, FAILED, 1 of 2 keys completed, 4096 bytes]",
        state.toString());
  }

  @Test
  void columnsMatchTheBatch() {
    assertRefused("1 outcomes do not match 2 keys", () -> state(false, batch(1, 2), PENDING));
    assertRefused(
        "3 reasons do not match 1 keys",
        () ->
            new TransferJobState(
                1,
                TransferDirection.LOAD,
                false,
                batch(1),
                new KeyOutcome[] {PENDING},
                new KeyReason[3],
                null,
                0));
    assertRefused(
        "0 details do not match 1 keys",
        () ->
            new TransferJobState(
                1,
                TransferDirection.LOAD,
                false,
                batch(1),
                new KeyOutcome[] {PENDING},
                new KeyReason[] {KeyReason.NONE},
                new String[0],
                0));
  }

  @Test
  void returnedBlocksAreTheCallersOwn() {
    TransferJobState state = state(false, batch(3, 1), FAILED, FAILED);
    state.failedBlockIds()[0] = 99;
    state.failedKeys().clear();
    assertArrayEquals(new int[] {1, 3}, state.failedBlockIds());
    assertEquals(2, state.failedKeys().size());
  }
}
