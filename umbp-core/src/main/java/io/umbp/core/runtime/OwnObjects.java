package io.umbp.core.runtime;

import io.umbp.api.BlockKeys;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVOrigin;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.pool.KeySpace;
import io.umbp.core.pool.PooledObject;
import org.jspecify.annotations.Nullable;

/**
 * The objects of one rank's own keys: leases those that a load reads, reserves those that a store
 * writes. Guarded by the runtime's lock.
 */
final class OwnObjects {
  private final EmbeddedRuntime runtime;
  private final UMBPNamespace namespace;

  /** Key spaces by group id, null where the layout has no such group. */
  private final @Nullable KeySpace[] spaces;

  /** Called under the lock. */
  OwnObjects(EmbeddedRuntime runtime, UMBPNamespace namespace, KVLayoutDescriptor layout) {
    this.runtime = runtime;
    this.namespace = namespace;
    int[] groupIds = layout.groupIds();
    // From the last group down, so that an id beyond the limit is refused before anything is made.
    int lastId = groupIds[groupIds.length - 1];
    KeySpace last = runtime.pool.keySpace(namespace, layout.rankOf(lastId), lastId);
    this.spaces = new KeySpace[last.groupId() + 1];
    for (int groupId : groupIds) {
      spaces[groupId] = runtime.pool.keySpace(namespace, layout.rankOf(groupId), groupId);
    }
  }

  /**
   * Leases the object of each key of a load, or gives the key its outcome. Called under the lock.
   */
  void leaseAll(TransferJob job, long[] addresses) {
    BlockKeys keys = job.batch.keys();
    for (int key = 0; key < addresses.length; key++) {
      PooledObject object = runtime.pool.findPublished(space(keys, key), keys.hashes(), key);
      if (object == null) {
        boolean isUnpublished = runtime.pool.find(space(keys, key), keys.hashes(), key) != null;
        job.end(
            key,
            KeyOutcome.MISS,
            KeyReason.NONE,
            isUnpublished ? "the object is being stored, or stored and not published" : null);
      } else if (hasOtherSize(job, key, object)) {
        endWithOtherSize(job, key, object);
      } else {
        runtime.pool.pin(job.lease, key, object);
        addresses[key] = object.address();
      }
    }
  }

  /** What came of the attempt to give one key of a store its object. */
  private enum Reserved {
    DONE,
    NEEDS_SLAB,
    BUSY
  }

  /**
   * Gives each key of a store an object to write, or its outcome. Takes host memory and books ended
   * jobs, both outside the lock, when a key can't go on without; then goes on with that key.
   */
  void reserveAll(TransferJob job, long[] addresses) {
    int key = 0;
    boolean hasSwept = false;
    while (key < addresses.length) {
      Reserved reserved = Reserved.DONE;
      runtime.lock.lock();
      try {
        while (key < addresses.length && reserved == Reserved.DONE) {
          reserved = reserve(job, key, addresses);
          if (reserved == Reserved.BUSY && hasSwept) {
            job.end(
                key,
                KeyOutcome.REJECTED,
                KeyReason.POOL_BUSY,
                "no room: every object that could be evicted is in use");
            reserved = Reserved.DONE;
          }
          if (reserved == Reserved.DONE) {
            key++;
          }
        }
      } finally {
        runtime.lock.unlock();
      }
      if (reserved == Reserved.NEEDS_SLAB) {
        runtime.grow(objectBytes(job, key));
      } else if (reserved == Reserved.BUSY) {
        runtime.sweep();
        hasSwept = true;
      }
    }
  }

  /** Called under the lock. */
  private Reserved reserve(TransferJob job, int key, long[] addresses) {
    if (job.endIfGivenUp(key)) {
      return Reserved.DONE;
    }
    if (job.registration.origin() == KVOrigin.MAY_BE_FOREIGN && !namespace.isForeign()) {
      job.end(
          key,
          KeyOutcome.REJECTED,
          KeyReason.FOREIGN_KV,
          "the buffers may hold foreign KV, which namespace '" + namespace + "' must not get");
      return Reserved.DONE;
    }
    BlockKeys keys = job.batch.keys();
    KeySpace space = space(keys, key);
    PooledObject object = runtime.pool.find(space, keys.hashes(), key);
    if (object != null
        && object.state() == PooledObject.State.FILLING
        && runtime.clock.getAsLong() - object.expiresAtNanos() >= 0) {
      runtime.pool.doom(object, KeyReason.WRITER_OVERDUE);
      object = null;
    }
    if (object == null) {
      long objectBytes = objectBytes(job, key);
      object =
          runtime.pool.reserve(
              space, keys.hashes(), key, objectBytes, job.lease, key, job.deadlineNanos);
      if (object == null) {
        return runtime.pool.needsSlab(objectBytes) ? Reserved.NEEDS_SLAB : Reserved.BUSY;
      }
      job.writes(key, object);
      addresses[key] = object.address();
    } else if (hasOtherSize(job, key, object)) {
      endWithOtherSize(job, key, object);
    } else if (object.state() == PooledObject.State.PUBLISHED) {
      job.end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
    } else {
      job.join(key, object);
    }
    return Reserved.DONE;
  }

  private static boolean hasOtherSize(TransferJob job, int key, PooledObject object) {
    return object.sizeBytes() != objectBytes(job, key);
  }

  private static long objectBytes(TransferJob job, int key) {
    return job.registration.planner().objectBytes(job.batch.keys().groupId(key));
  }

  private static void endWithOtherSize(TransferJob job, int key, PooledObject object) {
    int groupId = job.batch.keys().groupId(key);
    job.end(
        key,
        KeyOutcome.FAILED,
        KeyReason.SIZE_MISMATCH,
        String.format(
            "the stored object has %d bytes, an object of group %d in this layout has %d",
            object.sizeBytes(), groupId, objectBytes(job, key)));
  }

  private KeySpace space(BlockKeys keys, int key) {
    int groupId = keys.groupId(key);
    KeySpace space = groupId < spaces.length ? spaces[groupId] : null;
    if (space == null) {
      throw UMBPException.invalid("group %d is not in the layout", groupId);
    }
    return space;
  }
}
