package io.umbp.testkit;

import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.jspecify.annotations.Nullable;

/**
 * A machine with GPUs, made of heap memory and threads. Thread-safe.
 *
 * <p>Device addresses look like a real device's (0x7f..., aligned to 512 bytes, no two allocations
 * adjacent, none issued twice) and mean nothing to host code: bytes are reached through this class
 * or by work on a stream. Each access is checked against the live allocations. Fresh memory holds
 * {@link #FRESH_POISON}. Freed memory is overwritten with {@link #FREED_POISON}; touching it is
 * refused and counted.
 *
 * <p>Two modes: {@linkplain #asynchronous asynchronous}, a thread for each stream; and {@linkplain
 * #stepped stepped}, where nothing runs until {@link #step} or {@link #runAll}, on the caller's
 * thread and in an order that depends on the calls alone.
 */
public final class FakeGpu implements AutoCloseable {
  /** What each byte of fresh memory holds. */
  public static final byte FRESH_POISON = (byte) 0xA5;

  /** What freed memory is overwritten with. */
  public static final byte FREED_POISON = (byte) 0xDD;

  private static final long ADDRESS_ORIGIN = 0x7F00_0000_0000L;
  private static final long ADDRESS_ALIGNMENT = 512;
  private static final long FIRST_HANDLE = 0x55D0_0000_1000L;
  private static final long HANDLE_STRIDE = 0x140;
  private static final long CLOSE_MILLIS = 5_000;

  private final int deviceCount;
  private final boolean stepped;
  private final AddressSpace<DeviceAllocation> space =
      new AddressSpace<>(ADDRESS_ORIGIN, ADDRESS_ALIGNMENT);
  private final AtomicInteger liveAllocations = new AtomicInteger();
  private final AtomicLong useAfterFree = new AtomicLong();
  private final List<FakeStream> streams = new CopyOnWriteArrayList<>();
  private final List<FakeGpuCopyEngine> engines = new CopyOnWriteArrayList<>();
  private final AtomicInteger turn = new AtomicInteger();
  private volatile boolean closed;

  private FakeGpu(int deviceCount, boolean stepped) {
    if (deviceCount < 1) {
      throw UMBPException.invalid("device count %d must be >= 1", deviceCount);
    }
    this.deviceCount = deviceCount;
    this.stepped = stepped;
  }

  /**
   * Opens devices whose streams run on threads of their own.
   *
   * @param deviceCount number of devices, at least 1
   * @return the devices; the caller closes them
   */
  public static FakeGpu asynchronous(int deviceCount) {
    return new FakeGpu(deviceCount, false);
  }

  /**
   * Opens devices whose streams move only when the test steps.
   *
   * @param deviceCount number of devices, at least 1
   * @return the devices; the caller closes them
   */
  public static FakeGpu stepped(int deviceCount) {
    return new FakeGpu(deviceCount, true);
  }

  /**
   * Returns the number of devices.
   *
   * @return count
   */
  public int deviceCount() {
    return deviceCount;
  }

  /**
   * Tells which mode the streams run in.
   *
   * @return true when nothing runs without {@link #step}
   */
  public boolean isStepped() {
    return stepped;
  }

  /**
   * Allocates device memory. The backing memory is taken page by page as it is written.
   *
   * @param ordinal the device
   * @param bytes size, above 0
   * @return address of the first byte
   */
  public long malloc(int ordinal, long bytes) {
    requireOpen();
    requireDevice(ordinal);
    if (bytes <= 0) {
      throw UMBPException.invalid("allocation of %d bytes, must be > 0", bytes);
    }
    DeviceAllocation allocation =
        space.place(bytes, base -> new DeviceAllocation(base, bytes, ordinal));
    liveAllocations.incrementAndGet();
    return allocation.base();
  }

