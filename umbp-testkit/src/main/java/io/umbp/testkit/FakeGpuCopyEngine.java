package io.umbp.testkit;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/**
 * The copy engine of a {@link FakeGpu}, with controls to hold, fail and count copies. Thread-safe.
 *
 * <p>Each device has a copy stream for each direction. Copies wait there for their fence, one batch
 * behind the other; on a stepped GPU they run when the test steps, up to the next mark at each
 * step. It is strict where a real engine may be lax: a row must lie inside registered tensors that
 * are still allocated and inside one slab, and a stream that a fence names must exist.
 *
 * <p>Slab content is {@link FakeGpu#FRESH_POISON} when fresh and {@link FakeGpu#FREED_POISON} once
 * freed; freed buffers are used again, under new addresses.
 */
public final class FakeGpuCopyEngine implements KVCopyEngine {
  private static final long SLAB_ORIGIN = 0x2A00_0000_0000L;
  private static final long SLAB_ALIGNMENT = 4096;
  private static final byte[] FRESH = new byte[1 << 16];
  private static final byte[] FREED = new byte[1 << 16];

  static {
    Arrays.fill(FRESH, FakeGpu.FRESH_POISON);
    Arrays.fill(FREED, FakeGpu.FREED_POISON);
  }

  /** Chooses rows of a batch. */
  @FunctionalInterface
  public interface RowFilter {
    /**
     * Tells whether a row is chosen.
     *
     * @param row index in the batch
     * @param key key that the row serves
     * @return true when it is
     */
    boolean test(int row, int key);
  }

  /** A slab and who uses it. Guarded by the engine's lock, but for the final fields. */
  static final class Slab implements AddressSpace.Region {
    private final HostSlab slab;
    private final ByteBuffer view;
    private int users;
    private boolean released;
    private boolean freed;

    private Slab(HostSlab slab) {
      this.slab = slab;
      view = slab.buffer().duplicate();
    }

    @Override
    public long base() {
      return slab.baseAddress();
    }

    @Override
    public long sizeBytes() {
      return slab.sizeBytes();
    }

    ByteBuffer view() {
      return view;
    }

    @Override
    public String toString() {
      return String.format(
          "%s at 0x%x with %d bytes",
          released ? "released slab" : "slab", slab.baseAddress(), slab.sizeBytes());
    }
  }

  private final FakeGpu gpu;
  private final AddressSpace<Slab> space = new AddressSpace<>(SLAB_ORIGIN, SLAB_ALIGNMENT);
  private final LongAdder batches = new LongAdder();
  private final LongAdder rows = new LongAdder();
  private final LongAdder bytes = new LongAdder();

  // lock guards everything below and the slabs. Order: this lock, then a stream's.
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition ended = lock.newCondition();
  private final Map<DeviceAllocation, List<KVCacheTensor>> tensors = new HashMap<>();
  private final Map<DeviceAllocation, long[]> registered = new HashMap<>();
  private final Map<Long, Deque<ByteBuffer>> spareBuffers = new HashMap<>();
  private final Map<Integer, FakeStream> copyStreams = new HashMap<>();
  private final Set<Slab> liveSlabs = new HashSet<>();
  private final Set<FakeCopy> running = new HashSet<>();
  private final Set<FakeCopy> held = new LinkedHashSet<>();
  private final Deque<FakeCopy> parked = new ArrayDeque<>();
  private final Deque<RowFilter> failNext = new ArrayDeque<>();
  private final Deque<Error> throwNext = new ArrayDeque<>();
  private long sequence;
  private boolean holdAll;
  private int holdNext;
  private double failProbability;
  private long failSeed;
  private long slabLimitBytes = Long.MAX_VALUE;
  private @Nullable CloseResult closeResult;
  private boolean closed;

  FakeGpuCopyEngine(FakeGpu gpu) {
    this.gpu = gpu;
  }

