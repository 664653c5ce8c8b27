package io.umbp.api;

import java.time.Duration;
import java.util.List;

/**
 * A scheduler handle that can keep what a lookup found until it is loaded, so that nothing is
 * evicted in between. Thread-safe.
 */
public interface SupportsHold extends UMBPSchedulerHandle {
  /**
   * Looks keys up as {@link #lookup} does, and holds those that are there: they are not evicted
   * until the hold ends, by {@link Hold#close}, at its limit, or with a {@link #clear}. A hold does
   * not touch recency, and does not pin what a load needs beyond its end: a load takes pins of its
   * own.
   *
   * @param keys key texts; {@link BlockKeys} is answered without building any
   * @param limit longest time to hold, above zero, by the runtime's clock
   * @return the answers and the hold, to be closed by the caller
   * @throws UMBPException INVALID_ARGUMENT, CLOSED
   */
  Hold lookupAndHold(List<String> keys, Duration limit);

  /** Objects that are held for a load to come. Thread-safe. */
  interface Hold extends AutoCloseable {
    /**
     * Returns what the lookup found.
     *
     * @return one answer a key, in order; a new array
     */
    boolean[] present();

    /**
     * Lets go of all keys but the first ones, which the caller still wants.
     *
     * @param keys how many of the keys to keep, at least 0; more than there are keeps all
     */
    void keepFirst(int keys);

    /**
     * Tells whether the hold has not ended.
     *
     * @return false once it was closed, its limit has passed, or the namespace was cleared
     */
    boolean isHeld();

    /** Ends the hold. Idempotent. */
    @Override
    void close();
  }
}
