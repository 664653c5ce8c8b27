package io.umbp.core.pool;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.ClearResult;
import io.umbp.api.KeyReason;
import io.umbp.api.RankNamespace;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.core.pool.PooledObject.State;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * The objects in host memory: finds them by key, gives them slots, and evicts the least recently
 * used ones, one at a time, when a slot is needed. Not thread-safe: its owner calls every method
 * under one lock. It neither copies nor calls a copy engine.
 */
public final class BlockPool {
  private final long capacityBytes;
  private final SlabPool slabs;
  private final BlockIndex index = new BlockIndex();
  private final LruList recency = new LruList();
  private final Consumer<BlockKey> evictions;

  /** Doomed objects that copies still use. */
  private final Set<PooledObject> lingering = new HashSet<>();

  private final long slabBytes;
  private long publishedCount;
  private long unpublishedCount;
  private long pinCount;
  private long storedCount;
  private long storedBytes;
  private long evictedCount;
  private long droppedCount;
  private long doubleReleaseCount;
  private boolean isOutOfMemory;

  /**
   * Creates an empty pool.
   *
   * @param capacityBytes bytes of objects that it may hold, above 0; {@link Long#MAX_VALUE} for no
   *     limit
   * @param slabBytes size of each slab, 1 to 1 GiB
   * @param evictions told of each evicted object, while the owner's lock is held
   */
  public BlockPool(long capacityBytes, long slabBytes, Consumer<BlockKey> evictions) {
    this.capacityBytes = capacityBytes;
    this.slabBytes = slabBytes;
    this.evictions = evictions;
    this.slabs = new SlabPool(capacityBytes, slabBytes);
  }

  /**
   * Refuses objects that can never fit.
   *
   * @param groupId the group, for the message
   * @param objectBytes size of its objects
   */
  public void checkObjectSize(int groupId, long objectBytes) {
    if (objectBytes > capacityBytes) {
      throw UMBPException.invalid(
          "an object of group %d has %d bytes, more than the pool's capacity of %d",
          groupId, objectBytes, capacityBytes);
    }
    if (objectBytes > slabBytes) {
      throw UMBPException.invalid(
          "an object of group %d has %d bytes, more than a slab's %d; slabBytes can be up to %d",
          groupId, objectBytes, slabBytes, KVCopyEngine.MAX_SLAB_BYTES);
    }
  }

  /**
   * Returns the key space of a group on a rank, made on first use.
   *
   * @param namespace the compatibility namespace
   * @param rank the rank
   * @param groupId the group, at most 1,023
   * @return always the same object for the same arguments
   */
  public KeySpace keySpace(UMBPNamespace namespace, RankNamespace rank, int groupId) {
    return index.space(namespace, rank, groupId);
  }

  /**
   * Returns the known key spaces of a rank.
   *
   * @param namespace the compatibility namespace
   * @param rank the rank
   * @return key spaces by group, null where a group is unknown; shared, not to be changed
   */
  public @Nullable KeySpace[] keySpaces(UMBPNamespace namespace, RankNamespace rank) {
    return index.spaces(namespace, rank);
  }

  /**
   * Returns the object of a key, whatever its state.
   *
   * @param space the key's space
   * @param hashes hash column
   * @param row the key's hash
   * @return the object, or null
   */
  public @Nullable PooledObject find(KeySpace space, BlockHashes hashes, int row) {
    return index.find(space, hashes, row);
  }

  /**
   * Returns the object of a key when it is visible.
   *
   * @param space the key's space
   * @param hashes hash column
   * @param row the key's hash
   * @return the published object, or null
   */
  public @Nullable PooledObject findPublished(KeySpace space, BlockHashes hashes, int row) {
    PooledObject object = index.find(space, hashes, row);
    return object != null && object.state == State.PUBLISHED ? object : null;
  }

  /**
   * Reserves a slot for a key that is not in the pool, evicting as needed. The new object is
   * FILLING, pinned by the lease and held by the job.
   *
   * @param space the key's space
   * @param hashes hash column
   * @param row the key's hash
   * @param objectBytes size of the object
   * @param lease the job's pins
   * @param pin index of the free pin that the new object gets
   * @param expiresAtNanos the writer's deadline, from which on another job may write the key anew
   * @return the object; null when {@link #needsSlab} says so, or when nothing can be evicted
   */
  public @Nullable PooledObject reserve(
      KeySpace space,
      BlockHashes hashes,
      int row,
      long objectBytes,
      Lease lease,
      int pin,
      long expiresAtNanos) {
    SlabPool.SizeClass sizeClass = slabs.sizeClass(objectBytes);
    SlabPool.Slab slab = null;
    while (slab == null) {
      if (slabs.hasCapacity(sizeClass)) {
        slab = slabs.slabWithFreeSlot(sizeClass);
        if (slab != null || needsSlab(objectBytes)) {
          break;
        }
        SlabPool.Slab other = slabs.slabToEmpty(sizeClass);
        if (other != null) {
          evictAll(other);
          continue;
        }
      }
      // With capacity left it is a slot that is missing, and no other slab can be emptied for it.
      PooledObject victim =
          slabs.hasCapacity(sizeClass) ? recency.victim(objectBytes) : recency.victim();
      if (victim == null) {
        return null;
      }
      evict(victim);
    }
    if (slab == null) {
      return null;
    }
    byte[] hash = new byte[hashes.hashLength()];
    hashes.copyTo(row, hash, 0);
    int slot = slabs.take(slab);
    PooledObject object =
        new PooledObject(
            space, hash, BlockIndex.fingerprint(space, hashes, row), slab, slot, expiresAtNanos);
    slabs.put(slab, slot, object);
    index.add(object);
    unpublishedCount++;
    object.holders = 1;
    pin(lease, pin, object);
    return object;
  }

