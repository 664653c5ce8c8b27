package io.umbp.bench;

import io.umbp.api.DeviceFence;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.cuda.Cuda;
import io.umbp.cuda.CudaCopyEngine;
import io.umbp.cuda.CudaFence;
import io.umbp.testkit.FakeCudaDriver;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntSupplier;
import java.util.stream.IntStream;
import jcuda.Pointer;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUresult;
import jcuda.driver.CUstream;
import jcuda.driver.CUstream_flags;
import jcuda.driver.JCudaDriver;
import org.jspecify.annotations.Nullable;

/**
 * The replay's GPUs by the CUDA driver, a real one or the testkit's fake. A kernel's writes become
 * copies from pinned memory on the rank's stream, which nobody waits for but the copies of the
 * store that follows.
 */
final class CudaGpus implements ReplayGpus {
  private static final int RING_BYTES = 8 << 20;

  private final @Nullable FakeCudaDriver fake;
  private final FakeCudaDriver.@Nullable Live before;
  private final int devices;
  private final List<Rank> ranks = new ArrayList<>();

  /** A rank's context, stream, and pinned memory that its writes and reads go through. */
  private static final class Rank implements Writer {
    final int ordinal;
    final CUcontext context = new CUcontext();
    final CUstream stream = new CUstream();
    final Pointer pinned = new Pointer();
    final List<CUdeviceptr> allocations = new ArrayList<>();
    final ByteBuffer ring;
    int used;

    Rank(int ordinal) {
      this.ordinal = ordinal;
      check("retain", () -> JCudaDriver.cuDevicePrimaryCtxRetain(context, device()));
      on(
          "cuStreamCreate",
          () -> JCudaDriver.cuStreamCreate(stream, CUstream_flags.CU_STREAM_NON_BLOCKING));
      on("cuMemHostAlloc", () -> JCudaDriver.cuMemHostAlloc(pinned, RING_BYTES, 0));
      ring = pinned.getByteBuffer(0, RING_BYTES);
    }

