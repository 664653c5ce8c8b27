package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.GroupBlock;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.core.request.RequestTracker;
import java.util.Arrays;
import java.util.function.IntPredicate;

/**
 * Blocks of a request's prefix in any KV cache groups, in the order of their ends: what a lookup, a
 * load, a store or a touch is about. Immutable.
 */
final class BlockRows {
  private final CacheGroups groups;
  private final int[] group;
  private final int[] end;

  /** Collects rows; filled once. */
  static final class Builder {
    private final CacheGroups groups;
    private final int[] group;
    private final int[] end;
    private int count;

    Builder(CacheGroups groups, int mostRows) {
      this.groups = groups;
      group = new int[mostRows];
      end = new int[mostRows];
    }

    void add(int groupIndex, int endTokens) {
      group[count] = groupIndex;
      end[count++] = endTokens;
    }

    BlockRows build() {
      boolean isFull = count == group.length;
      return new BlockRows(
          groups,
          isFull ? group : Arrays.copyOf(group, count),
          isFull ? end : Arrays.copyOf(end, count));
    }
  }

  private BlockRows(CacheGroups groups, int[] group, int[] end) {
    this.groups = groups;
    this.group = group;
    this.end = end;
  }

  int count() {
    return group.length;
  }

  /** The index of a row's group in the layout. */
  int group(int row) {
    return group[row];
  }

  /** The place of a row's block in its group's table. */
  int block(int row) {
    return (end[row] - 1) / groups.blockSize(group[row]);
  }

  /** The token at which a row's block starts. */
  int startTokens(int row) {
    return block(row) * groups.blockSize(group[row]);
  }

  /** The token before which a row's content ends: less than a block when it is a tail. */
  int endTokens(int row) {
    return end[row];
  }

  BlockHash hash(BlockHashes all, int row) {
    return all.get(end[row] / groups.hashUnit() - 1);
  }

  StoredObject object(BlockHashes all, int row) {
    return new StoredObject(groups.id(group[row]), hash(all, row));
  }

  /** The rows for which a test of their number holds. */
  BlockRows where(IntPredicate test) {
    Builder kept = new Builder(groups, group.length);
    for (int row = 0; row < group.length; row++) {
      if (test.test(row)) {
        kept.add(group[row], end[row]);
      }
    }
    return kept.build();
  }

  private BlockHashes hashes(BlockHashes all) {
    int[] indexes = new int[end.length];
    for (int i = 0; i < indexes.length; i++) {
      indexes[i] = end[i] / groups.hashUnit() - 1;
    }
    return all.select(indexes);
  }

  private int[] groupIds() {
    int[] groupIds = new int[group.length];
    for (int i = 0; i < groupIds.length; i++) {
      groupIds[i] = groups.id(group[i]);
    }
    return groupIds;
  }

  BlockKeys localKeys(BlockHashes all) {
    return groups.codec().localKeys(groupIds(), hashes(all));
  }

  BlockKeys allRankKeys(BlockHashes all) {
    return groups.codec().allRankKeys(groupIds(), hashes(all));
  }

  /** Keys on all ranks of the rows that end within so many tokens. */
  int keysWithin(int tokens) {
    int keys = 0;
    for (int row = 0; row < group.length && end[row] <= tokens; row++) {
      keys += keysOf(row);
    }
    return keys;
  }

  private int keysOf(int row) {
    return groups.codec().keysPerObject(groups.id(group[row]));
  }

  /** Of answers for all keys on all ranks: for each row the first that is false, -1 if none is. */
  int[] firstAbsent(boolean[] present) {
    int[] absent = new int[group.length];
    int at = 0;
    for (int row = 0; row < absent.length; row++) {
      absent[row] = -1;
      int next = at + keysOf(row);
      for (; at < next; at++) {
        if (!present[at] && absent[row] < 0) {
          absent[row] = at;
        }
      }
    }
    return absent;
  }

  /** The engine's block of each row. */
  int[] blockIds(RequestTracker tables) {
    int[] blockIds = new int[group.length];
    for (int i = 0; i < blockIds.length; i++) {
      blockIds[i] = tables.blockId(group[i], block(i));
    }
    return blockIds;
  }

  /** A row's place in the engine, by the blocks of all rows. */
  GroupBlock place(int[] blockIds, int row) {
    return new GroupBlock(groups.id(group[row]), blockIds[row]);
  }
}
