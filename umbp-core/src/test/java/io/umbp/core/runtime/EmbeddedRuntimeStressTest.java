package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.pool.PoolStats;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.LongAdder;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Several threads do everything at once to one small pool: two object sizes, failing rows,
 * deadlines that pass, cancels, clears, buffers taken back. The content of a block is a function of
 * its key, so every completed load can be checked, whoever stored it.
 */
class EmbeddedRuntimeStressTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final int[] PAGE = {700, 2_500};
  private static final int THREADS = 4;
  private static final int OPERATIONS = 400;
  private static final int BLOCKS = 4;
  private static final int HASHES = 12;
  private static final Duration LONG = Duration.ofSeconds(30);
  private static final KVLayoutDescriptor LAYOUT =
      new KVLayoutDescriptor(
          List.of(
              new KVRegion("a0", 0, PAGE[0], PAGE[0], 0, 16),
              new KVRegion("a1", 0, PAGE[0], PAGE[0], PAGE[0], 16),
              new KVRegion("b", 1, PAGE[1], PAGE[1], 2L * PAGE[0], 16)),
          TOPOLOGY);

  private final LongAdder loadedKeys = new LongAdder();
  private final LongAdder publishedKeys = new LongAdder();
  private final LongAdder otherOutcomes = new LongAdder();

  /** A thread with buffers and a handle of its own, all on the same rank. */
  private final class Engine implements Callable<Void> {
    final FakeGpu gpu;
    final UMBPSchedulerHandle scheduler;
    final UMBPWorkerHandle worker;
    final SplittableRandom random;
    final long[] base = new long[3];
    final Map<String, KVCacheTensor> tensors;

    Engine(FakeGpu gpu, EmbeddedRuntime runtime, SplittableRandom random) {
      this.gpu = gpu;
      this.random = random;
      for (int layer = 0; layer < 3; layer++) {
        base[layer] = gpu.malloc(0, (long) BLOCKS * page(layer));
      }
      tensors = Map.of("a0", tensor(0), "a1", tensor(1), "b", tensor(2));
      scheduler = runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      worker = runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      worker.registerBuffers(tensors);
    }

    private static int page(int layer) {
      return PAGE[layer / 2];
    }

    private KVCacheTensor tensor(int layer) {
      return KVCacheTensor.device(base[layer], (long) BLOCKS * page(layer), 0)
          .blocks(BLOCKS, page(layer))
          .build();
    }

    @Override
    public Void call() {
      for (int i = 0; i < OPERATIONS; i++) {
        int group = random.nextInt(2);
        int[] numbers = new int[1 + random.nextInt(BLOCKS)];
        for (int k = 0; k < numbers.length; k++) {
          numbers[k] = random.nextInt(HASHES);
        }
        BlockKeys keys = keys(group, numbers);
        switch (random.nextInt(20)) {
          case 0 -> scheduler.clear();
          case 1 -> scheduler.touch(keys);
          case 2 -> assertEquals(numbers.length, scheduler.lookup(keys).length);
          case 3 -> {
            assertTrue(worker.unregisterBuffers(LONG));
            worker.registerBuffers(tensors);
          }
          case 4, 5, 6, 7, 8, 9, 10, 11 -> load(group, keys, numbers);
          default -> store(group, keys, numbers);
        }
      }
      return null;
    }

    private void store(int group, BlockKeys keys, int[] numbers) {
      for (int block = 0; block < numbers.length; block++) {
        forLayers(group, block, numbers[block], (at, bytes) -> gpu.write(at, bytes));
      }
      TransferJobState job =
          worker.store(
              BlockStoreBatch.of("r", keys, blocks(numbers.length)), DeviceFence.hostComplete());
      if (random.nextInt(8) == 0) {
        job = worker.cancel(job);
      }
      job = finish(job);
      if (random.nextInt(8) > 0) {
        publishedKeys.add(worker.publish(job));
      }
      otherOutcomes.add(job.size() - job.count(KeyOutcome.COMPLETED));
    }

    private void load(int group, BlockKeys keys, int[] numbers) {
      TransferJobState job =
          worker.load(
              BlockLoadBatch.of("r", keys, blocks(numbers.length)), DeviceFence.hostComplete());
      if (random.nextInt(8) == 0) {
        worker.cancel(job);
      }
      job = finish(job);
      for (int block = 0; block < numbers.length; block++) {
        if (job.outcome(block) == KeyOutcome.COMPLETED) {
          loadedKeys.increment();
          forLayers(
              group,
              block,
              numbers[block],
              (at, bytes) -> assertEquals(-1, gpu.mismatch(at, bytes, 0, bytes.length)));
        }
      }
    }

    /** Waits until the blocks may be reused: an overdue job is not final. */
    private TransferJobState finish(TransferJobState job) {
      TransferJobState newest = job;
      while (!newest.isFinal()) {
        newest = worker.await(newest, LONG);
      }
      return newest;
    }

    private void forLayers(int group, int block, int number, Access access) {
      for (int layer = group == 0 ? 0 : 2; layer < (group == 0 ? 2 : 3); layer++) {
        byte[] bytes = new byte[page(layer)];
        for (int offset = 0; offset < bytes.length; offset++) {
          bytes[offset] = (byte) ((67 * layer + 29 * number + 3 * offset + 11) % 251);
        }
        access.at(base[layer] + (long) block * page(layer), bytes);
      }
    }
  }

  private interface Access {
    void at(long address, byte[] bytes);
  }

  private static int[] blocks(int count) {
    int[] blocks = new int[count];
    for (int i = 0; i < count; i++) {
      blocks[i] = i;
    }
    return blocks;
  }

  private static BlockKeys keys(int group, int[] numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(BlockHash.of(new byte[] {(byte) number, 7, 7, 7, 7, 7, 7, 7}));
    }
    return BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), group, BlockHashes.of(hashes));
  }

  @ParameterizedTest(name = "seed {0}")
  @ValueSource(longs = {1, 2, 3})
  void everyCompletedLoadHasTheBytesOfItsKey(long seed) throws Exception {
    SplittableRandom random = new SplittableRandom(seed);
    FakeGpu gpu = FakeGpu.asynchronous(1);
    FakeGpuCopyEngine engine = gpu.copyEngine();
    engine.failRows(0.01, seed);
    EmbeddedRuntime runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(16_000)
            .slabBytes(5_000)
            .copyEngine(() -> engine)
            .transferTimeout(Duration.ofMillis(2))
            .build();
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    try {
      List<Engine> engines = new ArrayList<>();
      for (int i = 0; i < THREADS; i++) {
        engines.add(new Engine(gpu, runtime, random.split()));
      }
      for (Future<Void> done : threads.invokeAll(engines)) {
        done.get();
      }
    } finally {
      threads.shutdown();
    }
    assertTrue(loadedKeys.sum() > 0 && publishedKeys.sum() > 0 && otherOutcomes.sum() > 0);
    runtime.advanceUntil(() -> runtime.stats().unpublishedObjects() == 0, LONG.toNanos(), null);
    PoolStats stats = runtime.stats();
    assertEquals(0, stats.leases());
    assertEquals(0, stats.unpublishedObjects());
    assertEquals(0, stats.doubleReleases());
    assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    assertTrue(runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, LAYOUT).clear().isComplete());
    assertEquals(0, runtime.stats().usedBytes());
    assertTrue(runtime.close(LONG).isClean());
    assertEquals(0, gpu.useAfterFreeCount());
    gpu.close();
  }
}
