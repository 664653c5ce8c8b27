package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.HostSlab;
import io.umbp.testkit.FakeCudaDriver;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUstream;
import jcuda.driver.CUstream_flags;
import jcuda.driver.JCudaDriver;

/**
 * What a serving engine has on the fake driver: primary contexts, a compute stream on each device,
 * and device memory. One at a time, because the driver is the process's.
 */
final class CudaRig implements AutoCloseable {
  final FakeCudaDriver driver;
  final int devices;
  private final FakeCudaDriver.Live before;
  private final FakeCudaDriver.Live own;
  private final List<CUcontext> contexts = new ArrayList<>();
  private final List<CUstream> streams = new ArrayList<>();
  private final List<CUdeviceptr> allocations = new ArrayList<>();

  CudaRig(int devices) {
    driver = driver();
    this.devices = devices;
    driver.reset();
    driver.deviceCount(devices);
    Cuda.initialise();
    before = driver.live();
    for (int i = 0; i < devices; i++) {
      int ordinal = i;
      CUcontext context = new CUcontext();
      CUdevice device = new CUdevice();
      Driver.check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, ordinal));
      Driver.check("retain", () -> JCudaDriver.cuDevicePrimaryCtxRetain(context, device));
      contexts.add(context);
      CUstream stream = new CUstream();
      on(i, () -> JCudaDriver.cuStreamCreate(stream, CUstream_flags.CU_STREAM_NON_BLOCKING));
      streams.add(stream);
    }
    own = driver.live();
  }

  /** Returns the fake driver, or skips the test where it can't be; in CI it has to be. */
  static FakeCudaDriver driver() {
    Optional<String> reason = FakeCudaDriver.unavailableReason();
    if (reason.isPresent() && !"true".equals(System.getenv("CI"))) {
      assumeTrue(false, reason.get());
    }
    return FakeCudaDriver.install();
  }

  /** Runs a call with a device's context current and restores the thread's. */
  void on(int ordinal, Driver.Call call) {
    Driver.check("push", () -> JCudaDriver.cuCtxPushCurrent(contexts.get(ordinal)));
    try {
      Driver.check("a call of the test", call);
    } finally {
      Driver.check("pop", () -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
    }
  }

  CUcontext context(int ordinal) {
    return contexts.get(ordinal);
  }

  CUstream stream(int ordinal) {
    return streams.get(ordinal);
  }

  long streamHandle(int ordinal) {
    return Handles.of(streams.get(ordinal));
  }

  DeviceFence fence(int ordinal) {
    return CudaFence.onStream(ordinal, streams.get(ordinal));
  }

  long malloc(int ordinal, long bytes) {
    Handles.Address address = new Handles.Address();
    on(ordinal, () -> JCudaDriver.cuMemAlloc(address, bytes));
    allocations.add(address);
    return address.value();
  }

  void free(long address) {
    for (CUdeviceptr allocation : List.copyOf(allocations)) {
      if (((Handles.Address) allocation).value() == address) {
        on(0, () -> JCudaDriver.cuMemFree(allocation));
        allocations.remove(allocation);
      }
    }
  }

  KVCacheTensor tensor(int ordinal, int bytes) {
    return KVCacheTensor.device(malloc(ordinal, bytes), bytes, ordinal).blocks(1, bytes).build();
  }

  /** Returns a batch that copies all of a slab's bytes between it and a tensor as one key. */
  static CopyBatch whole(TransferDirection direction, KVCacheTensor tensor, HostSlab slab) {
    CopyBatch batch = new CopyBatch();
    batch.reset(direction, tensor.deviceOrdinal(), 1);
    batch.add(tensor.address(), slab.baseAddress(), slab.sizeBytes(), 0);
    return batch;
  }

  static byte[] bytes(HostSlab slab) {
    byte[] bytes = new byte[(int) slab.sizeBytes()];
    slab.buffer().get(0, bytes);
    return bytes;
  }

  /** Checks that copy engines left nothing; contexts that are released later would hide it. */
  void assertEnginesLeftNothing() {
    FakeCudaDriver.Live expected =
        new FakeCudaDriver.Live(
            own.deviceAllocations() + allocations.size(),
            own.hostAllocations(),
            own.registrations(),
            own.streams(),
            own.events(),
            own.modules(),
            own.primaryRetains(),
            own.contexts());
    assertEquals(expected, driver.live());
  }

  /** Frees what the serving engine has; then nothing may be left, and nothing touched too late. */
  @Override
  public void close() {
    driver.clearFaults();
    driver.clearStickyErrors();
    driver.releaseCopies();
    for (int i = 0; i < devices; i++) {
      int ordinal = i;
      driver.releaseStream(streamHandle(i));
      on(i, () -> JCudaDriver.cuStreamSynchronize(streams.get(ordinal)));
      on(i, () -> JCudaDriver.cuStreamDestroy(streams.get(ordinal)));
    }
    allocations.forEach(allocation -> on(0, () -> JCudaDriver.cuMemFree(allocation)));
    for (int i = 0; i < devices; i++) {
      CUdevice device = new CUdevice();
      int ordinal = i;
      Driver.check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, ordinal));
      Driver.check("release", () -> JCudaDriver.cuDevicePrimaryCtxRelease(device));
    }
    assertEquals(List.of(), driver.violationReports(), "violations");
    assertEquals(0, driver.violations(), "violations");
  }

  /** Checks that the driver holds nothing that it did not hold before. */
  void assertNothingLeft() {
    assertEquals(before, driver.live());
  }
}
