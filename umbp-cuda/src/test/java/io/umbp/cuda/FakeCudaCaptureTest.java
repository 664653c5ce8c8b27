package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.IntSupplier;
import jcuda.Pointer;
import jcuda.driver.CUcontext;
import jcuda.driver.CUevent;
import jcuda.driver.CUgraph;
import jcuda.driver.CUmodule;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The testkit's fake driver through JCuda: what captures of streams forbid, and to whom. */
@Timeout(60)
class FakeCudaCaptureTest {
  private static final int INVALID_VALUE = 1;
  private static final int ILLEGAL_STATE = 401;
  private static final int UNSUPPORTED = 900;
  private static final int INVALIDATED = 901;
  private static final int ISOLATION = 905;
  private static final int IMPLICIT = 906;
  private static final int CAPTURED_EVENT = 907;
  private static final int WRONG_THREAD = 908;

  private static final int GLOBAL = 0;
  private static final int THREAD_LOCAL = 1;
  private static final int RELAXED = 2;

  private static final int NOT_CAPTURED = 0;
  private static final int ACTIVE = 1;
  private static final int SPOILT = 2;

  private static final int BLOCKING = 0;
  private static final int NON_BLOCKING = 1;
  private static final int BYTES = 64;

  private CudaRig rig;
  private long device;
  private Pointer host;
  private CUstream captured;
  private CUevent event;

  @BeforeEach
  void open() {
    rig = new CudaRig(1);
    ok(JCudaDriver.cuCtxPushCurrent(rig.context(0)));
    device = rig.malloc(0, BYTES);
    host = new Pointer();
    ok(JCudaDriver.cuMemHostAlloc(host, BYTES, 3));
    captured = stream(NON_BLOCKING);
    event = new CUevent();
    ok(JCudaDriver.cuEventCreate(event, 2));
  }

  @AfterEach
  void close() {
    ok(JCudaDriver.cuStreamDestroy(captured));
    ok(JCudaDriver.cuEventDestroy(event));
    ok(JCudaDriver.cuMemFreeHost(host));
    ok(JCudaDriver.cuCtxPopCurrent(new CUcontext()));
    rig.close();
    rig.assertNothingLeft();
  }

  private static void ok(int code) {
    assertEquals(0, code);
  }

  private static CUstream stream(int flags) {
    CUstream stream = new CUstream();
    ok(JCudaDriver.cuStreamCreate(stream, flags));
    return stream;
  }

  private static int begin(CUstream stream, int mode) {
    return JCudaDriver.cuStreamBeginCapture(stream, mode);
  }

  private static int end(CUstream stream) {
    CUgraph graph = new CUgraph();
    int code = JCudaDriver.cuStreamEndCapture(stream, graph);
    if (code == 0) {
      ok(JCudaDriver.cuGraphDestroy(graph));
    }
    return code;
  }

  private static int status(CUstream stream) {
    int[] status = {-1};
    ok(JCudaDriver.cuStreamIsCapturing(stream, status));
    return status[0];
  }

  private int copy(CUstream stream) {
    Handles.Address from = new Handles.Address();
    ok(JCudaDriver.cuMemHostGetDevicePointer(from, host, 0));
    return JCudaDriver.cuMemcpyAsync(new Handles.Address(device), from, BYTES, stream);
  }

  private static int allocate() {
    Handles.Address address = new Handles.Address();
    int code = JCudaDriver.cuMemAlloc(address, BYTES);
    if (code == 0) {
      ok(JCudaDriver.cuMemFree(address));
    }
    return code;
  }

  /** Sets the mode of this thread, and returns what it was. */
  private static int mode(int mode) {
    int[] exchanged = {mode};
    ok(JCudaDriver.cuThreadExchangeStreamCaptureMode(exchanged));
    return exchanged[0];
  }

  private <T> T elsewhere(Callable<T> calls) throws Exception {
    FutureTask<T> task =
        new FutureTask<>(
            () -> {
              ok(JCudaDriver.cuCtxPushCurrent(rig.context(0)));
              return calls.call();
            });
    new Thread(task, "elsewhere").start();
    return task.get(20, TimeUnit.SECONDS);
  }

