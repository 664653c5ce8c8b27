package io.umbp.core.stress;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.SupportsHold;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.pool.PoolStats;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostKVPages;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;

/**
 * A runtime with a few blocks of host memory, for one race of a few threads. Blocks 0 and 1 hold
 * the bytes 1 and 2, the others 0.
 */
final class StressRig {
  private static final int BLOCK_BYTES = 64;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("stress");
  private static final RankTopology RANK = RankTopology.single();
  private static final KVLayoutDescriptor LAYOUT =
      new KVLayoutDescriptor(
          List.of(new KVRegion("layer", 0, BLOCK_BYTES, BLOCK_BYTES, 0, 16)), RANK);

  final EmbeddedRuntime runtime;
  final SupportsHold scheduler;
  final UMBPWorkerHandle worker;
  private final HostKVPages pages = HostKVPages.create(LAYOUT, 6);

  /** A runtime with room for so many objects. */
  StressRig(int objects) {
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes((long) objects * BLOCK_BYTES)
            .slabBytes(BLOCK_BYTES)
            .build();
    scheduler = (SupportsHold) runtime.createSchedulerHandle(NAMESPACE, RANK, LAYOUT);
    worker = runtime.createWorkerHandle(NAMESPACE, RANK, LAYOUT);
    worker.registerBuffers(pages.tensors());
    fill(0, 1);
    fill(1, 2);
  }

  static BlockKeys key(int number) {
    return BlockKeys.of(
        NAMESPACE, RANK.localNamespace(), 0, BlockHashes.of(1, new byte[] {(byte) number}));
  }

  private ByteBuffer block(int block) {
    return pages.layer("layer").page(block);
  }

  void fill(int block, int value) {
    for (int i = 0; i < BLOCK_BYTES; i++) {
      block(block).put(i, (byte) value);
    }
  }

  /** The value that all bytes of a block have, -1 when they differ. */
  int value(int block) {
    ByteBuffer bytes = block(block);
    for (int i = 1; i < BLOCK_BYTES; i++) {
      if (bytes.get(i) != bytes.get(0)) {
        return -1;
      }
    }
    return bytes.get(0);
  }

  TransferJobState store(int key, int block) {
    return worker.store(BlockStoreBatch.of("s", key(key), block), DeviceFence.none());
  }

  void storeAndPublish(int key, int block) {
    worker.publish(worker.await(store(key, block), Duration.ofSeconds(10)));
  }

  /** Loads a key; returns the value of the block then, or -2 when the load did not complete. */
  int load(int key, int block) {
    TransferJobState job = worker.load(BlockLoadBatch.of("l", key(key), block), DeviceFence.none());
    return job.outcome(0) == KeyOutcome.COMPLETED ? value(block) : -2;
  }

  boolean isThere(int key) {
    return scheduler.lookup(key(key))[0];
  }

  /** Ends the race: 1 when all leases, pins and bytes balance. */
  int balance() {
    PoolStats pool = runtime.stats();
    boolean isBalanced =
        pool.leases() == 0
            && pool.unpublishedObjects() == 0
            && pool.doubleReleases() == 0
            && pool.usedBytes() + pool.freeBytes() == pool.capacityBytes();
    return runtime.close(Duration.ZERO).isClean() && isBalanced ? 1 : 0;
  }
}
