package io.umbp.bench.jmh;

import com.sun.management.ThreadMXBean;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.core.runtime.HostCopyEngine;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Gathers (STORE) and scatters (LOAD) 64 MiB between engine memory and a slab, through {@link
 * HostCopyEngine} and with a bare loop over the same ranges in the same order. The blocks lie in
 * random order in engine memory and one after the other in the slab; all pages are warm.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.SampleTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 2, jvmArgsAppend = "-XX:MaxDirectMemorySize=1g")
public class CopyBenchmark {
  private static final int TOTAL_BYTES = 64 << 20;
  private static final int WARMUP_PAIRS = 100;
  private static final int PAIRS = 201;

  @Param({"4096", "65536", "1048576"})
  private int rowBytes;

  @Param({"STORE", "LOAD"})
  private TransferDirection direction;

  private final HostCopyEngine engine = new HostCopyEngine();
  private final CopyBatch batch = new CopyBatch();
  private ByteBuffer source;
  private ByteBuffer target;
  private int[] sourceOffset;
  private int[] targetOffset;

  /** Creates the benchmark's state. */
  public CopyBenchmark() {}

  /** Fills both sides and the batch. */
  @Setup
  public void lowerBatch() {
    ByteBuffer memory = filled(ByteBuffer.allocateDirect(TOTAL_BYTES));
    long base = engine.register(KVCacheTensor.host(memory).blocks(1, TOTAL_BYTES).build());
    HostSlab slab = engine.allocateSlab(TOTAL_BYTES);
    filled(slab.buffer());

    int rows = TOTAL_BYTES / rowBytes;
    int[] memoryOffset = shuffledOffsets(rows);
    int[] slabOffset = new int[rows];
    batch.reset(direction, KVCacheTensor.HOST, rows);
    for (int row = 0; row < rows; row++) {
      slabOffset[row] = row * rowBytes;
      batch.add(base + memoryOffset[row], slab.baseAddress() + slabOffset[row], rowBytes, row);
    }
    boolean store = direction == TransferDirection.STORE;
    source = store ? memory : slab.buffer();
    target = store ? slab.buffer() : memory;
    sourceOffset = store ? memoryOffset : slabOffset;
    targetOffset = store ? slabOffset : memoryOffset;
  }

  /** Gives the slab back. */
  @TearDown
  public void closeEngine() {
    engine.close(Duration.ZERO);
  }

  private int[] shuffledOffsets(int rows) {
    Random random = new Random(rows);
    int[] offsets = new int[rows];
    for (int row = 0; row < rows; row++) {
      int other = random.nextInt(row + 1);
      offsets[row] = offsets[other];
      offsets[other] = row * rowBytes;
    }
    return offsets;
  }

  private static ByteBuffer filled(ByteBuffer buffer) {
    byte[] bytes = new byte[1 << 20];
    new Random(1).nextBytes(bytes);
    for (int at = 0; at < buffer.capacity(); at += bytes.length) {
      buffer.put(at, bytes);
    }
    return buffer;
  }

  /**
   * Copies with a loop over the ranges.
   *
   * @return the target
   */
  @Benchmark
  public ByteBuffer bareLoop() {
    for (int row = 0; row < sourceOffset.length; row++) {
      target.put(targetOffset[row], source, sourceOffset[row], rowBytes);
    }
    return target;
  }

  /**
   * Copies through the engine.
   *
   * @return the final ticket
   */
  @Benchmark
  public CopyTicket engine() {
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    if (!ticket.poll() || ticket.failure(0) != null) {
      throw new IllegalStateException("the copy failed: " + ticket.failure(0));
    }
    return ticket;
  }

  /**
   * Runs both in turn, so that a noisy machine slows both alike, and prints the medians, their
   * ratio and the bytes that one submission allocates.
   *
   * @param args none
   */
  public static void main(String[] args) {
    System.out.printf(
        "%-14s %10s %10s %6s %10s%n", "rows", "bare us", "umbp us", "ratio", "B/batch");
    for (TransferDirection direction : TransferDirection.values()) {
      for (int rowBytes : new int[] {4096, 65_536, 1_048_576}) {
        CopyBenchmark benchmark = new CopyBenchmark();
        benchmark.direction = direction;
        benchmark.rowBytes = rowBytes;
        benchmark.lowerBatch();
        benchmark.compare(WARMUP_PAIRS);
        System.out.printf("%-6s %7d %s%n", direction, rowBytes, benchmark.compare(PAIRS));
        benchmark.closeEngine();
      }
    }
  }

  private String compare(int pairs) {
    ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    long[] bareNanos = new long[pairs];
    long[] engineNanos = new long[pairs];
    long allocated = 0;
    for (int i = 0; i < pairs; i++) {
      long start = System.nanoTime();
      bareLoop();
      bareNanos[i] = System.nanoTime() - start;
      long before = threads.getCurrentThreadAllocatedBytes();
      start = System.nanoTime();
      engine();
      engineNanos[i] = System.nanoTime() - start;
      allocated += threads.getCurrentThreadAllocatedBytes() - before;
    }
    Arrays.sort(bareNanos);
    Arrays.sort(engineNanos);
    double bare = bareNanos[pairs / 2] / 1e3;
    double engine = engineNanos[pairs / 2] / 1e3;
    return String.format(
        "%10.0f %10.0f %6.3f %10d", bare, engine, bare / engine, allocated / pairs);
  }
}
