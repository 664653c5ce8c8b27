package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.CopyTicket.SupportsStreamWait.StreamWait;
import io.umbp.api.spi.HostSlab;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

@Timeout(60)
class FakeGpuCopyEngineTest {
  private static final int PAGE = 1024;
  private static final int PAGES = 16;
  private static final Duration LONG = Duration.ofSeconds(20);

  private final FakeGpu gpu = FakeGpu.stepped(2);
  private final FakeGpuCopyEngine engine = gpu.copyEngine();
  private final long memory = gpu.malloc(1, PAGES * PAGE);
  private final HostSlab slab = engine.allocateSlab(PAGES * PAGE);

  FakeGpuCopyEngineTest() {
    engine.register(tensor(memory, PAGES * PAGE));
  }

  @AfterEach
  void close() {
    gpu.close();
  }

  private static KVCacheTensor tensor(long address, long size) {
    return KVCacheTensor.device(address, size, 1).blocks(1, size).build();
  }

  private CopyBatch pages(TransferDirection direction, int keys) {
    CopyBatch batch = new CopyBatch();
    batch.reset(direction, 1, keys);
    for (int page = 0; page < PAGES; page++) {
      long offset = (long) page * PAGE;
      batch.add(memory + offset, slab.baseAddress() + offset, PAGE, page % keys);
      batch.endMark();
    }
    return batch;
  }

  private CopyTicket submit(TransferDirection direction) {
    return engine.submit(pages(direction, PAGES), DeviceFence.hostComplete());
  }

  private static List<Integer> failedKeys(CopyTicket ticket) {
    assertTrue(ticket.await(LONG));
    List<Integer> failed = new ArrayList<>();
    for (int key = 0; key < PAGES; key++) {
      if (ticket.failure(key) != null) {
        failed.add(key);
      }
    }
    return failed;
  }

  @Test
  void isTheSameForTheWholeMachine() {
    assertSame(engine, gpu.copyEngine());
    assertNotEquals(engine, gpu.openCopyEngine());
  }

  @Test
  void copiesMarkByMarkWhenStepped() {
    CopyTicket ticket = submit(TransferDirection.STORE);
    assertFalse(ticket.isMarkDone(0));
    assertThrows(IllegalStateException.class, () -> ticket.failure(0));
    for (int mark = 0; mark < PAGES; mark++) {
      assertFalse(ticket.poll());
      assertTrue(gpu.step());
      assertTrue(ticket.isMarkDone(mark));
      assertEquals(mark == PAGES - 1, ticket.isMarkDone(PAGES - 1));
    }
    assertEquals(List.of(), failedKeys(ticket));
    assertEquals(1, engine.endedBatchCount());
    assertEquals(PAGES, engine.rowCount());
    assertEquals(PAGES * PAGE, engine.copiedBytes());
  }

  @Test
  @DisplayName(
      "case 17: a store waits for its producer on the device; 0 stale bytes in 1,000 rounds")
  void storeWaitsForItsProducerOnTheDevice() {
    try (FakeGpu running = FakeGpu.asynchronous(1)) {
      FakeGpuCopyEngine copies = running.copyEngine();
      long address = running.malloc(0, PAGE);
      HostSlab target = copies.allocateSlab(PAGE);
      copies.register(KVCacheTensor.device(address, PAGE, 0).blocks(1, PAGE).build());
      FakeStream compute = running.stream(0);
      CopyBatch batch = new CopyBatch();
      byte[] stored = new byte[PAGE];
      for (int round = 0; round < 1000; round++) {
        byte[] pattern = new byte[PAGE];
        for (int o = 0; o < PAGE; o++) {
          pattern[o] = (byte) ((29 * round + 3 * o + 11) % 251);
        }
        compute.hold();
        compute.write(address, pattern);
        batch.reset(TransferDirection.STORE, 0, 1);
        batch.add(address, target.baseAddress(), PAGE, 0);
        CopyTicket ticket = copies.submit(batch, compute.fence());
        assertFalse(ticket.poll());
        compute.release();
        assertTrue(ticket.await(LONG));
        target.buffer().get(0, stored);
        assertArrayEquals(pattern, stored, "round " + round);
      }
    }
  }

