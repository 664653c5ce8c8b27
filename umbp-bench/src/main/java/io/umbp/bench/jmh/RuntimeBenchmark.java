package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostKVPages;
import java.time.Duration;
import java.util.List;
import java.util.Random;
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
 * The embedded runtime's own cost, without bytes to speak of: looking up 10,000 keys of which half
 * are there, and one job from submission to its last outcome, polled on the caller's thread.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(1)
public class RuntimeBenchmark {
  private static final int KEYS = 10_000;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("bench");
  private static final long BLOCK_BYTES = 64;

  private EmbeddedRuntime runtime;
  private UMBPSchedulerHandle scheduler;
  private UMBPWorkerHandle worker;
  private BlockKeys keys;
  private BlockLoadBatch oneLoad;

  /** Creates the benchmark's state. */
  public RuntimeBenchmark() {}

  /** Stores half of the keys. */
  @Setup
  public void storeHalf() {
    RankTopology topology = RankTopology.single();
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(
            List.of(new KVRegion("layer0", 0, BLOCK_BYTES, BLOCK_BYTES, 0, 16)), topology);
    byte[] bytes = new byte[KEYS * 32];
    new Random(1).nextBytes(bytes);
    BlockHashes hashes = BlockHashes.of(32, bytes);
    keys = BlockKeys.of(NAMESPACE, topology.localNamespace(), 0, hashes);
    BlockKeys half =
        BlockKeys.of(NAMESPACE, topology.localNamespace(), 0, hashes.slice(0, KEYS / 2));
    runtime = EmbeddedRuntime.builder().capacityBytes(64L << 20).build();
    scheduler = runtime.createSchedulerHandle(NAMESPACE, topology, layout);
    worker = runtime.createWorkerHandle(NAMESPACE, topology, layout);
    worker.registerBuffers(HostKVPages.create(layout, KEYS).tensors());
    TransferJobState stored =
        worker.store(
            BlockStoreBatch.of("r", half, IntStream.range(0, KEYS / 2).toArray()),
            DeviceFence.none());
    if (worker.publish(stored) != KEYS / 2) {
      throw new IllegalStateException("not stored: " + stored);
    }
    oneLoad =
        BlockLoadBatch.of(
            "r", BlockKeys.of(NAMESPACE, topology.localNamespace(), 0, hashes.slice(7, 8)), 3);
  }

  /** Closes the runtime. */
  @TearDown
  public void close() {
    runtime.close(Duration.ofSeconds(1));
  }

  /**
   * Looks up all keys at once.
   *
   * @return the answers
   */
  @Benchmark
  public boolean[] lookup10k() {
    return scheduler.lookup(keys);
  }

  /**
   * Loads one block of 64 bytes and polls until it is there.
   *
   * @return the final snapshot
   */
  @Benchmark
  public TransferJobState submitToDone() {
    TransferJobState job = worker.load(oneLoad, DeviceFence.none());
    while (!job.isFinal()) {
      job = worker.poll(job);
    }
    return job;
  }
}
