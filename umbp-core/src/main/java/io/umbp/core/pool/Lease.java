package io.umbp.core.pool;

import org.jspecify.annotations.Nullable;

/**
 * The pins of one job: while one of them has an object, a copy may use the object's slot, and the
 * slot is neither evicted nor reused. Each pin has at most one object, so that one job can never
 * give back another's. Made and changed by {@link BlockPool}; guarded by its owner.
 */
public final class Lease {
  final @Nullable PooledObject[] objects;

  Lease(int pins) {
    objects = new PooledObject[pins];
  }

  /**
   * Returns the object of a pin.
   *
   * @param pin index of the pin
   * @return the object, or null when the pin is free
   */
  public @Nullable PooledObject object(int pin) {
    return objects[pin];
  }
}
