package io.umbp.bench;

import io.umbp.api.DeviceFence;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeStream;
import java.util.List;
import java.util.stream.IntStream;

/** The replay's GPUs as the testkit's fake GPU. */
final class FakeGpus implements ReplayGpus {
  private final FakeGpu gpu;
  private final List<FakeStream> streams;
  private final double failRate;
  private final long seed;
  private final Writer writer =
      new Writer() {
        @Override
        public void write(long address, byte[] bytes, int from, int length) {
          gpu.write(address, bytes, from, length);
        }

        @Override
        public void fill(long address, int length, byte value) {
          gpu.fill(address, length, value);
        }
      };

  FakeGpus(int ranks, double failRate, long seed) {
    gpu = FakeGpu.asynchronous(ranks);
    this.failRate = failRate;
    this.seed = seed;
    streams = IntStream.range(0, ranks).mapToObj(gpu::stream).toList();
  }

  @Override
  public KVCopyEngine copyEngine() {
    return gpu.copyEngine();
  }

  @Override
  public void startFailing() {
    gpu.copyEngine().failRows(failRate, seed);
  }

  @Override
  public int ordinal(int rank) {
    return rank;
  }

  @Override
  public long malloc(int rank, long sizeBytes) {
    return gpu.malloc(rank, sizeBytes);
  }

  @Override
  public void launch(int rank, Kernel kernel) {
    streams.get(rank).enqueue(() -> kernel.run(writer));
  }

  @Override
  public DeviceFence fence(int rank) {
    return streams.get(rank).fence();
  }

  @Override
  public void write(int rank, long address, byte[] bytes) {
    gpu.write(address, bytes);
  }

  @Override
  public void read(int rank, long[] addresses, int[] lengths, int count, byte[] into) {
    int at = 0;
    for (int i = 0; i < count; i++) {
      gpu.read(addresses[i], into, at, lengths[i]);
      at += lengths[i];
    }
  }

  @Override
  public void synchronize(int rank) {
    streams.get(rank).synchronize();
  }

  @Override
  public void close() {
    gpu.close();
  }

  @Override
  public List<String> defects() {
    long late = gpu.useAfterFreeCount();
    return late == 0 ? List.of() : List.of("freed GPU memory was used " + late + " times");
  }
}
