package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.request.RequestTracker;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.IntUnaryOperator;

/** Which KV cache groups there are and how their block sizes fit together. Immutable. */
final class CacheGroups {
  private final int[] ids;
  private final int[] blockSizes;
  private final HitWindow[] windows;
  private final int hashUnit;
  private final int step;
  private final int alignment;
  private final BlockIdentityCodec codec;

  /**
   * Reads the groups of a layout.
   *
   * @param namespace the namespace of their keys
   * @param layout one block size a group
   * @param hashUnit tokens of one block hash, above 0; divides every block size
   * @param windowOfGroup hit windows by group id; full where none is given
   */
  CacheGroups(
      UMBPNamespace namespace,
      KVLayoutDescriptor layout,
      int hashUnit,
      Map<Integer, HitWindow> windowOfGroup) {
    this.hashUnit = hashUnit;
    codec = new BlockIdentityCodec(namespace, layout);
    ids = layout.groupIds();
    blockSizes = new int[ids.length];
    windows = new HitWindow[ids.length];
    int gcd = 0;
    int lcm = 1;
    for (int i = 0; i < ids.length; i++) {
      blockSizes[i] = blockSize(layout, ids[i]);
      windows[i] = windowOfGroup.getOrDefault(ids[i], HitWindow.FULL);
      if (blockSizes[i] % hashUnit != 0) {
        throw UMBPException.invalid(
            "the block size %d of group %d is no multiple of the hash unit %d",
            blockSizes[i], ids[i], hashUnit);
      }
      gcd = gcd(blockSizes[i], gcd);
      lcm = Math.multiplyExact(lcm / gcd(lcm, blockSizes[i]), blockSizes[i]);
    }
    for (int id : windowOfGroup.keySet()) {
      if (Arrays.stream(ids).noneMatch(own -> own == id)) {
        throw UMBPException.invalid(
            "group %d has a hit window, but the layout has the groups %s only",
            id, Arrays.toString(ids));
      }
    }
    step = gcd;
    alignment = lcm;
  }

  /** The block size of a group, in tokens, which must be the same in all its layers. */
  static int blockSize(KVLayoutDescriptor layout, int groupId) {
    int size = 0;
    for (KVRegion region : layout.regions()) {
      if (region.groupId() == groupId) {
        if (size != 0 && size != region.blockSize()) {
          throw UMBPException.invalid(
              "layer '%s' has blocks of %d tokens, others of group %d have %d",
              region.layerName(), region.blockSize(), groupId, size);
        }
        size = region.blockSize();
      }
    }
    return size;
  }

  private static int gcd(int a, int b) {
    return b == 0 ? a : gcd(b, a % b);
  }

  int count() {
    return ids.length;
  }

  int id(int group) {
    return ids[group];
  }

  int blockSize(int group) {
    return blockSizes[group];
  }

  HitWindow window(int group) {
    return windows[group];
  }

  int hashUnit() {
    return hashUnit;
  }

  /** Tokens after which blocks of all groups end. */
  int alignment() {
    return alignment;
  }

  /** The largest count of tokens that divides all block sizes. */
  int step() {
    return step;
  }

  BlockIdentityCodec codec() {
    return codec;
  }

  /** Of some objects those that are in the store, on all ranks. */
  Set<StoredObject> present(UMBPSchedulerHandle handle, List<StoredObject> objects) {
    if (objects.isEmpty()) {
      return Set.of();
    }
    int[] groupIds = objects.stream().mapToInt(StoredObject::groupId).toArray();
    BlockHashes hashes = BlockHashes.of(objects.stream().map(StoredObject::hash).toList());
    BlockKeys keys = codec.allRankKeys(groupIds, hashes);
    boolean[] answers = handle.lookup(keys);
    Set<StoredObject> present = new HashSet<>(objects);
    for (int i = 0; i < answers.length; i++) {
      if (!answers[i]) {
        present.remove(objects.get(keys.row(i)));
      }
    }
    return present;
  }

  /** Refuses a request with block tables for more or fewer groups than there are. */
  void checkCount(String requestId, int tables) {
    if (tables != ids.length) {
      throw UMBPException.invalid(
          "request '%s' has blocks of %d KV cache groups, the layout has %d",
          requestId, tables, ids.length);
    }
  }

  /** Refuses a request whose block tables are shorter than its tokens. */
  void checkTables(String requestId, int tokens, IntUnaryOperator blocksOfGroup) {
    for (int i = 0; i < ids.length; i++) {
      int needed = tokens / blockSizes[i];
      int given = blocksOfGroup.applyAsInt(i);
      if (needed > given) {
        throw UMBPException.invalid(
            "request '%s' has %d blocks in group %d, %d tokens need %d",
            requestId, given, ids[i], tokens, needed);
      }
    }
  }

  /** Full blocks that end in (fromTokens, toTokens]. */
  private int countBetween(int fromTokens, int toTokens) {
    int rows = 0;
    for (int size : blockSizes) {
      rows += toTokens / size - fromTokens / size;
    }
    return rows;
  }

  /** The full blocks that end in (fromTokens, toTokens]. */
  BlockRows between(int fromTokens, int toTokens) {
    BlockRows.Builder rows = new BlockRows.Builder(this, countBetween(fromTokens, toTokens));
    for (long end = (long) fromTokens / step * step + step; end <= toTokens; end += step) {
      for (int i = 0; i < blockSizes.length; i++) {
        if (end % blockSizes[i] == 0) {
          rows.add(i, (int) end);
        }
      }
    }
    return rows.build();
  }

  /**
   * The blocks that a hit which ends at so many tokens loads behind the local ones: those of each
   * group's window, the last of them partly filled where the hit ends inside it.
   */
  BlockRows needed(int localTokens, int endTokens) {
    BlockRows.Builder rows =
        new BlockRows.Builder(this, countBetween(localTokens, endTokens) + ids.length);
    for (long end = (long) localTokens / step * step + step; end <= endTokens; end += step) {
      for (int i = 0; i < blockSizes.length; i++) {
        if (end % blockSizes[i] == 0 && end > windows[i].firstToken(endTokens)) {
          rows.add(i, (int) end);
        }
      }
    }
    addTails(rows, endTokens);
    return rows.build();
  }

  /** The partly filled blocks of a prefix that ends so: one of each group whose block goes on. */
  BlockRows tails(int endTokens) {
    BlockRows.Builder rows = new BlockRows.Builder(this, ids.length);
    addTails(rows, endTokens);
    return rows.build();
  }

  private void addTails(BlockRows.Builder rows, int endTokens) {
    for (int i = 0; i < blockSizes.length; i++) {
      if (endTokens % blockSizes[i] != 0 && windows[i].tokens() > 0) {
        rows.add(i, endTokens);
      }
    }
  }

  /** Refuses a load to a place of a block table that is missing, or that holds the null block. */
  void checkDestinations(String requestId, BlockRows rows, RequestTracker tables, int nullBlock) {
    for (int row = 0; row < rows.count(); row++) {
      int group = rows.group(row);
      int block = rows.block(row);
      int given = tables.blockCount(group);
      if (block >= given) {
        throw UMBPException.invalid(
            "request '%s' has %d blocks in group %d, a load of %d tokens needs %d",
            requestId, given, ids[group], rows.endTokens(row), block + 1);
      }
      if (tables.blockId(group, block) == nullBlock) {
        throw UMBPException.invalid(
            "request '%s' has the null block %d in place %d of group %d, where a block is loaded",
            requestId, nullBlock, block, ids[group]);
      }
    }
  }
}
