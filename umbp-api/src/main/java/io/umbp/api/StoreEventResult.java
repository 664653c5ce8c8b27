package io.umbp.api;

import java.util.HashSet;
import java.util.Set;

/**
 * What is known of one store event (the stores of one engine step): how many workers have finished
 * it, and which objects are not whole. Immutable.
 *
 * @param completedWorkers workers that have finished the event, at least 0
 * @param failedObjects objects that some worker could not store; copied
 */
public record StoreEventResult(int completedWorkers, Set<StoredObject> failedObjects) {
  /**
   * A block of a group, regardless of rank.
   *
   * @param groupId the KV cache group, at least 0
   * @param hash the block's content hash
   */
  public record StoredObject(int groupId, BlockHash hash) {
    /** Checks the group id. */
    public StoredObject {
      BlockKey.checkGroupId(groupId);
    }
  }

  /** Checks the count. */
  public StoreEventResult {
    checkWorkers(completedWorkers);
    failedObjects = Set.copyOf(failedObjects);
  }

  /**
   * Adds what other workers report.
   *
   * @param other a report of the same event
   * @return the sum of the workers and the union of the failures
   */
  public StoreEventResult plus(StoreEventResult other) {
    Set<StoredObject> failed = new HashSet<>(failedObjects);
    failed.addAll(other.failedObjects);
    return new StoreEventResult(sumOfWorkers(completedWorkers, other.completedWorkers), failed);
  }

  static void checkWorkers(int completedWorkers) {
    if (completedWorkers < 0) {
      throw UMBPException.invalid("completed workers %d must be >= 0", completedWorkers);
    }
  }

  static int sumOfWorkers(int some, int others) {
    if (some > Integer.MAX_VALUE - others) {
      throw UMBPException.invalid(
          "%d and %d completed workers exceed the limit of %d", some, others, Integer.MAX_VALUE);
    }
    return some + others;
  }
}
