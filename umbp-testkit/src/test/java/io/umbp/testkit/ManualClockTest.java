package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class ManualClockTest {
  @Test
  void standsUntilItIsAdvanced() {
    ManualClock clock = new ManualClock();
    assertEquals(0, clock.getAsLong());
    assertEquals(0, clock.getAsLong());
    clock.advance(Duration.ofMillis(50));
    assertEquals(50_000_000, clock.getAsLong());
    clock.advance(Duration.ZERO);
    assertEquals(50_000_000, clock.getAsLong());
  }

  @Test
  void tickingMovesAfterEachReading() {
    ManualClock clock = ManualClock.ticking(Duration.ofNanos(7));
    assertEquals(0, clock.getAsLong());
    assertEquals(7, clock.getAsLong());
    clock.advance(Duration.ofNanos(100));
    assertEquals(114, clock.getAsLong());
  }

  @Test
  void wrapsAroundLikeNanoTime() {
    ManualClock clock = ManualClock.startingAt(Long.MAX_VALUE);
    long before = clock.getAsLong();
    clock.advance(Duration.ofNanos(2));
    assertEquals(Long.MIN_VALUE + 1, clock.getAsLong());
    assertEquals(2, clock.getAsLong() - before);
  }

  @Test
  void losesNoAdvanceOfSeveralThreads() {
    ManualClock clock = new ManualClock();
    IntStream.range(0, 1000).parallel().forEach(i -> clock.advance(Duration.ofNanos(3)));
    assertEquals(3000, clock.getAsLong());
  }

  @Test
  void refusesToRunBackwards() {
    ManualClock clock = new ManualClock();
    assertThrows(IllegalArgumentException.class, () -> clock.advance(Duration.ofNanos(-1)));
    assertThrows(IllegalArgumentException.class, () -> ManualClock.ticking(Duration.ofNanos(-1)));
  }
}
