package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.core.pool.PoolStats;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Things that go wrong in the middle of a call: slow memory, closes, errors, late deadlines. */
class RuntimeMishapsTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final int BLOCKS = 32;
  private static final int GROUP_0_BYTES = 1024;
  private static final int GROUP_1_BYTES = 2048;
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final Duration TIMEOUT = Duration.ofSeconds(30);

  /** The common pool may have one thread only, and these tasks wait for each other. */
  private static final Executor OWN_THREAD = task -> new Thread(task).start();

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final FakeGpuCopyEngine copies = gpu.copyEngine();
  private final Engine engine = new Engine(copies);
  private final ManualClock clock = new ManualClock();
  private final List<EmbeddedRuntime> runtimes = new ArrayList<>();

  /** Runs something when memory is asked for, and lets tickets break. */
  private static final class Engine extends FaultyCopyEngine {
    final AtomicInteger granted = new AtomicInteger();
    volatile Runnable whenAsked = () -> {};
    volatile boolean breaksTickets;

    Engine(FakeGpuCopyEngine target) {
      super(target);
    }

    @Override
    public HostSlab allocateSlab(long sizeBytes) {
      whenAsked.run();
      HostSlab slab = super.allocateSlab(sizeBytes);
      granted.incrementAndGet();
      return slab;
    }

    @Override
    public synchronized CopyTicket submit(CopyBatch batch, DeviceFence fence) {
      return new Ticket(super.submit(batch, fence));
    }

    private final class Ticket implements CopyTicket {
      private final CopyTicket target;

      private Ticket(CopyTicket target) {
        this.target = target;
      }

      private void mayBreak() {
        if (breaksTickets) {
          throw new InternalError("planted by the test");
        }
      }

      @Override
      public boolean poll() {
        mayBreak();
        return target.poll();
      }

      @Override
      public boolean await(Duration timeout) {
        mayBreak();
        return target.await(timeout);
      }

      @Override
      public boolean isMarkDone(int mark) {
        return target.isMarkDone(mark);
      }

      @Override
      public String failure(int key) {
        return target.failure(key);
      }
    }
  }

  @AfterEach
  void nothingIsLeft() {
    engine.breaksTickets = false;
    copies.releaseCopies();
    for (EmbeddedRuntime runtime : runtimes) {
      runtime.close(LONG);
      PoolStats stats = runtime.stats();
      assertEquals(0, stats.leases());
      assertEquals(0, stats.unpublishedObjects());
      assertEquals(0, stats.doubleReleases());
      assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    }
    gpu.close();
  }

  private EmbeddedRuntime runtime(long capacityBytes, long slabBytes, Executor executor) {
    EmbeddedRuntime.Builder builder =
        EmbeddedRuntime.builder()
            .capacityBytes(capacityBytes)
            .slabBytes(slabBytes)
            .transferTimeout(TIMEOUT)
            .copyEngine(() -> engine)
            .nanoTime(clock);
    if (executor != null) {
      builder.executor(executor);
    }
    EmbeddedRuntime runtime = builder.build();
    runtimes.add(runtime);
    return runtime;
  }

  /** A worker with a layer in each of two groups. */
  private final class Rig {
    final UMBPWorkerHandle worker;
    final UMBPSchedulerHandle scheduler;

    Rig(EmbeddedRuntime runtime) {
      KVLayoutDescriptor layout =
          new KVLayoutDescriptor(
              List.of(
                  new KVRegion("layer0", 0, GROUP_0_BYTES, GROUP_0_BYTES, 0, 16),
                  new KVRegion("layer1", 1, GROUP_1_BYTES, GROUP_1_BYTES, 0, 16)),
              TOPOLOGY);
      worker = runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, layout);
      scheduler = runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, layout);
      worker.registerBuffers(
          Map.of("layer0", tensor(GROUP_0_BYTES), "layer1", tensor(GROUP_1_BYTES)));
    }

    private KVCacheTensor tensor(int blockBytes) {
      long bytes = (long) BLOCKS * blockBytes;
      return KVCacheTensor.device(gpu.malloc(0, bytes), bytes, 0)
          .blocks(BLOCKS, blockBytes)
          .build();
    }

    TransferJobState store(int group, int... blocks) {
      return worker.store(
          BlockStoreBatch.of("r", keys(group, blocks), blocks), DeviceFence.hostComplete());
    }

    int storeAndPublish(int group, int... blocks) {
      return worker.publish(worker.await(store(group, blocks), LONG));
    }

    boolean[] lookup(int group, int... blocks) {
      return scheduler.lookup(keys(group, blocks));
    }
  }

  private static BlockKeys keys(int group, int... numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      byte[] bytes = new byte[32];
      bytes[0] = (byte) number;
      hashes.add(BlockHash.of(bytes));
    }
    return BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), group, BlockHashes.of(hashes));
  }

  private static void await(CountDownLatch latch) {
    try {
      assertTrue(latch.await(LONG.toSeconds(), TimeUnit.SECONDS), "nobody came");
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  @Test
  void aStoreThatWaitsForMemoryGivesUpWhenTheRuntimeCloses() throws Exception {
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, null);
    Rig rig = new Rig(runtime);
    CountDownLatch asked = new CountDownLatch(1);
    CountDownLatch closing = new CountDownLatch(1);
    engine.whenAsked =
        () -> {
          asked.countDown();
          await(closing);
        };
    CompletableFuture<TransferJobState> store =
        CompletableFuture.supplyAsync(() -> rig.store(0, 1), OWN_THREAD);
    await(asked);
    CompletableFuture<CloseResult> close =
        CompletableFuture.supplyAsync(() -> runtime.close(Duration.ofSeconds(5)), OWN_THREAD);
    while (isOpen(runtime)) {
      Thread.onSpinWait();
    }
    closing.countDown();
    TransferJobState refused = store.get(LONG.toSeconds(), TimeUnit.SECONDS);
    assertEquals(KeyReason.CLOSED, refused.reason(0));
    assertEquals(1, engine.granted.get(), "slabs that were taken while the runtime closed");
    assertEquals(CloseResult.CLEAN, close.get(LONG.toSeconds(), TimeUnit.SECONDS));
  }

  private static boolean isOpen(EmbeddedRuntime runtime) {
    try {
      runtime.checkOpen();
      return true;
    } catch (UMBPException e) {
      return false;
    }
  }

  @Test
  void storesThatNeedMemoryAtTheSameTimeKeepOneSlab() throws Exception {
    EmbeddedRuntime runtime = runtime(4096, 4096, null);
    Rig rig = new Rig(runtime);
    CountDownLatch both = new CountDownLatch(2);
    engine.whenAsked =
        () -> {
          both.countDown();
          try {
            boolean unused = both.await(100, TimeUnit.MILLISECONDS);
          } catch (InterruptedException e) {
            throw new AssertionError(e);
          }
        };
    CompletableFuture<Integer> one =
        CompletableFuture.supplyAsync(() -> rig.storeAndPublish(0, 1), OWN_THREAD);
    CompletableFuture<Integer> two =
        CompletableFuture.supplyAsync(() -> rig.storeAndPublish(0, 2), OWN_THREAD);
    assertEquals(2, one.get() + two.get());
    assertEquals(4096, runtime.stats().slabBytes());
    assertEquals(1, copies.liveSlabCount());
  }

  @Test
  void boundsOfAnyLengthAreTaken() {
    Duration forever = ChronoUnit.FOREVER.getDuration();
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, null);
    Rig rig = new Rig(runtime);
    TransferJobState stored = rig.worker.await(rig.store(0, 1), forever);
    assertEquals(1, rig.worker.publish(stored));
    assertTrue(rig.worker.unregisterBuffers(forever));
    assertEquals(CloseResult.CLEAN, rig.worker.close(forever));
    assertEquals(CloseResult.CLEAN, runtime.close(forever));
    try (FakeGpu other = FakeGpu.asynchronous(1)) {
      EmbeddedRuntime patient =
          EmbeddedRuntime.builder()
              .capacityBytes(4096)
              .transferTimeout(forever)
              .copyEngine(other::copyEngine)
              .build();
      assertEquals(CloseResult.CLEAN, patient.close(LONG));
    }
  }

  @Test
  void anErrorOfTheExecutorIsNoRefusalOfTheStore() {
    Executor exhausted =
        task -> {
          throw new InternalError("unable to create native thread");
        };
    Rig rig = new Rig(runtime(1 << 20, 4096, exhausted));
    copies.holdCopies();
    TransferJobState held = rig.store(0, 1);
    assertFalse(held.isFinal());
    copies.releaseCopies();
    assertEquals(1, rig.worker.publish(rig.worker.await(held, LONG)));
  }

  @Test
  void theFollowerOutlivesAnErrorOfATicket() {
    ArrayDeque<Runnable> tasks = new ArrayDeque<>();
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, tasks::add);
    Rig rig = new Rig(runtime);
    copies.holdCopies();
    rig.store(0, 1);
    engine.breaksTickets = true;
    try {
      tasks.remove().run();
    } catch (InternalError e) {
      assertEquals("planted by the test", e.getMessage());
    }
    engine.breaksTickets = false;
    rig.store(0, 2);
    assertEquals(1, tasks.size(), "tasks that follow the copies");
    copies.releaseCopies();
    for (int i = 0; i < 100_000 && !tasks.isEmpty(); i++) {
      tasks.remove().run();
    }
    assertEquals(0, runtime.runningJobs());
  }

  @Test
  void aTicketThatBreaksIsTheTroubleOfItsJobOnly() {
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, null);
    Rig rig = new Rig(runtime);
    rig.storeAndPublish(0, 3);
    copies.holdNext(1);
    TransferJobState first = rig.store(0, 1);
    engine.breaksTickets = true;
    // It joins the first, so it looks after that one too.
    TransferJobState second = rig.store(0, 1, 2);
    assertFalse(second.isFinal());
    assertEquals(1, rig.scheduler.clear().removed());
    engine.breaksTickets = false;
    copies.releaseCopies();
    assertTrue(rig.worker.await(first, LONG).isFinal());
    assertTrue(rig.worker.await(second, LONG).isFinal());
  }

  @Test
  void aTicketThatBreaksForGoodDoesNotKeepTheRuntimeOpen() {
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, null);
    Rig rig = new Rig(runtime);
    copies.holdNext(1);
    rig.store(0, 1);
    engine.breaksTickets = true;
    CloseResult left = runtime.close(Duration.ofMillis(20));
    assertEquals(1, left.unfinishedJobs());
    engine.breaksTickets = false;
    copies.releaseCopies();
    assertTrue(runtime.advanceUntil(() -> runtime.runningJobs() == 0, LONG.toNanos(), null));
  }

  @Test
  void keysThatFindTheirDeadlinePassedWhileMemoryIsTakenAreTimedOut() {
    EmbeddedRuntime runtime = runtime(1 << 20, 2048, null);
    Rig rig = new Rig(runtime);
    Rig other = new Rig(runtime);
    TransferJobState[] newer = new TransferJobState[1];
    engine.whenAsked =
        () -> {
          engine.whenAsked = () -> {};
          // Memory comes after the deadline; by then a younger job writes the second key.
          clock.advance(TIMEOUT.plusSeconds(1));
          copies.holdNext(1);
          newer[0] = other.store(1, 2);
        };
    TransferJobState late = rig.store(1, 1, 2);
    copies.releaseCopies();
    while (!late.isFinal()) {
      late = rig.worker.await(late, LONG);
    }
    assertEquals(KeyOutcome.TIMED_OUT, late.outcome(0));
    assertEquals(KeyOutcome.TIMED_OUT, late.outcome(1));
    assertEquals(1, other.worker.publish(other.worker.await(newer[0], LONG)));
    assertEquals(List.of(), runtime.jobs.live());
  }

  @Test
  void keysThatFindTheirWorkerClosedWhileMemoryIsTakenHoldNothing() {
    EmbeddedRuntime runtime = runtime(1 << 20, 2048, null);
    Rig rig = new Rig(runtime);
    Rig other = new Rig(runtime);
    TransferJobState[] joined = new TransferJobState[1];
    engine.whenAsked =
        () -> {
          engine.whenAsked = () -> {};
          joined[0] = other.store(1, 2);
          rig.worker.close(Duration.ZERO);
        };
    TransferJobState closed = rig.store(1, 1, 2);
    TransferJobState stored = other.worker.await(joined[0], LONG);
    closed = rig.worker.await(closed, LONG);
    assertTrue(closed.isFinal());
    assertEquals(0, closed.count(KeyOutcome.COMPLETED));
    other.worker.cancel(stored);
    assertEquals(0, runtime.stats().unpublishedObjects());
  }

  @Test
  void aJoinedStoreThatIsCompleteOutlivesItsWritersDeadline() {
    EmbeddedRuntime runtime = runtime(1 << 20, 4096, null);
    Rig rig = new Rig(runtime);
    copies.holdNext(1);
    TransferJobState writer = rig.store(0, 1);
    clock.advance(TIMEOUT.minusSeconds(10));
    TransferJobState joined = rig.store(0, 1);
    copies.releaseCopies();
    rig.worker.await(writer, LONG);
    joined = rig.worker.await(joined, LONG);
    assertEquals(KeyOutcome.COMPLETED, joined.outcome(0));
    clock.advance(Duration.ofSeconds(15));
    // The writer is past its deadline, the joined store is not.
    TransferJobState third = rig.worker.await(rig.store(0, 1), LONG);
    assertEquals(1, rig.worker.publish(joined));
    assertEquals(0, rig.worker.publish(third));
    assertArrayEquals(new boolean[] {true}, rig.lookup(0, 1));
    assertEquals(1, runtime.stats().storedObjects());
  }

  @Test
  void aStoreThatFindsNoRoomEvictsNothingInVain() {
    EmbeddedRuntime runtime = runtime(64 * 1024, 8192, null);
    copies.limitSlabBytes(2 * 8192);
    Rig rig = new Rig(runtime);
    // Two slabs of group 0, each with an object that is not published.
    TransferJobState first = rig.worker.await(rig.store(0, 0, 8), LONG);
    assertEquals(6, rig.storeAndPublish(0, 1, 2, 3, 4, 5, 6));
    TransferJobState second = rig.worker.await(rig.store(0, 9, 10), LONG);
    assertEquals(6, rig.storeAndPublish(0, 11, 12, 13, 14, 15, 16));
    TransferJobState refused = rig.worker.await(rig.store(1, 20), LONG);
    assertEquals(KeyReason.POOL_BUSY, refused.reason(0));
    assertEquals(0, runtime.stats().evictedObjects());
    assertEquals(2, rig.worker.publish(first));
    assertEquals(2, rig.worker.publish(second));
    assertEquals(1, rig.storeAndPublish(1, 20));
  }
}