  @Test
  void refusesWhatItCannotServe() {
    KVCacheTensor host = KVCacheTensor.host(ByteBuffer.allocateDirect(8)).blocks(1, 8).build();
    UMBPException refusal = assertThrows(UMBPException.class, () -> engine.register(host));
    assertEquals(UMBPException.Reason.UNSUPPORTED, refusal.reason());
    invalid(() -> engine.register(tensor(memory + 1, PAGES * PAGE)));
    invalid(() -> engine.register(KVCacheTensor.device(memory, 8, 0).blocks(1, 8).build()));
    invalid(
        () ->
            engine.register(
                KVCacheTensor.device(memory, 8, 1)
                    .inAllocation(memory - 512, PAGES * PAGE)
                    .blocks(1, 8)
                    .build()));
    long freed = gpu.malloc(1, 8);
    gpu.free(freed);
    invalid(() -> engine.register(tensor(freed, 8)));
    CopyBatch batch = pages(TransferDirection.LOAD, 1);
    FakeStream stream = gpu.stream(0);
    invalid(() -> engine.submit(batch, DeviceFence.onStream(0, stream.handle() + 1)));
    invalid(() -> engine.submit(batch, DeviceFence.onStream(1, stream.handle())));
    invalid(() -> engine.submit(batch, DeviceFence.onStream(7, stream.handle())));
    invalid(() -> engine.submit(batch, DeviceFence.onStream(0, 0)));
    assertEquals(0, engine.runningBatchCount());
    assertEquals(0, gpu.runAll());
  }

  @Test
  void takesRowsInsideRegisteredTensorsOnly() {
    long other = gpu.malloc(1, 3 * PAGE);
    KVCacheTensor middle =
        KVCacheTensor.device(other + PAGE, PAGE, 1)
            .inAllocation(other, 3 * PAGE)
            .blocks(1, PAGE)
            .build();
    engine.register(middle);
    engine.register(middle);
    CopyBatch batch = new CopyBatch();
    for (long offset : new long[] {PAGE - 1, PAGE + 1, 0, 2 * PAGE}) {
      batch.reset(TransferDirection.LOAD, 1, 1);
      batch.add(other + offset, slab.baseAddress(), PAGE, 0);
      invalid(() -> engine.submit(batch, DeviceFence.hostComplete()));
    }
    batch.reset(TransferDirection.LOAD, 0, 1);
    batch.add(other + PAGE, slab.baseAddress(), PAGE, 0);
    invalid(() -> engine.submit(batch, DeviceFence.hostComplete()));
    batch.reset(TransferDirection.LOAD, 1, 1);
    batch.add(other + PAGE, slab.baseAddress(), PAGE, 0);
    engine.unregister(middle);
    engine.submit(batch, DeviceFence.hostComplete());
    gpu.runAll();
    engine.unregister(middle);
    invalid(() -> engine.submit(batch, DeviceFence.hostComplete()));
    gpu.free(other);
    String message = invalid(() -> engine.submit(batch, DeviceFence.hostComplete()));
    assertTrue(message.contains("freed allocation"), message);
    assertEquals(0, gpu.useAfterFreeCount());
  }

  @Test
  void memoryFreedUnderACopyFailsTheKeyAndIsCounted() {
    CopyTicket ticket = submit(TransferDirection.STORE);
    gpu.step();
    gpu.free(memory);
    gpu.runAll();
    List<Integer> failed = failedKeys(ticket);
    assertEquals(PAGES - 1, failed.size());
    assertFalse(failed.contains(0));
    assertTrue(ticket.failure(1).contains("use after free"), ticket.failure(1));
    assertEquals(PAGES - 1, gpu.useAfterFreeCount());
  }

