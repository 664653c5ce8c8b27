package io.umbp.core.runtime;

import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.KVCopyEngineContract;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

class HostCopyExecutorContractTest extends KVCopyEngineContract {
  /** Two threads, and a queue before them while copies are held. */
  private static final class ThreadsFixture implements Fixture, Executor {
    private final ExecutorService threads = Executors.newFixedThreadPool(2);
    private final HostCopyEngine engine = HostCopyEngine.on(this);
    private final Queue<Runnable> heldTasks = new ArrayDeque<>();
    private boolean holding;

    @Override
    public synchronized void execute(Runnable task) {
      if (holding) {
        heldTasks.add(task);
      } else {
        threads.execute(task);
      }
    }

    @Override
    public KVCopyEngine engine() {
      return engine;
    }

    @Override
    public boolean copiesInline() {
      return false;
    }

    @Override
    public synchronized void holdCopies() {
      holding = true;
    }

    @Override
    public synchronized void releaseCopies() {
      holding = false;
      heldTasks.forEach(threads::execute);
      heldTasks.clear();
    }

    @Override
    public void close() {
      Fixture.super.close();
      threads.shutdown();
    }
  }

  @Override
  protected Fixture open() {
    return new ThreadsFixture();
  }
}
