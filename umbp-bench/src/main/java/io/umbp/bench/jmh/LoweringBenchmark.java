package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/** Lowering of a whole-block batch; one operation is one range. */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class LoweringBenchmark {
  private static final int LAYERS = 64;
  private static final int RUNS = 2;
  private static final int BLOCKS = 64;
  private static final int RANGES = LAYERS * RUNS * BLOCKS;
  private static final int POOL_BLOCKS = 10_000;
  private static final long RUN_BYTES = 16_384;

  private final CopyBatch rows = new CopyBatch();
  private final long[] objectAddresses = new long[BLOCKS];
  private KVLayoutPlanner planner;
  private BlockTransferBatch batch;

  @Setup
  public void setUp() {
    long planeBytes = POOL_BLOCKS * RUN_BYTES;
    List<PageSegment> keysThenValues =
        List.of(new PageSegment(0, RUN_BYTES), new PageSegment(planeBytes, RUN_BYTES));
    List<KVRegion> regions = new ArrayList<>();
    Map<String, LayerPlacement> placements = new HashMap<>();
    for (int layer = 0; layer < LAYERS; layer++) {
      String name = "layer" + layer;
      long pageBytes = RUNS * RUN_BYTES;
      regions.add(
          new KVRegion(name, 0, RUN_BYTES, pageBytes, layer * pageBytes, 16, keysThenValues));
      long base = 0x7000_0000_0000L + planeBytes * RUNS * layer;
      placements.put(name, new LayerPlacement(base, RUN_BYTES, POOL_BLOCKS));
    }
    RankTopology topology = RankTopology.single();
    planner = KVLayoutPlanner.place(new KVLayoutDescriptor(regions, topology), placements);

    SplittableRandom random = new SplittableRandom(1);
    byte[] hashes = new byte[BLOCKS * 32];
    random.nextBytes(hashes);
    BlockKeys keys =
        BlockKeys.of(
            new UMBPNamespace("bench"), topology.localNamespace(), 0, BlockHashes.of(32, hashes));
    int[] blockIds = random.ints(BLOCKS, 0, POOL_BLOCKS).toArray();
    batch = BlockStoreBatch.of("r", keys, blockIds);
    for (int i = 0; i < BLOCKS; i++) {
      objectAddresses[i] = 0x1_0000_0000L + i * planner.objectBytes(0);
    }
  }

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
      sum += planner.rangesForBlock(batch.blockId(i), 0).size();
    }
    return sum;
  }
}