  @Test
  void memoryFreedInTheMiddleOfARowFailsTheKeyAndIsCounted() {
    engine.failNext(
        (row, key) -> {
          if (row == PAGES - 1) {
            gpu.free(memory);
          }
          return false;
        });
    CopyTicket ticket = submit(TransferDirection.STORE);
    gpu.runAll();
    assertEquals(List.of(PAGES - 1), failedKeys(ticket));
    assertEquals(1, gpu.useAfterFreeCount());
  }

  @Test
  void aFailingRowLeavesGarbageInHalfOfItsTarget() {
    byte[] right = new byte[PAGES * PAGE];
    slab.buffer().put(0, right);
    engine.failNext((row, key) -> key == 3);
    CopyTicket ticket = submit(TransferDirection.LOAD);
    CopyTicket next = submit(TransferDirection.LOAD);
    gpu.step();
    gpu.step();
    gpu.step();
    gpu.step();
    assertEquals(FakeCopy.GARBAGE, gpu.read(memory + 3 * PAGE, 1)[0]);
    assertEquals(FakeCopy.GARBAGE, gpu.read(memory + 3 * PAGE + PAGE / 2 - 1, 1)[0]);
    assertEquals(FakeGpu.FRESH_POISON, gpu.read(memory + 3 * PAGE + PAGE / 2, 1)[0]);
    gpu.runAll();
    assertEquals(List.of(3), failedKeys(ticket));
    assertTrue(ticket.failure(3).contains("row 3, 1024 bytes"), ticket.failure(3));
    assertEquals(List.of(), failedKeys(next));
    engine.failNext((row, key) -> row == 5);
    CopyTicket store = submit(TransferDirection.STORE);
    gpu.runAll();
    assertEquals(List.of(5), failedKeys(store));
    assertEquals(FakeCopy.GARBAGE, slab.buffer().get(5 * PAGE));
    assertEquals(0, slab.buffer().get(5 * PAGE + PAGE / 2));
  }

  @Test
  void seededFailuresRepeat() {
    List<List<Integer>> runs = new ArrayList<>();
    for (long seed : new long[] {7, 7, 8}) {
      try (FakeGpu fresh = FakeGpu.stepped(1)) {
        FakeGpuCopyEngine copies = fresh.copyEngine();
        long address = fresh.malloc(0, PAGE);
        copies.register(KVCacheTensor.device(address, PAGE, 0).blocks(1, PAGE).build());
        HostSlab target = copies.allocateSlab(PAGE);
        copies.failRows(0.25, seed);
        List<Integer> failed = new ArrayList<>();
        CopyBatch batch = new CopyBatch();
        for (int round = 0; round < 4; round++) {
          batch.reset(TransferDirection.STORE, 0, PAGE);
          for (int i = 0; i < PAGE; i++) {
            batch.add(address + i, target.baseAddress() + i, 1, i);
          }
          CopyTicket ticket = copies.submit(batch, DeviceFence.hostComplete());
          fresh.runAll();
          for (int key = 0; key < PAGE; key++) {
            if (ticket.failure(key) != null) {
              failed.add(round * PAGE + key);
            }
          }
        }
        runs.add(failed);
      }
    }
    assertEquals(runs.get(0), runs.get(1));
    assertNotEquals(runs.get(0), runs.get(2));
    assertTrue(
        runs.get(0).size() > 900 && runs.get(0).size() < 1150,
        "a quarter of 4,096 rows: " + runs.get(0).size());
    assertNotEquals(
        runs.get(0).stream().filter(row -> row < PAGE).toList(),
        runs.get(0).stream().filter(row -> row >= 3 * PAGE).map(row -> row - 3 * PAGE).toList());
    invalid(() -> engine.failRows(1.5, 0));
    invalid(() -> engine.failRows(Double.NaN, 0));
  }

