package io.umbp.api;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * A snapshot of one load or store job, key by key: one failed key does not fail its siblings.
 * Immutable. {@code load} and {@code store} return the first snapshot of a job, {@code poll} and
 * {@code await} a newer one.
 *
 * <p>When a key has its final outcome, the runtime no longer touches its engine or host memory.
 */
public final class TransferJobState {
  private final long jobId;
  private final TransferDirection direction;
  private final Status status;
  private final BlockTransferBatch batch;
  private final KeyOutcome[] outcomes;
  private final KeyReason[] reasons;
  private final @Nullable String @Nullable [] details;
  private final long completedBytes;

  /** The state of the job as a whole. */
  public enum Status {
    /** Some key has no final outcome, and the deadline has not passed. */
    RUNNING,
    /**
     * The deadline has passed but a copy still runs: not final. The keys are misses and can never
     * be published; blocks and slots stay pinned until the copy ends.
     */
    OVERDUE,
    /** Final: every key is {@link KeyOutcome#COMPLETED}. */
    COMPLETED,
    /** Final: some key missed, failed, timed out or was rejected; the others are good. */
    FAILED,
    /** Final: some key was cancelled, and the others completed. */
    CANCELLED
  }

  /**
   * Creates a snapshot; for runtimes. The columns have one entry a key of the batch.
   *
   * @param jobId unique in the runtime
   * @param direction load or store
   * @param overdue whether the deadline has passed while a copy still runs
   * @param batch the keys and blocks
   * @param outcomes outcome of each key; transferred
   * @param reasons reason of each key; transferred
   * @param details message of each key, or null; null when there is none at all; transferred
   * @param completedBytes bytes of the completed keys
   */
  public TransferJobState(
      long jobId,
      TransferDirection direction,
      boolean overdue,
      BlockTransferBatch batch,
      KeyOutcome[] outcomes,
      KeyReason[] reasons,
      @Nullable String @Nullable [] details,
      long completedBytes) {
    checkColumn("outcomes", outcomes.length, batch);
    checkColumn("reasons", reasons.length, batch);
    if (details != null) {
      checkColumn("details", details.length, batch);
    }
    this.jobId = jobId;
    this.direction = direction;
    this.batch = batch;
    this.outcomes = outcomes;
    this.reasons = reasons;
    this.details = details;
    this.completedBytes = completedBytes;
    this.status = statusOf(overdue, outcomes);
  }

  private static void checkColumn(String what, int length, BlockTransferBatch batch) {
    if (length != batch.size()) {
      throw UMBPException.invalid("%d %s do not match %d keys", length, what, batch.size());
    }
  }

  private static Status statusOf(boolean overdue, KeyOutcome[] outcomes) {
    boolean failed = false;
    boolean cancelled = false;
    for (KeyOutcome outcome : outcomes) {
      switch (outcome) {
        case PENDING -> {
          return overdue ? Status.OVERDUE : Status.RUNNING;
        }
        case COMPLETED -> {}
        case CANCELLED -> cancelled = true;
        default -> failed = true;
      }
    }
    if (failed) {
      return Status.FAILED;
    }
    return cancelled ? Status.CANCELLED : Status.COMPLETED;
  }

  /**
   * Returns the job's number.
   *
   * @return unique in the runtime
   */
  public long jobId() {
    return jobId;
  }

  /**
   * Returns which way the bytes move.
   *
   * @return load or store
   */
  public TransferDirection direction() {
    return direction;
  }

  /**
   * Returns the state of the job as a whole.
   *
   * @return the status
   */
  public Status status() {
    return status;
  }

  /**
   * Tells whether every key has its final outcome, so that all blocks may be reused.
   *
   * @return false while running or overdue
   */
  public boolean isFinal() {
    return status != Status.RUNNING && status != Status.OVERDUE;
  }

  /**
   * Returns the request on whose behalf.
   *
   * @return request id, empty when none
   */
  public String requestId() {
    return batch.requestId();
  }

  /**
   * Returns the keys in the order of the batch.
   *
   * @return the key column
   */
  public BlockKeys keys() {
    return batch.keys();
  }

  /**
   * Returns the number of keys.
   *
   * @return count
   */
  public int size() {
    return outcomes.length;
  }

  /**
   * Returns the engine's block of a key.
   *
   * @param index key in [0, size)
   * @return block id in the key's group
   */
  public int blockId(int index) {
    return batch.blockId(index);
  }

  /**
   * Returns how a key ended.
   *
   * @param index key in [0, size)
   * @return its outcome
   */
  public KeyOutcome outcome(int index) {
    return outcomes[index];
  }

  /**
   * Returns why a key failed or was rejected.
   *
   * @param index key in [0, size)
   * @return its reason, {@link KeyReason#NONE} when there is none
   */
  public KeyReason reason(int index) {
    return reasons[index];
  }

  /**
   * Returns the message of a failed key.
   *
   * @param index key in [0, size)
   * @return text for people, empty when there is none
   */
  public String detail(int index) {
    String detail = details == null ? null : details[index];
    return detail == null ? "" : detail;
  }

  /**
   * Returns how many keys have an outcome.
   *
   * @param outcome the outcome to count
   * @return count
   */
  public int count(KeyOutcome outcome) {
    int count = 0;
    for (KeyOutcome each : outcomes) {
      if (each == outcome) {
        count++;
      }
    }
    return count;
  }

  /**
   * Returns the keys that ended without completing.
   *
   * @return new list in batch order, empty when none
   */
  public List<BlockKey> failedKeys() {
    List<BlockKey> failed = new ArrayList<>();
    for (int i = 0; i < outcomes.length; i++) {
      if (isFailed(i)) {
        failed.add(batch.keys().key(i));
      }
    }
    return failed;
  }

  /**
   * Returns the engine's blocks whose transfer ended without completing.
   *
   * @return distinct block ids, ascending, empty when none
   */
  public int[] failedBlockIds() {
    int[] failed = new int[outcomes.length];
    int count = 0;
    for (int i = 0; i < outcomes.length; i++) {
      if (isFailed(i)) {
        failed[count++] = batch.blockId(i);
      }
    }
    return Arrays.stream(failed, 0, count).distinct().sorted().toArray();
  }

  private boolean isFailed(int index) {
    return outcomes[index] != KeyOutcome.PENDING && outcomes[index] != KeyOutcome.COMPLETED;
  }

  /**
   * Returns how many bytes the completed keys have.
   *
   * @return bytes
   */
  public long completedBytes() {
    return completedBytes;
  }

  @Override
  public String toString() {
    return String.format(
        Locale.ROOT,
        "TransferJobState[job %d, %s, %s, %d of %d keys completed, %d bytes]",
        jobId,
        direction,
        status,
        count(KeyOutcome.COMPLETED),
        size(),
        completedBytes);
  }
}
