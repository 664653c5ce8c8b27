package io.umbp.core.connector;

import java.util.List;

/**
 * How the load of one request ended on one rank. Immutable.
 *
 * @param requestId the request
 * @param failedBlocks destination blocks that hold no usable bytes, each once, in prefix order;
 *     copied
 */
public record LoadResult(String requestId, List<GroupBlock> failedBlocks) {
  /** Copies the list. */
  public LoadResult {
    failedBlocks = List.copyOf(failedBlocks);
  }
}
