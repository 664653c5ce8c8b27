package io.umbp.bench.jmh;

import io.umbp.api.BlockTransferBatch;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.State;

/**
 * Lowering of a whole-block batch of 64 layers, 2 runs a page and 64 blocks; one operation is one
 * range, so that {@code -prof gc} prints bytes a range.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class LoweringBenchmark {
  static final int LAYERS = 64;
  static final int BLOCKS = 64;
  private static final int RANGES = LAYERS * LoweringCase.RUNS * BLOCKS;

  private final LoweringCase lowering = new LoweringCase(LAYERS, BLOCKS);
  private final KVLayoutPlanner planner = lowering.planner;
  private final BlockTransferBatch batch = lowering.batch;
  private final long[] objectAddresses = lowering.objectAddresses;
  private final CopyBatch rows = new CopyBatch();

  /** Block by block, as for stores. */
  @Benchmark
  @OperationsPerInvocation(RANGES)
  public CopyBatch blockMajor() {
    rows.reset(TransferDirection.STORE, 0, BLOCKS);
    planner.lower(batch, objectAddresses, rows);
    return rows;
  }

  /** Layer by layer with a mark each, as for loads. */
  @Benchmark
  @OperationsPerInvocation(RANGES)
  public CopyBatch layerMajor() {
    rows.reset(TransferDirection.LOAD, 0, BLOCKS);
    planner.lowerLayerMajor(batch, objectAddresses, rows);
    return rows;
  }

  /** The same ranges as one object each, for comparison. */
  @Benchmark
  @OperationsPerInvocation(RANGES)
  public long rangeObjects() {
    long sum = 0;
    for (int i = 0; i < BLOCKS; i++) {
      sum += planner.rangesForBlock(batch.blockId(i), LoweringCase.GROUP).size();
    }
    return sum;
  }
}
