package io.umbp.api;

import java.util.List;

/**
 * A worker handle that can load what an engine of another tensor-parallel size stored. Thread-safe.
 */
public interface SupportsShardedLoad extends UMBPWorkerHandle {
  /**
   * Starts loading blocks out of pieces of another engine's objects. As {@link
   * UMBPWorkerHandle#load}, but a block completes only when all of its pieces have come, and is a
   * {@link KeyOutcome#MISS} when one of the objects is not visible.
   *
   * @param plans keys of this rank, whose groups and hashes name the blocks, with distinct
   *     destination blocks in each group
   * @param source where the pieces come from, for every group of the plans
   * @param destinationFree the last user of the destination blocks
   * @return the first snapshot of the job
   * @throws UMBPException INVALID_ARGUMENT also when the pieces do not make objects of this
   *     handle's layout, or come from a {@linkplain UMBPNamespace#foreign() namespace of foreign
   *     KV} although the buffers are said to hold the engine's own; NOT_REGISTERED, FENCE_REQUIRED,
   *     CLOSED; nothing was touched
   */
  TransferJobState load(
      List<BlockTransferPlan> plans, ShardedSource source, DeviceFence destinationFree);
}
