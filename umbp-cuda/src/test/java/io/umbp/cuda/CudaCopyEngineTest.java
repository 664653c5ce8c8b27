package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.CopyTicket.SupportsStreamWait;
import io.umbp.api.spi.CopyTicket.SupportsStreamWait.StreamWait;
import io.umbp.api.spi.HostSlab;
import io.umbp.testkit.FakeCudaDriver;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUgraph;
import jcuda.driver.CUstream;
import jcuda.driver.CUstreamCaptureMode;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class CudaCopyEngineTest {
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final int OUT_OF_MEMORY = 2;
  private static final int INVALID_CONTEXT = 201;
  private static final int ILLEGAL_ADDRESS = 700;

  private CudaRig rig;
  private CudaCopyEngine engine;

  /** Whether the test loses a device, so that memory stays pinned for good. */
  private boolean leavesMemory;

  @BeforeEach
  void open() {
    rig = new CudaRig(2);
    engine = CudaCopyEngine.open(0, 1);
  }

  @AfterEach
  void close() {
    rig.driver.releaseCopies();
    engine.close(LONG);
    if (!leavesMemory) {
      rig.assertEnginesLeftNothing();
    }
    rig.close();
    if (!leavesMemory) {
      rig.assertNothingLeft();
    }
  }

  private static byte[] pattern(int bytes, long seed) {
    byte[] pattern = new byte[bytes];
    new Random(seed).nextBytes(pattern);
    return pattern;
  }

  private static CopyTicket finish(CopyTicket ticket) {
    assertTrue(ticket.await(LONG), "the ticket is not final");
    return ticket;
  }

  private KVCacheTensor registered(int ordinal, int bytes) {
    KVCacheTensor tensor = rig.tensor(ordinal, bytes);
    assertEquals(tensor.address(), engine.register(tensor));
    return tensor;
  }

  private static UMBPException refused(Reason reason, Runnable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call::run);
    assertEquals(reason, refusal.reason(), refusal.getMessage());
    return refusal;
  }

  @Test
  @DisplayName("case 17: a store waits for its producer on the device, in 1,000 rounds")
  void case17NoStaleBytes() {
    assertEquals(0, staleBytes(1000, rig.fence(0)));
  }

  @Test
  @DisplayName("case 17: without the fence the same rounds find stale bytes")
  void case17TheCanaryFindsStaleBytes() {
    assertTrue(staleBytes(10, DeviceFence.hostComplete()) > 0);
  }

  @Test
  @DisplayName("case 17: device memory without a fence is refused")
  void case17NoFence() {
    KVCacheTensor tensor = registered(0, 4096);
    HostSlab slab = engine.allocateSlab(4096);
    CopyBatch batch = CudaRig.whole(TransferDirection.STORE, tensor, slab);
    refused(Reason.FENCE_REQUIRED, () -> engine.submit(batch, DeviceFence.none()));
  }

  /** Stores what a producer writes, held back until after the submission in every other round. */
  private long staleBytes(int rounds, DeviceFence fence) {
    int bytes = 64 << 10;
    KVCacheTensor tensor = registered(0, bytes);
    HostSlab slab = engine.allocateSlab(bytes);
    long stale = 0;
    for (int round = 0; round < rounds; round++) {
      byte[] written = pattern(bytes, round);
      boolean isHeld = round % 2 == 0;
      if (isHeld) {
        rig.driver.holdStream(rig.streamHandle(0));
      }
      rig.driver.enqueueWrite(rig.streamHandle(0), tensor.address(), written);
      CopyTicket ticket =
          engine.submit(CudaRig.whole(TransferDirection.STORE, tensor, slab), fence);
      if (isHeld && fence instanceof DeviceFence.OnStream) {
        assertFalse(ticket.poll(), "submit returned before its producer ran");
      } else if (isHeld) {
        finish(ticket);
      }
      rig.driver.releaseStream(rig.streamHandle(0));
      assertNull(finish(ticket).failure(0));
      byte[] stored = CudaRig.bytes(slab);
      for (int i = 0; i < bytes; i++) {
        stale += stored[i] == written[i] ? 0 : 1;
      }
      rig.on(0, () -> JCudaDriver.cuStreamSynchronize(rig.stream(0)));
    }
    return stale;
  }

  @Test
  @DisplayName("case 54: any thread may call, and gets its own context back")
  void case54ContextsOfThreads() throws Exception {
    List<KVCacheTensor> tensors = List.of(registered(0, 65_536), registered(1, 65_536));
    ExecutorService pool = Executors.newFixedThreadPool(3);
    try {
      List<Future<CUcontext>> calls = new ArrayList<>();
      for (int i = 0; i < 6; i++) {
        KVCacheTensor tensor = tensors.get(i % 2);
        HostSlab slab = engine.allocateSlab(65_536);
        calls.add(
            pool.submit(
                () -> {
                  storeAndLoad(tensor, slab);
                  return current();
                }));
      }
      for (Future<CUcontext> call : calls) {
        assertEquals(new CUcontext(), call.get(20, TimeUnit.SECONDS), "context of a pool thread");
      }
    } finally {
      pool.shutdownNow();
    }
    Driver.check("push", () -> JCudaDriver.cuCtxPushCurrent(rig.context(1)));
    try {
      storeAndLoad(tensors.get(0), engine.allocateSlab(65_536));
      assertEquals(rig.context(1), current(), "the caller's former context");
    } finally {
      Driver.check("pop", () -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
    }
  }

  private static CUcontext current() {
    CUcontext current = new CUcontext();
    Driver.check("cuCtxGetCurrent", () -> JCudaDriver.cuCtxGetCurrent(current));
    return current;
  }

  private void storeAndLoad(KVCacheTensor tensor, HostSlab slab) {
    DeviceFence fence = rig.fence(tensor.deviceOrdinal());
    assertNull(
        finish(engine.submit(CudaRig.whole(TransferDirection.STORE, tensor, slab), fence))
            .failure(0));
    assertNull(
        finish(engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), fence))
            .failure(0));
  }

  @Test
  @DisplayName("every call gives the thread the capture mode back that it had")
  void captureModesOfThreads() {
    KVCacheTensor tensor = registered(0, 65_536);
    HostSlab slab = engine.allocateSlab(65_536);
    for (int own : new int[] {1, 2, 0}) {
      exchangeMode(own);
      assertEquals(own, exchangeMode(own));
      engine.allocateSlab(4096);
      assertEquals(own, exchangeMode(own), "after a slab");
      CopyTicket ticket =
          engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0));
      assertEquals(own, exchangeMode(own), "after a submission");
      finish(ticket);
      assertEquals(own, exchangeMode(own), "after a wait");
    }
  }

  /** Sets the thread's capture mode; returns the one it had. */
  private static int exchangeMode(int mode) {
    int[] exchanged = {mode};
    Driver.check("exchange", () -> JCudaDriver.cuThreadExchangeStreamCaptureMode(exchanged));
    return exchanged[0];
  }

  @Test
  @DisplayName("case 55: heap memory is refused at the door")
  void case55HeapMemory() {
    long before = rig.driver.calls("cuMemHostRegister");
    for (ByteBuffer heap : List.of(ByteBuffer.wrap(new byte[64]), ByteBuffer.allocate(64))) {
      CompletionException refusal =
          assertThrows(
              CompletionException.class,
              () -> engine.adoptSlabs(List.of(heap), Runnable::run, ready -> {}).join());
      assertTrue(String.valueOf(refusal.getMessage()).contains("heap buffer"));
      refused(Reason.INVALID_ARGUMENT, () -> KVCacheTensor.host(heap));
    }
    assertEquals(before, rig.driver.calls("cuMemHostRegister"));
  }

  @Test
  @DisplayName("case 55: memory lives until its copy has ended, whoever forgets it")
  void case55MemoryOutlivesItsCopy() throws Exception {
    AtomicBoolean isFreed = new AtomicBoolean();
    KVCacheTensor tensor = registered(0, 8192);
    byte[] loaded = pattern(8192, 55);
    CopyTicket ticket = submitForgotten(tensor, loaded, isFreed);
    for (int i = 0; i < 5; i++) {
      System.gc();
      assertFalse(isFreed.get(), "freed while a copy uses it");
    }
    rig.driver.releaseCopies();
    assertNull(finish(ticket).failure(0));
    assertArrayEquals(loaded, rig.driver.peek(tensor.address(), 8192));
    engine.close(LONG);
    engine = CudaCopyEngine.open(0);
    ticket = null;
    while (!isFreed.get()) {
      System.gc();
      Thread.onSpinWait();
    }
  }

  private CopyTicket submitForgotten(KVCacheTensor tensor, byte[] content, AtomicBoolean isFreed) {
    ByteBuffer memory = ByteBuffer.allocateDirect(content.length);
    memory.put(0, content);
    Cleaner.create().register(memory, () -> isFreed.set(true));
    engine.adoptSlabs(List.of(memory), Runnable::run, ready -> {}).join();
    HostSlab slab = engine.allocateSlab(content.length);
    rig.driver.holdCopies();
    CopyTicket ticket =
        engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0));
    engine.releaseSlab(slab);
    return ticket;
  }

  @Test
  @DisplayName("case 56: position, limit, slices and byte order of adopted memory")
  void case56Positions() {
    ByteBuffer memory = ByteBuffer.allocateDirect(4096);
    ByteBuffer head = memory.duplicate().limit(1024);
    ByteBuffer middle = memory.duplicate().position(1024).limit(1536);
    engine.adoptSlabs(List.of(head, middle), Runnable::run, ready -> {}).join();
    assertEquals(1024, middle.position());
    assertEquals(1536, middle.limit());
    HostSlab first = engine.allocateSlab(1024);
    HostSlab slab = engine.allocateSlab(512);
    assertEquals(first.baseAddress() + 1024, slab.baseAddress());
    assertEquals(512, slab.sizeBytes());
    assertEquals(512, slab.buffer().capacity());

    slab.buffer().putInt(0, 0x01020304);
    assertEquals(4, memory.get(1024));
    KVCacheTensor tensor = registered(0, 512);
    finish(engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0)));
    assertArrayEquals(new byte[] {4, 3, 2, 1}, rig.driver.peek(tensor.address(), 4));

    CompletionException refusal =
        assertThrows(
            CompletionException.class,
            () ->
                engine
                    .adoptSlabs(List.of(memory.asReadOnlyBuffer()), Runnable::run, ready -> {})
                    .join());
    assertTrue(String.valueOf(refusal.getMessage()).contains("read-only"));
  }

  @Test
  @DisplayName("case 57: no result of the driver is lost, with JCuda's exceptions off and on")
  void case57Results() {
    for (boolean throwing : new boolean[] {false, true}) {
      JCudaDriver.setExceptionsEnabled(throwing);
      try {
        checkResults();
      } finally {
        JCudaDriver.setExceptionsEnabled(false);
      }
    }
  }

  private void checkResults() {
    rig.driver.failCall("cuMemHostRegister", OUT_OF_MEMORY, 0, 1);
    UMBPException noMemory = refused(Reason.OUT_OF_MEMORY, () -> engine.allocateSlab(12_345));
    assertContains(
        noMemory.getMessage(), "cuMemHostRegister returned 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    assertContains(noMemory.getMessage(), "12345 bytes");

    KVCacheTensor tensor = registered(0, 4096);
    HostSlab slab = engine.allocateSlab(4096);
    rig.driver.failCall("cuMemcpyAsync", INVALID_CONTEXT, 0, 1);
    CopyTicket failed =
        finish(engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0)));
    assertContains(failed.failure(0), "cuMemcpyAsync returned 201 (CUDA_ERROR_INVALID_CONTEXT)");

    rig.driver.holdCopies();
    CopyTicket held =
        engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0));
    assertFalse(held.poll(), "600 is not an error");
    rig.driver.failCall("cuEventQuery", ILLEGAL_ADDRESS, 0, 1);
    assertTrue(held.poll(), "final");
    String why = "cuEventQuery returned 700 (CUDA_ERROR_ILLEGAL_ADDRESS)";
    assertContains(held.failure(0), why);
    assertContains(refused(Reason.CLOSED, () -> engine.allocateSlab(1)).getMessage(), why);
    rig.driver.releaseCopies();
    engine.close(LONG);
    leavesMemory = true;
    rig.driver.clearFaults();
    engine = CudaCopyEngine.open(0, 1);
  }

  private static void assertContains(String text, String part) {
    assertNotNull(text);
    assertTrue(text.contains(part), text);
  }

  @Test
  @DisplayName("case 57: raw addresses keep all their bits; null and nothing are refused")
  void case57Addresses() {
    assertEquals(0x7F1374567000L, new Handles.Address(0x7F1234567000L + (5L << 30)).value());
    refused(Reason.INVALID_ARGUMENT, () -> KVCacheTensor.device(0, 4096, 0));
    refused(Reason.INVALID_ARGUMENT, () -> KVCacheTensor.device(0x7F1234567000L, 0, 0));
  }

  @Test
  @DisplayName("case 58: a block across 2 GiB of a 3 GiB buffer round-trips")
  void case58BeyondTwoGigabytes() {
    long pool = 3_221_225_472L;
    int block = 8_848;
    long start = 242_708L * block;
    assertEquals(2_147_480_384L, start);
    rig.driver.deviceMemoryLimit(4L << 30);
    long base = rig.malloc(1, pool);
    engine.register(
        KVCacheTensor.device(base, pool, 1).blocks((int) (pool / block), block).build());
    HostSlab slab = engine.allocateSlab(block);
    byte[] content = pattern(block, 58);
    slab.buffer().put(0, content);
    CopyBatch batch = new CopyBatch();
    for (TransferDirection direction : List.of(TransferDirection.LOAD, TransferDirection.STORE)) {
      batch.reset(direction, 1, 1);
      batch.add(base + start, slab.baseAddress(), block, 0);
      assertNull(finish(engine.submit(batch, rig.fence(1))).failure(0));
      assertArrayEquals(content, rig.driver.peek(base + start, block));
      assertArrayEquals(content, CudaRig.bytes(slab));
      slab.buffer().put(0, new byte[block]);
    }
  }

  @Test
  @DisplayName("case 58: when the third of four slabs can't be pinned, none stays pinned")
  void case58RollBack() {
    long before = rig.driver.live().registrations();
    rig.driver.failCall("cuMemHostRegister", OUT_OF_MEMORY, 2, 1);
    List<Long> progress = new ArrayList<>();
    CompletionException failure =
        assertThrows(
            CompletionException.class,
            () -> engine.prepareSlabs(4 * 65_536L, 65_536, Runnable::run, progress::add).join());
    UMBPException cause = (UMBPException) failure.getCause();
    assertEquals(Reason.OUT_OF_MEMORY, cause.reason());
    assertContains(cause.getMessage(), "65536 bytes");
    assertEquals(List.of(65_536L, 131_072L), progress);
    assertEquals(before, rig.driver.live().registrations());

    engine.prepareSlabs(4 * 65_536L, 65_536, Runnable::run, progress::add).join();
    assertEquals(262_144L, progress.get(progress.size() - 1));
    assertEquals(before + 4, rig.driver.live().registrations());
    long calls = rig.driver.calls("cuMemHostRegister");
    for (int i = 0; i < 4; i++) {
      engine.allocateSlab(65_536);
    }
    assertEquals(calls, rig.driver.calls("cuMemHostRegister"), "the prepared slabs are used");
  }

  @Test
  @DisplayName("case 61: close against eight loading threads, 200 rounds")
  void case61CloseAgainstWork() throws Exception {
    engine.close(LONG);
    for (int round = 0; round < 200; round++) {
      engine = CudaCopyEngine.open(0);
      List<Callable<Boolean>> tasks = new ArrayList<>();
      for (int i = 0; i < 8; i++) {
        KVCacheTensor tensor = registered(0, 16_384);
        HostSlab slab = engine.allocateSlab(16_384);
        byte[] content = pattern(16_384, round * 8L + i);
        slab.buffer().put(0, content);
        tasks.add(() -> loadUntilClosed(tensor, slab, content));
      }
      for (int i = 0; i < 2; i++) {
        tasks.add(() -> engine.close(LONG).isClean());
      }
      ExecutorService pool = Executors.newFixedThreadPool(tasks.size());
      try {
        for (Future<Boolean> each : pool.invokeAll(tasks)) {
          assertTrue(each.get());
        }
      } finally {
        pool.shutdownNow();
      }
      assertEquals(0, rig.driver.violations(), "round " + round);
    }
  }

  private boolean loadUntilClosed(KVCacheTensor tensor, HostSlab slab, byte[] content) {
    while (true) {
      CopyTicket ticket;
      try {
        ticket = engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0));
      } catch (UMBPException e) {
        return e.reason() == Reason.CLOSED;
      }
      if (!ticket.await(LONG)) {
        return false;
      }
      if (ticket.failure(0) == null
          && !Arrays.equals(content, rig.driver.peek(tensor.address(), content.length))) {
        return false;
      }
    }
  }

  @Test
  @DisplayName("case 61: close returns while a copy hangs, and frees its memory when it ends")
  void case61HeldForEver() {
    KVCacheTensor tensor = registered(0, 8192);
    HostSlab used = engine.allocateSlab(8192);
    engine.allocateSlab(4096);
    long registrations = rig.driver.live().registrations();
    rig.driver.holdCopies();
    CopyTicket held =
        engine.submit(CudaRig.whole(TransferDirection.STORE, tensor, used), rig.fence(0));
    CloseResult left = engine.close(Duration.ofMillis(50));
    assertEquals(new CloseResult(1, 8192), left);
    assertEquals(left, engine.close(LONG), "a second close");
    assertEquals(registrations, rig.driver.live().registrations(), "nothing is freed");
    refused(Reason.CLOSED, () -> engine.allocateSlab(1));
    assertFalse(held.poll());
    rig.driver.releaseCopies();
    assertNull(finish(held).failure(0));
    assertEquals(0, rig.driver.live().registrations(), "all is freed");
  }

  @Test
  @DisplayName("an error after which the context is of no use ends every job and closes the engine")
  void stickyError() {
    KVCacheTensor tensor = registered(0, 8192);
    KVCacheTensor other = registered(1, 4096);
    HostSlab slab = engine.allocateSlab(8192);
    HostSlab otherSlab = engine.allocateSlab(4096);
    rig.driver.holdCopies();
    rig.driver.failCompletion("cuMemcpyAsync", ILLEGAL_ADDRESS, 0, 1);
    List<CopyTicket> tickets = new ArrayList<>();
    for (int i = 0; i < 3; i++) {
      tickets.add(engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0)));
    }
    CopyTicket healthy =
        engine.submit(CudaRig.whole(TransferDirection.LOAD, other, otherSlab), rig.fence(1));
    rig.driver.releaseCopies();
    for (CopyTicket ticket : tickets) {
      String why = finish(ticket).failure(0);
      assertContains(why, "CUDA device 0 is lost");
      assertContains(why, "700 (CUDA_ERROR_ILLEGAL_ADDRESS)");
    }
    assertNull(finish(healthy).failure(0), "the other device's batch");
    UMBPException closed = refused(Reason.CLOSED, () -> engine.allocateSlab(1));
    assertContains(closed.getMessage(), "700 (CUDA_ERROR_ILLEGAL_ADDRESS)");
    assertEquals(new CloseResult(0, 8192), engine.close(LONG), "memory given up");
    leavesMemory = true;
  }

  @Test
  @DisplayName("memory that the driver does not know as the tensor's device's is refused")
  void wrongMemory() {
    KVCacheTensor freed = rig.tensor(0, 4096);
    rig.free(freed.address());
    assertContains(
        refused(Reason.INVALID_ARGUMENT, () -> engine.register(freed)).getMessage(), "freed");

    long address = rig.malloc(0, 8192);
    KVCacheTensor otherDevice = KVCacheTensor.device(address, 8192, 1).blocks(1, 8192).build();
    assertContains(
        refused(Reason.INVALID_ARGUMENT, () -> engine.register(otherDevice)).getMessage(),
        "on device 0");
    KVCacheTensor tooLong = KVCacheTensor.device(address, 1 << 20, 0).blocks(1, 8192).build();
    assertContains(
        refused(Reason.INVALID_ARGUMENT, () -> engine.register(tooLong)).getMessage(),
        "of 8192 bytes");
    HostSlab slab = engine.allocateSlab(4096);
    KVCacheTensor host = KVCacheTensor.device(slab.baseAddress(), 4096, 0).blocks(1, 4096).build();
    assertContains(
        refused(Reason.INVALID_ARGUMENT, () -> engine.register(host)).getMessage(), "host memory");
    refused(
        Reason.UNSUPPORTED,
        () ->
            engine.register(
                KVCacheTensor.host(ByteBuffer.allocateDirect(64)).blocks(1, 64).build()));
    refused(
        Reason.INVALID_ARGUMENT,
        () -> engine.register(KVCacheTensor.device(address, 8192, 7).blocks(1, 8192).build()));
  }

  @Test
  @DisplayName("two neighbouring allocations are never copied in one call")
  void allocationsStayApart() {
    int bytes = 65_536;
    KVCacheTensor first = registered(0, bytes);
    KVCacheTensor second = registered(0, bytes);
    HostSlab slab = engine.allocateSlab(2L * bytes);
    byte[] content = pattern(2 * bytes, 3);
    slab.buffer().put(0, content);
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 0, 1);
    batch.add(first.address(), slab.baseAddress(), bytes, 0);
    batch.add(second.address(), slab.baseAddress() + bytes, bytes, 0);
    assertNull(finish(engine.submit(batch, rig.fence(0))).failure(0));
    assertArrayEquals(Arrays.copyOf(content, bytes), rig.driver.peek(first.address(), bytes));
    assertArrayEquals(
        Arrays.copyOfRange(content, bytes, 2 * bytes), rig.driver.peek(second.address(), bytes));
    assertEquals(2, engine.stats().copyCalls());
  }

  @Test
  @DisplayName("each path takes as many driver calls as it must, and they are counted")
  void callsOfEachPath() {
    engine.close(LONG);
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(
                CudaCopySettings.builder()
                    .kernelBelowBytes(1024)
                    .kernelMinRanges(16)
                    .stridedMinRanges(4)
                    .stridedMinBytes(2048)
                    .tableRanges(7)
                    .build())
            .open();
    KVCacheTensor tensor = registered(0, 1 << 20);
    HostSlab slab = engine.allocateSlab(1 << 20);
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.STORE, 0, 1);
    long device = tensor.address();
    long host = slab.baseAddress();
    for (int i = 0; i < 3; i++) {
      batch.add(device + i * 100L, host + i * 100L, 100, 0);
    }
    for (int i = 0; i < 5; i++) {
      batch.add(device + 10_000 + i * 5_000L, host + 10_000 + i * 3_000L, 2_048, 0);
    }
    for (int i = 0; i < 20; i++) {
      batch.add(device + 100_000 + 500L * i * i, host + 100_000 + i * 600L, 300, 0);
    }
    batch.add(device + 500_000, host + 500_000, 200_000, 0);
    assertNull(finish(engine.submit(batch, rig.fence(0))).failure(0));
    // The three neighbours are one short piece more for the kernel.
    assertEquals(
        new CudaCopyStats(29, 1, 200_000, 1, 5 * 2_048, 3, 20 * 300 + 300), engine.stats());
    assertEquals(1, rig.driver.calls("cuMemcpyAsync"));
    assertEquals(1, rig.driver.calls("cuMemcpy2DAsync"));
    assertEquals(3, rig.driver.calls("cuLaunchKernel"));
  }

  @Test
  @DisplayName("a staging buffer is used where the host's side is in long runs")
  void callsOfStaging() {
    engine.close(LONG);
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(CudaCopySettings.builder().kernelBelowBytes(1024).stagingBytes(8_192).build())
            .open();
    KVCacheTensor tensor = registered(0, 1 << 20);
    HostSlab slab = engine.allocateSlab(1 << 20);
    CopyBatch batch = new CopyBatch();
    for (int gap : new int[] {0, 8}) {
      CudaCopyStats before = engine.stats();
      batch.reset(TransferDirection.LOAD, 0, 1);
      for (int i = 0; i < 32; i++) {
        batch.add(tensor.address() + 600L * i * i, slab.baseAddress() + i * (512L + gap), 512, 0);
      }
      assertNull(finish(engine.submit(batch, rig.fence(0))).failure(0));
      CudaCopyStats after = engine.stats();
      assertEquals(2, after.kernelLaunches() - before.kernelLaunches());
      assertEquals(gap == 0 ? 2 : 0, after.copyCalls() - before.copyCalls(), "runs of the host");
    }
  }

  @Test
  @DisplayName("a stream that is being captured is refused, and copies go on during a capture")
  void capture() {
    KVCacheTensor tensor = registered(0, 65_536);
    HostSlab slab = engine.allocateSlab(65_536);
    CUstream captured = new CUstream();
    rig.on(0, () -> JCudaDriver.cuStreamCreate(captured, 1));
    rig.on(
        0,
        () ->
            JCudaDriver.cuStreamBeginCapture(
                captured, CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL));
    CopyBatch batch = CudaRig.whole(TransferDirection.STORE, tensor, slab);
    refused(Reason.STREAM_CAPTURING, () -> engine.submit(batch, CudaFence.onStream(0, captured)));
    assertNull(finish(engine.submit(batch, rig.fence(0))).failure(0), "a copy beside a capture");
    engine.allocateSlab(4096);
    CUgraph graph = new CUgraph();
    rig.on(0, () -> JCudaDriver.cuStreamEndCapture(captured, graph));
    assertNull(
        finish(engine.submit(batch, CudaFence.onStream(0, captured))).failure(0),
        "after the capture");
    rig.on(0, () -> JCudaDriver.cuStreamDestroy(captured));
  }

  @Test
  @DisplayName("a fence on a stream that the driver refuses is refused, and nothing was copied")
  void unknownStream() {
    KVCacheTensor tensor = registered(0, 4096);
    HostSlab slab = engine.allocateSlab(4096);
    CopyBatch batch = CudaRig.whole(TransferDirection.STORE, tensor, slab);
    UMBPException refusal =
        refused(
            Reason.INVALID_ARGUMENT,
            () -> engine.submit(batch, CudaFence.onStream(0, 0x1234_5678L)));
    assertContains(refusal.getMessage(), "stream 0x12345678 of device 0");
    refused(
        Reason.INVALID_ARGUMENT, () -> engine.submit(batch, CudaFence.onStream(5, rig.stream(0))));
    assertEquals(0, engine.stats().ranges());
  }

  @Test
  @DisplayName("the engine's stream waits on the device for one layer of a load")
  void layerMarks() {
    int page = 4096;
    KVCacheTensor tensor = registered(0, 3 * page);
    HostSlab slab = engine.allocateSlab(3L * page);
    byte[] content = pattern(3 * page, 7);
    slab.buffer().put(0, content);
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 0, 1);
    for (int layer = 0; layer < 3; layer++) {
      batch.add(
          tensor.address() + (long) layer * page,
          slab.baseAddress() + (2L - layer) * page,
          page,
          0);
      batch.endMark();
    }
    rig.driver.holdCopies();
    SupportsStreamWait ticket = (SupportsStreamWait) engine.submit(batch, rig.fence(0));
    DeviceFence.OnStream compute = CudaFence.onStream(0, rig.stream(0));
    assertEquals(StreamWait.ENQUEUED, ticket.enqueueWait(1, compute));
    FakeCudaDriver.PendingRead read =
        rig.driver.enqueueRead(rig.streamHandle(0), tensor.address() + page, page);
    rig.driver.releaseOneCopy();
    rig.driver.releaseOneCopy();
    assertArrayEquals(Arrays.copyOfRange(content, page, 2 * page), read.await());
    assertTrue(ticket.isMarkDone(0));
    assertTrue(ticket.isMarkDone(1));
    assertFalse(ticket.isMarkDone(2));
    assertFalse(ticket.poll());
    rig.driver.releaseCopies();
    finish(ticket);
    assertTrue(ticket.isMarkDone(2));
    assertEquals(StreamWait.ENQUEUED, ticket.enqueueWait(2, compute), "nothing to wait for");
    assertThrows(UMBPException.class, () -> ticket.enqueueWait(3, compute));
  }

  @Test
  @DisplayName("bytes in flight are bounded, loads go before stores, and a waiting batch says so")
  void inFlight() {
    engine.close(LONG);
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(CudaCopySettings.builder().inFlightBytes(4096).build())
            .open();
    KVCacheTensor tensor = registered(0, 4 * 4096);
    List<SupportsStreamWait> tickets = new ArrayList<>();
    rig.driver.holdCopies();
    for (int i = 0; i < 4; i++) {
      HostSlab slab = engine.allocateSlab(4096);
      CopyBatch batch = new CopyBatch();
      batch.reset(i == 3 ? TransferDirection.LOAD : TransferDirection.STORE, 0, 1);
      batch.add(tensor.address() + i * 4096L, slab.baseAddress(), 4096, 0);
      batch.endMark();
      tickets.add((SupportsStreamWait) engine.submit(batch, rig.fence(0)));
    }
    DeviceFence.OnStream compute = CudaFence.onStream(0, rig.stream(0));
    assertEquals(1, engine.stats().ranges(), "only the first is enqueued");
    assertEquals(StreamWait.NOT_YET_ENQUEUED, tickets.get(1).enqueueWait(0, compute));
    rig.driver.releaseOneCopy();
    finish(tickets.get(0));
    assertEquals(2, engine.stats().ranges());
    assertEquals(StreamWait.ENQUEUED, tickets.get(3).enqueueWait(0, compute), "the load");
    assertEquals(StreamWait.NOT_YET_ENQUEUED, tickets.get(1).enqueueWait(0, compute));
    rig.driver.releaseCopies();
    for (CopyTicket ticket : tickets) {
      assertNull(finish(ticket).failure(0));
    }
  }

  @Test
  @DisplayName("an executor reads completions, so that batches go on though nobody polls")
  void executorFollows() throws Exception {
    engine.close(LONG);
    ExecutorService executor = Executors.newSingleThreadExecutor();
    try {
      engine =
          CudaCopyEngine.builder()
              .device(0)
              .executor(executor)
              .settings(CudaCopySettings.builder().inFlightBytes(4096).build())
              .open();
      KVCacheTensor tensor = registered(0, 8 * 4096);
      for (int i = 0; i < 8; i++) {
        CopyBatch batch = new CopyBatch();
        batch.reset(TransferDirection.STORE, 0, 1);
        batch.add(tensor.address() + i * 4096L, engine.allocateSlab(4096).baseAddress(), 4096, 0);
        engine.submit(batch, rig.fence(0));
      }
      while (engine.stats().ranges() < 8) {
        Thread.onSpinWait();
      }
      assertEquals(CloseResult.CLEAN, engine.close(LONG));
    } finally {
      executor.shutdown();
      assertTrue(executor.awaitTermination(20, TimeUnit.SECONDS));
    }
  }

  @Test
  @DisplayName("a context of the serving engine's own serves, and stays after close")
  void ownContext() {
    engine.close(LONG);
    CUcontext own = new CUcontext();
    CUdevice device = new CUdevice();
    Driver.check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, 1));
    Driver.check("cuCtxCreate", () -> JCudaDriver.cuCtxCreate(own, 0, device));
    CUstream stream = new CUstream();
    Handles.Address address = new Handles.Address();
    Driver.check("cuStreamCreate", () -> JCudaDriver.cuStreamCreate(stream, 1));
    Driver.check("cuMemAlloc", () -> JCudaDriver.cuMemAlloc(address, 65_536));
    Driver.check("pop", () -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
    engine = CudaCopyEngine.builder().context(Handles.of(own)).open();
    KVCacheTensor tensor =
        KVCacheTensor.device(address.value(), 65_536, 1).blocks(1, 65_536).build();
    engine.register(tensor);
    HostSlab slab = engine.allocateSlab(65_536);
    byte[] content = pattern(65_536, 4);
    slab.buffer().put(0, content);
    CopyBatch batch = CudaRig.whole(TransferDirection.LOAD, tensor, slab);
    assertNull(finish(engine.submit(batch, CudaFence.onStream(1, stream))).failure(0));
    assertArrayEquals(content, rig.driver.peek(address.value(), 65_536));
    engine.close(LONG);
    Driver.check("push", () -> JCudaDriver.cuCtxPushCurrent(own));
    Driver.check("cuStreamDestroy", () -> JCudaDriver.cuStreamDestroy(stream));
    Driver.check("cuMemFree", () -> JCudaDriver.cuMemFree(address));
    Driver.check("cuCtxDestroy", () -> JCudaDriver.cuCtxDestroy(own));
  }

  @Test
  @DisplayName("a device that can't be opened leaves nothing behind")
  void openRollsBack() {
    engine.close(LONG);
    FakeCudaDriver.Live before = rig.driver.live();
    refused(Reason.DRIVER_FAILED, () -> CudaCopyEngine.open(0, 1, 2));
    refused(Reason.INVALID_ARGUMENT, () -> CudaCopyEngine.open(0, 0));
    refused(Reason.INVALID_ARGUMENT, () -> CudaCopyEngine.open());
    refused(Reason.INVALID_ARGUMENT, () -> CudaCopyEngine.open(-1));
    for (String call :
        List.of(
            "cuStreamCreateWithPriority",
            "cuEventCreate",
            "cuMemHostRegister",
            "cuModuleGetFunction")) {
      rig.driver.failCall(call, OUT_OF_MEMORY, 1, 1);
      assertThrows(UMBPException.class, () -> CudaCopyEngine.open(0, 1), call);
      rig.driver.clearFaults();
      assertEquals(before, rig.driver.live(), call);
    }
  }
}
