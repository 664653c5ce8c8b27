package io.umbp.api;

import java.util.AbstractList;
import java.util.Objects;
import java.util.RandomAccess;

/**
 * Whole-block transfers of one rank as columns: keys (with group ids) and block ids. Reads as a
 * list of plans, but holds no object per block. Immutable.
 */
public abstract sealed class BlockTransferBatch extends AbstractList<BlockTransferPlan>
    implements RandomAccess permits BlockLoadBatch, BlockStoreBatch {
  private final String requestId;
  private final BlockKeys keys;
  private final int[] blockIds;

  BlockTransferBatch(String requestId, BlockKeys keys, int[] blockIds) {
    if (keys.ranks().size() != 1) {
      throw UMBPException.invalid(
          "a batch has the keys of one rank, but %d ranks were given", keys.ranks().size());
    }
    if (keys.size() != blockIds.length) {
      throw UMBPException.invalid(
          "%d keys do not match %d block ids", keys.size(), blockIds.length);
    }
    for (int i = 0; i < blockIds.length; i++) {
      BlockTransferPlan.checkBlockId(blockIds[i], keys.groupId(i));
    }
    this.requestId = requestId;
    this.keys = keys;
    this.blockIds = blockIds.clone();
  }

  /**
   * Returns the request on whose behalf.
   *
   * @return request id, empty when none
   */
  public String requestId() {
    return requestId;
  }

  /**
   * Returns the key column.
   *
   * @return keys of one rank
   */
  public BlockKeys keys() {
    return keys;
  }

  /**
   * Returns the engine's block of one transfer.
   *
   * @param index transfer in [0, size)
   * @return block id in the key's group
   */
  public int blockId(int index) {
    return blockIds[index];
  }

  /**
   * Returns a copy of the block id column.
   *
   * @return a new array
   */
  public int[] blockIds() {
    return blockIds.clone();
  }

  /**
   * Returns one transfer as a value.
   *
   * @param index transfer in [0, size)
   * @return a new whole-block plan
   * @throws IndexOutOfBoundsException when there is no such transfer, as in every list
   */
  @Override
  public BlockTransferPlan get(int index) {
    Objects.checkIndex(index, blockIds.length);
    return new BlockTransferPlan(keys.key(index), blockIds[index], requestId);
  }

  @Override
  public int size() {
    return blockIds.length;
  }
}
