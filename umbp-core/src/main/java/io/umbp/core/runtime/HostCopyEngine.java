package io.umbp.core.runtime;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The copy engine for engines whose KV cache is host memory. Thread-safe. It starts no thread:
 * without an executor the copies run inside {@link #submit} on the caller's thread.
 *
 * <p>Plain Java 17 cannot turn a buffer into an address and back, so addresses are issued and
 * resolved by table, with bounds.
 *
 * <p>A row that throws while it is copied (a closed arena, one confined to another thread, a mapped
 * file cut short, no memory) fails its key with the error's text and no other key.
 */
// The lock guards the fields marked so and each region's counters; inside it only the free list's
// own
// lock is taken, and nothing is copied, allocated or called back. A batch is checked and copied
// against
// the regions it saw at submission. Its slabs are then counted under the lock, where none may be
// released yet, and recycled by whoever comes last: the owner who gives one back, or its last
// batch.
public final class HostCopyEngine implements KVCopyEngine {
  static final Logger LOG = LoggerFactory.getLogger(HostCopyEngine.class);

  private final @Nullable Executor executor;
  private final Object lock = new Object();

  /** Written under lock. */
  private final HostAddressSpace space = new HostAddressSpace();

  /** Guarded by lock: the region of each tensor, and how often the tensor is registered. */
  private final IdentityHashMap<KVCacheTensor, Registration> registrations =
      new IdentityHashMap<>();

  /** Guarded by lock: batches that are not final. */
  private final Set<HostCopyTicket> running = new HashSet<>();

  private volatile boolean closed;
  private final CountDownLatch closeEnded = new CountDownLatch(1);
  private volatile @Nullable CloseResult closeResult;

  private static final class Registration {
    final HostRegion region;
    int count;

    Registration(HostRegion region) {
      this.region = region;
    }
  }

  /** Creates an engine that copies inside {@link #submit}. */
  public HostCopyEngine() {
    this(null);
  }

  private HostCopyEngine(@Nullable Executor executor) {
    this.executor = executor;
  }

  /**
   * Creates an engine that copies on an executor; a large batch is cut into a few tasks. A task
   * that the executor refuses fails its keys; one that it drops silently keeps its batch running
   * until {@link #close}.
   *
   * @param executor runs the copies; its threads are never interrupted, and closing the engine does
   *     not close it
   * @return the engine
   */
  public static HostCopyEngine on(Executor executor) {
    return new HostCopyEngine(executor);
  }

  /**
   * {@inheritDoc}
   *
   * <p>Without an executor the first byte of each slab is read, so that memory which the calling
   * thread may not use is refused here.
   */
  @Override
  public long register(KVCacheTensor tensor) {
    if (tensor.isDevice()) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "HostCopyEngine serves host memory only, but the tensor is " + tensor);
    }
    if (tensor.allocationBytes() > HostAddressSpace.OFFSET_MASK) {
      throw UMBPException.invalid(
          "slabs of %d bytes exceed the limit of %d for one tensor",
          tensor.allocationBytes(), HostAddressSpace.OFFSET_MASK);
    }
    if (executor == null) {
      probe(tensor);
    }
    synchronized (lock) {
      checkOpen();
      Registration registration = registrations.get(tensor);
      if (registration == null) {
        HostRegion region = space.findTensorMemory(tensor.slabs());
        if (region == null) {
          region = space.add(number -> HostRegion.ofTensor(number, tensor.slabs()));
        }
        registration = new Registration(region);
        registrations.put(tensor, registration);
      }
      registration.count++;
      registration.region.registrations++;
      return HostAddressSpace.address(registration.region) + tensor.address();
    }
  }

  private static void probe(KVCacheTensor tensor) {
    try {
      HostRegion.ofTensor(0, tensor.slabs()).probe();
    } catch (RuntimeException | InternalError e) {
      throw new UMBPException(
          UMBPException.Reason.INVALID_ARGUMENT,
          "thread '" + Thread.currentThread().getName() + "' cannot read " + tensor + ": " + e,
          e);
    }
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    synchronized (lock) {
      Registration registration = registrations.get(tensor);
      if (registration == null) {
        return;
      }
      if (--registration.count == 0) {
        registrations.remove(tensor);
      }
      if (--registration.region.registrations == 0) {
        space.remove(registration.region);
      }
    }
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    if (sizeBytes < 1 || sizeBytes > MAX_SLAB_BYTES) {
      throw UMBPException.invalid(
          "slab size %d is outside [1, %d] bytes", sizeBytes, MAX_SLAB_BYTES);
    }
    if (closed) {
      throw UMBPException.closed("copy engine");
    }
    ByteBuffer root = DirectMemory.allocate((int) sizeBytes, "A slab of the host pool");
    try {
      synchronized (lock) {
        checkOpen();
        HostRegion region = space.add(number -> HostRegion.ofSlab(number, root));
        return Objects.requireNonNull(region.slab);
      }
    } catch (UMBPException e) {
      DirectMemory.recycle(root);
      throw e;
    }
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    synchronized (lock) {
      HostRegion region = HostAddressSpace.find(space.snapshot(), slab.baseAddress());
      if (region != null && region.is(slab)) {
        space.remove(region);
        region.released = true;
        recycleIfUnused(region);
      }
    }
  }

  /**
   * {@inheritDoc}
   *
   * <p>An {@link DeviceFence.OnStream} is refused as UNSUPPORTED: host memory has no streams.
   */
  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    if (fence instanceof DeviceFence.OnStream) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "HostCopyEngine has no streams to wait for, but was given " + fence);
    }
    if (closed) {
      throw UMBPException.closed("copy engine");
    }
    if (batch.deviceOrdinal() != KVCacheTensor.HOST) {
      throw UMBPException.invalid(
          "the batch is for device %d, but HostCopyEngine serves host memory only (%d)",
          batch.deviceOrdinal(), KVCacheTensor.HOST);
    }
    @Nullable HostRegion[] regions = space.snapshot();
    long[] usedSlabs = new long[(regions.length + 63) >>> 6];
    long totalBytes = HostAddressSpace.check(batch, regions, usedSlabs);
    HostRegion[] slabs = slabs(regions, usedSlabs);
    HostCopyTicket ticket =
        new HostCopyTicket(this, batch, regions, slabs, totalBytes, executor != null);
    begin(ticket);
    if (executor == null || batch.count() == 0) {
      for (HostCopyTicket.Chunk chunk : ticket.chunks()) {
        chunk.run();
      }
    } else {
      start(ticket, executor);
    }
    return ticket;
  }

  private static void start(HostCopyTicket ticket, Executor executor) {
    for (HostCopyTicket.Chunk chunk : ticket.chunks()) {
      try {
        executor.execute(chunk);
      } catch (Throwable refusal) {
        chunk.giveUp("the executor refused the copy: " + refusal);
      }
    }
  }

  private static HostRegion[] slabs(@Nullable HostRegion[] regions, long[] bits) {
    int count = 0;
    for (long word : bits) {
      count += Long.bitCount(word);
    }
    HostRegion[] slabs = new HostRegion[count];
    int next = 0;
    for (int i = 0; i < bits.length; i++) {
      for (long word = bits[i]; word != 0; word &= word - 1) {
        HostRegion slab = regions[(i << 6) + Long.numberOfTrailingZeros(word)];
        if (slab != null) {
          slabs[next++] = slab;
        }
      }
    }
    return slabs;
  }

  private void begin(HostCopyTicket ticket) {
    synchronized (lock) {
      checkOpen();
      for (HostRegion slab : ticket.slabs) {
        if (slab.released) {
          throw UMBPException.invalid(
              "the slab at address 0x%x was released while the batch was submitted",
              HostAddressSpace.address(slab));
        }
      }
      for (HostRegion slab : ticket.slabs) {
        slab.users++;
      }
      running.add(ticket);
    }
  }

  /** Takes a batch back whose rows are all over. */
  void finished(HostCopyTicket ticket) {
    synchronized (lock) {
      running.remove(ticket);
      for (HostRegion slab : ticket.slabs) {
        slab.users--;
      }
      for (HostRegion slab : ticket.slabs) {
        recycleIfUnused(slab);
      }
    }
  }

  private static void recycleIfUnused(HostRegion slab) {
    if (slab.released && slab.users == 0 && slab.root != null) {
      DirectMemory.recycle(slab.root);
    }
  }

  @Override
  public CloseResult close(Duration bound) {
    long deadline = System.nanoTime() + nanos(bound);
    HostCopyTicket[] open;
    boolean first;
    synchronized (lock) {
      first = !closed;
      closed = true;
      open = running.toArray(new HostCopyTicket[0]);
    }
    if (!first) {
      return firstResult(deadline);
    }
    for (HostCopyTicket ticket : open) {
      ticket.await(Duration.ofNanos(Math.max(0, deadline - System.nanoTime())));
    }
    for (HostCopyTicket ticket : open) {
      for (HostCopyTicket.Chunk chunk : ticket.chunks()) {
        chunk.giveUp("the copy engine was closed before the copy began");
      }
    }
    CloseResult result = dropMemory();
    if (!result.isClean()) {
      LOG.warn(
          "Closed with {} batches still copying; {} slab bytes are freed when they end",
          result.unfinishedJobs(),
          result.handedOverBytes());
    }
    closeResult = result;
    closeEnded.countDown();
    return result;
  }

  private CloseResult firstResult(long deadline) {
    try {
      closeEnded.await(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
    CloseResult known = closeResult;
    if (known != null) {
      return known;
    }
    synchronized (lock) {
      return leftBehind();
    }
  }

  private CloseResult dropMemory() {
    synchronized (lock) {
      CloseResult result = leftBehind();
      registrations.clear();
      for (HostRegion region : space.clear()) {
        if (region != null) {
          region.released = true;
          recycleIfUnused(region);
        }
      }
      return result;
    }
  }

  private CloseResult leftBehind() {
    Set<HostRegion> used = new HashSet<>();
    long bytes = 0;
    for (HostCopyTicket ticket : running) {
      for (HostRegion slab : ticket.slabs) {
        if (used.add(slab)) {
          bytes += slab.sizeBytes;
        }
      }
    }
    return running.isEmpty() ? CloseResult.CLEAN : new CloseResult(running.size(), bytes);
  }

  private void checkOpen() {
    if (closed) {
      throw UMBPException.closed("copy engine");
    }
  }

  /** Returns a time in nanoseconds, at most a century so that it can be added to the clock. */
  static long nanos(Duration time) {
    if (time.isNegative()) {
      throw UMBPException.invalid("time %s must be >= 0", time);
    }
    return Math.min(TimeUnit.NANOSECONDS.convert(time), TimeUnit.DAYS.toNanos(36_500));
  }
}
