package io.umbp.testkit;

import io.umbp.api.DeviceFence;
import io.umbp.api.UMBPException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/**
 * A queue of device work that runs in order, one piece after another. Thread-safe.
 *
 * <p>On an asynchronous GPU a daemon thread of its own runs the work; on a stepped one the thread
 * that steps does. What a kernel throws is kept and reported by {@link #synchronize}; the work
 * behind it still runs.
 */
public final class FakeStream {
  // lock guards queue, claimed, stopped and gate; no work runs under it. Head of the queue = the
  // work
  // that runs or runs next; it leaves the queue when it is over.

  /** Work on a stream. */
  interface Task {
    /** Runs one piece; returns true when the work is over. */
    boolean advance();

    /** Called instead of running it (further) when the GPU is closed. */
    default void abandon() {}
  }

  private record Work(@Nullable CountDownLatch after, Task task) {}

  private final FakeGpu gpu;
  private final int ordinal;
  private final long handle;
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition arrived = lock.newCondition();
  private final Deque<Work> queue = new ArrayDeque<>();
  private final @Nullable Thread thread;
  private boolean claimed;
  private boolean stopped;
  private @Nullable CountDownLatch gate;
  private volatile @Nullable Throwable failure;

  FakeStream(FakeGpu gpu, int ordinal, long handle, String name) {
    this.gpu = gpu;
    this.ordinal = ordinal;
    this.handle = handle;
    if (gpu.isStepped()) {
      thread = null;
    } else {
      thread = new Thread(this::run, "fake-gpu-" + ordinal + "-" + name);
      thread.setDaemon(true);
      thread.start();
    }
  }

  /**
   * Returns what stands for the stream in a fence.
   *
   * @return handle, not 0, used for no other stream of the GPU
   */
  public long handle() {
    return handle;
  }

  /**
   * Returns the stream's device.
   *
   * @return ordinal
   */
  public int ordinal() {
    return ordinal;
  }

  /**
   * Returns a fence on this stream. The position is taken where the fence is passed on, not here.
   *
   * @return the fence
   */
  public DeviceFence.OnStream fence() {
    return new DeviceFence.OnStream(ordinal, handle);
  }

  /**
   * Appends a kernel.
   *
   * @param kernel runs once, after all work before it
   */
  public void enqueue(Runnable kernel) {
    enqueue(
        null,
        () -> {
          kernel.run();
          return true;
        });
  }

  /**
   * Appends a kernel that writes bytes to device memory.
   *
   * @param address where, on any device
   * @param bytes what; copied here
   */
  public void write(long address, byte[] bytes) {
    byte[] copy = bytes.clone();
    enqueue(() -> gpu.write(address, copy));
  }

  /** Stops at this position: work appended from now on does not run before {@link #release}. */
  public void hold() {
    CountDownLatch closed = new CountDownLatch(1);
    lock.lock();
    try {
      if (gate != null) {
        throw new IllegalStateException("the stream is already held");
      }
      gate = closed;
    } finally {
      lock.unlock();
    }
    enqueue(closed, () -> true);
  }

  /** Lets the work behind {@link #hold} run; without effect when the stream is not held. */
  public void release() {
    lock.lock();
    try {
      if (gate != null) {
        gate.countDown();
        gate = null;
      }
    } finally {
      lock.unlock();
    }
  }

  /**
   * Waits until all work appended so far is over; on a stepped GPU it steps until then.
   *
   * @throws IllegalStateException when a kernel failed since the last call, when the GPU is closed,
   *     and on a stepped GPU when the work can never end because nothing is left to step
   */
  public void synchronize() {
    CountDownLatch reached = record();
    if (gpu.isStepped()) {
      while (reached.getCount() > 0) {
        if (!gpu.step()) {
          throw new IllegalStateException("stream " + this + " waits for what no step can bring");
        }
      }
    } else {
      try {
        reached.await();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new IllegalStateException("interrupted while waiting for stream " + this, e);
      }
    }
    gpu.requireOpen();
    Throwable thrown = failure;
    if (thrown != null) {
      failure = null;
      throw new IllegalStateException("a kernel on stream " + this + " failed: " + thrown, thrown);
    }
  }

  /**
   * Runs one piece of this stream's work on the caller's thread; stepped GPUs only.
   *
   * @return false when there is none, or its turn has not come
   */
  public boolean step() {
    gpu.requireStepped();
    Work head;
    lock.lock();
    try {
      head = queue.peek();
      if (head == null || claimed || (head.after != null && head.after.getCount() > 0)) {
        return false;
      }
      claimed = true;
    } finally {
      lock.unlock();
    }
    boolean over = true;
    try {
      over = advance(head.task);
    } finally {
      lock.lock();
      try {
        claimed = false;
        if (over) {
          queue.poll();
        }
      } finally {
        lock.unlock();
      }
    }
    return true;
  }

  /** Appends work that also waits for a latch. */
  void enqueue(@Nullable CountDownLatch after, Task task) {
    lock.lock();
    try {
      if (stopped) {
        throw UMBPException.closed("fake GPU");
      }
      queue.add(new Work(after, task));
      arrived.signal();
    } finally {
      lock.unlock();
    }
  }

  /** Appends a latch that opens when all work before it is over. */
  CountDownLatch record() {
    CountDownLatch reached = new CountDownLatch(1);
    enqueue(
        null,
        new Task() {
          @Override
          public boolean advance() {
            reached.countDown();
            return true;
          }

          @Override
          public void abandon() {
            reached.countDown();
          }
        });
    return reached;
  }

  /** Makes the stream's thread end after the piece that it runs. */
  void stop() {
    lock.lock();
    try {
      stopped = true;
      arrived.signalAll();
    } finally {
      lock.unlock();
    }
    if (thread != null) {
      thread.interrupt();
    }
  }

  /** Waits for the end of the stream's thread and drops the work that is left. */
  void join(long millis) throws InterruptedException {
    if (thread != null && thread != Thread.currentThread()) {
      thread.join(millis);
    }
    Deque<Work> left;
    lock.lock();
    try {
      left = new ArrayDeque<>(queue);
      queue.clear();
    } finally {
      lock.unlock();
    }
    left.forEach(work -> work.task.abandon());
  }

  private void run() {
    while (true) {
      try {
        Work head = head();
        if (head == null) {
          return;
        }
        if (head.after != null) {
          head.after.await();
        }
        while (!advance(head.task)) {
          if (isStopped()) {
            return;
          }
        }
        lock.lock();
        try {
          queue.poll();
        } finally {
          lock.unlock();
        }
      } catch (InterruptedException e) {
        if (isStopped()) {
          return;
        }
      }
    }
  }

  private @Nullable Work head() throws InterruptedException {
    lock.lock();
    try {
      while (queue.isEmpty() && !stopped) {
        arrived.await();
      }
      return stopped ? null : queue.peek();
    } finally {
      lock.unlock();
    }
  }

  private boolean isStopped() {
    lock.lock();
    try {
      return stopped;
    } finally {
      lock.unlock();
    }
  }

  private boolean advance(Task task) {
    try {
      return task.advance();
    } catch (Throwable thrown) {
      if (failure == null) {
        failure = thrown;
      }
      return true;
    }
  }

  @Override
  public String toString() {
    return String.format("0x%x of device %d", handle, ordinal);
  }
}
