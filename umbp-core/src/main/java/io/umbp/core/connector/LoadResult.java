package io.umbp.core.connector;

import io.umbp.api.UMBPException;
import java.util.List;

/**
 * How the load of one request ended on one rank. Immutable.
 *
 * @param requestId the request
 * @param failedBlocks destination blocks that hold no usable bytes, each once, in prefix order;
 *     copied
 */
public record LoadResult(String requestId, List<FailedBlock> failedBlocks) {
  /**
   * A destination block whose load did not complete.
   *
   * @param groupId the KV cache group
   * @param blockId the engine's block in that group
   */
  public record FailedBlock(int groupId, int blockId) {
    /** Checks the signs. */
    public FailedBlock {
      if (groupId < 0 || blockId < 0) {
        throw UMBPException.invalid(
            "failed block %d of group %d; both must be >= 0", blockId, groupId);
      }
    }
  }

  /** Copies the list. */
  public LoadResult {
    failedBlocks = List.copyOf(failedBlocks);
  }
}