  @Test
  void eachUnsafeCallIsRefusedAndSpoilsTheCapture() {
    CUstream other = rig.stream(0);
    Handles.HostAddress address = new Handles.HostAddress(0x1000);
    Map<String, IntSupplier> unsafe = new LinkedHashMap<>();
    unsafe.put("cuMemAlloc", FakeCudaCaptureTest::allocate);
    unsafe.put("cuMemFree", () -> JCudaDriver.cuMemFree(new Handles.Address(device)));
    unsafe.put("cuMemHostAlloc", () -> JCudaDriver.cuMemHostAlloc(new Pointer(), BYTES, 3));
    unsafe.put("cuMemFreeHost", () -> JCudaDriver.cuMemFreeHost(host));
    unsafe.put("cuMemHostRegister", () -> JCudaDriver.cuMemHostRegister(address, BYTES, 3));
    unsafe.put("cuMemHostUnregister", () -> JCudaDriver.cuMemHostUnregister(address));
    unsafe.put("cuModuleLoadData", () -> load(CopyKernel.ptx()));
    unsafe.put("cuStreamQuery", () -> JCudaDriver.cuStreamQuery(other));
    unsafe.put("cuStreamSynchronize", () -> JCudaDriver.cuStreamSynchronize(other));
    unsafe.put("cuEventQuery", () -> JCudaDriver.cuEventQuery(event));
    unsafe.put("cuEventSynchronize", () -> JCudaDriver.cuEventSynchronize(event));
    unsafe.put("cuCtxSynchronize", JCudaDriver::cuCtxSynchronize);
    unsafe.put("cuMemcpyDtoH", () -> JCudaDriver.cuMemcpyDtoH(host, at(device), BYTES));
    unsafe.forEach(
        (name, call) -> {
          ok(begin(captured, GLOBAL));
          assertEquals(UNSUPPORTED, call.getAsInt(), name);
          assertEquals(SPOILT, status(captured), name);
          assertEquals(INVALIDATED, copy(captured), name);
          assertEquals(INVALIDATED, end(captured), name);
          assertEquals(NOT_CAPTURED, status(captured), name);
        });
    ok(begin(captured, GLOBAL));
    ok(copy(other));
    ok(copy(captured));
    ok(end(captured));
    ok(JCudaDriver.cuStreamSynchronize(other));
  }

  private static Handles.Address at(long address) {
    return new Handles.Address(address);
  }

  private static int load(String ptx) {
    return JCudaDriver.cuModuleLoadData(new CUmodule(), ptx);
  }

  @Test
  void whatIsCapturedNeitherRunsNorKeepsItsMemory() {
    ok(begin(captured, GLOBAL));
    assertEquals(ACTIVE, status(captured));
    ok(copy(captured));
    ok(end(captured));
    assertEquals((byte) 0xCD, rig.driver.peek(device, 1)[0]);
    rig.free(device);
    assertEquals(0, rig.driver.violations());
  }

  @Test
  void aCaptureBeginsAndEndsOnce() {
    assertEquals(INVALID_VALUE, begin(captured, 3));
    assertEquals(UNSUPPORTED, begin(JCudaDriver.CU_STREAM_LEGACY, GLOBAL));
    assertEquals(ILLEGAL_STATE, end(captured));
    ok(begin(captured, GLOBAL));
    assertEquals(ILLEGAL_STATE, begin(captured, GLOBAL));
    ok(end(captured));
    assertEquals(ILLEGAL_STATE, end(captured));
    assertEquals(INVALID_VALUE, JCudaDriver.cuThreadExchangeStreamCaptureMode(new int[] {3}));
  }

  @Test
  void theThreadThatBeginsACaptureEndsItUnlessItIsRelaxed() throws Exception {
    ok(begin(captured, THREAD_LOCAL));
    assertEquals(WRONG_THREAD, elsewhere(() -> end(captured)));
    ok(end(captured));
    ok(begin(captured, RELAXED));
    ok(elsewhere(() -> end(captured)));
  }

  @Test
  void globalCapturesForbidOtherThreadsInGlobalMode() throws Exception {
    ok(begin(captured, GLOBAL));
    int inOwnMode =
        elsewhere(
            () -> {
              assertEquals(GLOBAL, mode(THREAD_LOCAL));
              return allocate();
            });
    ok(inOwnMode);
    assertEquals(ACTIVE, status(captured));
    assertEquals(UNSUPPORTED, elsewhere(FakeCudaCaptureTest::allocate));
    assertEquals(INVALIDATED, end(captured));
  }

