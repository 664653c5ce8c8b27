package io.umbp.testkit;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import java.time.Duration;
import java.util.concurrent.locks.LockSupport;

/** Steps a stepped GPU wherever a caller waits. */
final class SteppingEngine extends ForwardingEngine {
  private static final long PARK_NANOS = 50_000;

  private final FakeGpu gpu;

  SteppingEngine(FakeGpu gpu) {
    super(gpu.copyEngine());
    this.gpu = gpu;
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    return new ForwardingTicket(next.submit(batch, fence)) {
      @Override
      public boolean await(Duration timeout) {
        long start = System.nanoTime();
        do {
          if (next.poll()) {
            return true;
          }
          if (!gpu.step()) {
            LockSupport.parkNanos(PARK_NANOS);
          }
        } while (System.nanoTime() - start < timeout.toNanos());
        return next.poll();
      }
    };
  }

  @Override
  public CloseResult close(Duration bound) {
    gpu.runAll();
    return next.close(bound);
  }
}
