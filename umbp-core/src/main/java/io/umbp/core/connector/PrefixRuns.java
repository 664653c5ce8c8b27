package io.umbp.core.connector;

import java.util.function.IntPredicate;

/**
 * Which full blocks of each group are there behind the local tokens, and so where a prefix may end:
 * at a token before which every group has the blocks of its window. Local blocks count as there.
 */
final class PrefixRuns {
  private final CacheGroups groups;
  private final int localTokens;

  /** For each group, how many blocks up to and with this one are there in a row. */
  private final int[][] runs;

  /**
   * Reads off the rows of a lookup or a load.
   *
   * @param rows blocks behind the local tokens; a row that is left out is not there, a tail is not
   *     looked at
   * @param endTokens no row ends behind these
   * @param isThere whether a row is there
   */
  PrefixRuns(
      CacheGroups groups, int localTokens, int endTokens, BlockRows rows, IntPredicate isThere) {
    this.groups = groups;
    this.localTokens = localTokens;
    runs = new int[groups.count()][];
    for (int group = 0; group < runs.length; group++) {
      int size = groups.blockSize(group);
      runs[group] = new int[endTokens / size - localTokens / size];
    }
    for (int row = 0; row < rows.count(); row++) {
      int group = rows.group(row);
      if (rows.endTokens(row) % groups.blockSize(group) == 0 && isThere.test(row)) {
        int at = rows.block(row) - localTokens / groups.blockSize(group);
        runs[group][at] = at == 0 ? 1 : runs[group][at - 1] + 1;
      }
    }
  }

  /** The largest end of a prefix of full blocks, not behind a limit; the local tokens if none. */
  int longestEnd(int limitTokens) {
    int alignment = groups.alignment();
    for (int end = limitTokens / alignment * alignment; end > localTokens; end -= alignment) {
      if (mayEndAt(end, group -> false)) {
        return end;
      }
    }
    return localTokens;
  }

  /**
   * Tells whether a prefix may end at a token.
   *
   * @param hasTail whether the partly filled block of a group is there, when it ends inside one
   */
  boolean mayEndAt(int endTokens, IntPredicate hasTail) {
    for (int group = 0; group < runs.length; group++) {
      int size = groups.blockSize(group);
      if (endTokens % size != 0 && groups.window(group).tokens() > 0 && !hasTail.test(group)) {
        return false;
      }
      int firstBehind = localTokens / size;
      int first = Math.max(groups.window(group).firstToken(endTokens) / size, firstBehind);
      int fullEnd = endTokens / size;
      if (fullEnd > first) {
        int at = fullEnd - 1 - firstBehind;
        if (at >= runs[group].length || runs[group][at] < fullEnd - first) {
          return false;
        }
      }
    }
    return true;
  }
}
