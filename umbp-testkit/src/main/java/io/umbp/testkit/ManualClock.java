package io.umbp.testkit;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;

/**
 * A clock that moves only when the test says so, in place of {@link System#nanoTime}. Thread-safe.
 *
 * <p>As with the real one, only differences of readings mean anything.
 */
public final class ManualClock implements LongSupplier {
  private final AtomicLong nanos;
  private final long nanosPerRead;

  private ManualClock(long startNanos, long nanosPerRead) {
    nanos = new AtomicLong(startNanos);
    this.nanosPerRead = nanosPerRead;
  }

  /** Creates a clock that stands at 0. */
  public ManualClock() {
    this(0, 0);
  }

  /**
   * Returns a clock that stands at any reading, for instance close to the overflow.
   *
   * @param nanos the first reading in nanoseconds
   * @return the clock
   */
  public static ManualClock startingAt(long nanos) {
    return new ManualClock(nanos, 0);
  }

  /**
   * Returns a clock that moves on at each reading, so that a loop that waits for a time ends.
   *
   * @param perRead how far it moves after each reading, at least zero
   * @return the clock, first reading 0
   */
  public static ManualClock ticking(Duration perRead) {
    return new ManualClock(0, positive(perRead));
  }

  /**
   * Moves the clock on.
   *
   * @param time how far, at least zero
   */
  public void advance(Duration time) {
    nanos.addAndGet(positive(time));
  }

  /**
   * Reads the clock.
   *
   * @return nanoseconds since an arbitrary point; may wrap around
   */
  @Override
  public long getAsLong() {
    return nanosPerRead == 0 ? nanos.get() : nanos.getAndAdd(nanosPerRead);
  }

  private static long positive(Duration time) {
    if (time.isNegative()) {
      throw new IllegalArgumentException("a clock does not run backwards: " + time);
    }
    return time.toNanos();
  }

  @Override
  public String toString() {
    return "ManualClock[" + nanos.get() + " ns]";
  }
}
