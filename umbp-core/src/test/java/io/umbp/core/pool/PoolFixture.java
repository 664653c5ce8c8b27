package io.umbp.core.pool;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.RankNamespace;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.HostSlab;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** A pool with slabs of its own, driven without a runtime: one job a store, copies end at once. */
final class PoolFixture {
  static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  static final RankNamespace RANK = new RankNamespace(0, 0, 0, 0);

  final List<BlockKey> evicted = new ArrayList<>();
  final BlockPool pool;
  private final long slabBytes;
  private long nextAddress = 1L << 40;
  private int slabsLeft = Integer.MAX_VALUE;

  PoolFixture(long capacityBytes, long slabBytes) {
    this.slabBytes = slabBytes;
    this.pool = new BlockPool(capacityBytes, slabBytes, evicted::add);
  }

  void limitSlabs(int slabs) {
    slabsLeft = slabs;
  }

  KeySpace space(int groupId) {
    return pool.keySpace(NAMESPACE, RANK, groupId);
  }

  static BlockHashes hash(int number) {
    byte[] bytes = new byte[32];
    ByteBuffer.wrap(bytes).putInt(28, number);
    return BlockHashes.of(32, bytes);
  }

  /** Reserves an object and leaves its copy running. */
  PooledObject reserve(int groupId, int hash, long objectBytes, Lease lease) {
    while (true) {
      PooledObject object =
          pool.reserve(space(groupId), hash(hash), 0, objectBytes, lease, 0, Long.MAX_VALUE);
      if (object != null || !pool.needsSlab(objectBytes)) {
        return object;
      }
      if (slabsLeft == 0) {
        pool.outOfMemory();
      } else {
        slabsLeft--;
        pool.addSlab(new HostSlab(ByteBuffer.allocate(0), nextAddress, slabBytes));
        nextAddress += slabBytes;
      }
    }
  }

  /** Stores and publishes; false when there is no room. */
  boolean store(int groupId, int hash, long objectBytes) {
    Lease lease = pool.lease(1);
    PooledObject object = reserve(groupId, hash, objectBytes, lease);
    if (object == null) {
      return false;
    }
    pool.complete(object);
    pool.release(lease, 0);
    pool.publish(object);
    pool.unhold(object);
    return true;
  }

  PooledObject published(int groupId, int hash) {
    return pool.findPublished(space(groupId), hash(hash), 0);
  }

  boolean isPresent(int groupId, int hash) {
    return published(groupId, hash) != null;
  }
}
