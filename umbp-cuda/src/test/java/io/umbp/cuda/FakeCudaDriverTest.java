package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.testkit.FakeCudaDriver;
import io.umbp.testkit.FakeCudaDriver.PendingRead;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import jcuda.Pointer;
import jcuda.driver.CUDA_MEMCPY2D;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUevent;
import jcuda.driver.CUfunction;
import jcuda.driver.CUgraph;
import jcuda.driver.CUmemorytype;
import jcuda.driver.CUmodule;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The testkit's fake driver through JCuda: what it lets pass and what it refuses. */
@Timeout(60)
class FakeCudaDriverTest {
  private static final int INVALID_VALUE = 1;
  private static final int INVALID_CONTEXT = 201;
  private static final int INVALID_HANDLE = 400;
  private static final int NOT_READY = 600;
  private static final int ILLEGAL_ADDRESS = 700;
  private static final int CONTEXT_IS_DESTROYED = 709;
  private static final int ALREADY_REGISTERED = 712;
  private static final int NOT_REGISTERED = 713;
  private static final int NOT_SUPPORTED = 801;
  private static final int CAPTURE_UNSUPPORTED = 900;
  private static final int CAPTURE_INVALIDATED = 901;
  private static final int CAPTURE_IMPLICIT = 906;
  private static final int BYTES = 4096;

  private CudaRig rig;
  private long device;
  private long other;
  private Pointer host;
  private boolean expectsViolations;

