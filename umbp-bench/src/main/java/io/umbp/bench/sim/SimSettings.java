package io.umbp.bench.sim;

import java.util.Locale;

/**
 * What kind of engine is simulated. Immutable.
 *
 * @param ranks tensor-parallel ranks, 1, 2 or 4
 * @param groups KV cache groups, 1 to 3
 * @param faults probability of a fault at each moment at which one is possible
 */
record SimSettings(int ranks, int groups, double faults) {
  private static final int[] RANKS = {1, 2, 4};
  private static final double[] FAULTS = {0, 0.01, 0.1};

  /** All kinds, one after the other. */
  static SimSettings ofIndex(long index) {
    int i = (int) Math.floorMod(index, 27L);
    return new SimSettings(RANKS[i % 3], i / 3 % 3 + 1, FAULTS[i / 9]);
  }

  /** The options that repeat it. */
  String options() {
    return String.format(Locale.ROOT, "--ranks %d --groups %d --faults %s", ranks, groups, faults);
  }
}
