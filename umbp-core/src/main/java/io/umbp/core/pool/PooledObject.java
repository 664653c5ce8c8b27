package io.umbp.core.pool;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockKey;
import io.umbp.api.KeyReason;
import org.jspecify.annotations.Nullable;

/**
 * One stored KV object and its slot. Guarded by the owner of its {@link BlockPool}.
 *
 * <pre>
 *   FILLING --copy ended--> COMPLETE --publish--> PUBLISHED
 *      \______________________|______________________|
 *                             v
 *                          DOOMED   (out of the index for good; the slot is freed
 *                                    as soon as no copy uses it)
 * </pre>
 */
public final class PooledObject {
  /** The life of an object, forwards only. */
  public enum State {
    /** A store is writing the slot. */
    FILLING,
    /** The bytes have landed; nobody can find them yet. */
    COMPLETE,
    /** Visible to lookups and loads. */
    PUBLISHED,
    /** Out of the index; never visible again. */
    DOOMED
  }

  final KeySpace space;
  final byte[] hash;
  final long fingerprint;
  final SlabPool.Slab slab;
  final int slot;
  private final long address;
  private final long sizeBytes;
  private final long expiresAtNanos;

  State state = State.FILLING;
  KeyReason doomReason = KeyReason.NONE;

  /** Whether a store was writing the object when it was doomed. */
  boolean wasFilling;

  /** Copies that read or write the slot now. */
  int copies;

  /** Store jobs that may still publish the object. */
  int holders;

  @Nullable PooledObject nextInBucket;
  @Nullable PooledObject newer;
  @Nullable PooledObject older;

  PooledObject(
      KeySpace space,
      byte[] hash,
      long fingerprint,
      SlabPool.Slab slab,
      int slot,
      long expiresAtNanos) {
    this.space = space;
    this.hash = hash;
    this.fingerprint = fingerprint;
    this.slab = slab;
    this.slot = slot;
    this.address = slab.slotAddress(slot);
    this.sizeBytes = slab.objectBytes();
    this.expiresAtNanos = expiresAtNanos;
  }

  /**
   * Returns where in its life the object is.
   *
   * @return the state
   */
  public State state() {
    return state;
  }

  /**
   * Returns why the object was doomed.
   *
   * @return the reason, {@link KeyReason#NONE} when evicted or not doomed
   */
  public KeyReason doomReason() {
    return doomReason;
  }

  /**
   * Tells whether some store job may still publish the object.
   *
   * @return false once every such job has given up
   */
  public boolean isHeld() {
    return holders > 0;
  }

  /**
   * Returns the writer's deadline: an object that is still FILLING then is given up.
   *
   * @return time of the runtime's clock in nanoseconds
   */
  public long expiresAtNanos() {
    return expiresAtNanos;
  }

  /**
   * Returns the size of the object.
   *
   * @return bytes
   */
  public long sizeBytes() {
    return sizeBytes;
  }

  /**
   * Returns where the object starts.
   *
   * @return slab address, as a copy batch names it; never 0
   */
  public long address() {
    return address;
  }

  /**
   * Returns the object's identity as a value.
   *
   * @return a new key
   */
  public BlockKey key() {
    return new BlockKey(space.namespace(), space.rank(), space.groupId(), BlockHash.of(hash));
  }
}
