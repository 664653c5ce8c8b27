package io.umbp.api;

import java.util.List;

/** The scheduler's view of the store: what is there. Thread-safe. No call blocks on a copy. */
public interface UMBPSchedulerHandle extends AutoCloseable {
  /**
   * Returns authoritative existence for each key: true when a load issued now would find a
   * published object. Has no side effect: pins nothing, touches no recency. Text that is no key of
   * this handle's namespace is a miss.
   *
   * <p>A prefix hit is the leading run of blocks that are present on every rank and in every group.
   * An engine needs the logits of the last prompt token, so it loads at most {@code (tokens - 1) /
   * blockSize} blocks of it.
   *
   * @param keys key texts; {@link BlockKeys} is answered without building any
   * @return one answer a key, in order
   * @throws UMBPException CLOSED
   */
  boolean[] lookup(List<String> keys);

  /**
   * Marks objects as recently used, the last key first, so that the head of a prefix outlives its
   * tail. Keys stand in prefix order with all ranks of a block together, as {@link BlockKeys} has
   * them. Absent keys are skipped.
   *
   * @param keys key texts in prefix order
   * @throws UMBPException CLOSED
   */
  void touch(List<String> keys);

  /**
   * Removes every object of this handle's namespace, in flight or published, on all ranks. When it
   * returns none of them is visible and no store begun before it can publish.
   *
   * @return what was removed and what still holds memory
   * @throws UMBPException CLOSED
   */
  ClearResult clear();

  /**
   * Returns the published objects of this namespace that were evicted to make room since the last
   * call, oldest first. The handle keeps the newest {@value #MAX_EVICTED_KEYS}.
   *
   * @return new list, empty when none
   * @throws UMBPException CLOSED
   */
  List<BlockKey> takeEvictedKeys();

  /** Most evicted keys that a handle keeps for {@link #takeEvictedKeys()}. */
  int MAX_EVICTED_KEYS = 65_536;

  /** Closes the handle. Idempotent; objects stay. */
  @Override
  void close();
}