    private CUdevice device() {
      CUdevice device = new CUdevice();
      check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, ordinal));
      return device;
    }

    /** Runs a call with the rank's context current. */
    void on(String name, IntSupplier call) {
      check("cuCtxPushCurrent", () -> JCudaDriver.cuCtxPushCurrent(context));
      try {
        check(name, call);
      } finally {
        check("cuCtxPopCurrent", () -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
      }
    }

    /** Takes pinned memory; when it has been around, what went through it before is awaited. */
    int take(int length) {
      if (length > RING_BYTES) {
        throw new BadInputException(
            "a run of %d bytes is too long for the %d bytes of pinned memory", length, RING_BYTES);
      }
      if (used + length > RING_BYTES) {
        synchronize();
        used = 0;
      }
      int at = used;
      used += length;
      return at;
    }

    void synchronize() {
      on("cuStreamSynchronize", () -> JCudaDriver.cuStreamSynchronize(stream));
    }

    @Override
    public void write(long address, byte[] bytes, int from, int length) {
      int at = take(length);
      ring.put(at, bytes, from, length);
      on(
          "cuMemcpyHtoDAsync",
          () ->
              JCudaDriver.cuMemcpyHtoDAsync(
                  at(address), pinned.withByteOffset(at), length, stream));
    }

    @Override
    public void fill(long address, int length, byte value) {
      on("cuMemsetD8Async", () -> JCudaDriver.cuMemsetD8Async(at(address), value, length, stream));
    }

    void read(long address, int at, int length) {
      on(
          "cuMemcpyDtoHAsync",
          () ->
              JCudaDriver.cuMemcpyDtoHAsync(
                  pinned.withByteOffset(at), at(address), length, stream));
    }

    void close() {
      synchronize();
      allocations.forEach(each -> on("cuMemFree", () -> JCudaDriver.cuMemFree(each)));
      on("cuMemFreeHost", () -> JCudaDriver.cuMemFreeHost(pinned));
      on("cuStreamDestroy", () -> JCudaDriver.cuStreamDestroy(stream));
      check("release", () -> JCudaDriver.cuDevicePrimaryCtxRelease(device()));
    }
  }

  /** Device memory of a known address. */
  private static final class Memory extends CUdeviceptr {
    long address() {
      return getNativePointer() + getByteOffset();
    }
  }

  private CudaGpus(int ranks, @Nullable FakeCudaDriver fake) {
    this.fake = fake;
    Cuda.Availability availability = Cuda.availability();
    if (!availability.isAvailable()) {
      throw new BadInputException("--device: %s", availability.detail());
    }
    before = fake == null ? null : fake.live();
    int[] count = new int[1];
    check("cuDeviceGetCount", () -> JCudaDriver.cuDeviceGetCount(count));
    devices = Math.min(ranks, count[0]);
    for (int rank = 0; rank < ranks; rank++) {
      this.ranks.add(new Rank(ordinal(rank)));
    }
  }

  /** Takes the machine's cards; ranks share them when they are fewer. */
  static CudaGpus real(int ranks) {
    return new CudaGpus(ranks, null);
  }

  /** Takes a device of the fake driver for each rank, up to what it has. */
  static CudaGpus fake(int ranks) {
    return new CudaGpus(ranks, installFake(Math.min(ranks, FakeCudaDriver.MAX_DEVICES)));
  }

  /** Puts the fake driver in the place of the machine's. */
  static FakeCudaDriver installFake(int devices) {
    FakeCudaDriver fake;
    try {
      fake = FakeCudaDriver.install();
    } catch (IllegalStateException e) {
      throw new BadInputException("--device fake-cuda: %s", e.getMessage());
    }
    fake.reset();
    fake.deviceCount(devices);
    return fake;
  }

  private static CUdeviceptr at(long address) {
    return new CUdeviceptr().withByteOffset(address);
  }

  private static void check(String name, IntSupplier call) {
    int code = call.getAsInt();
    if (code != CUresult.CUDA_SUCCESS) {
      throw new IllegalStateException(
          name + " returned " + code + " (" + CUresult.stringFor(code) + ")");
    }
  }

  @Override
  public KVCopyEngine copyEngine() {
    return CudaCopyEngine.open(IntStream.range(0, devices).toArray());
  }

  @Override
  public int ordinal(int rank) {
    return rank % devices;
  }

  @Override
  public long malloc(int rank, long sizeBytes) {
    Memory memory = new Memory();
    Rank on = ranks.get(rank);
    on.on("cuMemAlloc", () -> JCudaDriver.cuMemAlloc(memory, sizeBytes));
    on.allocations.add(memory);
    return memory.address();
  }

  @Override
  public void launch(int rank, Kernel kernel) {
    kernel.run(ranks.get(rank));
  }

  @Override
  public DeviceFence fence(int rank) {
    return CudaFence.onStream(ordinal(rank), ranks.get(rank).stream);
  }

  @Override
  public void write(int rank, long address, byte[] bytes) {
    ranks.get(rank).write(address, bytes, 0, bytes.length);
    ranks.get(rank).synchronize();
  }

  @Override
  public void read(int rank, long[] addresses, int[] lengths, int count, byte[] into) {
    Rank on = ranks.get(rank);
    int start = 0;
    int next = 0;
    while (next < count) {
      int first = next;
      int bytes = 0;
      while (next < count && (next == first || bytes + lengths[next] <= RING_BYTES)) {
        bytes += lengths[next++];
      }
      int base = on.take(bytes);
      int at = base;
      for (int i = first; i < next; i++) {
        on.read(addresses[i], at, lengths[i]);
        at += lengths[i];
      }
      on.synchronize();
      on.ring.get(base, into, start, bytes);
      start += bytes;
    }
  }

  @Override
  public void synchronize(int rank) {
    ranks.get(rank).synchronize();
  }

  @Override
  public void close() {
    ranks.forEach(Rank::close);
    ranks.clear();
  }

  @Override
  public List<String> defects() {
    List<String> defects = new ArrayList<>();
    if (fake != null) {
      defects.addAll(fake.violationReports());
      if (!fake.live().equals(before)) {
        defects.add("of the driver's objects some are left: " + fake.live() + ", before " + before);
      }
    }
    return defects;
  }
}
