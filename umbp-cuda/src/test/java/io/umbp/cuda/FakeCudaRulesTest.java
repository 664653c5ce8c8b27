package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.testkit.FakeCudaDriver;
import io.umbp.testkit.FakeCudaDriver.PendingRead;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;
import jcuda.Pointer;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUevent;
import jcuda.driver.CUfunction;
import jcuda.driver.CUmodule;
import jcuda.driver.CUpointer_attribute;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * The testkit's fake driver through JCuda: what it knows to be stale, foreign or out of range,
 * where CUDA may crash or let it pass.
 */
@Timeout(60)
class FakeCudaRulesTest {
  private static final int INVALID_VALUE = 1;
  private static final int INVALID_CONTEXT = 201;
  private static final int INVALID_HANDLE = 400;
  private static final int NOT_READY = 600;
  private static final int ILLEGAL_ADDRESS = 700;
  private static final int CONTEXT_IS_DESTROYED = 709;
  private static final int NOT_SUPPORTED = 801;
  private static final int NON_BLOCKING = 1;
  private static final int DISABLE_TIMING = 2;
  private static final int PORTABLE = 1;
  private static final int MAPPED = 2;
  private static final int BYTES = 4096;
  private static final int THREADS = 256;

  private CudaRig rig;
  private long device;
  private Pointer host;
  private long hostAddress;

