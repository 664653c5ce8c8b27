package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
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
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.core.pool.PoolStats;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Threads that share one worker handle and its buffers while one of them takes the buffers back and
 * another closes the runtime in the middle of it all: what each call promises must hold for the
 * calls that come through, and nothing may be left behind by those that don't.
 */
@Timeout(60)
class SharedHandleStressTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final int[] PAGE = {704, 2_560};
  private static final int THREADS = 4;
  private static final int OPERATIONS = 500;
  private static final int BLOCKS_PER_THREAD = 4;
  private static final int BLOCKS = THREADS * BLOCKS_PER_THREAD;
  private static final int HASHES = 12;
  private static final Duration LONG = Duration.ofSeconds(30);
  private static final KVLayoutDescriptor LAYOUT =
      new KVLayoutDescriptor(
          List.of(
              new KVRegion("a", 0, PAGE[0], PAGE[0], 0, 16),
              new KVRegion("b", 1, PAGE[1], PAGE[1], PAGE[0], 16)),
          TOPOLOGY);

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final LongAdder loadedKeys = new LongAdder();
  private final LongAdder refusedCalls = new LongAdder();
  private final AtomicBoolean isClosing = new AtomicBoolean();

  /** The engine's memory on a device or on the host. */
  private interface Memory {
    Map<String, KVCacheTensor> tensors();

    void write(int group, int block, byte[] bytes);

    byte[] read(int group, int block);
  }

  private final class DeviceMemory implements Memory {
    private final long[] base = {
      gpu.malloc(0, (long) BLOCKS * PAGE[0]), gpu.malloc(0, (long) BLOCKS * PAGE[1])
    };

    @Override
    public Map<String, KVCacheTensor> tensors() {
      Map<String, KVCacheTensor> tensors = new HashMap<>();
      for (int group = 0; group < 2; group++) {
        tensors.put(
            group == 0 ? "a" : "b",
            KVCacheTensor.device(base[group], (long) BLOCKS * PAGE[group], 0)
                .blocks(BLOCKS, PAGE[group])
                .build());
      }
      return tensors;
    }

    @Override
    public void write(int group, int block, byte[] bytes) {
      gpu.write(base[group] + (long) block * PAGE[group], bytes);
    }

    @Override
    public byte[] read(int group, int block) {
      return gpu.read(base[group] + (long) block * PAGE[group], PAGE[group]);
    }
  }

  private static final class HostMemory implements Memory {
    private final HostKVPages pages = HostKVPages.create(LAYOUT, BLOCKS);

    @Override
    public Map<String, KVCacheTensor> tensors() {
      return pages.tensors();
    }

    private HostKVPages.Layer layer(int group) {
      return pages.layer(group == 0 ? "a" : "b");
    }

    @Override
    public void write(int group, int block, byte[] bytes) {
      layer(group).put(block, 0, bytes, 0, bytes.length);
    }

    @Override
    public byte[] read(int group, int block) {
      byte[] bytes = new byte[PAGE[group]];
      layer(group).take(block, 0, bytes, 0, bytes.length);
      return bytes;
    }
  }

  /** One thread's blocks, at handles that all threads share. */
  private final class Work implements Callable<Void> {
    final int thread;
    final int firstBlock;
    final EmbeddedRuntime runtime;
    final UMBPWorkerHandle worker;
    final UMBPSchedulerHandle scheduler;
    final Memory memory;
    final SplittableRandom random;
    final int closeAt;

    Work(
        int thread,
        EmbeddedRuntime runtime,
        UMBPWorkerHandle worker,
        UMBPSchedulerHandle scheduler,
        Memory memory,
        SplittableRandom random) {
      this.thread = thread;
      this.firstBlock = thread * BLOCKS_PER_THREAD;
      this.runtime = runtime;
      this.worker = worker;
      this.scheduler = scheduler;
      this.memory = memory;
      this.random = random;
      this.closeAt = OPERATIONS / 2 + random.nextInt(OPERATIONS / 2);
    }

    @Override
    public Void call() {
      for (int i = 0; i < OPERATIONS; i++) {
        try {
          if (thread == 0 && i == closeAt) {
            isClosing.set(true);
            assertTrue(runtime.close(LONG).isClean());
          }
          operate();
        } catch (UMBPException e) {
          boolean isExpected =
              e.reason() == Reason.NOT_REGISTERED
                  || (e.reason() == Reason.CLOSED && isClosing.get());
          if (!isExpected) {
            throw e;
          }
          refusedCalls.increment();
        }
      }
      return null;
    }

    private void operate() {
      int group = random.nextInt(2);
      int[] numbers = new int[1 + random.nextInt(BLOCKS_PER_THREAD)];
      for (int k = 0; k < numbers.length; k++) {
        numbers[k] = random.nextInt(HASHES);
      }
      BlockKeys keys = keys(group, numbers);
      switch (random.nextInt(24)) {
        case 0 -> scheduler.clear();
        case 1 -> scheduler.touch(keys);
        case 2 -> assertEquals(numbers.length, scheduler.lookup(keys).length);
        case 3 -> reregister();
        case 4, 5, 6, 7, 8, 9, 10, 11, 12 -> load(group, keys, numbers);
        default -> store(group, keys, numbers);
      }
    }

    private void reregister() {
      assertTrue(worker.unregisterBuffers(LONG));
      try {
        worker.registerBuffers(memory.tensors());
      } catch (UMBPException e) {
        // Another thread was faster.
        if (e.reason() != Reason.INVALID_ARGUMENT) {
          throw e;
        }
      }
    }

    private void store(int group, BlockKeys keys, int[] numbers) {
      for (int i = 0; i < numbers.length; i++) {
        memory.write(group, firstBlock + i, content(group, numbers[i]));
      }
      TransferJobState job =
          worker.store(
              BlockStoreBatch.of("r", keys, blocks(numbers.length)), DeviceFence.hostComplete());
      if (random.nextInt(8) == 0) {
        job = worker.cancel(job);
      }
      job = finish(job);
      for (int i = 0; i < numbers.length; i++) {
        memory.write(group, firstBlock + i, content(group, HASHES + i));
      }
      if (random.nextInt(8) > 0) {
        worker.publish(job);
      }
    }

    private void load(int group, BlockKeys keys, int[] numbers) {
      TransferJobState job =
          worker.load(
              BlockLoadBatch.of("r", keys, blocks(numbers.length)), DeviceFence.hostComplete());
      if (random.nextInt(8) == 0) {
        worker.cancel(job);
      }
      job = finish(job);
      for (int i = 0; i < numbers.length; i++) {
        if (job.outcome(i) == KeyOutcome.COMPLETED) {
          loadedKeys.increment();
          assertArrayEquals(content(group, numbers[i]), memory.read(group, firstBlock + i));
        }
      }
    }

    /** Waits until the blocks may be reused; everybody's job must end, whoever closes. */
    private TransferJobState finish(TransferJobState job) {
      TransferJobState newest = job;
      while (!newest.isFinal()) {
        newest = worker.await(newest, LONG);
      }
      return newest;
    }

    private int[] blocks(int count) {
      int[] blocks = new int[count];
      for (int i = 0; i < count; i++) {
        blocks[i] = firstBlock + i;
      }
      return blocks;
    }
  }

  private static byte[] content(int group, int number) {
    byte[] bytes = new byte[PAGE[group]];
    for (int offset = 0; offset < bytes.length; offset++) {
      bytes[offset] = (byte) ((67 * group + 29 * number + 3 * offset + 11) % 251);
    }
    return bytes;
  }

  private static BlockKeys keys(int group, int[] numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(BlockHash.of(new byte[] {(byte) number, 7, 7, 7, 7, 7, 7, 7}));
    }
    return BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), group, BlockHashes.of(hashes));
  }

  @ParameterizedTest(name = "{0}, executor of {1} threads, seed {2}")
  @CsvSource({"DEVICE, 0, 1", "DEVICE, 1, 2", "HOST, 0, 3", "HOST, 1, 4", "HOST, 2, 5"})
  void whatComesThroughIsWholeAndTheRestLeavesNothing(String place, int executorThreads, long seed)
      throws Exception {
    ExecutorService executor =
        executorThreads == 0 ? null : Executors.newFixedThreadPool(executorThreads);
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    try {
      SplittableRandom random = new SplittableRandom(seed);
      Memory memory = place.equals("HOST") ? new HostMemory() : new DeviceMemory();
      EmbeddedRuntime.Builder builder =
          EmbeddedRuntime.builder()
              .capacityBytes(16_000)
              .slabBytes(5_200)
              .copyEngine(() -> engine(place, executor, seed))
              .transferTimeout(Duration.ofMillis(2));
      EmbeddedRuntime runtime =
          executor == null ? builder.build() : builder.executor(executor).build();
      UMBPWorkerHandle worker = runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      worker.registerBuffers(memory.tensors());
      List<Work> work = new ArrayList<>();
      for (int thread = 0; thread < THREADS; thread++) {
        work.add(new Work(thread, runtime, worker, scheduler, memory, random.split()));
      }
      for (Future<Void> done : threads.invokeAll(work)) {
        done.get();
      }
      assertTrue(loadedKeys.sum() > 0 && refusedCalls.sum() > 0);
      runtime.advanceUntil(() -> runtime.stats().unpublishedObjects() == 0, LONG.toNanos(), null);
      PoolStats stats = runtime.stats();
      assertEquals(0, stats.leases());
      assertEquals(0, stats.unpublishedObjects());
      assertEquals(0, stats.doubleReleases());
      assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
      assertEquals(0, runtime.runningJobs());
      assertEquals(0, gpu.copyEngine().liveSlabCount());
      assertEquals(0, gpu.useAfterFreeCount());
    } finally {
      threads.shutdown();
      if (executor != null) {
        executor.shutdown();
        assertTrue(executor.awaitTermination(LONG.toSeconds(), TimeUnit.SECONDS));
      }
      gpu.close();
    }
  }

  private KVCopyEngine engine(String place, ExecutorService executor, long seed) {
    if (place.equals("HOST")) {
      return executor == null ? new HostCopyEngine() : HostCopyEngine.on(executor);
    }
    FakeGpuCopyEngine engine = gpu.copyEngine();
    engine.failRows(0.01, seed);
    return engine;
  }
}
