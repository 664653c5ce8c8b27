package io.umbp.cuda;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.FakeCudaDriver;
import io.umbp.testkit.KVCopyEngineContract;
import java.time.Duration;
import java.util.function.Supplier;
import jcuda.driver.JCudaDriver;

/** Runs the contract over the real JCuda on the fake driver. */
final class CudaFixture implements KVCopyEngineContract.Fixture {
  private static final int INVALID_VALUE = 1;

  private final CudaRig rig = new CudaRig(2);
  private final int ordinal = 1;
  private final Failing engine;

  CudaFixture(Supplier<CudaCopyEngine> opener) {
    engine = new Failing(opener.get());
  }

  /** Makes the driver refuse the rows of one key of the next batch. */
  private final class Failing implements KVCopyEngine {
    private final CudaCopyEngine cuda;
    private int failing = -1;

    Failing(CudaCopyEngine cuda) {
      this.cuda = cuda;
    }

    @Override
    public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
      for (int row = 0; row < batch.count() && failing >= 0; row++) {
        if (batch.key()[row] == failing) {
          rig.driver.failAddress(batch.device()[row], INVALID_VALUE, Integer.MAX_VALUE);
        }
      }
      failing = -1;
      try {
        return cuda.submit(batch, fence);
      } finally {
        rig.driver.clearFaults();
      }
    }

    @Override
    public long register(KVCacheTensor tensor) {
      return cuda.register(tensor);
    }

    @Override
    public void unregister(KVCacheTensor tensor) {
      cuda.unregister(tensor);
    }

    @Override
    public HostSlab allocateSlab(long sizeBytes) {
      return cuda.allocateSlab(sizeBytes);
    }

    @Override
    public void releaseSlab(HostSlab slab) {
      cuda.releaseSlab(slab);
    }

    @Override
    public CloseResult close(Duration bound) {
      return cuda.close(bound);
    }
  }

  @Override
  public KVCopyEngine engine() {
    return engine;
  }

  @Override
  public KVCacheTensor allocate(int sizeBytes) {
    return rig.tensor(ordinal, sizeBytes);
  }

  @Override
  public void write(KVCacheTensor memory, int offset, byte[] bytes) {
    rig.driver.poke(memory.address() + offset, bytes);
  }

  @Override
  public byte[] read(KVCacheTensor memory, int offset, int length) {
    return rig.driver.peek(memory.address() + offset, length);
  }

  @Override
  public DeviceFence fence() {
    return rig.fence(ordinal);
  }

  @Override
  public boolean copiesInline() {
    return false;
  }

  @Override
  public void holdCopies() {
    rig.driver.holdCopies();
  }

  @Override
  public void releaseCopies() {
    rig.driver.releaseCopies();
  }

  @Override
  public boolean failNextBatch(int key) {
    engine.failing = key;
    return true;
  }

  @Override
  public KVCopyEngineContract.PendingWork pendingWrite(
      KVCacheTensor memory, int offset, byte[] bytes) {
    rig.driver.holdStream(rig.streamHandle(ordinal));
    rig.driver.enqueueWrite(rig.streamHandle(ordinal), memory.address() + offset, bytes);
    return new Pending(
        () -> {
          rig.on(ordinal, () -> JCudaDriver.cuStreamSynchronize(rig.stream(ordinal)));
          return bytes;
        });
  }

  @Override
  public KVCopyEngineContract.PendingWork pendingRead(
      KVCacheTensor memory, int offset, int length) {
    rig.driver.holdStream(rig.streamHandle(ordinal));
    FakeCudaDriver.PendingRead read =
        rig.driver.enqueueRead(rig.streamHandle(ordinal), memory.address() + offset, length);
    return new Pending(read::await);
  }

  private final class Pending implements KVCopyEngineContract.PendingWork {
    private final Supplier<byte[]> result;

    Pending(Supplier<byte[]> result) {
      this.result = result;
    }

    @Override
    public DeviceFence fence() {
      return rig.fence(ordinal);
    }

    @Override
    public void start() {
      rig.driver.releaseStream(rig.streamHandle(ordinal));
    }

    @Override
    public byte[] await() {
      return result.get();
    }
  }

  /** Closes everything; what a test of a bounded close left behind must have been freed by then. */
  @Override
  public void close() {
    engine.close(Duration.ofSeconds(20));
    rig.assertEnginesLeftNothing();
    rig.close();
    rig.assertNothingLeft();
  }
}
