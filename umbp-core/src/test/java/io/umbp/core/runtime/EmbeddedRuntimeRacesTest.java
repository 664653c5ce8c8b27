package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
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
import io.umbp.api.spi.HostSlab;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * What happens between the parts of a call: while a store takes host memory, everything else may
 * come in between. The copy engine is the place where the tests step in.
 */
@Timeout(30)
class EmbeddedRuntimeRacesTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final int BYTES = 1024;
  private static final int BLOCKS = 16;
  private static final Duration LONG = Duration.ofSeconds(10);
  private static final KVLayoutDescriptor LAYOUT =
      new KVLayoutDescriptor(List.of(new KVRegion("layer", 0, BYTES, BYTES, 0, 16)), TOPOLOGY);

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final FakeGpuCopyEngine copies = gpu.copyEngine();
  private final SteppedInEngine engine = new SteppedInEngine(copies);
  private final ManualClock clock = new ManualClock();
  private final List<EmbeddedRuntime> runtimes = new ArrayList<>();

  /** Runs the test's steps inside allocateSlab, and breaks tickets on demand. */
  private static final class SteppedInEngine extends FaultyCopyEngine {
    final ArrayDeque<Runnable> duringAllocation = new ArrayDeque<>();
    Duration closeBound;

    SteppedInEngine(FakeGpuCopyEngine target) {
      super(target);
    }

    @Override
    public HostSlab allocateSlab(long sizeBytes) {
      Runnable step = duringAllocation.poll();
      if (step != null) {
        step.run();
      }
      return super.allocateSlab(sizeBytes);
    }

    @Override
    public CloseResult close(Duration bound) {
      closeBound = bound;
      return super.close(bound);
    }
  }

  /** One engine process: its worker and its scheduler. */
  private final class Rig {
    final UMBPWorkerHandle worker;
    final UMBPSchedulerHandle scheduler;

    Rig(EmbeddedRuntime runtime) {
      worker = runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      scheduler = runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, LAYOUT);
      long base = gpu.malloc(0, BLOCKS * BYTES);
      worker.registerBuffers(
          Map.of(
              "layer",
              KVCacheTensor.device(base, BLOCKS * BYTES, 0).blocks(BLOCKS, BYTES).build()));
    }

    TransferJobState store(int... hashesAndBlocks) {
      return worker.store(
          BlockStoreBatch.of("r", keys(hashesAndBlocks), hashesAndBlocks),
          DeviceFence.hostComplete());
    }

    TransferJobState finish(TransferJobState job) {
      return worker.await(job, LONG);
    }
  }

  private static BlockKeys keys(int... numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(BlockHash.of(new byte[] {(byte) number, 1, 2, 3}));
    }
    return BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), 0, BlockHashes.of(hashes));
  }

  private EmbeddedRuntime runtime(int objects) {
    EmbeddedRuntime runtime =
        EmbeddedRuntime.builder()
            .capacityBytes((long) objects * BYTES)
            .slabBytes(BYTES)
            .copyEngine(() -> engine)
            .nanoTime(clock)
            .build();
    runtimes.add(runtime);
    return runtime;
  }

  @AfterEach
  void nothingIsLeft() {
    copies.releaseCopies();
    for (EmbeddedRuntime runtime : runtimes) {
      runtime.close(LONG);
      assertEquals(0, runtime.stats().leases());
      assertEquals(0, runtime.stats().unpublishedObjects());
      assertEquals(0, runtime.stats().doubleReleases());
    }
    assertEquals(0, copies.liveSlabCount());
    gpu.close();
  }

  private static boolean isClosed(EmbeddedRuntime runtime) {
    try {
      runtime.createSchedulerHandle(NAMESPACE, TOPOLOGY, LAYOUT).close();
      return false;
    } catch (UMBPException e) {
      return true;
    }
  }

  private static CompletableFuture<CloseResult> beginClose(
      EmbeddedRuntime runtime, Duration bound) {
    CompletableFuture<CloseResult> closing =
        CompletableFuture.supplyAsync(() -> runtime.close(bound), task -> new Thread(task).start());
    while (!isClosed(runtime)) {
      Thread.onSpinWait();
    }
    return closing;
  }

  @Test
  void aStoreBegunBeforeAClearPublishesNoKeyThatItReservesAfterIt() {
    EmbeddedRuntime runtime = runtime(4);
    Rig rig = new Rig(runtime);
    engine.duringAllocation.add(() -> {});
    engine.duringAllocation.add(() -> assertEquals(1, rig.scheduler.clear().storing()));
    TransferJobState job = rig.finish(rig.store(1, 2, 3));
    for (int key = 0; key < 3; key++) {
      assertEquals(KeyOutcome.FAILED, job.outcome(key));
      assertEquals(KeyReason.CLEARED, job.reason(key));
    }
    assertEquals(0, rig.worker.publish(job));
    assertArrayEquals(new boolean[3], rig.scheduler.lookup(keys(1, 2, 3)));
    assertEquals(0, runtime.stats().usedBytes());
  }

  @Test
  void aCloseReturnsByItsOwnBoundWhileALongerOneWaits() {
    EmbeddedRuntime runtime = runtime(4);
    Rig rig = new Rig(runtime);
    copies.holdNext(1);
    rig.store(1);
    CompletableFuture<CloseResult> longer = beginClose(runtime, Duration.ofSeconds(5));
    CloseResult result = runtime.close(Duration.ofMillis(1));
    assertFalse(longer.isDone(), "the short close waited for the long one");
    assertEquals(new CloseResult(1, BYTES), result);
    copies.releaseCopies();
    assertEquals(CloseResult.CLEAN, longer.join());
    assertEquals(CloseResult.CLEAN, runtime.close(Duration.ZERO));
  }

  @Test
  void theBoundOfACloseIsSpentOnceThoughTheRuntimesClockStandsStill() {
    EmbeddedRuntime runtime = runtime(4);
    Rig rig = new Rig(runtime);
    copies.holdNext(1);
    TransferJobState job = rig.store(1);
    assertEquals(1, runtime.close(Duration.ofMillis(50)).unfinishedJobs());
    assertEquals(Duration.ZERO, engine.closeBound);
    copies.releaseCopies();
    assertTrue(rig.finish(job).isFinal());
  }

  @Test
  void aNegativeTimeIsRefusedBeforeAnythingIsDone() {
    EmbeddedRuntime runtime = runtime(4);
    Rig rig = new Rig(runtime);
    TransferJobState job = rig.finish(rig.store(1));
    Duration negative = Duration.ofMillis(-1);
    assertThrows(UMBPException.class, () -> rig.worker.await(job, negative));
    assertThrows(UMBPException.class, () -> rig.worker.unregisterBuffers(negative));
    assertThrows(UMBPException.class, () -> rig.worker.close(negative));
    assertThrows(UMBPException.class, () -> runtime.close(negative));
    assertEquals(1, rig.worker.publish(job));
    assertEquals(KeyOutcome.COMPLETED, rig.finish(rig.store(2)).outcome(0));
    clock.advance(Duration.ofSeconds(30));
  }

  @Test
  void anErrorOfTheCopyEngineLeavesNoJobBehind() {
    EmbeddedRuntime runtime = runtime(4);
    Rig rig = new Rig(runtime);
    for (int i = 0; i < JobTable.MAX_RETIRED_JOBS + 50; i++) {
      engine.breakNext();
      assertThrows(OutOfMemoryError.class, () -> rig.store(1));
    }
    assertEquals(JobTable.MAX_RETIRED_JOBS, runtime.jobs.size());
  }
}