  /**
   * Frees device memory. It waits for nothing: work that still uses the memory is a use after free.
   *
   * @param address an address from {@link #malloc}, live
   */
  public void free(long address) {
    DeviceAllocation allocation = space.find(address);
    if (allocation == null || allocation.base() != address || !allocation.free()) {
      throw UMBPException.invalid(
          "0x%x cannot be freed, it is no live allocation; %s", address, space.describe(address));
    }
    liveAllocations.decrementAndGet();
  }

  /**
   * Writes device memory at once, behind the back of all streams.
   *
   * @param address where
   * @param bytes what
   */
  public void write(long address, byte[] bytes) {
    write(address, bytes, 0, bytes.length);
  }

  /**
   * Writes device memory at once, behind the back of all streams.
   *
   * @param address where
   * @param bytes what
   * @param from index of the first byte to write
   * @param length number of bytes
   */
  public void write(long address, byte[] bytes, int from, int length) {
    Objects.checkFromIndexSize(from, length, bytes.length);
    DeviceAllocation allocation = live(address, length);
    allocation.write(address - allocation.base(), bytes, from, length);
    checkStillLive(allocation, address, length);
  }

  /**
   * Writes device memory at once, behind the back of all streams.
   *
   * @param address where
   * @param bytes what lies between position and limit; neither moves
   */
  public void write(long address, ByteBuffer bytes) {
    DeviceAllocation allocation = live(address, bytes.remaining());
    allocation.write(address - allocation.base(), bytes, bytes.position(), bytes.remaining());
    checkStillLive(allocation, address, bytes.remaining());
  }

  /**
   * Reads device memory at once, behind the back of all streams.
   *
   * @param address where
   * @param length number of bytes
   * @return a copy of the bytes
   */
  public byte[] read(long address, int length) {
    DeviceAllocation allocation = live(address, length);
    byte[] bytes = new byte[length];
    allocation.read(address - allocation.base(), bytes, 0, length);
    checkStillLive(allocation, address, length);
    return bytes;
  }

  /**
   * Reads device memory at once into an array.
   *
   * @param address where
   * @param target gets the bytes
   * @param to index of the first byte
   * @param length number of bytes
   */
  public void read(long address, byte[] target, int to, int length) {
    Objects.checkFromIndexSize(to, length, target.length);
    DeviceAllocation allocation = live(address, length);
    allocation.read(address - allocation.base(), target, to, length);
    checkStillLive(allocation, address, length);
  }

  /**
   * Sets device memory to one value at once.
   *
   * @param address where
   * @param length number of bytes
   * @param value what each byte becomes
   */
  public void fill(long address, long length, byte value) {
    DeviceAllocation allocation = live(address, length);
    allocation.fill(address - allocation.base(), length, value);
    checkStillLive(allocation, address, length);
  }

  /**
   * Compares device memory with an array, without a copy.
   *
   * @param address where
   * @param expected what should be there
   * @param from index of its first byte
   * @param length number of bytes
   * @return bytes from the address to the first that differs, -1 when all are equal
   */
  public int mismatch(long address, byte[] expected, int from, int length) {
    Objects.checkFromIndexSize(from, length, expected.length);
    DeviceAllocation allocation = live(address, length);
    int first = allocation.mismatch(address - allocation.base(), expected, from, length);
    checkStillLive(allocation, address, length);
    return first;
  }

  /**
   * Creates a stream.
   *
   * @param ordinal the device
   * @return a stream that lives as long as the GPU
   */
  public FakeStream stream(int ordinal) {
    return newStream(ordinal, "stream-" + streams.size());
  }

  /**
   * Returns the copy engine of this machine; each call returns the same one, closed or not.
   *
   * @return the engine, opened by the first call
   */
  public synchronized FakeGpuCopyEngine copyEngine() {
    return engines.isEmpty() ? openCopyEngine() : engines.get(0);
  }

  /**
   * Opens one more copy engine, as a second process or a restarted runtime would.
   *
   * @return the engine, with no memory registered
   */
  public synchronized FakeGpuCopyEngine openCopyEngine() {
    requireOpen();
    FakeGpuCopyEngine engine = new FakeGpuCopyEngine(this);
    engines.add(engine);
    return engine;
  }

