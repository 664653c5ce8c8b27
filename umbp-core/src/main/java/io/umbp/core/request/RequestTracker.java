package io.umbp.core.request;

import io.umbp.api.LoadSpec;
import io.umbp.api.UMBPException;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * What a scheduler remembers of one request: the block table of each KV cache group, the watermark
 * up to which its tokens are saved, and the load that is due. Single-writer.
 */
public final class RequestTracker {
  private BlockTable[] tables = new BlockTable[0];
  private int savedTokens;
  private @Nullable LoadSpec loadSpec;

  /** Block ids of one group. */
  private static final class BlockTable {
    int[] ids;
    int size;

    BlockTable(int[] ids) {
      this.ids = ids.clone();
      this.size = ids.length;
    }

    void append(int[] source, int from) {
      int added = source.length - from;
      if (size + added > ids.length) {
        ids = Arrays.copyOf(ids, Math.max(size + added, ids.length * 2));
      }
      System.arraycopy(source, from, ids, size, added);
      size += added;
    }

    /** Takes either the whole table so far with its new tail, or new blocks only. */
    void update(int[] given) {
      if (given.length >= size && Arrays.equals(given, 0, size, ids, 0, size)) {
        append(given, size);
      } else if (!endsWith(given)) {
        append(given, 0);
      }
    }

    private boolean endsWith(int[] given) {
      return given.length <= size
          && Arrays.equals(given, 0, given.length, ids, size - given.length, size);
    }
  }

  /** Creates the tracker of a request without blocks. */
  public RequestTracker() {}

  /**
   * Adds what the engine says of the request's blocks. The first call sets the tables. After that,
   * for each group: a list that begins with the whole table extends it; an empty list, or one that
   * repeats the table's end, changes nothing; any other list is taken as new blocks and appended.
   *
   * @param blockIdsByGroup block ids for each group, as many groups as in the first call; copied
   * @throws UMBPException INVALID_ARGUMENT when the number of groups changes; nothing was changed
   */
  public void updateBlocks(int[]... blockIdsByGroup) {
    if (tables.length == 0) {
      tables = tablesOf(blockIdsByGroup);
      return;
    }
    if (blockIdsByGroup.length != tables.length) {
      throw UMBPException.invalid(
          "blocks of %d KV cache groups were given, the request has %d",
          blockIdsByGroup.length, tables.length);
    }
    checkBlockIds(blockIdsByGroup);
    for (int group = 0; group < tables.length; group++) {
      tables[group].update(blockIdsByGroup[group]);
    }
  }

  /**
   * Replaces the tables and takes the watermark back to 0: the request was admitted, or resumed
   * after a preemption, and none of its new blocks is known to be saved.
   *
   * @param blockIdsByGroup block ids for each group; copied
   */
  public void replaceBlocks(int[]... blockIdsByGroup) {
    tables = tablesOf(blockIdsByGroup);
    savedTokens = 0;
  }

  /**
   * Replaces the tables of a request that keeps what it has saved: some blocks were freed, and have
   * other ids in their places now.
   *
   * @param blockIdsByGroup block ids for each group, as many groups as before and none shorter;
   *     copied
   * @throws UMBPException INVALID_ARGUMENT; nothing was changed
   */
  public void setBlocks(int[]... blockIdsByGroup) {
    for (int group = 0; group < tables.length; group++) {
      if (blockIdsByGroup.length != tables.length
          || blockIdsByGroup[group].length < tables[group].size) {
        throw UMBPException.invalid(
            "the tables of %d groups were given, group %d with %d blocks; the request has %d groups,"
                + " that one with %d blocks",
            blockIdsByGroup.length,
            group,
            group < blockIdsByGroup.length ? blockIdsByGroup[group].length : 0,
            tables.length,
            tables[group].size);
      }
    }
    tables = tablesOf(blockIdsByGroup);
  }

  private static BlockTable[] tablesOf(int[][] blockIdsByGroup) {
    checkBlockIds(blockIdsByGroup);
    BlockTable[] tables = new BlockTable[blockIdsByGroup.length];
    for (int group = 0; group < tables.length; group++) {
      tables[group] = new BlockTable(blockIdsByGroup[group]);
    }
    return tables;
  }

  private static void checkBlockIds(int[][] blockIdsByGroup) {
    for (int group = 0; group < blockIdsByGroup.length; group++) {
      for (int blockId : blockIdsByGroup[group]) {
        if (blockId < 0) {
          throw UMBPException.invalid("block id %d in group %d must be >= 0", blockId, group);
        }
      }
    }
  }

  /**
   * Moves the watermark forward to a whole number of units; it never moves back.
   *
   * @param tokens tokens saved from the first on, at least 0
   * @param unit tokens that are saved together, above 0
   * @return the watermark
   */
  public int markSaved(int tokens, int unit) {
    if (tokens < 0 || unit <= 0) {
      throw UMBPException.invalid(
          "%d saved tokens in units of %d; tokens must be >= 0, the unit > 0", tokens, unit);
    }
    savedTokens = Math.max(savedTokens, tokens - tokens % unit);
    return savedTokens;
  }

  /** Forgets tables, watermark and load. */
  public void reset() {
    tables = new BlockTable[0];
    savedTokens = 0;
    loadSpec = null;
  }

  /**
   * Returns the watermark.
   *
   * @return tokens saved from the first on
   */
  public int savedTokens() {
    return savedTokens;
  }

  /**
   * Returns the number of groups.
   *
   * @return 0 before the first update
   */
  public int groupCount() {
    return tables.length;
  }

  /**
   * Returns the length of a group's table.
   *
   * @param group group in [0, groupCount)
   * @return number of blocks
   */
  public int blockCount(int group) {
    return table(group).size;
  }

  /**
   * Returns a block of a group.
   *
   * @param group group in [0, groupCount)
   * @param index place in [0, blockCount(group))
   * @return its block id
   */
  public int blockId(int group, int index) {
    BlockTable table = table(group);
    if (index < 0 || index >= table.size) {
      throw UMBPException.invalid(
          "block %d is outside [0, %d) of group %d", index, table.size, group);
    }
    return table.ids[index];
  }

  /**
   * Returns a copy of a group's table.
   *
   * @param group group in [0, groupCount)
   * @return new array of block ids in prefix order
   */
  public int[] blockIds(int group) {
    BlockTable table = table(group);
    return Arrays.copyOf(table.ids, table.size);
  }

  private BlockTable table(int group) {
    if (group < 0 || group >= tables.length) {
      throw UMBPException.invalid("group %d is outside [0, %d)", group, tables.length);
    }
    return tables[group];
  }

  /**
   * Returns the load that is due.
   *
   * @return the decision of the last lookup, or null when nothing is to be loaded
   */
  public @Nullable LoadSpec loadSpec() {
    return loadSpec;
  }

  /**
   * Sets the load that is due.
   *
   * @param spec the decision of a lookup
   */
  public void planLoad(LoadSpec spec) {
    loadSpec = spec;
  }

  /** Drops the load that is due: it was started, or the engine does not want it. */
  public void dropLoad() {
    loadSpec = null;
  }
}