  /**
   * Tells whether the pool may and must take one more slab before an object of this size fits.
   *
   * @param objectBytes size of the object
   * @return true when {@link #addSlab} should be called
   */
  public boolean needsSlab(long objectBytes) {
    SlabPool.SizeClass sizeClass = slabs.sizeClass(objectBytes);
    return !isOutOfMemory
        && slabs.hasCapacity(sizeClass)
        && !slabs.hasFreeSlot(sizeClass)
        && slabs.mayGrow(sizeClass);
  }

  /**
   * Adds host memory.
   *
   * @param slab a slab of the pool's slab size; the owner gives it back to its copy engine
   */
  public void addSlab(HostSlab slab) {
    slabs.addSlab(slab);
  }

  /** Notes that no more host memory can be had, so that the pool makes do with what it has. */
  public void outOfMemory() {
    isOutOfMemory = true;
  }

  /**
   * Returns all slabs, for giving them back.
   *
   * @return unmodifiable list
   */
  public List<HostSlab> memory() {
    return slabs.memory();
  }

  /**
   * Creates a job's empty set of pins.
   *
   * @param pins how many objects it can pin
   * @return the lease
   */
  public Lease lease(int pins) {
    return new Lease(pins);
  }

  /**
   * Pins an object for a copy.
   *
   * @param lease the job's pins
   * @param pin index of a free pin
   * @param object the object
   */
  public void pin(Lease lease, int pin, PooledObject object) {
    if (lease.objects[pin] != null) {
      throw new IllegalStateException("pin " + pin + " already has " + object.key());
    }
    lease.objects[pin] = object;
    object.copies++;
    pinCount++;
  }

  /**
   * Gives a pin back after its copy has ended. Giving it back twice changes nothing and is counted.
   *
   * @param lease the job's pins
   * @param pin index of the pin
   */
  public void release(Lease lease, int pin) {
    PooledObject object = lease.objects[pin];
    if (object == null) {
      doubleReleaseCount++;
      return;
    }
    lease.objects[pin] = null;
    object.copies--;
    pinCount--;
    if (object.state == State.DOOMED && object.copies == 0) {
      lingering.remove(object);
      slabs.free(object.slab, object.slot);
    }
  }

  /**
   * Notes that another store job waits for an unpublished object and may publish it.
   *
   * @param object a FILLING or COMPLETE object
   */
  public void hold(PooledObject object) {
    object.holders++;
  }

  /**
   * Takes one hold back. An unpublished object that nobody holds is dropped.
   *
   * @param object an object that the caller holds
   */
  public void unhold(PooledObject object) {
    object.holders--;
    if (object.holders == 0 && object.state == State.COMPLETE) {
      droppedCount++;
      doom(object, KeyReason.NONE);
    }
  }

  /**
   * Notes that the bytes of an object have landed. The pin of the writer is given back by {@link
   * #release}.
   *
   * @param object a FILLING object
   */
  public void complete(PooledObject object) {
    object.state = State.COMPLETE;
    storedCount++;
    storedBytes += object.sizeBytes();
  }

  /**
   * Makes an object visible, as the most recent one.
   *
   * @param object a COMPLETE object
   */
  public void publish(PooledObject object) {
    object.state = State.PUBLISHED;
    unpublishedCount--;
    publishedCount++;
    recency.add(object);
  }

  /**
   * Makes a published object the most recent one.
   *
   * @param object a PUBLISHED object
   */
  public void touch(PooledObject object) {
    recency.touch(object);
  }

  /**
   * Takes an object out of the index for good. Its slot is freed now, or when the last copy ends.
   *
   * @param object an object that is not DOOMED
   * @param reason why, for those who wait for it
   */
  public void doom(PooledObject object, KeyReason reason) {
    index.remove(object);
    if (object.state == State.PUBLISHED) {
      recency.remove(object);
      publishedCount--;
    } else {
      unpublishedCount--;
    }
    object.wasFilling = object.state == State.FILLING;
    object.state = State.DOOMED;
    object.doomReason = reason;
    if (object.copies == 0) {
      slabs.free(object.slab, object.slot);
    } else {
      lingering.add(object);
    }
  }

  /**
   * Dooms every object of a namespace.
   *
   * @param namespace the namespace
   * @return what was freed and what copies still hold
   */
  public ClearResult clear(UMBPNamespace namespace) {
    long before = slabs.freedCount();
    index.forEach(
        object -> {
          if (object.space.namespace().equals(namespace)) {
            doom(object, KeyReason.CLEARED);
          }
        });
    long loading = 0;
    long storing = 0;
    for (PooledObject object : lingering) {
      if (object.space.namespace().equals(namespace)) {
        if (object.wasFilling) {
          storing++;
        } else {
          loading++;
        }
      }
    }
    return new ClearResult(slabs.freedCount() - before, loading, storing);
  }

  /**
   * Returns the pool's content.
   *
   * @return a snapshot
   */
  public PoolStats stats() {
    return new PoolStats(
        capacityBytes,
        slabs.usedBytes(),
        capacityBytes - slabs.usedBytes(),
        slabs.slabCount() * slabBytes,
        publishedCount,
        unpublishedCount,
        pinCount,
        storedCount,
        storedBytes,
        evictedCount,
        droppedCount,
        doubleReleaseCount);
  }

  private void evict(PooledObject victim) {
    evictedCount++;
    evictions.accept(victim.key());
    doom(victim, KeyReason.NONE);
  }

  private void evictAll(SlabPool.Slab slab) {
    for (PooledObject object : slab.objects().clone()) {
      if (object != null) {
        evict(object);
      }
    }
  }
}
