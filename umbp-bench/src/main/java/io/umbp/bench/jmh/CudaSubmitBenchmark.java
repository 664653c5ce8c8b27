package io.umbp.bench.jmh;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.cuda.Cuda;
import io.umbp.cuda.CudaCopyEngine;
import io.umbp.cuda.CudaCopySettings;
import io.umbp.testkit.FakeCudaDriver;
import java.time.Duration;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.JCudaDriver;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;

/**
 * Submit to final of a store of 2,048 ranges of 4 KiB, by the real JNI on a driver that does
 * nothing: what is left is the processor's work. One operation is one range, so that {@code -prof
 * gc} prints bytes a range.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class CudaSubmitBenchmark {
  private static final int RANGES = 2_048;
  private static final int RANGE_BYTES = 4_096;

  /** The way that all ranges go. */
  public enum Way {
    /** Neighbours on both sides: one copy for 64 ranges. */
    MERGED,
    /** One strided copy for 64 ranges. */
    STRIDED,
    /** One launch. */
    KERNEL,
    /** One launch and a copy for 64 ranges. */
    STAGED,
    /** One copy a range. */
    SINGLE
  }

  /** The way that all ranges go. */
  @Param public Way way;

  private final CopyBatch batch = new CopyBatch();
  private CudaCopyEngine engine;
  private CUdeviceptr memory;

  /** Device memory of a known address. */
  private static final class Memory extends CUdeviceptr {
    long address() {
      return getNativePointer() + getByteOffset();
    }
  }

  /** Opens the engine and lays the ranges out. */
  @Setup
  public void open() {
    FakeCudaDriver driver = FakeCudaDriver.install();
    if (!Cuda.availability().isAvailable()) {
      throw new IllegalStateException(Cuda.availability().detail());
    }
    CUcontext context = new CUcontext();
    JCudaDriver.cuDevicePrimaryCtxRetain(context, new CUdevice());
    JCudaDriver.cuCtxSetCurrent(context);
    Memory allocated = new Memory();
    int bytes = 2 * RANGES * RANGE_BYTES;
    JCudaDriver.cuMemAlloc(allocated, bytes);
    memory = allocated;
    boolean isKernel = way == Way.KERNEL || way == Way.STAGED;
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(
                CudaCopySettings.builder()
                    .kernelBelowBytes(isKernel ? 28 << 10 : 0)
                    .stagingBytes(way == Way.STAGED ? 64 << 20 : 0)
                    .stridedMinRanges(way == Way.STRIDED ? 4 : Integer.MAX_VALUE)
                    .build())
            .open();
    engine.register(KVCacheTensor.device(allocated.address(), bytes, 0).blocks(1, bytes).build());
    HostSlab slab = engine.allocateSlab(bytes);
    fill(allocated.address(), slab.baseAddress());
    driver.noop(true);
  }

  private void fill(long device, long host) {
    Random random = new Random(1);
    batch.reset(TransferDirection.STORE, 0, 1);
    for (int i = 0; i < RANGES; i++) {
      long run = i / 64 * 128L;
      long place =
          switch (way) {
            case MERGED -> run + i % 64;
            case STRIDED -> run + i % 64 * 2L;
            default -> i * 2L + random.nextInt(2);
          };
      // Runs of the host end every 64 ranges, but where each range has to stand alone.
      long gap = way == Way.SINGLE || way == Way.KERNEL ? i : i / 64;
      batch.add(
          device + place * RANGE_BYTES, host + i * (long) RANGE_BYTES + gap * 16, RANGE_BYTES, 0);
    }
  }

  /** One batch from submit to final. */
  @Benchmark
  @OperationsPerInvocation(RANGES)
  public boolean submitAndPoll() {
    CopyTicket ticket = engine.submit(batch, DeviceFence.hostComplete());
    while (!ticket.poll()) {
      Thread.onSpinWait();
    }
    return ticket.failure(0) == null;
  }

  /** Frees everything. */
  @TearDown
  public void close() {
    FakeCudaDriver.install().noop(false);
    engine.close(Duration.ofSeconds(10));
    JCudaDriver.cuMemFree(memory);
  }
}
