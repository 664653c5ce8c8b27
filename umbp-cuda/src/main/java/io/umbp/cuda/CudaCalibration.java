package io.umbp.cuda;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import jcuda.driver.JCudaDriver;

/**
 * How fast ranges of several sizes move on a card by each way of copying them, beside one large
 * copy of as many bytes; and the settings that follow. Immutable.
 *
 * <p>Ranges lie apart on the device and side by side on the host, as the pages of a block do.
 *
 * @param largeLoad one large copy to the device, in bytes a second
 * @param largeStore one large copy to the host, in bytes a second
 * @param measurements sizes ascending; in each the ways in their order, loads before stores
 * @param settings the standard settings with the thresholds that this card asks for
 */
public record CudaCalibration(
    double largeLoad,
    double largeStore,
    List<Measurement> measurements,
    CudaCopySettings settings) {
  private static final long[] RANGE_BYTES = {
    4 << 10, 16 << 10, 28 << 10, 64 << 10, 256 << 10, 1 << 20
  };
  private static final long STAGING_BYTES = 64 << 20;

  /** What one way has to be better by to be taken: less is noise. */
  private static final double MARGIN = 1.05;

  /** A way to copy ranges. */
  public enum Way {
    /** One copy a range. */
    SINGLE,
    /** Strided copies. */
    STRIDED,
    /** The kernel, on mapped host memory. */
    KERNEL,
    /** The kernel, on a staging buffer. */
    STAGED
  }

  /**
   * The speed of one way.
   *
   * @param rangeBytes length of a range in bytes
   * @param direction to or from the device
   * @param way how it was copied
   * @param bytesPerSecond median of the rounds
   */
  public record Measurement(
      long rangeBytes, TransferDirection direction, Way way, double bytesPerSecond) {}

  /**
   * Measures a card. Takes twice the bytes of device memory and as many of pinned memory meanwhile.
   *
   * @param ordinal the device
   * @param bytes what each round moves, 1 MiB to 1 GiB
   * @param rounds measured rounds of each case, at least 1; one more warms up
   * @return the figures and the settings that follow
   * @throws UMBPException UNSUPPORTED as {@link CudaCopyEngine.Builder#open}, OUT_OF_MEMORY,
   *     DRIVER_FAILED, COPY_FAILED
   */
  public static CudaCalibration measure(int ordinal, long bytes, int rounds) {
    if (bytes < RANGE_BYTES[RANGE_BYTES.length - 1] || bytes > 1L << 30 || rounds < 1) {
      throw UMBPException.invalid(
          "%d bytes in %d rounds; allowed are 1 MiB to 1 GiB and at least 1 round", bytes, rounds);
    }
    List<Measurement> measurements = new ArrayList<>();
    double largeLoad = 0;
    double largeStore = 0;
    for (Way way : Way.values()) {
      try (Bench bench = new Bench(ordinal, bytes, rounds, way)) {
        if (way == Way.SINGLE) {
          largeLoad = bench.bytesPerSecond(TransferDirection.LOAD, bytes);
          largeStore = bench.bytesPerSecond(TransferDirection.STORE, bytes);
        }
        for (long range : RANGE_BYTES) {
          for (TransferDirection direction : TransferDirection.values()) {
            measurements.add(
                new Measurement(range, direction, way, bench.bytesPerSecond(direction, range)));
          }
        }
      }
    }
    measurements.sort((a, b) -> Long.compare(a.rangeBytes(), b.rangeBytes()));
    return new CudaCalibration(
        largeLoad, largeStore, List.copyOf(measurements), choose(measurements));
  }

  /** The settings that make each size go the way that was the fastest. */
  static CudaCopySettings choose(List<Measurement> measurements) {
    boolean isStaged = false;
    long kernelBelow = 0;
    long stridedFrom = 2 * RANGE_BYTES[RANGE_BYTES.length - 1];
    for (int i = RANGE_BYTES.length - 1; i >= 0; i--) {
      long range = RANGE_BYTES[i];
      double mapped = seconds(measurements, range, Way.KERNEL);
      double staged = seconds(measurements, range, Way.STAGED);
      double kernel = Math.min(mapped, staged);
      if (kernelBelow == 0 && kernel * MARGIN < seconds(measurements, range, Way.SINGLE)) {
        // Between this size and the next one nothing is known: the smaller step is taken.
        kernelBelow = range + 1;
      }
      if (range < kernelBelow) {
        isStaged |= staged * MARGIN < mapped;
      }
      if (seconds(measurements, range, Way.STRIDED) <= kernel) {
        stridedFrom = range;
      }
    }
    CudaCopySettings.Builder chosen =
        CudaCopySettings.builder().kernelBelowBytes(kernelBelow).stridedMinBytes(stridedFrom);
    return chosen.stagingBytes(isStaged ? STAGING_BYTES : 0).build();
  }

  /** The time for a byte to the device and back. */
  private static double seconds(List<Measurement> measurements, long range, Way way) {
    return measurements.stream()
        .filter(each -> each.rangeBytes() == range && each.way() == way)
        .mapToDouble(each -> 1 / each.bytesPerSecond())
        .sum();
  }

  /** Device memory, a slab, and an engine that copies all ranges one way. */
  private static final class Bench implements AutoCloseable {
    private final int ordinal;
    private final long bytes;
    private final int rounds;
    private final Way way;
    private final CudaCopyEngine engine;
    private final CudaContext context;
    private final Handles.Address memory = new Handles.Address();
    private final HostSlab slab;
    private final CopyBatch batch = new CopyBatch();

    Bench(int ordinal, long bytes, int rounds, Way way) {
      this.ordinal = ordinal;
      this.bytes = bytes;
      this.rounds = rounds;
      this.way = way;
      engine = CudaCopyEngine.builder().device(ordinal).settings(settings(way)).open();
      context = CudaContext.primary(ordinal);
      try {
        allocate();
        engine.register(
            KVCacheTensor.device(memory.value(), 2 * bytes, ordinal).blocks(1, 2 * bytes).build());
        slab = engine.allocateSlab(bytes);
      } catch (RuntimeException | Error e) {
        close();
        throw e;
      }
    }

    private static CudaCopySettings settings(Way way) {
      boolean isKernel = way == Way.KERNEL || way == Way.STAGED;
      return CudaCopySettings.builder()
          .kernelBelowBytes(isKernel ? STAGING_BYTES : 0)
          .kernelMinRanges(1)
          .stridedMinRanges(way == Way.STRIDED ? 2 : Integer.MAX_VALUE)
          .stridedMinBytes(0)
          .stagingBytes(way == Way.STAGED ? STAGING_BYTES : 0)
          .build();
    }

    private void allocate() {
      int[] mode = context.enter();
      try {
        Driver.check(
            "cuMemAlloc of " + 2 * bytes + " bytes",
            () -> JCudaDriver.cuMemAlloc(memory, 2 * bytes));
      } finally {
        context.exit(mode);
      }
    }

    double bytesPerSecond(TransferDirection direction, long range) {
      fill(direction, range);
      long[] nanos = new long[rounds];
      run();
      for (int round = 0; round < rounds; round++) {
        nanos[round] = run();
      }
      Arrays.sort(nanos);
      long moved = bytes / range * range;
      return moved * 1e9 / Math.max(1, nanos[rounds / 2]);
    }

    /** Lays ranges in every other place of the device; in order only where order is the point. */
    private void fill(TransferDirection direction, long range) {
      int ranges = (int) (bytes / range);
      int[] place = new int[ranges];
      Random random = new Random(1);
      for (int i = 0; i < ranges; i++) {
        int other = way == Way.STRIDED ? i : random.nextInt(i + 1);
        place[i] = place[other];
        place[other] = i;
      }
      batch.reset(direction, ordinal, 1);
      for (int i = 0; i < ranges; i++) {
        batch.add(memory.value() + 2 * range * place[i], slab.baseAddress() + range * i, range, 0);
      }
    }

    private long run() {
      long start = System.nanoTime();
      CopyTicket ticket = engine.submit(batch, DeviceFence.hostComplete());
      while (!ticket.poll()) {
        Thread.onSpinWait();
      }
      long nanos = System.nanoTime() - start;
      String failure = ticket.failure(0);
      if (failure != null) {
        throw new UMBPException(UMBPException.Reason.COPY_FAILED, failure);
      }
      return nanos;
    }

    @Override
    public void close() {
      engine.close(Duration.ofSeconds(10));
      int[] mode = context.enter();
      try {
        if (memory.value() != 0) {
          Driver.code(() -> JCudaDriver.cuMemFree(memory));
        }
      } finally {
        context.exit(mode);
        context.release();
      }
    }
  }
}
