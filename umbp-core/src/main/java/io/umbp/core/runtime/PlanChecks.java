package io.umbp.core.runtime;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankNamespace;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.layout.KVLayoutPlanner;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Turns what a caller hands to a worker into columns, and refuses what is wrong with it. */
final class PlanChecks {
  private PlanChecks() {}

  /** Returns the plans as columns of this rank's keys, without a copy when they are columns. */
  static BlockTransferBatch toBatch(
      TransferDirection direction,
      List<BlockTransferPlan> plans,
      UMBPNamespace namespace,
      KVLayoutDescriptor layout) {
    if (plans instanceof BlockTransferBatch batch) {
      boolean isLoad = batch instanceof BlockLoadBatch;
      if (isLoad != (direction == TransferDirection.LOAD)) {
        throw UMBPException.invalid(
            "a %s was given to a %s", batch.getClass().getSimpleName(), direction);
      }
      checkKeys(batch.keys(), namespace, layout);
      return batch;
    }
    if (plans.isEmpty()) {
      throw UMBPException.invalid(
          "a list without plans names no rank; pass an empty batch instead");
    }
    String requestId = plans.get(0).requestId();
    List<BlockHash> hashes = new ArrayList<>(plans.size());
    int[] groupIds = new int[plans.size()];
    int[] blockIds = new int[plans.size()];
    for (BlockTransferPlan plan : plans) {
      BlockKey key = plan.key();
      if (!key.namespace().equals(namespace) || !key.rank().equals(layout.rankOf(key.groupId()))) {
        throw UMBPException.invalid(
            "key %s was given to the handle of %s in namespace '%s'",
            key, layout.rankOf(key.groupId()), namespace);
      }
      groupIds[hashes.size()] = key.groupId();
      blockIds[hashes.size()] = plan.blockId();
      hashes.add(key.hash());
    }
    RankNamespace rank = layout.topology().localNamespace();
    BlockKeys keys =
        BlockKeys.of(namespace, rank, groupIds, BlockHashes.of(hashes))
            .replicating(layout.replicatedGroups());
    return direction == TransferDirection.LOAD
        ? BlockLoadBatch.of(requestId, keys, blockIds)
        : BlockStoreBatch.of(requestId, keys, blockIds);
  }

  private static void checkKeys(
      BlockKeys keys, UMBPNamespace namespace, KVLayoutDescriptor layout) {
    if (!keys.namespace().equals(namespace)) {
      throw UMBPException.invalid(
          "keys of namespace '%s' were given to a handle of '%s'", keys.namespace(), namespace);
    }
    RankNamespace rank = layout.topology().localNamespace();
    RankNamespace given = keys.ranks().get(0);
    if (!given.equals(rank)) {
      throw UMBPException.invalid("keys of %s were given to the handle of %s", given, rank);
    }
    if (!keys.replicatedGroups().equals(layout.replicatedGroups())) {
      throw UMBPException.invalid(
          "in the keys the groups %s are replicated, in the handle's layout %s",
          keys.replicatedGroups(), layout.replicatedGroups());
    }
  }

  /** Checks the blocks against the registered layout. */
  static void checkBlocks(
      TransferDirection direction,
      BlockTransferBatch batch,
      List<BlockTransferPlan> plans,
      KVLayoutPlanner planner) {
    planner.checkBlocks(batch);
    if (direction == TransferDirection.LOAD) {
      checkDistinctBlocks(batch);
    }
    if (!(plans instanceof BlockTransferBatch)) {
      plans.forEach(plan -> checkRanges(plan, planner));
    }
  }

  private static void checkDistinctBlocks(BlockTransferBatch batch) {
    long[] places = new long[batch.size()];
    for (int i = 0; i < places.length; i++) {
      places[i] = ((long) batch.keys().groupId(i) << 32) | batch.blockId(i);
    }
    Arrays.sort(places);
    for (int i = 1; i < places.length; i++) {
      if (places[i] == places[i - 1]) {
        throw UMBPException.invalid(
            "block %d of group %d is the destination of two keys of one load",
            (int) places[i], places[i] >> 32);
      }
    }
  }

  private static void checkRanges(BlockTransferPlan plan, KVLayoutPlanner planner) {
    int groupId = plan.key().groupId();
    if (!plan.ranges().isEmpty()
        && !plan.ranges().equals(planner.rangesForBlock(plan.blockId(), groupId))) {
      throw UMBPException.invalid(
          "the ranges of block %d for key %s are not those of the registered layout",
          plan.blockId(), plan.key());
    }
  }
}