  @Test
  void threadLocalCapturesForbidTheirOwnThreadAndRelaxedOnesNone() throws Exception {
    ok(begin(captured, THREAD_LOCAL));
    ok(elsewhere(FakeCudaCaptureTest::allocate));
    assertEquals(GLOBAL, mode(RELAXED));
    ok(allocate());
    assertEquals(RELAXED, mode(THREAD_LOCAL));
    assertEquals(ACTIVE, status(captured));
    assertEquals(UNSUPPORTED, allocate());
    assertEquals(THREAD_LOCAL, mode(GLOBAL));
    assertEquals(INVALIDATED, end(captured));
    ok(begin(captured, RELAXED));
    ok(allocate());
    ok(end(captured));
  }

  @Test
  void relaxedThreadsCanNotAskForWhatIsCaptured() {
    mode(RELAXED);
    try {
      ok(begin(captured, GLOBAL));
      assertEquals(UNSUPPORTED, JCudaDriver.cuStreamQuery(captured));
      assertEquals(INVALIDATED, end(captured));
      ok(begin(captured, GLOBAL));
      assertEquals(UNSUPPORTED, JCudaDriver.cuStreamSynchronize(captured));
      assertEquals(INVALIDATED, end(captured));
      ok(begin(captured, GLOBAL));
      assertEquals(UNSUPPORTED, JCudaDriver.cuCtxSynchronize());
      assertEquals(INVALIDATED, end(captured));
      ok(begin(captured, GLOBAL));
      ok(JCudaDriver.cuEventRecord(event, captured));
      assertEquals(CAPTURED_EVENT, JCudaDriver.cuEventQuery(event));
      assertEquals(CAPTURED_EVENT, JCudaDriver.cuEventSynchronize(event));
      assertEquals(CAPTURED_EVENT, JCudaDriver.cuEventElapsedTime(new float[1], event, event));
      ok(end(captured));
      assertEquals(CAPTURED_EVENT, JCudaDriver.cuEventQuery(event), "until it is recorded again");
      ok(JCudaDriver.cuEventRecord(event, captured));
      ok(JCudaDriver.cuEventSynchronize(event));
    } finally {
      mode(GLOBAL);
    }
  }

  @Test
  void eventsDoNotCrossTheBoundaryOfACapture() {
    ok(begin(captured, GLOBAL));
    ok(JCudaDriver.cuStreamWaitEvent(captured, event, 0));
    ok(JCudaDriver.cuEventRecord(event, captured));
    ok(JCudaDriver.cuStreamWaitEvent(captured, event, 0));
    assertEquals(ISOLATION, JCudaDriver.cuStreamWaitEvent(rig.stream(0), event, 0));
    ok(end(captured));
    ok(JCudaDriver.cuEventRecord(event, rig.stream(0)));
    ok(begin(captured, GLOBAL));
    assertEquals(ISOLATION, JCudaDriver.cuStreamWaitEvent(captured, event, 0));
    assertEquals(INVALIDATED, end(captured));
  }

  @Test
  void blockingStreamsThatAreCapturedBlockTheDefaultStream() {
    CUstream legacy = JCudaDriver.CU_STREAM_LEGACY;
    ok(begin(captured, RELAXED));
    ok(copy(legacy));
    ok(JCudaDriver.cuStreamSynchronize(legacy));
    ok(end(captured));
    CUstream blocking = stream(BLOCKING);
    ok(begin(blocking, RELAXED));
    assertEquals(IMPLICIT, JCudaDriver.cuStreamIsCapturing(legacy, new int[1]));
    assertEquals(ACTIVE, status(blocking), "a question spoils nothing");
    assertEquals(IMPLICIT, copy(legacy));
    assertEquals(SPOILT, status(blocking));
    assertEquals(INVALIDATED, end(blocking));
    ok(begin(blocking, RELAXED));
    assertEquals(IMPLICIT, JCudaDriver.cuStreamQuery(legacy));
    assertEquals(INVALIDATED, end(blocking));
    ok(copy(legacy));
    ok(JCudaDriver.cuStreamSynchronize(legacy));
    ok(JCudaDriver.cuStreamDestroy(blocking));
  }

  @Test
  void aResetOrTheEndOfTheStreamEndsACapture() {
    ok(begin(captured, GLOBAL));
    rig.driver.reset();
    assertEquals(NOT_CAPTURED, status(captured));
    ok(allocate());
    rig.driver.poke(device, new byte[BYTES]);
    host.getByteBuffer(0, BYTES).put(0, (byte) 5);
    ok(copy(captured));
    ok(JCudaDriver.cuStreamSynchronize(captured));
    assertEquals(5, rig.driver.peek(device, 1)[0]);
    CUstream other = stream(NON_BLOCKING);
    ok(begin(other, GLOBAL));
    ok(JCudaDriver.cuStreamDestroy(other));
    ok(allocate());
  }
}