  @Test
  @DisplayName("case 24: an Error on the copy thread fails the batch, and later copies work")
  void anErrorOnTheCopyThreadEndsTheBatch() {
    try (FakeGpu running = FakeGpu.asynchronous(1)) {
      FakeGpuCopyEngine copies = running.copyEngine();
      long address = running.malloc(0, 8);
      copies.register(KVCacheTensor.device(address, 8, 0).blocks(1, 8).build());
      HostSlab source = copies.allocateSlab(8);
      source.buffer().putLong(0, 42);
      copies.throwNext(new OutOfMemoryError("thrown on demand"));
      CopyBatch batch = new CopyBatch();
      batch.reset(TransferDirection.LOAD, 0, 4);
      for (int i = 0; i < 4; i++) {
        batch.add(address + 2L * i, source.baseAddress() + 2L * i, 2, i);
      }
      CopyTicket ticket = copies.submit(batch, DeviceFence.hostComplete());
      assertTrue(ticket.await(LONG));
      assertNull(ticket.failure(0));
      assertNull(ticket.failure(1));
      assertTrue(ticket.failure(2).contains("OutOfMemoryError: thrown on demand"));
      assertNotNull(ticket.failure(3));
      CopyTicket later = copies.submit(batch, DeviceFence.hostComplete());
      assertTrue(later.await(LONG));
      assertNull(later.failure(3));
      assertEquals(42, ByteBuffer.wrap(running.read(address, 8)).getLong());
      assertEquals(CloseResult.CLEAN, copies.close(LONG));
    }
  }

  @Test
  void othersPassACopyThatIsHeldAlone() {
    engine.holdNext(1);
    CopyTicket held = submit(TransferDirection.STORE);
    CopyTicket passing = submit(TransferDirection.STORE);
    gpu.runAll();
    assertTrue(passing.poll());
    assertFalse(held.poll());
    assertEquals(1, engine.heldBatchCount());
    assertEquals(1, engine.runningBatchCount());
    engine.releaseCopies();
    assertFalse(held.poll());
    gpu.runAll();
    assertTrue(held.poll());
    assertEquals(0, engine.runningBatchCount());
  }

  @Test
  void aStreamWaitsForAMarkOnTheDevice() {
    FakeStream stream = gpu.stream(1);
    engine.holdCopies();
    CopyTicket.SupportsStreamWait ticket =
        (CopyTicket.SupportsStreamWait) submit(TransferDirection.LOAD);
    gpu.runAll();
    assertEquals(StreamWait.NOT_YET_ENQUEUED, ticket.enqueueWait(2, stream.fence()));
    engine.releaseCopies();
    assertEquals(StreamWait.ENQUEUED, ticket.enqueueWait(2, stream.fence()));
    boolean[] seen = new boolean[2];
    stream.enqueue(
        () -> {
          seen[0] = ticket.isMarkDone(2);
          seen[1] = ticket.isMarkDone(PAGES - 1);
        });
    assertFalse(stream.step());
    gpu.runAll();
    assertTrue(seen[0], "the stream waited for mark 2");
    assertFalse(seen[1], "the stream waited for more than mark 2");
    assertTrue(ticket.poll());
    assertEquals(StreamWait.ENQUEUED, ticket.enqueueWait(PAGES - 1, stream.fence()));
    stream.synchronize();
    invalid(() -> ticket.enqueueWait(0, new DeviceFence.OnStream(1, 1)));
  }

  @Test
  void slabsAreRecycledUnderNewAddresses() {
    HostSlab first = engine.allocateSlab(5000);
    assertEquals(FakeGpu.FRESH_POISON, first.buffer().get(4999));
    first.buffer().put(7, (byte) 7);
    engine.releaseSlab(first);
    assertEquals(FakeGpu.FREED_POISON, first.buffer().get(7));
    HostSlab second = engine.allocateSlab(5000);
    second.buffer().put(8, (byte) 8);
    assertEquals(8, first.buffer().get(8));
    assertEquals(FakeGpu.FRESH_POISON, second.buffer().get(7));
    assertNotEquals(first.baseAddress(), second.baseAddress());
    assertTrue(second.baseAddress() < memory - (1L << 40), "slabs lie apart from device memory");
    assertEquals(2, engine.liveSlabCount());
    invalid(() -> engine.releaseSlab(new HostSlab(ByteBuffer.allocateDirect(1), 77, 1)));
  }

