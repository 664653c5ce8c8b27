package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** An {@link EmbeddedRuntime} on host memory. */
final class HostFixture extends EmbeddedFixture {
  private final HoldingExecutor executor;

  private HostFixture(
      Setup setup,
      HostCopyEngine engine,
      EmbeddedRuntime.Builder builder,
      HoldingExecutor executor) {
    super(setup, new FaultyCopyEngine(engine), builder);
    this.executor = executor;
  }

  /** Opens a fixture whose copies run inside the calls that start them. */
  static HostFixture inline(Setup setup) {
    return new HostFixture(setup, new HostCopyEngine(), EmbeddedRuntime.builder(), null);
  }

  /** Opens a fixture whose copies, and the runtime's own background work, run on an executor. */
  static HostFixture onExecutor(Setup setup) {
    HoldingExecutor executor = new HoldingExecutor();
    return new HostFixture(
        setup,
        HostCopyEngine.on(executor),
        EmbeddedRuntime.builder().executor(executor.threads),
        executor);
  }

  /** Queues chosen tasks until they are released; the others pass them. */
  private static final class HoldingExecutor implements Executor {
    private final ExecutorService threads =
        Executors.newFixedThreadPool(
            3,
            task -> {
              Thread thread = new Thread(task, "host-copy");
              thread.setDaemon(true);
              return thread;
            });
    private final Deque<Runnable> held = new ArrayDeque<>();
    private int toHold;

    @Override
    public synchronized void execute(Runnable task) {
      if (toHold > 0) {
        toHold--;
        held.add(task);
      } else {
        threads.execute(task);
      }
    }

    private synchronized void hold(int count) {
      toHold = count;
    }

    private synchronized void releaseOldest() {
      Runnable task = held.poll();
      if (task != null) {
        threads.execute(task);
      }
    }

    private synchronized void releaseAll() {
      toHold = 0;
      while (!held.isEmpty()) {
        releaseOldest();
      }
    }

    private void close() {
      threads.shutdown();
      try {
        threads.awaitTermination(10, TimeUnit.SECONDS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  @Override
  public KVCacheTensor allocate(long sizeBytes, int blocks, long strideBytes) {
    return KVCacheTensor.host(ByteBuffer.allocateDirect(Math.toIntExact(sizeBytes)))
        .blocks(blocks, strideBytes)
        .build();
  }

  @Override
  public void write(KVCacheTensor tensor, long offset, byte[] bytes) {
    memory(tensor).put(Math.toIntExact(offset), bytes);
  }

  @Override
  public byte[] read(KVCacheTensor tensor, long offset, int length) {
    byte[] bytes = new byte[length];
    memory(tensor).get(Math.toIntExact(offset), bytes);
    return bytes;
  }

  private static ByteBuffer memory(KVCacheTensor tensor) {
    return tensor.slabs().get(0).buffer();
  }

  @Override
  public boolean canHoldCopies() {
    return executor != null;
  }

  @Override
  public void holdNextCopies(int count) {
    executor.hold(count);
  }

  @Override
  public void releaseCopy() {
    executor.releaseOldest();
  }

  @Override
  public void releaseCopies() {
    if (executor != null) {
      executor.releaseAll();
    }
  }

  @Override
  public boolean hasStreams() {
    return false;
  }

  @Override
  public Stream newStream() {
    throw new UnsupportedOperationException("host memory has no streams");
  }

  @Override
  public void close() {
    super.close();
    if (executor != null) {
      executor.close();
    }
  }
}
