package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPShardLowering;
import io.umbp.core.layout.TPShardPlanner;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/**
 * Lowering of a load of 64 blocks of 32 layers with 8 KV heads, stored with TP 4 and loaded with TP
 * 2; one operation is one range.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class ShardedLoweringBenchmark {
  private static final int LAYERS = 32;
  private static final int BLOCKS = 64;
  private static final int TOKENS = 16;
  private static final int PRODUCERS = 2;
  private static final int POOL_BLOCKS = 10_000;
  private static final int HEAD_MAJOR_RANGES = BLOCKS * LAYERS * 2 * PRODUCERS;
  private static final int TOKEN_MAJOR_RANGES = HEAD_MAJOR_RANGES * TOKENS;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("bench");

  private final CopyBatch rows = new CopyBatch();
  private final long[] objectAddresses = new long[BLOCKS * PRODUCERS];
  private Cache headMajor;
  private Cache tokenMajor;
  private BlockTransferBatch batch;

  /** One page order: what stored it, what loads it, and how. */
  private record Cache(
      KVLayoutDescriptor producer, KVLayoutPlanner planner, TPShardLowering lowering) {

    static Cache of(KVCacheLayout order) {
      KVCacheSpec spec =
          new KVCacheSpec.Attention(
              "FullAttentionSpec", TOKENS, ElementType.F16, 8, 128, 128, TPSharding.SHARDED, 0);
      List<String> names = IntStream.range(0, LAYERS).mapToObj(i -> "layer" + i).toList();
      KVCacheConfig config =
          new KVCacheConfig(
              List.of(
                  new KVCacheConfig.Group(
                      names.stream().map(name -> new KVCacheConfig.Layer(name, spec)).toList(),
                      KVCacheConfig.Transfer.ENABLED)),
              List.of(KVCacheConfig.Tensor.packed(order, KVSplit.BLOCKS, POOL_BLOCKS, names)));
      RankTopology rank = RankTopology.tensorParallel(1, 2);
      Map<String, LayerPlacement> placements = new HashMap<>();
      for (TensorPlan tensor : KVLayoutPlanner.tensors(config, rank)) {
        tensor
            .onDevice(0x7000_0000_0000L, 0)
            .forEach((name, t) -> placements.put(name, LayerPlacement.of(t.address(), t)));
      }
      KVLayoutPlanner planner =
          KVLayoutPlanner.place(KVLayoutPlanner.describe(config, rank), placements);
      KVLayoutDescriptor producer =
          KVLayoutPlanner.describe(config, RankTopology.tensorParallel(0, 4));
      ShardedSource source = TPShardPlanner.plan(NAMESPACE, producer, planner.layout());
      return new Cache(producer, planner, TPShardLowering.of(planner, source));
    }
  }

  @Setup
  public void setUp() {
    headMajor = Cache.of(KVCacheLayout.LBHNC);
    tokenMajor = Cache.of(KVCacheLayout.LBNHC);
    SplittableRandom random = new SplittableRandom(1);
    byte[] hashes = new byte[BLOCKS * 32];
    random.nextBytes(hashes);
    BlockKeys keys =
        BlockKeys.of(
            NAMESPACE,
            headMajor.planner.layout().topology().localNamespace(),
            0,
            BlockHashes.of(32, hashes));
    batch = BlockLoadBatch.of("r", keys, random.ints(BLOCKS, 0, POOL_BLOCKS).toArray());
    for (int i = 0; i < objectAddresses.length; i++) {
      objectAddresses[i] = 0x1_0000_0000L + i * headMajor.producer.objectBytes(0);
    }
    requireRanges(HEAD_MAJOR_RANGES, headMajor());
    requireRanges(TOKEN_MAJOR_RANGES, tokenMajor());
  }

  private static void requireRanges(int expected, CopyBatch lowered) {
    if (lowered.count() != expected) {
      throw new IllegalStateException(lowered.count() + " ranges instead of " + expected);
    }
  }

  private CopyBatch lower(Cache cache) {
    rows.reset(TransferDirection.LOAD, 0, BLOCKS);
    cache.lowering.lowerLayerMajor(batch, objectAddresses, rows);
    return rows;
  }

  /** Pages by head: a range for keys or values and producer. */
  @Benchmark
  @OperationsPerInvocation(HEAD_MAJOR_RANGES)
  public CopyBatch headMajor() {
    return lower(headMajor);
  }

  /** Pages by token: a range for keys or values, producer and token. */
  @Benchmark
  @OperationsPerInvocation(TOKEN_MAJOR_RANGES)
  public CopyBatch tokenMajor() {
    return lower(tokenMajor);
  }

  /** Planning a new source and preparing its lowering, for one range of a block. */
  @Benchmark
  @OperationsPerInvocation(TOKEN_MAJOR_RANGES / BLOCKS)
  public TPShardLowering newSource() {
    return TPShardLowering.of(
        tokenMajor.planner,
        TPShardPlanner.plan(NAMESPACE, tokenMajor.producer, tokenMajor.planner.layout()));
  }
}
