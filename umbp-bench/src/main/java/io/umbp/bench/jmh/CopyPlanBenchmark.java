package io.umbp.bench.jmh;

import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.cuda.CopyPlan;
import io.umbp.cuda.CudaCopySettings;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/**
 * Planning of 4096 ranges, with the rows of the kernel's table; one operation is one range, so that
 * {@code -prof gc} prints bytes a range.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class CopyPlanBenchmark {
  private static final int RANGES = 4096;
  private static final int ROW_BYTES = 24;
  private static final long DEVICE = 0x7f00_0000_0000L;
  private static final long HOST = 0x5500_0000_0000L;
  private static final long LARGEST_PITCH = Integer.MAX_VALUE;

  /** How the ranges lie. */
  public enum Shape {
    /** Blocks of 4 KiB in random order: all go to the kernel. */
    SCATTERED,
    /** 64 runs of 64 layers of 8 KiB at one stride. */
    STRIDED,
    /** 64 runs of 64 neighbours of 4 KiB. */
    ADJACENT,
    /** A random choice of the three every 16 ranges. */
    MIXED
  }

  /** How the ranges lie. */
  @Param public Shape shape;

  private final CopyBatch batch = new CopyBatch();
  private final int[] deviceRegion = new int[RANGES];
  private final int[] hostRegion = new int[RANGES];
  private final CopyPlan plan = new CopyPlan();
  private final CudaCopySettings settings = CudaCopySettings.defaults();
  private final LongBuffer table =
      ByteBuffer.allocateDirect(RANGES * ROW_BYTES).order(ByteOrder.nativeOrder()).asLongBuffer();

  /** Fills the batch. */
  @Setup
  public void fill() {
    SplittableRandom random = new SplittableRandom(1);
    int run = shape == Shape.MIXED ? 16 : 64;
    for (int range = 0; range < RANGES; range += run) {
      Shape of = shape == Shape.MIXED ? Shape.values()[random.nextInt(3)] : shape;
      long device = DEVICE + random.nextInt(100_000) * 65_536L;
      long host = HOST + range * 65_536L;
      for (long i = 0; i < run; i++) {
        switch (of) {
          case STRIDED -> batch.add(device + i * 1_000_000_000, host + i * 8192, 8192, 0);
          case ADJACENT -> batch.add(device + i * 4096, host + i * 4096, 4096, 0);
          default ->
              batch.add(DEVICE + random.nextInt(1_000_000) * 8192L, host + i * 4096, 4096, 0);
        }
      }
    }
  }

  /** Plans, and writes the table. */
  @Benchmark
  @OperationsPerInvocation(RANGES)
  public LongBuffer planAndTable() {
    plan.plan(batch, 0, RANGES, deviceRegion, hostRegion, settings, LARGEST_PITCH);
    int row = 0;
    for (int piece = 0; piece < plan.count(); piece++) {
      if (plan.path(piece) == CopyPlan.Path.KERNEL) {
        plan.putRow(piece, TransferDirection.STORE, table, row++);
      }
    }
    return table;
  }
}
