package io.umbp.core.pool;

import org.jspecify.annotations.Nullable;

/** Published objects by recency, linked through the objects themselves. All operations are O(1). */
final class LruList {
  private @Nullable PooledObject newest;
  private @Nullable PooledObject oldest;

  /** Adds an object that is not in the list, as the most recent one. */
  void add(PooledObject object) {
    object.older = newest;
    object.newer = null;
    if (newest == null) {
      oldest = object;
    } else {
      newest.newer = object;
    }
    newest = object;
  }

  /** Takes an object out of the list. */
  void remove(PooledObject object) {
    PooledObject newer = object.newer;
    PooledObject older = object.older;
    if (newer == null) {
      newest = older;
    } else {
      newer.older = older;
    }
    if (older == null) {
      oldest = newer;
    } else {
      older.newer = newer;
    }
    object.newer = null;
    object.older = null;
  }

  /** Makes an object of the list the most recent one. */
  void touch(PooledObject object) {
    if (newest != object) {
      remove(object);
      add(object);
    }
  }

  /** Returns the least recent object that no copy uses, or null. */
  @Nullable PooledObject victim() {
    PooledObject object = oldest;
    while (object != null && object.copies > 0) {
      object = object.newer;
    }
    return object;
  }

  /** Returns the least recent object of a size that no copy uses, or null. */
  @Nullable PooledObject victim(long sizeBytes) {
    PooledObject object = oldest;
    while (object != null && (object.copies > 0 || object.sizeBytes() != sizeBytes)) {
      object = object.newer;
    }
    return object;
  }
}
