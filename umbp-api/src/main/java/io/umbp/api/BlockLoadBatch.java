package io.umbp.api;

import java.util.List;

/** Whole-block loads of one request on one rank, as columns. Immutable. */
public final class BlockLoadBatch extends BlockTransferBatch {
  private BlockLoadBatch(String requestId, BlockKeys keys, int[] blockIds) {
    super(requestId, keys, blockIds);
  }

  /**
   * Returns a batch.
   *
   * @param requestId the request on whose behalf, empty when none
   * @param keys keys of one rank, with the group of each
   * @param blockIds the engine's block for each key, at least 0; copied
   * @return the batch
   */
  public static BlockLoadBatch of(String requestId, BlockKeys keys, int... blockIds) {
    return new BlockLoadBatch(requestId, keys, blockIds);
  }

  /**
   * Returns the same transfers for another rank: what the scheduler planned once, each worker turns
   * into its own. Shares the hash column.
   *
   * @param rank the worker's rank
   * @return the batch with that rank's keys
   */
  public BlockLoadBatch onRank(RankNamespace rank) {
    return new BlockLoadBatch(requestId(), keys().onRanks(List.of(rank)), blockIds());
  }
}