  /**
   * Runs one piece of work of the next stream that has one, in turn: a kernel, or the rows of a
   * batch up to its next mark. Stepped GPUs only.
   *
   * @return false when nothing can run
   */
  public boolean step() {
    requireStepped();
    int count = streams.size();
    int first = turn.get();
    for (int i = 0; i < count; i++) {
      int index = Math.floorMod(first + i, count);
      if (streams.get(index).step()) {
        turn.set(index + 1);
        return true;
      }
    }
    return false;
  }

  /**
   * Steps until nothing can run. Stepped GPUs only.
   *
   * @return number of steps made
   */
  public int runAll() {
    int steps = 0;
    while (step()) {
      steps++;
    }
    return steps;
  }

  /**
   * Returns how often freed memory was touched.
   *
   * @return count since the GPU was opened
   */
  public long useAfterFreeCount() {
    return useAfterFree.get();
  }

  /**
   * Returns how many allocations are live.
   *
   * @return count
   */
  public int liveAllocationCount() {
    return liveAllocations.get();
  }

  /**
   * Stops all streams and drops what is left on them; copies that did not run fail. Waits for the
   * piece of work that each stream is running. Calling it again does nothing.
   */
  @Override
  public void close() {
    synchronized (this) {
      if (closed) {
        return;
      }
      closed = true;
    }
    streams.forEach(FakeStream::stop);
    boolean interrupted = Thread.interrupted();
    for (FakeStream stream : streams) {
      try {
        stream.join(CLOSE_MILLIS);
      } catch (InterruptedException e) {
        interrupted = true;
      }
    }
    engines.forEach(FakeGpuCopyEngine::abandon);
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  FakeStream newStream(int ordinal, String name) {
    requireDevice(ordinal);
    synchronized (this) {
      requireOpen();
      long handle = FIRST_HANDLE + streams.size() * HANDLE_STRIDE;
      FakeStream stream = new FakeStream(this, ordinal, handle, name);
      streams.add(stream);
      return stream;
    }
  }

  /** Returns the stream of a handle, or null when there is none on the device. */
  @Nullable FakeStream streamOf(int ordinal, long handle) {
    long index = (handle - FIRST_HANDLE) / HANDLE_STRIDE;
    if (index < 0 || index >= streams.size()) {
      return null;
    }
    FakeStream stream = streams.get((int) index);
    return stream.handle() == handle && stream.ordinal() == ordinal ? stream : null;
  }

  /** Returns the allocation in whose address slots an address lies, live or not. */
  @Nullable DeviceAllocation allocationAt(long address) {
    return space.find(address);
  }

  String describe(long address) {
    return space.describe(address);
  }

  void countUseAfterFree() {
    useAfterFree.incrementAndGet();
  }

  void requireDevice(int ordinal) {
    if (ordinal < 0 || ordinal >= deviceCount) {
      throw UMBPException.invalid(
          "device %d does not exist, there are 0 to %d", ordinal, deviceCount - 1);
    }
  }

  void requireStepped() {
    if (!stepped) {
      throw new IllegalStateException("the streams of this GPU run by themselves");
    }
  }

  void requireOpen() {
    if (closed) {
      throw UMBPException.closed("fake GPU");
    }
  }

  private DeviceAllocation live(long address, long length) {
    DeviceAllocation allocation = space.find(address);
    if (allocation == null || !allocation.contains(address, length)) {
      throw UMBPException.invalid(
          "%d bytes at 0x%x are not inside an allocation; %s",
          length, address, space.describe(address));
    }
    checkStillLive(allocation, address, length);
    return allocation;
  }

  private void checkStillLive(DeviceAllocation allocation, long address, long length) {
    if (allocation.isFreed()) {
      countUseAfterFree();
      throw UMBPException.invalid(
          "%d bytes at 0x%x were used after free; %s", length, address, allocation);
    }
  }
}
