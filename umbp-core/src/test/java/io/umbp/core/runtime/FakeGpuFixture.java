package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.FakeStream;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * An {@link EmbeddedRuntime} on a fake GPU with asynchronous streams; nothing runs unless polled.
 */
class FakeGpuFixture extends EmbeddedFixture {
  private final FakeGpu gpu;

  /**
   * Opens the fixture.
   *
   * @param sabotage wraps the copy engine on its way to the runtime
   */
  FakeGpuFixture(Setup setup, UnaryOperator<KVCopyEngine> sabotage) {
    this(setup, FakeGpu.asynchronous(1), sabotage);
  }

  private FakeGpuFixture(Setup setup, FakeGpu gpu, UnaryOperator<KVCopyEngine> sabotage) {
    super(setup, new NativeFaults(gpu.copyEngine(), sabotage));
    this.gpu = gpu;
  }

  /** Leaves the failures to the fake GPU, which writes garbage where a row fails. */
  private static final class NativeFaults extends FaultyCopyEngine {
    private final FakeGpuCopyEngine engine;
    private final KVCopyEngine target;

    NativeFaults(FakeGpuCopyEngine engine, UnaryOperator<KVCopyEngine> sabotage) {
      this(engine, sabotage.apply(engine));
    }

    private NativeFaults(FakeGpuCopyEngine engine, KVCopyEngine target) {
      super(target);
      this.engine = engine;
      this.target = target;
    }

    @Override
    CopyTicket submitBroken(CopyBatch batch, DeviceFence fence, Error error) {
      engine.throwNext(error);
      return target.submit(batch, fence);
    }

    @Override
    CopyTicket submitFailing(CopyBatch batch, DeviceFence fence, boolean[] failing) {
      engine.failNext((row, key) -> failing[row]);
      return target.submit(batch, fence);
    }
  }

  @Override
  public KVCacheTensor allocate(long sizeBytes, int blocks, long strideBytes) {
    return KVCacheTensor.device(gpu.malloc(0, sizeBytes), sizeBytes, 0)
        .blocks(blocks, strideBytes)
        .build();
  }

  @Override
  public void write(KVCacheTensor tensor, long offset, byte[] bytes) {
    gpu.write(tensor.address() + offset, bytes);
  }

  @Override
  public byte[] read(KVCacheTensor tensor, long offset, int length) {
    return gpu.read(tensor.address() + offset, length);
  }

  @Override
  public boolean canHoldCopies() {
    return true;
  }

  @Override
  public void holdNextCopies(int count) {
    gpu.copyEngine().holdNext(count);
  }

  @Override
  public void releaseCopy() {
    gpu.copyEngine().releaseOldest();
  }

  @Override
  public void releaseCopies() {
    gpu.copyEngine().releaseCopies();
  }

  @Override
  public boolean hasStreams() {
    return true;
  }

  @Override
  public Stream newStream() {
    FakeStream stream = gpu.stream(0);
    return new Stream() {
      @Override
      public void write(KVCacheTensor tensor, long offset, byte[] bytes) {
        stream.write(tensor.address() + offset, bytes);
      }

      @Override
      public Supplier<byte[]> read(KVCacheTensor tensor, long offset, int length) {
        CompletableFuture<byte[]> seen = new CompletableFuture<>();
        stream.enqueue(() -> seen.complete(gpu.read(tensor.address() + offset, length)));
        return seen::join;
      }

      @Override
      public void stall() {
        stream.hold();
      }

      @Override
      public void resume() {
        stream.release();
      }

      @Override
      public DeviceFence fence() {
        return stream.fence();
      }
    };
  }

  @Override
  public void close() {
    super.close();
    gpu.close();
    assertEquals(0, gpu.useAfterFreeCount(), "uses of freed memory");
  }
}
