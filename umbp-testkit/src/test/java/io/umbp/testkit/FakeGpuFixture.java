package io.umbp.testkit;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.spi.KVCopyEngine;
import java.util.concurrent.atomic.AtomicReference;

/** Runs the contract over a fake GPU, whole or broken on purpose. */
class FakeGpuFixture implements KVCopyEngineContract.Fixture {
  private final FakeGpu gpu;
  private final KVCopyEngine engine;
  private final FakeStream stream;
  private volatile boolean holding;

  FakeGpuFixture(FakeGpu gpu, KVCopyEngine engine) {
    this.gpu = gpu;
    this.engine = engine;
    stream = gpu.stream(gpu.deviceCount() - 1);
  }

  boolean isHolding() {
    return holding;
  }

  @Override
  public KVCopyEngine engine() {
    return engine;
  }

  @Override
  public KVCacheTensor allocate(int sizeBytes) {
    int ordinal = stream.ordinal();
    return KVCacheTensor.device(gpu.malloc(ordinal, sizeBytes), sizeBytes, ordinal)
        .blocks(1, sizeBytes)
        .build();
  }

  @Override
  public void write(KVCacheTensor memory, int offset, byte[] bytes) {
    gpu.write(memory.address() + offset, bytes);
  }

  @Override
  public byte[] read(KVCacheTensor memory, int offset, int length) {
    return gpu.read(memory.address() + offset, length);
  }

  @Override
  public DeviceFence fence() {
    return stream.fence();
  }

  @Override
  public boolean copiesInline() {
    return false;
  }

  @Override
  public void holdCopies() {
    holding = true;
    gpu.copyEngine().holdCopies();
  }

  @Override
  public void releaseCopies() {
    holding = false;
    gpu.copyEngine().releaseCopies();
  }

  @Override
  public boolean failNextBatch(int failing) {
    gpu.copyEngine().failNext((row, key) -> key == failing);
    return true;
  }

  @Override
  public KVCopyEngineContract.PendingWork pendingWrite(
      KVCacheTensor memory, int offset, byte[] bytes) {
    stream.hold();
    stream.write(memory.address() + offset, bytes);
    return new Pending(new AtomicReference<>(bytes));
  }

  @Override
  public KVCopyEngineContract.PendingWork pendingRead(
      KVCacheTensor memory, int offset, int length) {
    AtomicReference<byte[]> seen = new AtomicReference<>();
    stream.hold();
    stream.enqueue(() -> seen.set(gpu.read(memory.address() + offset, length)));
    return new Pending(seen);
  }

  @Override
  public void close() {
    stream.release();
    gpu.close();
    if (gpu.useAfterFreeCount() != 0) {
      throw new AssertionError(gpu.useAfterFreeCount() + " uses after free");
    }
  }

  private final class Pending implements KVCopyEngineContract.PendingWork {
    private final AtomicReference<byte[]> bytes;

    private Pending(AtomicReference<byte[]> bytes) {
      this.bytes = bytes;
    }

    @Override
    public DeviceFence fence() {
      return stream.fence();
    }

    @Override
    public void start() {
      stream.release();
    }

    @Override
    public byte[] await() {
      stream.synchronize();
      return bytes.get();
    }
  }
}
