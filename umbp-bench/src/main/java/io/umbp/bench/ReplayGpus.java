package io.umbp.bench;

import io.umbp.api.DeviceFence;
import io.umbp.api.spi.KVCopyEngine;
import java.util.List;

/**
 * The GPUs of the replay's engine: memory, a stream on which each rank computes, and the copy
 * engine that serves them all. The engine's thread calls it; kernels run later.
 */
interface ReplayGpus extends AutoCloseable {
  /** What a kernel writes. */
  interface Writer {
    void write(long address, byte[] bytes, int from, int length);

    void fill(long address, int length, byte value);
  }

  /** Work on a rank's stream. */
  @FunctionalInterface
  interface Kernel {
    void run(Writer writer);
  }

  /** Returns the copy engine, which the runtime closes. */
  KVCopyEngine copyEngine();

  /** Lets copies fail as the settings ask, from now on: the buffers are registered. */
  default void startFailing() {}

  /** Returns the device of a rank. */
  int ordinal(int rank);

  /** Allocates memory on a rank's device, freed by {@link #close}. */
  long malloc(int rank, long sizeBytes);

  /** Enqueues a kernel on a rank's stream, behind all that was enqueued before. */
  void launch(int rank, Kernel kernel);

  /** Returns a fence behind all that was enqueued on a rank's stream so far. */
  DeviceFence fence(int rank);

  /** Writes at once. */
  void write(int rank, long address, byte[] bytes);

  /**
   * Reads at once.
   *
   * @param addresses where each run starts
   * @param lengths bytes of each run
   * @param count number of runs
   * @param into where the runs go, one behind the other
   */
  void read(int rank, long[] addresses, int[] lengths, int count, byte[] into);

  /** Waits until all kernels of a rank are over; throws what one threw. */
  void synchronize(int rank);

  /** Frees everything. */
  @Override
  void close();

  /** After the close: what was used too late or not given back, for people. */
  List<String> defects();
}
