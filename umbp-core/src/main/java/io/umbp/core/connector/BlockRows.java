package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.request.RequestTracker;
import java.util.function.IntUnaryOperator;

/**
 * The full blocks of all KV cache groups that end in a range of tokens, in prefix order: what a
 * lookup, a load, a store or a touch of a request is about. Immutable.
 */
final class BlockRows {
  private final Groups groups;
  private final int[] group;
  private final int[] block;

  /** Which groups there are and how their block sizes fit together. Immutable. */
  static final class Groups {
    private final int[] ids;
    private final int[] blockSizes;
    private final int hashUnit;
    private final int step;
    private final int alignment;
    private final int keysPerAlignment;
    private final BlockIdentityCodec codec;

    /**
     * Reads the groups of a layout.
     *
     * @param namespace the namespace of their keys
     * @param layout one block size a group
     * @param hashUnit tokens of one block hash, above 0; divides every block size
     */
    Groups(UMBPNamespace namespace, KVLayoutDescriptor layout, int hashUnit) {
      this.hashUnit = hashUnit;
      codec = new BlockIdentityCodec(namespace, layout);
      ids = layout.groupIds();
      blockSizes = new int[ids.length];
      int gcd = 0;
      int lcm = 1;
      for (int i = 0; i < ids.length; i++) {
        blockSizes[i] = blockSize(layout, ids[i]);
        if (blockSizes[i] % hashUnit != 0) {
          throw UMBPException.invalid(
              "the block size %d of group %d is no multiple of the hash unit %d",
              blockSizes[i], ids[i], hashUnit);
        }
        gcd = gcd(blockSizes[i], gcd);
        lcm = Math.multiplyExact(lcm / gcd(lcm, blockSizes[i]), blockSizes[i]);
      }
      step = gcd;
      alignment = lcm;
      int keys = 0;
      for (int i = 0; i < ids.length; i++) {
        int blocks = alignment / blockSizes[i];
        keys = Math.addExact(keys, Math.multiplyExact(blocks, codec.keysPerObject(ids[i])));
      }
      keysPerAlignment = keys;
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

    /** Tokens after which blocks of all groups end. */
    int alignment() {
      return alignment;
    }

    /** Tokens whose keys on all ranks are among the leading ones of a lookup. */
    int tokensOf(int leadingKeys) {
      return leadingKeys / keysPerAlignment * alignment;
    }

    /** Keys on all ranks of aligned tokens: the inverse of {@link #tokensOf}. */
    int keysOf(int tokens) {
      return tokens / alignment * keysPerAlignment;
    }

    /** The largest count of tokens that divides all block sizes. */
    int step() {
      return step;
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

    private int rowsBetween(int fromTokens, int toTokens) {
      int rows = 0;
      for (int size : blockSizes) {
        rows += toTokens / size - fromTokens / size;
      }
      return rows;
    }

    /** The blocks that end in (fromTokens, toTokens]. */
    BlockRows between(int fromTokens, int toTokens) {
      return without(fromTokens, toTokens, 0, 0);
    }

    /** The blocks that end in (fromTokens, toTokens] but not in (skipFrom, skipTo]. */
    BlockRows without(int fromTokens, int toTokens, int skipFrom, int skipTo) {
      int rows = rowsBetween(fromTokens, toTokens);
      int skippedFrom = Math.max(fromTokens, skipFrom);
      int skippedTo = Math.min(toTokens, skipTo);
      if (skippedFrom < skippedTo) {
        rows -= rowsBetween(skippedFrom, skippedTo);
      }
      int[] group = new int[rows];
      int[] block = new int[rows];
      int at = 0;
      for (long end = (long) fromTokens / step * step + step; end <= toTokens; end += step) {
        if (end > skipFrom && end <= skipTo) {
          continue;
        }
        for (int i = 0; i < blockSizes.length; i++) {
          if (end % blockSizes[i] == 0) {
            group[at] = i;
            block[at++] = (int) (end / blockSizes[i]) - 1;
          }
        }
      }
      return new BlockRows(this, group, block);
    }
  }

  private BlockRows(Groups groups, int[] group, int[] block) {
    this.groups = groups;
    this.group = group;
    this.block = block;
  }

  int count() {
    return group.length;
  }

  /** The token at which a row's block starts. */
  int startTokens(int row) {
    return block[row] * groups.blockSizes[group[row]];
  }

  private BlockHashes hashes(BlockHashes all) {
    int[] indexes = new int[group.length];
    for (int i = 0; i < indexes.length; i++) {
      int size = groups.blockSizes[group[i]];
      indexes[i] = (block[i] + 1) * (size / groups.hashUnit) - 1;
    }
    return all.select(indexes);
  }

  private int[] groupIds() {
    int[] groupIds = new int[group.length];
    for (int i = 0; i < groupIds.length; i++) {
      groupIds[i] = groups.ids[group[i]];
    }
    return groupIds;
  }

  BlockKeys localKeys(BlockHashes all) {
    return groups.codec.localKeys(groupIds(), hashes(all));
  }

  BlockKeys allRankKeys(BlockHashes all) {
    return groups.codec.allRankKeys(groupIds(), hashes(all));
  }

  /** The engine's block of each row. */
  int[] blockIds(RequestTracker tracker) {
    int[] blockIds = new int[group.length];
    for (int i = 0; i < blockIds.length; i++) {
      blockIds[i] = tracker.blockId(group[i], block[i]);
    }
    return blockIds;
  }
}