  @Test
  void aRowMaySpanTensorsThatTouch() {
    long other = gpu.malloc(1, 2 * PAGE);
    engine.register(tensor(other, PAGE));
    engine.register(tensor(other + PAGE, PAGE));
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 1, 1);
    batch.add(other, slab.baseAddress(), 2 * PAGE, 0);
    CopyTicket ticket = engine.submit(batch, DeviceFence.hostComplete());
    gpu.runAll();
    assertNull(ticket.failure(0));
  }

  @Test
  void aSlabGivenBackLivesUntilTheLastOfItsCopiesEnds() {
    engine.holdNext(1);
    submit(TransferDirection.LOAD);
    submit(TransferDirection.LOAD);
    engine.releaseSlab(slab);
    gpu.runAll();
    assertEquals(1, engine.liveSlabCount());
    assertEquals(FakeGpu.FRESH_POISON, slab.buffer().get(0));
    engine.releaseCopies();
    gpu.runAll();
    assertEquals(0, engine.liveSlabCount());
    assertEquals(FakeGpu.FREED_POISON, slab.buffer().get(0));
  }

  @Test
  void slabMemoryHasALimit() {
    engine.limitSlabBytes(PAGES * PAGE + 100);
    UMBPException refusal = assertThrows(UMBPException.class, () -> engine.allocateSlab(101));
    assertEquals(UMBPException.Reason.OUT_OF_MEMORY, refusal.reason());
    assertTrue(refusal.getMessage().contains("101 bytes"), refusal.getMessage());
    assertTrue(refusal.getMessage().contains("16484"), refusal.getMessage());
    engine.allocateSlab(100);
  }

  @Test
  void closeCountsWhatCopiesStillUseAndFreesItWhenTheyEnd() {
    HostSlab unused = engine.allocateSlab(10);
    CopyTicket ticket = submit(TransferDirection.LOAD);
    assertEquals(new CloseResult(1, PAGES * PAGE), engine.close(Duration.ZERO));
    assertEquals(FakeGpu.FREED_POISON, unused.buffer().get(0));
    assertEquals(FakeGpu.FRESH_POISON, slab.buffer().get(0));
    assertEquals(1, engine.liveSlabCount());
    gpu.runAll();
    assertTrue(ticket.poll());
    assertEquals(0, engine.liveSlabCount());
    assertEquals(FakeGpu.FREED_POISON, slab.buffer().get(0));
    assertEquals(new CloseResult(1, PAGES * PAGE), engine.close(LONG));
  }

  @Test
  void closingTheGpuFailsWhatNeverRan() {
    engine.holdNext(1);
    CopyTicket held = submit(TransferDirection.LOAD);
    gpu.runAll();
    CopyTicket waiting = submit(TransferDirection.LOAD);
    gpu.step();
    gpu.close();
    assertEquals(PAGES, failedKeys(held).size());
    assertEquals(PAGES - 1, failedKeys(waiting).size());
    assertEquals(CloseResult.CLEAN, engine.close(Duration.ZERO));
  }

  @Test
  void copiesWithoutAllocationPerRow() {
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.STORE, 1, 1);
    int rows = 10_000;
    for (int i = 0; i < rows; i++) {
      batch.add(memory + i % PAGE, slab.baseAddress() + i % PAGE, 1, 0);
    }
    ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    long me = Thread.currentThread().getId();
    long least = Long.MAX_VALUE;
    for (int round = 0; round < 5; round++) {
      long before = threads.getThreadAllocatedBytes(me);
      engine.submit(batch, DeviceFence.hostComplete());
      gpu.runAll();
      least = Math.min(least, threads.getThreadAllocatedBytes(me) - before);
    }
    assertTrue(least < rows, least + " bytes for " + rows + " rows");
  }

  private static String invalid(Executable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
    return refusal.getMessage();
  }
}
