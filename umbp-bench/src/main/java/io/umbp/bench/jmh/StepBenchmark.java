package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.connector.ConnectorSettings;
import io.umbp.core.connector.RequestView;
import io.umbp.core.connector.SchedulerConnector;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What the scheduler's connector costs an engine in each step with 256 running requests that decode
 * a token each: stores are planned for all of them, a sixteenth has a full block, and the store
 * event of the step before ends.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(1)
public class StepBenchmark {
  private static final int REQUESTS = 256;
  private static final int BLOCK_TOKENS = 16;
  private static final int BLOCKS = 512;
  private static final StoreEventResult DONE = new StoreEventResult(1, Set.of());

  private final String[] ids = new String[REQUESTS];
  private final BlockHashes[] hashes = new BlockHashes[REQUESTS];
  private final int[] tokens = new int[REQUESTS];
  private final int[] table = IntStream.range(0, BLOCKS).toArray();
  private EmbeddedRuntime runtime;
  private SchedulerConnector scheduler;
  private long lastEvent = UMBPConnectorMetadata.NO_EVENT;

  /** Creates the benchmark's state. */
  public StepBenchmark() {}

  /** Admits all requests, each at another place of its first block. */
  @Setup
  public void admitAll() {
    RankTopology topology = RankTopology.single();
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(
            List.of(new KVRegion("layer0", 0, 64, 64, 0, BLOCK_TOKENS)), topology);
    runtime = EmbeddedRuntime.builder().capacityBytes(64L << 20).build();
    scheduler =
        new SchedulerConnector(runtime, topology, BLOCK_TOKENS, ConnectorSettings.defaults());
    scheduler.adopt(List.of(new UMBPHandshakeMetadata(new UMBPNamespace("bench"), "", layout)));
    Random random = new Random(1);
    for (int i = 0; i < REQUESTS; i++) {
      byte[] bytes = new byte[BLOCKS * 32];
      random.nextBytes(bytes);
      ids[i] = "request-" + i;
      hashes[i] = BlockHashes.of(32, bytes);
      admit(i, i % BLOCK_TOKENS);
    }
  }

  private void admit(int request, int computed) {
    int all = BLOCKS * BLOCK_TOKENS;
    if (scheduler.lookup(RequestView.of(ids[request], all, hashes[request]), all).isEmpty()) {
      throw new IllegalStateException("lookups run elsewhere");
    }
    scheduler.admit(ids[request], 0, table);
    tokens[request] = computed;
  }

  /** Closes the runtime. */
  @TearDown
  public void close() {
    scheduler.close();
    runtime.close(Duration.ofSeconds(1));
  }

  /**
   * Plans one step, and takes the report of the last.
   *
   * @return what the workers get
   */
  @Benchmark
  public UMBPConnectorMetadata decodeStep() {
    for (int i = 0; i < REQUESTS; i++) {
      if (tokens[i] == BLOCKS * BLOCK_TOKENS) {
        scheduler.finish(ids[i]);
        admit(i, 0);
      }
      scheduler.planStores(ids[i], ++tokens[i]);
    }
    UMBPConnectorMetadata step = scheduler.takeStep();
    if (lastEvent != UMBPConnectorMetadata.NO_EVENT) {
      scheduler.update(new UMBPConnectorWorkerMetadata(Map.of(), Map.of(lastEvent, DONE)));
    }
    lastEvent = step.storeEvent();
    return step;
  }
}