  @BeforeEach
  void open() {
    rig = new CudaRig(2);
    push(0);
    device = rig.malloc(0, BYTES);
    other = rig.malloc(1, BYTES);
    host = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(host, BYTES, 3));
  }

  @AfterEach
  void close() {
    rig.driver.clearStickyErrors();
    rig.driver.releaseCopies();
    rig.driver.releaseStream(rig.streamHandle(0));
    ok(JCudaDriver.cuCtxSynchronize());
    ok(JCudaDriver.cuMemFreeHost(host));
    pop();
    if (expectsViolations) {
      assertTrue(rig.driver.violations() > 0);
      rig.driver.reset();
      rig.driver.deviceCount(2);
    }
    rig.close();
    rig.assertNothingLeft();
  }

  private void push(int ordinal) {
    ok(JCudaDriver.cuCtxPushCurrent(rig.context(ordinal)));
  }

  private static void pop() {
    ok(JCudaDriver.cuCtxPopCurrent(new CUcontext()));
  }

  private static void ok(int code) {
    assertEquals(0, code);
  }

  private static Handles.Address at(long address) {
    return new Handles.Address(address);
  }

  private long hostAddress() {
    Handles.Address mapped = new Handles.Address();
    ok(JCudaDriver.cuMemHostGetDevicePointer(mapped, host, 0));
    return mapped.value();
  }

  private int copy(long to, long from, long bytes) {
    return JCudaDriver.cuMemcpyAsync(at(to), at(from), bytes, rig.stream(0));
  }

  private void synchronize() {
    ok(JCudaDriver.cuStreamSynchronize(rig.stream(0)));
  }

  @Test
  void freshMemoryIsPoisonAndCopiesMoveBytes() {
    byte[] poison = new byte[BYTES];
    Arrays.fill(poison, (byte) 0xCD);
    assertArrayEquals(poison, rig.driver.peek(device, BYTES));
    byte[] content = new byte[BYTES];
    new Random(1).nextBytes(content);
    host.getByteBuffer(0, BYTES).put(content);
    ok(copy(device, hostAddress(), BYTES));
    synchronize();
    assertArrayEquals(content, rig.driver.peek(device, BYTES));
  }

  @Test
  void copiesOutOfBoundsOrOfUnknownMemoryAreRefused() {
    assertEquals(INVALID_VALUE, copy(device, hostAddress(), BYTES + 1));
    assertEquals(INVALID_VALUE, copy(device + 1, hostAddress(), BYTES));
    assertEquals(INVALID_VALUE, copy(0x1234_5678L, hostAddress(), 1));
    long freed = rig.malloc(0, BYTES);
    rig.free(freed);
    assertEquals(INVALID_VALUE, copy(freed, hostAddress(), 1));
    assertEquals(
        INVALID_VALUE,
        JCudaDriver.cuMemcpyHtoDAsync(
            at(device), Pointer.to(ByteBuffer.allocateDirect(64)), 64, rig.stream(0)),
        "pageable memory");
    assertEquals(
        INVALID_VALUE,
        JCudaDriver.cuMemcpyDtoHAsync(host, at(hostAddress()), 1, rig.stream(0)),
        "host memory as the device's");
  }

  @Test
  void aRangeLiesInOneRegistration() {
    ByteBuffer memory = ByteBuffer.allocateDirect(2 * BYTES);
    Pointer first = Pointer.to(memory.slice(0, BYTES));
    Pointer second = Pointer.to(memory.slice(BYTES, BYTES));
    ok(JCudaDriver.cuMemHostRegister(first, BYTES, 3));
    ok(JCudaDriver.cuMemHostRegister(second, BYTES, 3));
    assertEquals(ALREADY_REGISTERED, JCudaDriver.cuMemHostRegister(first, 2 * BYTES, 3));
    Handles.Address start = new Handles.Address();
    ok(JCudaDriver.cuMemHostGetDevicePointer(start, first, 0));
    long large = rig.malloc(0, 2 * BYTES);
    assertEquals(INVALID_VALUE, copy(large, start.value(), 2 * BYTES));
    ok(copy(large, start.value() + BYTES, BYTES));
    synchronize();
    ok(JCudaDriver.cuMemHostUnregister(first));
    assertEquals(NOT_REGISTERED, JCudaDriver.cuMemHostUnregister(first));
    ok(JCudaDriver.cuMemHostUnregister(second));
  }

  @Test
  void contextsAreOfThreadsAndStreamsOfContexts() throws Exception {
    ExecutorService thread = Executors.newSingleThreadExecutor();
    try {
      assertEquals(
          INVALID_CONTEXT,
          thread.submit(() -> copy(device, hostAddress0(), 1)).get(20, TimeUnit.SECONDS));
    } finally {
      thread.shutdownNow();
    }
    assertEquals(
        INVALID_HANDLE,
        JCudaDriver.cuMemcpyAsync(at(device), at(hostAddress()), 1, rig.stream(1)),
        "a stream of another context");
    push(1);
    assertEquals(INVALID_HANDLE, copy(other, hostAddress(), 1));
    ok(JCudaDriver.cuMemcpyAsync(at(other), at(hostAddress()), 1, rig.stream(1)));
    ok(JCudaDriver.cuStreamSynchronize(rig.stream(1)));
    pop();
    CUcontext own = new CUcontext();
    ok(JCudaDriver.cuCtxCreate(own, 0, new CUdevice()));
    ok(JCudaDriver.cuCtxDestroy(own));
    assertEquals(CONTEXT_IS_DESTROYED, JCudaDriver.cuCtxPushCurrent(own));
  }

  /** An address that is not looked at. */
  private static long hostAddress0() {
    return 1;
  }

  @Test
  void eventsOrderStreams() {
    CUevent event = new CUevent();
    CUstream waiting = new CUstream();
    ok(JCudaDriver.cuEventCreate(event, 2));
    ok(JCudaDriver.cuStreamCreate(waiting, 1));
    rig.driver.holdStream(rig.streamHandle(0));
    byte[] written = {1, 2, 3};
    rig.driver.enqueueWrite(rig.streamHandle(0), device, written);
    ok(JCudaDriver.cuEventRecord(event, rig.stream(0)));
    ok(JCudaDriver.cuStreamWaitEvent(waiting, event, 0));
    PendingRead read = rig.driver.enqueueRead(Handles.of(waiting), device, 3);
    assertEquals(NOT_READY, JCudaDriver.cuEventQuery(event));
    assertEquals(NOT_READY, JCudaDriver.cuStreamQuery(waiting));
    rig.driver.releaseStream(rig.streamHandle(0));
    assertArrayEquals(written, read.await());
    ok(JCudaDriver.cuEventQuery(event));
    assertThrows(IllegalStateException.class, read::await);
    ok(JCudaDriver.cuEventDestroy(event));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuEventQuery(event));
    ok(JCudaDriver.cuStreamDestroy(waiting));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamQuery(waiting));
  }

  @Test
  void blockingStreamsOrderWithTheDefaultStream() {
    CUstream blocking = new CUstream();
    ok(JCudaDriver.cuStreamCreate(blocking, 0));
    rig.driver.holdStream(Handles.of(blocking));
    rig.driver.enqueueWrite(Handles.of(blocking), device, new byte[] {7});
    ok(JCudaDriver.cuMemcpyAsync(at(hostAddress()), at(device), 1, JCudaDriver.CU_STREAM_LEGACY));
    assertEquals(NOT_READY, JCudaDriver.cuStreamQuery(JCudaDriver.CU_STREAM_LEGACY));
    ok(copy(device + 64, hostAddress(), 1));
    synchronize();
    rig.driver.releaseStream(Handles.of(blocking));
    ok(JCudaDriver.cuStreamSynchronize(JCudaDriver.CU_STREAM_LEGACY));
    assertEquals(7, host.getByteBuffer(0, 1).get(0));
    ok(JCudaDriver.cuStreamDestroy(blocking));
  }

  @Test
  void heldCopiesAreLetGoInTheOrderOfTheirEnqueueing() {
    rig.driver.holdCopies();
    push(1);
    ok(JCudaDriver.cuMemcpyAsync(at(other), at(hostAddress()), 8, rig.stream(1)));
    pop();
    ok(copy(device, hostAddress(), 8));
    CUevent event = new CUevent();
    ok(JCudaDriver.cuEventCreate(event, 2));
    ok(JCudaDriver.cuEventRecord(event, rig.stream(0)));
    assertTrue(rig.driver.releaseOneCopy(), "the first, of the other device");
    push(1);
    ok(JCudaDriver.cuStreamSynchronize(rig.stream(1)));
    pop();
    assertEquals(NOT_READY, JCudaDriver.cuEventQuery(event));
    assertTrue(rig.driver.releaseOneCopy());
    ok(JCudaDriver.cuEventSynchronize(event));
    assertFalse(rig.driver.releaseOneCopy(), "none is held");
    ok(JCudaDriver.cuEventDestroy(event));
  }

  @Test
  void faultsAreInjectedAtCallsAddressesAndCompletions() {
    long from = hostAddress();
    rig.driver.failCall("cuMemcpyAsync", 999, 1, 2);
    ok(copy(device, from, 1));
    assertEquals(999, copy(device, from, 1));
    assertEquals(999, copy(device, from, 1));
    ok(copy(device, from, 1));
    rig.driver.failAddress(device + 10, 2, 1);
    ok(copy(device, from, 10));
    assertEquals(2, copy(device, from, 11));
    ok(copy(device, from, 11));
    synchronize();
    rig.driver.failCompletion("cuMemcpyAsync", ILLEGAL_ADDRESS, 0, 1);
    ok(copy(device, from, 1));
    assertEquals(ILLEGAL_ADDRESS, JCudaDriver.cuStreamSynchronize(rig.stream(0)));
    assertEquals(ILLEGAL_ADDRESS, copy(device, from, 1), "the error stays");
    push(1);
    ok(JCudaDriver.cuMemcpyAsync(at(other), at(from), 8, rig.stream(1)));
    ok(JCudaDriver.cuStreamSynchronize(rig.stream(1)));
    pop();
  }

  @Test
  void memoryThatGoesWhileACopyNamesItIsAViolation() {
    expectsViolations = true;
    long gone = rig.malloc(0, BYTES);
    rig.driver.holdCopies();
    ok(copy(gone, hostAddress(), BYTES));
    rig.free(gone);
    assertEquals(1, rig.driver.violations());
    assertTrue(rig.driver.violationReports().get(0).contains("4096 bytes"));
    rig.driver.releaseCopies();
    assertEquals(ILLEGAL_ADDRESS, JCudaDriver.cuStreamSynchronize(rig.stream(0)));
    assertEquals(2, rig.driver.violations());
  }

  @Test
  void capturesForbidUnsafeCallsOfOthers() {
    CUstream captured = new CUstream();
    ok(JCudaDriver.cuStreamCreate(captured, 0));
    ok(JCudaDriver.cuStreamBeginCapture(captured, 0));
    assertEquals(CAPTURE_UNSUPPORTED, JCudaDriver.cuMemAlloc(new Handles.Address(), 64));
    assertEquals(
        CAPTURE_IMPLICIT,
        JCudaDriver.cuMemcpyAsync(at(device), at(hostAddress()), 1, JCudaDriver.CU_STREAM_LEGACY));
    int[] mode = {2};
    ok(JCudaDriver.cuThreadExchangeStreamCaptureMode(mode));
    assertEquals(0, mode[0]);
    Handles.Address allocated = new Handles.Address();
    ok(JCudaDriver.cuMemAlloc(allocated, 64));
    ok(JCudaDriver.cuMemFree(allocated));
    ok(JCudaDriver.cuThreadExchangeStreamCaptureMode(mode));
    assertEquals(
        CAPTURE_INVALIDATED,
        JCudaDriver.cuMemcpyAsync(at(device), at(hostAddress()), 1, captured),
        "the capture is spoilt");
    assertEquals(CAPTURE_INVALIDATED, JCudaDriver.cuStreamEndCapture(captured, new CUgraph()));
    ok(JCudaDriver.cuStreamDestroy(captured));
  }

  @Test
  void stridedCopiesAndKernelsDoWhatTheySay() {
    byte[] content = new byte[BYTES];
    new Random(2).nextBytes(content);
    rig.driver.poke(device, content);
    CUDA_MEMCPY2D rows = new CUDA_MEMCPY2D();
    rows.srcMemoryType = CUmemorytype.CU_MEMORYTYPE_UNIFIED;
    rows.dstMemoryType = CUmemorytype.CU_MEMORYTYPE_UNIFIED;
    rows.srcDevice = at(device);
    rows.dstDevice = at(hostAddress());
    rows.srcPitch = 100;
    rows.dstPitch = 60;
    rows.WidthInBytes = 50;
    rows.Height = 7;
    ok(JCudaDriver.cuMemcpy2DAsync(rows, rig.stream(0)));
    rows.dstPitch = 49;
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemcpy2DAsync(rows, rig.stream(0)));
    synchronize();
    ByteBuffer found = host.getByteBuffer(0, BYTES);
    for (int row = 0; row < 7; row++) {
      byte[] line = new byte[50];
      found.get(row * 60, line);
      assertArrayEquals(Arrays.copyOfRange(content, row * 100, row * 100 + 50), line);
    }

    CUmodule module = new CUmodule();
    CUfunction function = new CUfunction();
    ok(JCudaDriver.cuModuleLoadData(module, CopyKernel.ptx()));
    assertEquals(500, JCudaDriver.cuModuleGetFunction(function, module, "another"));
    ok(JCudaDriver.cuModuleGetFunction(function, module, CopyKernel.ENTRY));
    found.order(ByteOrder.nativeOrder()).putLong(0, device).putLong(8, hostAddress() + 1024);
    found.putLong(16, 200);
    ByteBuffer values = ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder());
    values.putLong(0, hostAddress()).putInt(8, 1);
    Pointer parameters = Pointer.to(Pointer.to(values), Pointer.to(values).withByteOffset(8));
    ok(Driver.launchKernel(function, 1, 1, 256, rig.stream(0), parameters));
    assertEquals(
        INVALID_VALUE, Driver.launchKernel(function, 1, 1, 2048, rig.stream(0), parameters));
    synchronize();
    byte[] copied = new byte[200];
    found.get(1024, copied);
    assertArrayEquals(Arrays.copyOf(content, 200), copied);
    ok(JCudaDriver.cuModuleUnload(module));
  }

  @Test
  void objectsAreCounted() {
    FakeCudaDriver.Live before = rig.driver.live();
    List<CUevent> events = new ArrayList<>();
    for (int i = 0; i < 3; i++) {
      events.add(new CUevent());
      ok(JCudaDriver.cuEventCreate(events.get(i), 2));
    }
    CUstream stream = new CUstream();
    ok(JCudaDriver.cuStreamCreate(stream, 1));
    FakeCudaDriver.Live during = rig.driver.live();
    assertEquals(before.events() + 3, during.events());
    assertEquals(before.streams() + 1, during.streams());
    events.forEach(event -> ok(JCudaDriver.cuEventDestroy(event)));
    ok(JCudaDriver.cuStreamDestroy(stream));
    assertEquals(before, rig.driver.live());
    rig.driver.resetCalls();
    assertEquals(NOT_SUPPORTED, JCudaDriver.cuCtxGetCacheConfig(new int[1]));
    assertEquals(1, rig.driver.calls("cuCtxGetCacheConfig"), "functions that are not written");
    assertEquals(0, rig.driver.calls("cuEventCreate"));
  }

  @Test
  void limitsOfMemoryAreKept() {
    rig.driver.deviceMemoryLimit(3 * BYTES);
    long two = rig.malloc(0, 2 * BYTES);
    assertEquals(2, JCudaDriver.cuMemAlloc(new Handles.Address(), 1));
    rig.free(two);
    rig.driver.pinnedMemoryLimit(2 * BYTES);
    assertEquals(2, JCudaDriver.cuMemHostAlloc(new Pointer(), BYTES + 1, 0));
    assertThrows(IllegalArgumentException.class, () -> rig.driver.deviceCount(9));
    assertThrows(IllegalArgumentException.class, () -> rig.driver.holdStream(12_345));
    assertThrows(IllegalArgumentException.class, () -> rig.driver.peek(12_345, 1));
  }
}
