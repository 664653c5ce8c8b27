package io.umbp.core.connector;

import io.umbp.api.UMBPException;

/**
 * A block of the engine in one KV cache group: the same number names another block in another
 * group. Immutable.
 *
 * @param groupId the KV cache group
 * @param blockId the engine's block in that group
 */
public record GroupBlock(int groupId, int blockId) {
  /** Checks the signs. */
  public GroupBlock {
    if (groupId < 0 || blockId < 0) {
      throw UMBPException.invalid("block %d of group %d; both must be >= 0", blockId, groupId);
    }
  }
}
