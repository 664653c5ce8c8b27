package io.umbp.core.runtime;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.ClearResult;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.SupportsHold;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.pool.BlockPool;
import io.umbp.core.pool.KeySpace;
import io.umbp.core.pool.PooledObject;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * The scheduler's view of an {@link EmbeddedRuntime}. Thread-safe; guarded by the runtime's lock.
 */
final class EmbeddedSchedulerHandle implements SupportsHold {
  private static final long LONGEST_HOLD_NANOS = TimeUnit.DAYS.toNanos(36_500);

  private final EmbeddedRuntime runtime;
  private final UMBPNamespace namespace;
  private final BlockIdentityCodec codec;
  private final ArrayDeque<BlockKey> evictedKeys = new ArrayDeque<>();
  private boolean isClosed;

  EmbeddedSchedulerHandle(EmbeddedRuntime runtime, UMBPNamespace namespace, RankTopology topology) {
    this.runtime = runtime;
    this.namespace = namespace;
    this.codec = new BlockIdentityCodec(namespace, topology);
  }

  @Override
  public boolean[] lookup(List<String> keys) {
    @Nullable PooledObject[] objects = new PooledObject[keys.size()];
    findPublished(keys, objects, () -> {});
    boolean[] present = new boolean[objects.length];
    for (int i = 0; i < present.length; i++) {
      present[i] = objects[i] != null;
    }
    return present;
  }

  @Override
  public Hold lookupAndHold(List<String> keys, Duration limit) {
    long limitNanos = Math.min(EmbeddedRuntime.nanos(limit), LONGEST_HOLD_NANOS);
    if (limitNanos == 0) {
      throw UMBPException.invalid("a hold's limit of %s must be > 0", limit);
    }
    runtime.tick();
    @Nullable PooledObject[] objects = new PooledObject[keys.size()];
    Hold[] hold = new Hold[1];
    findPublished(
        keys,
        objects,
        () -> hold[0] = runtime.holds.add(this, objects, runtime.clock.getAsLong() + limitNanos));
    return hold[0];
  }

  @Override
  public void touch(List<String> keys) {
    @Nullable PooledObject[] objects = new PooledObject[keys.size()];
    findPublished(
        keys,
        objects,
        () -> {
          for (int i = objects.length - 1; i >= 0; i--) {
            PooledObject object = objects[i];
            if (object != null) {
              runtime.pool.touch(object);
            }
          }
        });
  }

  /** Finds the objects of keys, null where there is none, and uses them under the same lock. */
  private void findPublished(
      List<String> keys, @Nullable PooledObject[] found, Runnable useUnderLock) {
    // The caller's list is read before the lock is taken.
    List<Optional<BlockKey>> parsed =
        keys instanceof BlockKeys ? List.of() : keys.stream().map(codec::tryParse).toList();
    runtime.runLocked(
        () -> {
          checkOpen();
          if (keys instanceof BlockKeys columns) {
            find(columns, found);
          } else {
            for (int i = 0; i < found.length; i++) {
              found[i] = parsed.get(i).map(this::find).orElse(null);
            }
          }
          useUnderLock.run();
        });
  }

  private void find(BlockKeys keys, @Nullable PooledObject[] found) {
    if (!keys.namespace().equals(namespace)) {
      return;
    }
    BlockPool pool = runtime.pool;
    BlockHashes hashes = keys.hashes();
    @Nullable KeySpace[][] plain = keySpaces(keys.ranks());
    @Nullable KeySpace[][] replicated = keySpaces(keys.replicas());
    int at = 0;
    for (int row = 0; row < keys.rows(); row++) {
      int groupId = keys.groupIdOf(row);
      boolean isReplicated = replicated.length > 0 && keys.replicatedGroups().contains(groupId);
      for (@Nullable KeySpace[] byGroup : isReplicated ? replicated : plain) {
        KeySpace space = groupId < byGroup.length ? byGroup[groupId] : null;
        found[at++] = space == null ? null : pool.findPublished(space, hashes, row);
      }
    }
  }

  /** The key spaces of each rank by group. */
  private @Nullable KeySpace[][] keySpaces(List<RankNamespace> ranks) {
    @Nullable KeySpace[][] spaces = new KeySpace[ranks.size()][];
    for (int rank = 0; rank < spaces.length; rank++) {
      spaces[rank] = runtime.pool.keySpaces(namespace, ranks.get(rank));
    }
    return spaces;
  }

  private @Nullable PooledObject find(BlockKey key) {
    if (!key.namespace().equals(namespace)) {
      return null;
    }
    @Nullable KeySpace[] byGroup = runtime.pool.keySpaces(namespace, key.rank());
    KeySpace space = key.groupId() < byGroup.length ? byGroup[key.groupId()] : null;
    return space == null
        ? null
        : runtime.pool.findPublished(space, BlockHashes.of(List.of(key.hash())), 0);
  }

  @Override
  public ClearResult clear() {
    runtime.sweep();
    return runtime.callLocked(
        () -> {
          checkOpen();
          runtime.holds.endAll(handle -> handle.namespace.equals(namespace));
          runtime.jobs.clear(namespace);
          return runtime.pool.clear(namespace);
        });
  }

  @Override
  public List<BlockKey> takeEvictedKeys() {
    return runtime.callLocked(
        () -> {
          checkOpen();
          List<BlockKey> taken = new ArrayList<>(evictedKeys);
          evictedKeys.clear();
          return taken;
        });
  }

  /** Called under the lock. */
  void evicted(BlockKey key) {
    if (key.namespace().equals(namespace)) {
      if (evictedKeys.size() == MAX_EVICTED_KEYS) {
        evictedKeys.removeFirst();
      }
      evictedKeys.addLast(key);
    }
  }

  private void checkOpen() {
    runtime.checkOpen();
    if (isClosed) {
      throw UMBPException.closed("scheduler handle");
    }
  }

  @Override
  public void close() {
    runtime.runLocked(
        () -> {
          isClosed = true;
          runtime.holds.endAll(handle -> handle == this);
          runtime.forget(this);
        });
  }
}
