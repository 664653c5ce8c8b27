package io.umbp.core;

import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Valid values with faults in them: each value that passes through is replaced now and then by one
 * that is near it, or at the end of its range. Thread-confined.
 */
final class Hostile {
  private final SplittableRandom random;
  private final double faultRate;

  /**
   * Starts an input. Two of five have no fault, the others one in a few values, so that most of
   * them are nearly valid.
   */
  Hostile(SplittableRandom random) {
    this(random, random.nextInt(5) < 2 ? 0 : 1.0 / (4 << random.nextInt(5)));
  }

  private Hostile(SplittableRandom random, double faultRate) {
    this.random = random;
    this.faultRate = faultRate;
  }

  static Hostile faultless(SplittableRandom random) {
    return new Hostile(random, 0);
  }

  SplittableRandom random() {
    return random;
  }

  boolean isFault() {
    return faultRate > 0 && random.nextDouble() < faultRate;
  }

  /** Returns a number in [low, high]. */
  int between(int low, int high) {
    return random.nextInt(low, high + 1);
  }

  @SafeVarargs
  final <T> T oneOf(T... values) {
    return values[random.nextInt(values.length)];
  }

  int number(int value) {
    return isFault() ? (int) fault(value) : value;
  }

  long number(long value) {
    return isFault() ? fault(value) : value;
  }

  private long fault(long value) {
    return switch (random.nextInt(16)) {
      case 0 -> 0;
      case 1 -> -1;
      case 2 -> value - 1;
      case 3 -> value + 1;
      case 4 -> -value;
      case 5 -> value * 2;
      case 6 -> value * 3 / 2;
      case 7 -> Long.MAX_VALUE;
      case 8 -> Long.MIN_VALUE;
      case 9 -> Long.MAX_VALUE - between(0, 64);
      case 10 -> Integer.MAX_VALUE - between(0, 2);
      case 11 -> 1L + Integer.MAX_VALUE;
      case 12 -> 1L << random.nextInt(64);
      case 13 -> (1L << random.nextInt(64)) - 1;
      case 14 -> random.nextLong() >>> random.nextInt(64);
      default -> random.nextLong();
    };
  }

  String name(String value) {
    return isFault() ? oneOf("", "L0", "L1", value + "x", "\uD800", " ") : value;
  }

  /** Returns a copy that may have an element twice, in another place, or not at all. */
  <T> List<T> list(List<T> values) {
    List<T> copy = new ArrayList<>(values);
    if (isFault() && !copy.isEmpty()) {
      int at = random.nextInt(copy.size());
      int other = random.nextInt(copy.size());
      switch (random.nextInt(5)) {
        case 0 -> copy.remove(at);
        case 1 -> copy.add(copy.get(at));
        case 2 -> copy.set(at, copy.get(other));
        case 3 -> copy.add(0, copy.remove(at));
        default -> copy.clear();
      }
    }
    return copy;
  }
}
