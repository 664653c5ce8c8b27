package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.BlockIdentityCodec;
import java.util.ArrayList;
import java.util.List;
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
import org.openjdk.jmh.infra.Blackhole;

/** Key columns and key texts for 32-byte hashes; one operation is one key. */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class KeyBenchmark {
  private static final int BLOCKS = 1_000;
  private static final int RANKS = 8;
  private static final int KEYS = BLOCKS * RANKS;

  private final BlockIdentityCodec codec =
      new BlockIdentityCodec(
          new UMBPNamespace("194ba6ca064be076ca7fed5e5a6a505e"),
          RankTopology.tensorParallel(0, RANKS));
  private BlockHashes hashes;
  private BlockKeys keys;
  private List<String> texts;

  @Setup
  public void setUp() {
    byte[] bytes = new byte[BLOCKS * 32];
    new SplittableRandom(1).nextBytes(bytes);
    hashes = BlockHashes.of(32, bytes);
    keys = codec.allRankKeys(0, hashes);
    texts = new ArrayList<>(keys);
  }

  /** Columns of all ranks, no text. */
  @Benchmark
  @OperationsPerInvocation(KEYS)
  public BlockKeys columns() {
    return codec.allRankKeys(0, hashes);
  }

  /** The text of every key. */
  @Benchmark
  @OperationsPerInvocation(KEYS)
  public void text(Blackhole sink) {
    for (int i = 0; i < KEYS; i++) {
      sink.consume(keys.get(i));
    }
  }

  /** Every text back to its parts. */
  @Benchmark
  @OperationsPerInvocation(KEYS)
  public void parse(Blackhole sink) {
    for (int i = 0; i < KEYS; i++) {
      sink.consume(BlockKey.parse(texts.get(i)));
    }
  }
}
