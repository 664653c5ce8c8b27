package io.umbp.bench.sim;

/** A request's prefix as it was when work on it was enqueued. Never changed. */
final class SimPrefix {
  private final String id;
  private final long[] chain;
  private final int[][] tables;
  private final int[] windows;

  /**
   * Keeps a copy of the tables.
   *
   * @param chain the hash at the end of each unit
   * @param tables the block of each place in each group
   * @param windows tokens that each group needs before an end
   */
  SimPrefix(String id, long[] chain, int[][] tables, int[] windows) {
    this.id = id;
    this.chain = chain;
    this.windows = windows;
    this.tables = new int[tables.length][];
    for (int group = 0; group < tables.length; group++) {
      this.tables[group] = tables[group].clone();
    }
  }

  String id() {
    return id;
  }

  long[] chain() {
    return chain;
  }

  int[][] tables() {
    return tables;
  }

  /** The first place of a group that is needed to go on behind so many units. */
  int firstPlace(int group, int endUnits, int blockUnits) {
    int end = endUnits * SimTruth.UNIT_TOKENS;
    int first = Math.max(0, end - windows[group]);
    return first / (blockUnits * SimTruth.UNIT_TOKENS);
  }

  /** Tells whether a group needs nothing of a prefix. */
  boolean needsNothing(int group) {
    return windows[group] == 0;
  }
}