  @Override
  public long register(KVCacheTensor tensor) {
    if (!tensor.isDevice()) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "the fake GPU copies device memory only, not " + tensor);
    }
    gpu.requireDevice(tensor.deviceOrdinal());
    DeviceAllocation allocation = gpu.allocationAt(tensor.address());
    if (allocation == null
        || allocation.isFreed()
        || !allocation.contains(tensor.address(), tensor.sizeBytes())
        || !allocation.contains(tensor.allocationBase(), tensor.allocationBytes())) {
      throw UMBPException.invalid(
          "%s in an allocation at 0x%x of %d bytes is not inside a live allocation; %s",
          tensor,
          tensor.allocationBase(),
          tensor.allocationBytes(),
          gpu.describe(tensor.address()));
    }
    if (allocation.ordinal() != tensor.deviceOrdinal()) {
      throw UMBPException.invalid("%s is not on its device: %s", tensor, allocation);
    }
    lock.lock();
    try {
      requireOpen();
      List<KVCacheTensor> all = tensors.computeIfAbsent(allocation, a -> new ArrayList<>());
      all.add(tensor);
      registered.put(allocation, union(all));
    } finally {
      lock.unlock();
    }
    return tensor.address();
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    DeviceAllocation allocation = gpu.allocationAt(tensor.address());
    if (allocation == null) {
      return;
    }
    lock.lock();
    try {
      List<KVCacheTensor> left = tensors.get(allocation);
      if (left != null && left.remove(tensor)) {
        registered.put(allocation, union(left));
        if (left.isEmpty()) {
          tensors.remove(allocation);
          registered.remove(allocation);
        }
      }
    } finally {
      lock.unlock();
    }
  }

  /** Returns the ranges that tensors cover as starts and ends, ascending and apart. */
  private static long[] union(List<KVCacheTensor> tensors) {
    long[] ranges = new long[tensors.size() * 2];
    int count = 0;
    List<KVCacheTensor> ascending = new ArrayList<>(tensors);
    ascending.sort((a, b) -> Long.compare(a.address(), b.address()));
    for (KVCacheTensor tensor : ascending) {
      long end = tensor.address() + tensor.sizeBytes();
      if (count > 0 && tensor.address() <= ranges[count - 1]) {
        ranges[count - 1] = Math.max(ranges[count - 1], end);
      } else {
        ranges[count++] = tensor.address();
        ranges[count++] = end;
      }
    }
    return Arrays.copyOf(ranges, count);
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    if (sizeBytes < 1 || sizeBytes > MAX_SLAB_BYTES) {
      throw UMBPException.invalid(
          "slab of %d bytes, allowed are 1 to %d", sizeBytes, MAX_SLAB_BYTES);
    }
    ByteBuffer buffer = null;
    lock.lock();
    try {
      requireOpen();
      long live = liveSlabs.stream().mapToLong(Slab::sizeBytes).sum();
      if (sizeBytes > slabLimitBytes - live) {
        throw outOfMemory(sizeBytes, live, slabLimitBytes, null);
      }
      Deque<ByteBuffer> spare = spareBuffers.get(sizeBytes);
      if (spare != null) {
        buffer = spare.poll();
      }
    } finally {
      lock.unlock();
    }
    if (buffer == null) {
      try {
        buffer = ByteBuffer.allocateDirect((int) sizeBytes);
      } catch (OutOfMemoryError e) {
        throw outOfMemory(sizeBytes, 0, Runtime.getRuntime().maxMemory(), e);
      }
    }
    fill(buffer, FRESH);
    ByteBuffer memory = buffer;
    Slab slab = space.place(sizeBytes, base -> new Slab(new HostSlab(memory, base, sizeBytes)));
    lock.lock();
    try {
      requireOpen();
      liveSlabs.add(slab);
    } finally {
      lock.unlock();
    }
    return slab.slab;
  }

  private static UMBPException outOfMemory(
      long sizeBytes, long usedBytes, long limitBytes, @Nullable Throwable cause) {
    return new UMBPException(
        UMBPException.Reason.OUT_OF_MEMORY,
        String.format(
            "no memory for a slab of %d bytes: %d of at most %d bytes are in use"
                + " (raise -XX:MaxDirectMemorySize if the JVM set the limit)",
            sizeBytes, usedBytes, limitBytes),
        cause);
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    lock.lock();
    try {
      Slab known = space.find(slab.baseAddress());
      if (known == null || known.base() != slab.baseAddress()) {
        throw UMBPException.invalid(
            "slab at 0x%x is not of this engine; %s",
            slab.baseAddress(), space.describe(slab.baseAddress()));
      }
      known.released = true;
      freeIfUnused(known);
    } finally {
      lock.unlock();
    }
  }

  private void freeIfUnused(Slab slab) {
    if (slab.released && slab.users == 0 && !slab.freed) {
      slab.freed = true;
      liveSlabs.remove(slab);
      fill(slab.view, FREED);
      if (!closed) {
        spareBuffers
            .computeIfAbsent(slab.sizeBytes(), size -> new ArrayDeque<>())
            .add(slab.view.duplicate());
      }
    }
  }

  private static void fill(ByteBuffer buffer, byte[] with) {
    for (int at = 0; at < buffer.capacity(); at += with.length) {
      buffer.put(at, with, 0, Math.min(with.length, buffer.capacity() - at));
    }
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    lock.lock();
    try {
      requireOpen();
      FakeStream producer = producer(batch, fence);
      gpu.requireDevice(batch.deviceOrdinal());
      List<Slab> slabs = checkRows(batch);
      FakeStream stream = copyStream(batch);
      if (batch.count() == 0) {
        return FakeCopy.empty(this, gpu, batch, stream);
      }
      FakeCopy copy = new FakeCopy(this, gpu, batch, stream, new RowFaults(batch.count()), slabs);
      CountDownLatch after = producer == null ? null : producer.record();
      slabs.forEach(slab -> slab.users++);
      running.add(copy);
      if (holdNext > 0) {
        holdNext--;
        held.add(copy);
      }
      stream.enqueue(after, copy);
      return copy;
    } finally {
      lock.unlock();
    }
  }

  private @Nullable FakeStream producer(CopyBatch batch, DeviceFence fence) {
    if (fence instanceof DeviceFence.None) {
      throw new UMBPException(
          UMBPException.Reason.FENCE_REQUIRED,
          String.format(
              "a %s on device %d needs a fence: onStream, or hostComplete when the caller has waited",
              batch.direction(), batch.deviceOrdinal()));
    }
    if (!(fence instanceof DeviceFence.OnStream on)) {
      return null;
    }
    FakeStream stream = gpu.streamOf(on.deviceOrdinal(), on.streamHandle());
    if (stream == null) {
      throw UMBPException.invalid(
          "fence names stream 0x%x of device %d, which does not exist",
          on.streamHandle(), on.deviceOrdinal());
    }
    return stream;
  }

  private FakeStream copyStream(CopyBatch batch) {
    boolean load = batch.direction() == TransferDirection.LOAD;
    int ordinal = batch.deviceOrdinal();
    return copyStreams.computeIfAbsent(
        ordinal * 2 + (load ? 1 : 0), k -> gpu.newStream(ordinal, load ? "load" : "store"));
  }

  /** Checks all rows and returns the slabs that they use. */
  private List<Slab> checkRows(CopyBatch batch) {
    long[] device = batch.device();
    long[] host = batch.host();
    long[] length = batch.length();
    int[] key = batch.key();
    List<Slab> used = new ArrayList<>(2);
    DeviceAllocation allocation = null;
    long[] ranges = {};
    Slab slab = null;
    for (int row = 0; row < batch.count(); row++) {
      if (length[row] <= 0 || length[row] > MAX_SLAB_BYTES) {
        throw UMBPException.invalid(
            "row %d has %d bytes, allowed are 1 to %d", row, length[row], MAX_SLAB_BYTES);
      }
      if (key[row] < 0 || key[row] >= batch.keyCount()) {
        throw UMBPException.invalid(
            "row %d serves key %d, the batch has keys 0 to %d",
            row, key[row], batch.keyCount() - 1);
      }
      if (allocation == null || !allocation.contains(device[row], length[row])) {
        allocation = gpu.allocationAt(device[row]);
        long[] found = allocation == null ? null : registered.get(allocation);
        ranges = found == null ? new long[0] : found;
      }
      if (allocation == null
          || allocation.isFreed()
          || allocation.ordinal() != batch.deviceOrdinal()
          || !covers(ranges, device[row], length[row])) {
        throw UMBPException.invalid(
            "row %d: %d bytes at 0x%x are not inside registered memory of device %d; %s",
            row, length[row], device[row], batch.deviceOrdinal(), gpu.describe(device[row]));
      }
      if (slab == null || !slab.contains(host[row], length[row])) {
        slab = space.find(host[row]);
        if (slab == null || slab.released || !slab.contains(host[row], length[row])) {
          throw UMBPException.invalid(
              "row %d: %d bytes at 0x%x are not inside a live slab; %s",
              row, length[row], host[row], space.describe(host[row]));
        }
        if (!used.contains(slab)) {
          used.add(slab);
        }
      }
    }
    return used;
  }

  private static boolean covers(long[] ranges, long address, long length) {
    for (int i = 0; i < ranges.length; i += 2) {
      if (address >= ranges[i] && length <= ranges[i + 1] - address) {
        return true;
      }
    }
    return false;
  }

  /**
   * Closes the engine: refuses new work and waits for running copies. On a stepped GPU it does not
   * step. A slab that a copy still uses is freed when the copy ends; all others are freed here.
   */
  @Override
  public CloseResult close(Duration bound) {
    if (bound.isNegative()) {
      throw UMBPException.invalid("bound %s must be >= 0", bound);
    }
    long left = TimeUnit.NANOSECONDS.convert(bound);
    lock.lock();
    try {
      if (closeResult != null) {
        return closeResult;
      }
      closed = true;
      try {
        while (!running.isEmpty() && left > 0) {
          left = ended.awaitNanos(left);
        }
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
      if (closeResult == null) {
        long usedBytes =
            liveSlabs.stream().filter(slab -> slab.users > 0).mapToLong(Slab::sizeBytes).sum();
        closeResult = new CloseResult(running.size(), usedBytes);
        for (Slab slab : List.copyOf(liveSlabs)) {
          slab.released = true;
          freeIfUnused(slab);
        }
        spareBuffers.clear();
        tensors.clear();
        registered.clear();
      }
      return closeResult;
    } finally {
      lock.unlock();
    }
  }

  private void requireOpen() {
    if (closed) {
      throw UMBPException.closed("copy engine of the fake GPU");
    }
    gpu.requireOpen();
  }

  /** Holds all copies that have not begun, until {@link #releaseCopies}. */
  public void holdCopies() {
    lock.lock();
    try {
      holdAll = true;
    } finally {
      lock.unlock();
    }
  }

  /**
   * Holds the next batches that are submitted, until {@link #releaseCopies}; others pass them.
   *
   * @param count number of batches, at least 0
   */
  public void holdNext(int count) {
    lock.lock();
    try {
      holdNext = count;
    } finally {
      lock.unlock();
    }
  }

  /** Ends every hold; held copies run in the order in which they were held. */
  public void releaseCopies() {
    lock.lock();
    try {
      holdAll = false;
      holdNext = 0;
      held.clear();
      for (FakeCopy copy = parked.poll(); copy != null; copy = parked.poll()) {
        copy.stream().enqueue(null, copy);
      }
    } finally {
      lock.unlock();
    }
  }

  /** Ends the hold of the batch that is held longest; without effect when none is. */
  public void releaseOldest() {
    lock.lock();
    try {
      Iterator<FakeCopy> oldest = held.iterator();
      if (oldest.hasNext()) {
        FakeCopy copy = oldest.next();
        oldest.remove();
        if (parked.remove(copy)) {
          copy.stream().enqueue(null, copy);
        }
      }
    } finally {
      lock.unlock();
    }
  }

  /**
   * Makes rows fail by chance. Which ones depends on the seed, the number of batches submitted
   * before and the row's index, and on nothing else. A failing row leaves garbage in half of its
   * target.
   *
   * @param probability of each row, 0 (none) to 1 (all)
   * @param seed where the choice starts
   */
  public void failRows(double probability, long seed) {
    if (!(probability >= 0 && probability <= 1)) {
      throw UMBPException.invalid("probability %s must be 0 to 1", probability);
    }
    lock.lock();
    try {
      failProbability = probability;
      failSeed = seed;
    } finally {
      lock.unlock();
    }
  }

  /**
   * Makes chosen rows of the next submitted batch fail; a second call is for the batch after that.
   *
   * @param rows the rows; called on the copy's thread
   */
  public void failNext(RowFilter rows) {
    lock.lock();
    try {
      failNext.add(rows);
    } finally {
      lock.unlock();
    }
  }

  /**
   * Makes the copy's thread throw in the middle of the next submitted batch; a second call is for
   * the batch after that.
   *
   * @param error what is thrown
   */
  public void throwNext(Error error) {
    lock.lock();
    try {
      throwNext.add(error);
    } finally {
      lock.unlock();
    }
  }

  /**
   * Limits the memory for slabs.
   *
   * @param bytes most bytes of all live slabs together, at least 0
   */
  public void limitSlabBytes(long bytes) {
    lock.lock();
    try {
      slabLimitBytes = bytes;
    } finally {
      lock.unlock();
    }
  }

  /**
   * Returns how many batches with rows ended.
   *
   * @return count
   */
  public long endedBatchCount() {
    return batches.sum();
  }

  /**
   * Returns how many rows were copied or failed in the attempt.
   *
   * @return count
   */
  public long rowCount() {
    return rows.sum();
  }

  /**
   * Returns how many bytes were copied by rows that did not fail.
   *
   * @return bytes
   */
  public long copiedBytes() {
    return bytes.sum();
  }

  /**
   * Returns how many batches were submitted and did not end yet, held ones included.
   *
   * @return count
   */
  public int runningBatchCount() {
    lock.lock();
    try {
      return running.size();
    } finally {
      lock.unlock();
    }
  }

  /**
   * Returns how many batches came up and are held right now.
   *
   * @return count
   */
  public int heldBatchCount() {
    lock.lock();
    try {
      return parked.size();
    } finally {
      lock.unlock();
    }
  }

  /**
   * Returns how many slabs are not freed, those included that were given back during a copy.
   *
   * @return count
   */
  public int liveSlabCount() {
    lock.lock();
    try {
      return liveSlabs.size();
    } finally {
      lock.unlock();
    }
  }

  @Nullable Slab slabAt(long address) {
    return space.find(address);
  }

  /** Parks a copy that comes up while it is held. */
  boolean parks(FakeCopy copy) {
    lock.lock();
    try {
      if (!holdAll && !held.contains(copy)) {
        return false;
      }
      parked.add(copy);
      return true;
    } finally {
      lock.unlock();
    }
  }

  boolean isHeld(FakeCopy copy) {
    lock.lock();
    try {
      return held.contains(copy) || parked.contains(copy);
    } finally {
      lock.unlock();
    }
  }

  void count(int rowCount, long byteCount) {
    rows.add(rowCount);
    bytes.add(byteCount);
  }

  /**
   * Makes a copy final, whose rows are no longer touched; before a close that waits for it returns.
   */
  void ended(FakeCopy copy) {
    lock.lock();
    try {
      batches.increment();
      for (Slab slab : copy.slabs()) {
        slab.users--;
        freeIfUnused(slab);
      }
      copy.becomeFinal();
      running.remove(copy);
      if (running.isEmpty()) {
        ended.signalAll();
      }
    } finally {
      lock.unlock();
    }
  }

  /** Fails what is still parked when the GPU is closed. */
  void abandon() {
    List<FakeCopy> left;
    lock.lock();
    try {
      closed = true;
      left = List.copyOf(parked);
      parked.clear();
    } finally {
      lock.unlock();
    }
    left.forEach(FakeCopy::abandon);
  }

  /** The faults of one batch, taken from the controls when it is submitted. */
  private final class RowFaults implements FakeCopy.RowFaults {
    private final @Nullable RowFilter filter = failNext.poll();
    private final double probability = failProbability;
    private final long seed = failSeed ^ (sequence++ * 0x9E3779B97F4A7C15L);
    private final int throwingRow;
    private @Nullable Error error = throwNext.poll();

    private RowFaults(int rowCount) {
      throwingRow = rowCount / 2;
    }

    @Override
    public boolean fails(int row, int key) {
      return (filter != null && filter.test(row, key))
          || (probability > 0 && chance(row) < probability);
    }

    @Override
    public @Nullable Error thrownBefore(int row) {
      if (error == null || row != throwingRow) {
        return null;
      }
      Error thrown = error;
      error = null;
      return thrown;
    }

    /** Returns a number in [0, 1) by the finaliser of SplitMix64. */
    private double chance(int row) {
      long z = seed + (row + 1) * 0xD1B54A32D192ED03L;
      z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
      z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
      return ((z ^ (z >>> 31)) >>> 11) * 0x1.0p-53;
    }
  }
}
