package io.umbp.core.runtime;

import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows running copies on an executor, so that pins are given back and deadlines judged even when
 * nobody polls. Thread-safe; at most one task of it is in the executor.
 *
 * <p>The task does one round and queues itself again, so that a single thread can also run the
 * copies that are waited for. An executor that runs tasks in the caller would recurse: there it
 * gives up after one round.
 */
final class CopyFollower {
  private static final Logger log = LoggerFactory.getLogger(CopyFollower.class);

  private final EmbeddedRuntime runtime;
  private final Executor executor;
  private final AtomicBoolean isActive = new AtomicBoolean();
  private volatile @Nullable Thread requeuing;

  CopyFollower(EmbeddedRuntime runtime, Executor executor) {
    this.runtime = runtime;
    this.executor = executor;
  }

  /** Makes sure that running copies are followed. Called without the runtime's lock. */
  void follow() {
    if (isActive.compareAndSet(false, true)) {
      queue();
    }
  }

  private void queue() {
    try {
      executor.execute(this::round);
    } catch (Throwable e) {
      // Also an Error, such as too many threads: the copies that are followed run all the same.
      isActive.set(false);
      log.warn("the executor refuses to follow copies; polling has to", e);
    }
  }

  private void round() {
    if (requeuing == Thread.currentThread()) {
      isActive.set(false);
      return;
    }
    if (!hasRunning()) {
      isActive.set(false);
      // A job that began in between found the follower active.
      if (runtime.runningJobs() > 0) {
        follow();
      }
      return;
    }
    requeuing = Thread.currentThread();
    queue();
    requeuing = null;
  }

  /** Does one round's work; returns whether copies still run, after waiting for them a moment. */
  private boolean hasRunning() {
    try {
      runtime.sweep();
      boolean hasRunning = runtime.runningJobs() > 0;
      if (hasRunning) {
        runtime.idle(null);
      }
      return hasRunning;
    } catch (Throwable e) {
      // The next job starts the following anew.
      isActive.set(false);
      throw e;
    }
  }
}
