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
import java.time.Duration;
import java.util.Random;
import jcuda.driver.CUcontext;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What a driver, an executor or the memory refuses at a bad moment. */
@Timeout(60)
class CudaMishapsTest {
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final int OUT_OF_MEMORY = 2;

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
    rig.driver.clearFaults();
    rig.driver.releaseCopies();
    engine.close(LONG);
    rig.close();
    if (!leavesMemory) {
      rig.assertNothingLeft();
    }
  }

  private KVCacheTensor registered(int bytes) {
    KVCacheTensor tensor = rig.tensor(0, bytes);
    engine.register(tensor);
    return tensor;
  }

  private static void assertContains(String text, String part) {
    assertNotNull(text);
    assertTrue(text.contains(part), text);
  }

  @Test
  @DisplayName(
      "a batch whose end can't be recorded is final when its stream has stopped, no sooner")
  void endIsNotRecorded() {
    leavesMemory = true;
    KVCacheTensor tensor = registered(8192);
    HostSlab slab = engine.allocateSlab(8192);
    byte[] content = new byte[8192];
    content[8191] = 1;
    slab.buffer().put(0, content);
    CopyBatch batch = CudaRig.whole(TransferDirection.LOAD, tensor, slab);
    batch.endMark();
    rig.driver.holdCopies();
    rig.driver.failCall("cuEventRecord", OUT_OF_MEMORY, 0, 1);
    SupportsStreamWait ticket =
        (SupportsStreamWait) engine.submit(batch, DeviceFence.hostComplete());
    DeviceFence.OnStream compute = CudaFence.onStream(0, rig.stream(0));
    assertFalse(ticket.poll(), "final before its copy");
    assertFalse(ticket.isMarkDone(0), "a mark is done before its copy");
    assertEquals(StreamWait.NOT_YET_ENQUEUED, ticket.enqueueWait(0, compute));
    assertEquals(
        Reason.CLOSED,
        assertThrows(UMBPException.class, () -> engine.allocateSlab(1)).reason(),
        "the engine");
    assertEquals(new CloseResult(1, 8192), engine.close(Duration.ZERO));
    rig.driver.releaseCopies();
    assertTrue(ticket.await(LONG));
    assertArrayEquals(content, rig.driver.peek(tensor.address(), 8192));
    assertTrue(ticket.isMarkDone(0));
    assertEquals(StreamWait.ENQUEUED, ticket.enqueueWait(0, compute), "nothing to wait for");
    assertContains(ticket.failure(0), "cuEventRecord returned 2 (CUDA_ERROR_OUT_OF_MEMORY)");
  }

  @Test
  @DisplayName("a batch that gets no event fails before a copy is enqueued, and nothing else")
  void noEvent() {
    int marks = 100;
    KVCacheTensor tensor = registered(4096 * marks);
    HostSlab slab = engine.allocateSlab(4096L * marks);
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 0, 1);
    for (int i = 0; i < marks; i++) {
      batch.add(tensor.address() + i * 4096L, slab.baseAddress() + i * 4096L, 4096, 0);
      batch.endMark();
    }
    rig.driver.failCall("cuEventCreate", OUT_OF_MEMORY, 30, 1);
    CopyTicket failed = engine.submit(batch, rig.fence(0));
    assertTrue(failed.poll(), "final");
    assertContains(failed.failure(0), "cuEventCreate returned 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    assertEquals(0, rig.driver.calls("cuMemcpyAsync"));
    for (int i = 0; i < 3; i++) {
      CopyTicket next = engine.submit(batch, rig.fence(0));
      assertTrue(next.await(LONG));
      assertNull(next.failure(0));
    }
    assertEquals(CloseResult.CLEAN, engine.close(LONG));
  }

  @Test
  @DisplayName("without memory for another launch table, ranges are copied one by one")
  void noTable() {
    engine.close(LONG);
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(CudaCopySettings.builder().kernelMinRanges(1).tableRanges(2).build())
            .open();
    KVCacheTensor tensor = registered(65_536);
    HostSlab slab = engine.allocateSlab(65_536);
    byte[] content = new byte[65_536];
    new Random(8).nextBytes(content);
    slab.buffer().put(0, content);
    rig.driver.poke(tensor.address(), new byte[65_536]);
    byte[] expected = new byte[65_536];
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 0, 1);
    for (int i = 0; i < 20; i++) {
      batch.add(tensor.address() + 40L * i * i, slab.baseAddress() + 50L * i, 40, 0);
      System.arraycopy(content, 50 * i, expected, 40 * i * i, 40);
    }
    rig.driver.resetCalls();
    rig.driver.failCall("cuMemHostRegister", OUT_OF_MEMORY, 0, Long.MAX_VALUE);
    CopyTicket ticket = engine.submit(batch, rig.fence(0));
    assertTrue(ticket.await(LONG));
    assertNull(ticket.failure(0));
    assertArrayEquals(expected, rig.driver.peek(tensor.address(), 65_536));
    assertEquals(4, rig.driver.calls("cuLaunchKernel"), "the tables made at first");
    assertEquals(12, rig.driver.calls("cuMemcpyAsync"));
    assertEquals(1, rig.driver.calls("cuMemHostRegister"), "tried once");
  }

  @Test
  @DisplayName("a thread whose capture mode can't be changed keeps it, and its context")
  void captureMode() {
    rig.driver.failCall("cuThreadExchangeStreamCaptureMode", 4, 0, 1);
    UMBPException refusal = assertThrows(UMBPException.class, () -> engine.allocateSlab(4096));
    assertEquals(Reason.DRIVER_FAILED, refusal.reason());
    assertContains(
        refusal.getMessage(),
        "cuThreadExchangeStreamCaptureMode returned 4 (CUDA_ERROR_DEINITIALIZED)");
    int[] mode = {0};
    CUcontext current = new CUcontext();
    Driver.check("mode", () -> JCudaDriver.cuThreadExchangeStreamCaptureMode(mode));
    Driver.check("context", () -> JCudaDriver.cuCtxGetCurrent(current));
    assertEquals(0, mode[0], "global, as at first");
    assertEquals(new CUcontext(), current);
  }
}
