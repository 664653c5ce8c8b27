package io.umbp.api;

import java.util.List;

/**
 * One complete logical block transfer between the engine's block and one object. Immutable. Many
 * plans at once travel as {@link BlockLoadBatch} or {@link BlockStoreBatch}.
 *
 * @param key the object
 * @param blockId the engine's block in the key's group, at least 0
 * @param ranges the runs to copy, all of one block; empty means the whole block by the registered
 *     layout. A runtime accepts explicit ranges only when they are what its own layout gives, so
 *     they can check a transfer but never clip it; copied
 * @param requestId the request on whose behalf, empty when none
 */
public record BlockTransferPlan(BlockKey key, int blockId, List<KVRange> ranges, String requestId) {

  /** Checks the block id and that the ranges belong to the block. */
  public BlockTransferPlan {
    checkBlockId(blockId, key.groupId());
    ranges = List.copyOf(ranges);
    for (KVRange range : ranges) {
      if (range.blockId() != blockId || range.groupId() != key.groupId()) {
        throw UMBPException.invalid(
            "layer '%s': range of block %d in group %d stands in the plan of block %d in group %d",
            range.layerName(), range.blockId(), range.groupId(), blockId, key.groupId());
      }
    }
  }

  /**
   * Creates a whole-block plan.
   *
   * @param key the object
   * @param blockId the engine's block, at least 0
   * @param requestId the request on whose behalf, empty when none
   */
  public BlockTransferPlan(BlockKey key, int blockId, String requestId) {
    this(key, blockId, List.of(), requestId);
  }

  static void checkBlockId(int blockId, int groupId) {
    if (blockId < 0) {
      throw UMBPException.invalid("block id %d in group %d must be >= 0", blockId, groupId);
    }
  }
}
