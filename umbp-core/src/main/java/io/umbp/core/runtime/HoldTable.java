package io.umbp.core.runtime;

import io.umbp.api.SupportsHold;
import io.umbp.api.UMBPException;
import io.umbp.core.pool.BlockPool;
import io.umbp.core.pool.Lease;
import io.umbp.core.pool.PooledObject;
import java.util.List;
import java.util.PriorityQueue;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * All holds of a runtime, the one that ends first at the head. Guarded by the runtime's lock, but
 * for {@link #isDue}.
 */
final class HoldTable {
  private final EmbeddedRuntime runtime;
  private final PriorityQueue<Held> holds =
      new PriorityQueue<>((a, b) -> Long.signum(a.deadlineNanos - b.deadlineNanos));
  private volatile long nextDeadlineNanos;
  private volatile boolean hasDeadline;

  HoldTable(EmbeddedRuntime runtime) {
    this.runtime = runtime;
  }

  /** One hold; its lease has a pin for each key that is there and still wanted. */
  private final class Held implements SupportsHold.Hold {
    private final EmbeddedSchedulerHandle owner;
    private final boolean[] present;
    private final Lease lease;
    private final long deadlineNanos;

    /** Keys from here on are let go. */
    private int kept;

    Held(EmbeddedSchedulerHandle owner, @Nullable PooledObject[] objects, long deadlineNanos) {
      this.owner = owner;
      this.deadlineNanos = deadlineNanos;
      BlockPool pool = runtime.pool;
      present = new boolean[objects.length];
      lease = pool.lease(objects.length);
      kept = objects.length;
      for (int i = 0; i < objects.length; i++) {
        PooledObject object = objects[i];
        if (object != null) {
          present[i] = true;
          pool.pin(lease, i, object);
        }
      }
    }

    /** Called under the lock. */
    void release(int from) {
      for (int i = from; i < kept; i++) {
        if (lease.object(i) != null) {
          runtime.pool.release(lease, i);
        }
      }
      kept = Math.min(kept, from);
    }

    @Override
    public boolean[] present() {
      return present.clone();
    }

    @Override
    public void keepFirst(int keys) {
      if (keys < 0) {
        throw UMBPException.invalid("a hold keeps %d keys; must be >= 0", keys);
      }
      runtime.runLocked(() -> release(keys));
    }

    @Override
    public boolean isHeld() {
      runtime.tick();
      return runtime.callLocked(() -> holds.contains(this));
    }

    @Override
    public void close() {
      runtime.runLocked(() -> end(hold -> hold == this));
    }
  }

  SupportsHold.Hold add(
      EmbeddedSchedulerHandle owner, @Nullable PooledObject[] objects, long deadlineNanos) {
    Held held = new Held(owner, objects, deadlineNanos);
    holds.add(held);
    publishDeadline();
    return held;
  }

  /** Tells without the lock whether some limit has passed. */
  boolean isDue(long nowNanos) {
    return hasDeadline && nowNanos - nextDeadlineNanos >= 0;
  }

  void endPassed(long nowNanos) {
    end(hold -> nowNanos - hold.deadlineNanos >= 0);
  }

  /** Ends the holds of some scheduler handles. */
  void endAll(Predicate<EmbeddedSchedulerHandle> owner) {
    end(hold -> owner.test(hold.owner));
  }

  private void end(Predicate<Held> which) {
    List<Held> ended = holds.stream().filter(which).toList();
    if (!ended.isEmpty()) {
      ended.forEach(hold -> hold.release(0));
      holds.removeAll(ended);
      publishDeadline();
    }
  }

  private void publishDeadline() {
    Held first = holds.peek();
    if (first != null) {
      nextDeadlineNanos = first.deadlineNanos;
    }
    hasDeadline = first != null;
  }
}
