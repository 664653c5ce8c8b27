package io.umbp.api;

import java.util.HashSet;
import java.util.Set;

/**
 * What is known of the load of one request: how many workers have ended it, and which destination
 * blocks hold no usable bytes on some rank. Immutable.
 *
 * @param completedWorkers workers whose part has ended, at least 0
 * @param missingBlocks blocks that nothing was copied to, because the object was not there or the
 *     load was cancelled; copied
 * @param failedBlocks blocks whose copy failed or ran past its deadline; copied
 */
public record LoadResult(
    int completedWorkers, Set<GroupBlock> missingBlocks, Set<GroupBlock> failedBlocks) {
  /** Checks the count. */
  public LoadResult {
    StoreEventResult.checkWorkers(completedWorkers);
    missingBlocks = Set.copyOf(missingBlocks);
    failedBlocks = Set.copyOf(failedBlocks);
  }

  /**
   * Adds what other workers report.
   *
   * @param other a report of the same load
   * @return the sum of the workers and the union of the blocks
   */
  public LoadResult plus(LoadResult other) {
    return new LoadResult(
        StoreEventResult.sumOfWorkers(completedWorkers, other.completedWorkers),
        union(missingBlocks, other.missingBlocks),
        union(failedBlocks, other.failedBlocks));
  }

  /**
   * Returns the blocks that hold no usable bytes on some rank.
   *
   * @return the missing and the failed ones
   */
  public Set<GroupBlock> lostBlocks() {
    return union(missingBlocks, failedBlocks);
  }

  private static Set<GroupBlock> union(Set<GroupBlock> some, Set<GroupBlock> others) {
    if (others.isEmpty()) {
      return some;
    }
    Set<GroupBlock> all = new HashSet<>(some);
    all.addAll(others);
    return Set.copyOf(all);
  }
}