  @BeforeEach
  void open() {
    rig = new CudaRig(2);
    push(rig.context(0));
    device = rig.malloc(0, BYTES);
    host = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(host, BYTES, PORTABLE | MAPPED));
    Handles.Address mapped = new Handles.Address();
    ok(JCudaDriver.cuMemHostGetDevicePointer(mapped, host, 0));
    hostAddress = mapped.value();
  }

  @AfterEach
  void close() {
    rig.driver.clearStickyErrors();
    rig.driver.releaseCopies();
    rig.driver.releaseStream(rig.streamHandle(0));
    ok(JCudaDriver.cuCtxSynchronize());
    ok(JCudaDriver.cuMemFreeHost(host));
    pop();
    rig.close();
    rig.assertNothingLeft();
  }

  private static void ok(int code) {
    assertEquals(0, code);
  }

  private static void push(CUcontext context) {
    ok(JCudaDriver.cuCtxPushCurrent(context));
  }

  private static void pop() {
    ok(JCudaDriver.cuCtxPopCurrent(new CUcontext()));
  }

  private static CUdevice device(int ordinal) {
    CUdevice device = new CUdevice();
    ok(JCudaDriver.cuDeviceGet(device, ordinal));
    return device;
  }

  private static Handles.Address at(long address) {
    return new Handles.Address(address);
  }

  private static CUstream stream(int flags) {
    CUstream stream = new CUstream();
    ok(JCudaDriver.cuStreamCreate(stream, flags));
    return stream;
  }

  private static CUevent event() {
    CUevent event = new CUevent();
    ok(JCudaDriver.cuEventCreate(event, DISABLE_TIMING));
    return event;
  }

  private static CUmodule module() {
    CUmodule module = new CUmodule();
    ok(JCudaDriver.cuModuleLoadData(module, CopyKernel.ptx()));
    return module;
  }

  private static CUfunction kernel(CUmodule module) {
    CUfunction function = new CUfunction();
    ok(JCudaDriver.cuModuleGetFunction(function, module, CopyKernel.ENTRY));
    return function;
  }

  private int copy(long to, long from, long bytes) {
    return JCudaDriver.cuMemcpyAsync(at(to), at(from), bytes, rig.stream(0));
  }

  private int synchronize() {
    return JCudaDriver.cuStreamSynchronize(rig.stream(0));
  }

  /** Checks how many violations there were, which the end of the test would complain of. */
  private void violations(int expected, String text) {
    assertEquals(expected, rig.driver.violations(), rig.driver.violationReports().toString());
    String last = rig.driver.violationReports().get(expected - 1);
    assertTrue(last.contains(text), last);
    rig.driver.reset();
    rig.driver.deviceCount(2);
  }

  @Test
  void staleHandlesAreKnownThoughOthersWereMadeSince() {
    CUstream stream = stream(NON_BLOCKING);
    CUevent event = event();
    CUmodule module = module();
    CUfunction function = kernel(module);
    ok(JCudaDriver.cuStreamDestroy(stream));
    ok(JCudaDriver.cuEventDestroy(event));
    ok(JCudaDriver.cuModuleUnload(module));
    CUstream nextStream = stream(NON_BLOCKING);
    CUevent nextEvent = event();
    CUmodule nextModule = module();
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamQuery(stream));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamDestroy(stream));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuEventQuery(event));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuEventRecord(event, nextStream));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamWaitEvent(nextStream, event, 0));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuEventDestroy(event));
    assertEquals(INVALID_HANDLE, launch(function, 0, nextStream));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuModuleUnload(module));
    ok(JCudaDriver.cuStreamDestroy(nextStream));
    ok(JCudaDriver.cuEventDestroy(nextEvent));
    ok(JCudaDriver.cuModuleUnload(nextModule));
  }

  @Test
  void aHandleOfAnotherKindIsRefused() {
    CUevent event = event();
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamQuery(Handles.stream(Handles.of(event))));
    assertThrows(IllegalArgumentException.class, () -> rig.driver.holdStream(Handles.of(event)));
    ok(JCudaDriver.cuEventDestroy(event));
  }

  @Test
  void addressesAreNotGivenOutTwice() {
    long first = rig.malloc(0, BYTES);
    rig.free(first);
    long second = rig.malloc(0, BYTES);
    assertNotEquals(first, second);
    assertEquals(INVALID_VALUE, copy(first, hostAddress, 1));
    Pointer pinned = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(pinned, BYTES, MAPPED));
    Handles.Address before = new Handles.Address();
    ok(JCudaDriver.cuMemHostGetDevicePointer(before, pinned, 0));
    ok(JCudaDriver.cuMemFreeHost(pinned));
    ok(JCudaDriver.cuMemHostAlloc(pinned, BYTES, MAPPED));
    assertEquals(INVALID_VALUE, copy(device, before.value(), 1));
    ok(JCudaDriver.cuMemFreeHost(pinned));
  }

  @Test
  void argumentsOutOfRangeAreRefused() {
    assertEquals(INVALID_VALUE, JCudaDriver.cuStreamCreate(new CUstream(), 2));
    assertEquals(INVALID_VALUE, JCudaDriver.cuEventCreate(new CUevent(), 8));
    assertEquals(INVALID_VALUE, JCudaDriver.cuEventCreate(new CUevent(), 4), "IPC with timing");
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemHostAlloc(new Pointer(), BYTES, 8));
    Pointer memory = Pointer.to(ByteBuffer.allocateDirect(BYTES));
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemHostRegister(memory, BYTES, 16));
    Handles.HostAddress nowhere = new Handles.HostAddress(BYTES);
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemHostRegister(nowhere, BYTES, 0));
    CUevent event = event();
    assertEquals(INVALID_VALUE, JCudaDriver.cuStreamWaitEvent(rig.stream(0), event, 1));
    ok(JCudaDriver.cuEventDestroy(event));
    int[] value = new int[1];
    assertEquals(NOT_SUPPORTED, JCudaDriver.cuDeviceGetAttribute(value, 149, device(0)));
    ByteBuffer answer = ByteBuffer.allocateDirect(8);
    Pointer unmapped = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(unmapped, BYTES, PORTABLE));
    ok(JCudaDriver.cuMemHostGetFlags(value, unmapped));
    assertEquals(PORTABLE, value[0]);
    assertEquals(
        INVALID_VALUE,
        JCudaDriver.cuPointerGetAttribute(
            Pointer.to(answer),
            CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            at(Handles.of(unmapped))));
    ok(JCudaDriver.cuMemFreeHost(unmapped));
  }

  @Test
  void aContextEndsWithAllThatItOwns() {
    FakeCudaDriver.Live before = rig.driver.live();
    CUcontext own = new CUcontext();
    ok(JCudaDriver.cuCtxCreate(own, 0, device(0)));
    CUstream stream = stream(NON_BLOCKING);
    CUevent event = event();
    CUmodule module = module();
    Handles.Address memory = new Handles.Address();
    ok(JCudaDriver.cuMemAlloc(memory, BYTES));
    Pointer pinned = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(pinned, BYTES, PORTABLE));
    push(rig.context(0));
    ok(JCudaDriver.cuCtxDestroy(own));
    assertEquals(before, rig.driver.live());
    assertEquals(INVALID_HANDLE, JCudaDriver.cuEventQuery(event));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamQuery(stream));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuModuleUnload(module));
    assertEquals(INVALID_VALUE, copy(memory.value(), hostAddress, 1));
    pop();
    assertEquals(CONTEXT_IS_DESTROYED, synchronize(), "it is still current");
    pop();
    assertEquals(CONTEXT_IS_DESTROYED, JCudaDriver.cuCtxDestroy(own));
    assertEquals(CONTEXT_IS_DESTROYED, JCudaDriver.cuCtxSetCurrent(own));
    assertEquals(INVALID_CONTEXT, JCudaDriver.cuCtxDestroy(rig.context(0)), "a primary one");
    assertEquals(INVALID_CONTEXT, JCudaDriver.cuCtxDestroy(Handles.context(hostAddress)));
    assertEquals(INVALID_CONTEXT, JCudaDriver.cuCtxSetCurrent(Handles.context(hostAddress)));
  }

  @Test
  void workThatAContextLeavesEndsAndDoesNotHarmTheNext() {
    CUcontext own = new CUcontext();
    ok(JCudaDriver.cuCtxCreate(own, 0, device(0)));
    CUstream stream = stream(NON_BLOCKING);
    CUevent event = event();
    Handles.Address memory = new Handles.Address();
    ok(JCudaDriver.cuMemAlloc(memory, BYTES));
    long handle = Handles.of(stream);
    rig.driver.holdStream(handle);
    PendingRead read = rig.driver.enqueueRead(handle, memory.value(), BYTES);
    ok(JCudaDriver.cuEventRecord(event, stream));
    push(rig.context(0));
    ok(JCudaDriver.cuStreamWaitEvent(rig.stream(0), event, 0));
    assertEquals(NOT_READY, JCudaDriver.cuStreamQuery(rig.stream(0)));
    ok(JCudaDriver.cuCtxDestroy(own));
    assertThrows(IllegalStateException.class, read::await);
    ok(synchronize());
    pop();
    pop();
    violations(1, "2 pieces of work");
  }

  @Test
  void aReleasedPrimaryContextComesBackEmptyAndHealed() {
    FakeCudaDriver.Live before = rig.driver.live();
    rig.driver.deviceCount(3);
    CUdevice third = device(2);
    CUcontext primary = new CUcontext();
    assertEquals(INVALID_CONTEXT, JCudaDriver.cuDevicePrimaryCtxRelease(third));
    ok(JCudaDriver.cuDevicePrimaryCtxRetain(primary, third));
    push(primary);
    CUstream stream = stream(NON_BLOCKING);
    Handles.Address memory = new Handles.Address();
    ok(JCudaDriver.cuMemAlloc(memory, BYTES));
    rig.driver.failCompletion("cuMemcpyAsync", ILLEGAL_ADDRESS, 0, 1);
    ok(JCudaDriver.cuMemcpyAsync(memory, at(hostAddress), 1, stream));
    assertEquals(ILLEGAL_ADDRESS, JCudaDriver.cuStreamSynchronize(stream));
    ok(JCudaDriver.cuDevicePrimaryCtxRelease(third));
    assertEquals(before, rig.driver.live());
    assertEquals(CONTEXT_IS_DESTROYED, JCudaDriver.cuStreamQuery(stream));
    assertEquals(CONTEXT_IS_DESTROYED, JCudaDriver.cuCtxSetCurrent(primary));
    ok(JCudaDriver.cuDevicePrimaryCtxRetain(primary, third));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuStreamQuery(stream));
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemFree(memory));
    ok(JCudaDriver.cuCtxSynchronize());
    ok(JCudaDriver.cuDevicePrimaryCtxRelease(third));
    pop();
  }

  /** Launches the kernel over the first row of the host memory. */
  private int launch(CUfunction function, long table, CUstream stream) {
    return launch(function, table, THREADS, stream);
  }

  private static int launch(CUfunction function, long table, int threads, CUstream stream) {
    ByteBuffer values = ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder());
    values.putLong(0, table).putInt(8, 1);
    Pointer parameters = Pointer.to(Pointer.to(values), Pointer.to(values).withByteOffset(8));
    return Driver.launchKernel(function, 1, 1, threads, stream, parameters);
  }

  private void row(long from, long to, long bytes) {
    ByteBuffer table = host.getByteBuffer(0, BYTES).order(ByteOrder.nativeOrder());
    table.putLong(0, from).putLong(8, to).putLong(16, bytes);
  }

  @Test
  void kernelsTouchOnlyMemoryThatIsTheirs() {
    CUmodule module = module();
    CUfunction function = kernel(module);
    Pointer unmapped = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(unmapped, BYTES, PORTABLE));
    long unmappedAddress = Handles.of(unmapped);
    long other = rig.malloc(1, BYTES);
    assertEquals(INVALID_VALUE, launch(function, hostAddress, THREADS + 1, rig.stream(0)));
    row(device, hostAddress + 64, 0);
    ok(launch(function, hostAddress, rig.stream(0)));
    ok(synchronize());

    assertEquals(ILLEGAL_ADDRESS, launch(function, unmappedAddress, rig.stream(0)));
    violations(1, "a table");
    assertEquals(ILLEGAL_ADDRESS, launch(function, other, rig.stream(0)));
    violations(1, "a table");
    for (long foreign : new long[] {unmappedAddress, other}) {
      row(device, foreign, 1);
      ok(launch(function, hostAddress, rig.stream(0)));
      assertEquals(ILLEGAL_ADDRESS, synchronize());
      violations(1, "another context, or host memory that is not mapped");
    }
    push(rig.context(1));
    assertEquals(INVALID_HANDLE, launch(function, hostAddress, rig.stream(1)));
    assertEquals(INVALID_HANDLE, JCudaDriver.cuModuleUnload(module));
    pop();
    ok(JCudaDriver.cuMemFreeHost(unmapped));
    ok(JCudaDriver.cuModuleUnload(module));
  }

  @Test
  void aModuleStaysUntilItsKernelsHaveRun() {
    CUmodule module = module();
    CUfunction function = kernel(module);
    row(device, hostAddress + 64, 8);
    rig.driver.holdCopies();
    ok(launch(function, hostAddress, rig.stream(0)));
    ok(JCudaDriver.cuModuleUnload(module));
    rig.driver.releaseCopies();
    ok(synchronize());
    assertEquals((byte) 0xCD, host.getByteBuffer(0, BYTES).get(64));
    violations(1, "1 launches");
  }

  @Test
  void copiesBetweenRangesThatOverlapAreViolations() {
    ok(copy(device + 8, device, 8));
    ok(synchronize());
    assertEquals(0, rig.driver.violations());
    ok(copy(device + 7, device, 8));
    ok(synchronize());
    violations(1, "overlap");
  }

  @Test
  void hostFunctionsAreNotCalledAfterAnError() {
    AtomicInteger calls = new AtomicInteger();
    ok(JCudaDriver.cuLaunchHostFunc(rig.stream(0), data -> calls.incrementAndGet(), null));
    ok(synchronize());
    assertEquals(1, calls.get());
    rig.driver.holdStream(rig.streamHandle(0));
    rig.driver.failCompletion("cuMemcpyAsync", ILLEGAL_ADDRESS, 0, 1);
    ok(copy(device, hostAddress, 1));
    ok(JCudaDriver.cuLaunchHostFunc(rig.stream(0), data -> calls.incrementAndGet(), null));
    rig.driver.releaseStream(rig.streamHandle(0));
    assertEquals(ILLEGAL_ADDRESS, synchronize());
    assertEquals(1, calls.get());
  }

  @Test
  void defaultStreamsOfThreadsEndWithThem() throws Exception {
    long before = rig.driver.live().streams();
    byte[] written = {4, 5, 6};
    rig.driver.poke(hostAddress, written);
    Thread thread =
        new Thread(
            () -> {
              push(rig.context(0));
              ok(
                  JCudaDriver.cuMemcpyAsync(
                      at(device), at(hostAddress), 3, JCudaDriver.CU_STREAM_PER_THREAD));
            });
    rig.driver.holdCopies();
    thread.start();
    thread.join();
    assertEquals((byte) 0xCD, rig.driver.peek(device, 1)[0]);
    rig.driver.releaseCopies();
    ok(JCudaDriver.cuCtxSynchronize());
    assertArrayEquals(written, rig.driver.peek(device, 3), "what it had enqueued still runs");
    assertEquals(before, rig.driver.live().streams());
  }

  @Test
  void aHoldThatIsThereIsNotMoved() {
    rig.driver.holdCopies();
    ok(copy(device, hostAddress, 1));
    rig.driver.holdCopies();
    rig.driver.holdStream(rig.streamHandle(0));
    rig.driver.holdStream(rig.streamHandle(0));
    assertTrue(rig.driver.releaseOneCopy());
    assertFalse(rig.driver.releaseOneCopy());
    ok(synchronize());
    PendingRead read = rig.driver.enqueueRead(rig.streamHandle(0), device, 1);
    rig.driver.holdStream(rig.streamHandle(0));
    assertEquals(NOT_READY, JCudaDriver.cuStreamQuery(rig.stream(0)));
    rig.driver.reset();
    rig.driver.deviceCount(2);
    assertEquals(1, read.await().length);
  }

  @Test
  void theControlsKnowTheirLimits() {
    FakeCudaDriver driver = rig.driver;
    assertThrows(IllegalArgumentException.class, () -> driver.calls("cuMemcpyAsnc"));
    assertThrows(IllegalArgumentException.class, () -> driver.failCall("memcpy", 1, 0, 1));
    assertThrows(IllegalArgumentException.class, () -> driver.failCompletion("", 1, 0, 1));
    driver.failCall("cuStreamQuery", INVALID_VALUE, 0, 1);
    assertEquals(INVALID_VALUE, JCudaDriver.cuStreamQuery(rig.stream(0)));
    for (int i = 0; i < 64; i++) {
      driver.failCall("cuMemAlloc_v2", INVALID_VALUE, 0, 1);
    }
    assertThrows(IllegalStateException.class, () -> driver.failCall("cuMemAlloc", 1, 0, 1));
    for (int i = 0; i < 1024; i++) {
      driver.failAddress(device, INVALID_VALUE, 1);
    }
    assertThrows(IllegalStateException.class, () -> driver.failAddress(device, 1, 1));
    assertEquals(INVALID_VALUE, JCudaDriver.cuMemAlloc(new Handles.Address(), 1));
    driver.failCall("cuMemAlloc", INVALID_VALUE, 0, 1);
    driver.clearFaults();
  }
}
