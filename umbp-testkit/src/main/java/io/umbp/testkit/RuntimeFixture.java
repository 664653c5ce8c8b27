package io.umbp.testkit;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.UMBPRuntime;
import java.time.Duration;
import java.util.function.Supplier;

/**
 * A runtime under test and what surrounds it: its clock, the memory of the engine that uses it, and
 * the copies it starts. {@link UMBPRuntimeContract} asks its subclass for one per test.
 * Thread-safe.
 *
 * <p>The runtime's time is the fixture's: it stands still until {@link #advance} or {@link
 * #tickOnRead} moves it.
 */
public interface RuntimeFixture extends AutoCloseable {
  /**
   * What a test wants of its runtime. Immutable.
   *
   * @param capacityBytes bytes of objects that the pool may hold
   * @param transferTimeout deadline of each job, counted from submission
   */
  record Setup(long capacityBytes, Duration transferTimeout) {}

  /**
   * What the runtime holds at one moment. Immutable.
   *
   * @param capacityBytes bytes of objects that the pool may hold
   * @param usedBytes bytes of the objects that are there, visible or not
   * @param freeBytes bytes that are free
   * @param unpublishedObjects objects being written, or written and not visible
   * @param leases pins held by running copies
   * @param runningCopies copies that were started and have not ended
   */
  record Counts(
      long capacityBytes,
      long usedBytes,
      long freeBytes,
      long unpublishedObjects,
      long leases,
      long runningCopies) {}

  /** A stream of the engine: runs the work given to it in order, on a thread of its own. */
  interface Stream {
    /**
     * Enqueues a kernel that writes.
     *
     * @param tensor where
     * @param offset bytes from block 0
     * @param bytes what; copied
     */
    void write(KVCacheTensor tensor, long offset, byte[] bytes);

    /**
     * Enqueues a kernel that reads.
     *
     * @param tensor where
     * @param offset bytes from block 0
     * @param length bytes
     * @return gives what the kernel saw, waiting for it
     */
    Supplier<byte[]> read(KVCacheTensor tensor, long offset, int length);

    /** Stops the stream: work enqueued from now on does not begin before {@link #resume}. */
    void stall();

    /** Lets the stream run again. */
    void resume();

    /**
     * Returns the point after all work enqueued so far.
     *
     * @return a fence on this stream
     */
    DeviceFence fence();
  }

  /**
   * Returns the runtime under test.
   *
   * @return always the same one
   */
  UMBPRuntime runtime();

  /**
   * Returns what the runtime holds.
   *
   * @return a snapshot; {@code runningCopies} may lag behind the copies of a closed runtime
   */
  Counts counts();

  /**
   * Returns the runtime's time.
   *
   * @return nanoseconds from some fixed point
   */
  long nanoTime();

  /**
   * Moves the runtime's time on.
   *
   * @param time how far, at least zero
   */
  void advance(Duration time);

  /**
   * Makes each reading of the clock on the caller's thread move it on, so that a call that waits
   * for a time returns without any passing.
   *
   * @param step how far at each reading; zero stops it
   */
  void tickOnRead(Duration step);

  /**
   * Allocates engine memory.
   *
   * @param sizeBytes bytes, above 0
   * @param blocks blocks in it
   * @param strideBytes bytes from one block's start to the next
   * @return a tensor over all of it, valid until the fixture is closed
   */
  KVCacheTensor allocate(long sizeBytes, int blocks, long strideBytes);

  /**
   * Writes engine memory and waits until the bytes are there.
   *
   * @param tensor a tensor of {@link #allocate}
   * @param offset bytes from block 0
   * @param bytes what to write
   */
  void write(KVCacheTensor tensor, long offset, byte[] bytes);

  /**
   * Reads engine memory as it is now, ordered after nothing.
   *
   * @param tensor a tensor of {@link #allocate}
   * @param offset bytes from block 0
   * @param length bytes
   * @return the bytes
   */
  byte[] read(KVCacheTensor tensor, long offset, int length);

  /**
   * Tells whether copies run beside the caller, so that they can be held.
   *
   * @return false when each copy runs inside the call that starts it
   */
  boolean canHoldCopies();

  /**
   * Holds the next copies that the runtime starts: they do not begin to move bytes before they are
   * released. Others go on.
   *
   * @param count number of copies, above 0
   */
  void holdNextCopies(int count);

  /** Lets the copy go that is held longest; does not wait for it. */
  void releaseCopy();

  /** Lets all held copies go and holds none to come. */
  void releaseCopies();

  /**
   * Lets the part of each copy fail that reads or writes a block, until {@link #healCopies}.
   *
   * @param tensor a tensor of {@link #allocate}
   * @param blockId a block in it
   */
  void failCopies(KVCacheTensor tensor, int blockId);

  /** Lets the next copy die of an {@link OutOfMemoryError}. */
  void breakNextCopy();

  /** Ends all failures. */
  void healCopies();

  /**
   * Tells whether the engine has streams.
   *
   * @return false when {@link #newStream} can't be called
   */
  boolean hasStreams();

  /**
   * Creates a stream.
   *
   * @return a running stream that lives as long as the fixture
   */
  Stream newStream();

  /** Releases all copies, closes the runtime and frees the memory. */
  @Override
  void close();
}
