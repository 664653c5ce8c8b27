package io.umbp.core.pool;

import org.jspecify.annotations.Nullable;

/**
 * The pins of one job: while a key of it is pinned, a copy may use the object's slot, and the slot
 * is neither evicted nor reused. Each key has at most one pin, so that one job can never give back
 * another's. Made and changed by {@link BlockPool}; guarded by its owner.
 */
public final class Lease {
  final @Nullable PooledObject[] objects;

  Lease(int keys) {
    objects = new PooledObject[keys];
  }

  /**
   * Returns the object that a key pins.
   *
   * @param key index of the key in the job
   * @return the object, or null when the key pins none
   */
  public @Nullable PooledObject object(int key) {
    return objects[key];
  }
}
