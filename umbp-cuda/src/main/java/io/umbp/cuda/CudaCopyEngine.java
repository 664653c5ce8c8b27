package io.umbp.cuda;

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
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongConsumer;
import java.util.function.Supplier;
import jcuda.driver.CUevent;
import jcuda.driver.CUresult;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The copy engine for CUDA devices, through JCuda's driver API. Thread-safe. It starts no thread:
 * copies are enqueued by the calling thread on a stream of their direction, the fence is waited for
 * on the device, and completion is read in {@link CopyTicket#poll} and {@link CopyTicket#await}, or
 * by the given executor. Every thread gets its own CUDA context and capture mode back.
 *
 * <p>Engine memory is named by raw device addresses. Slabs are direct memory of the JVM, pinned and
 * mapped for all devices of the engine. Addresses in batches are real.
 *
 * <p><strong>Failure.</strong> A copy that the driver refuses fails the keys of its rows and no
 * other. An error after which a context is of no use (an illegal address, a failed launch) loses
 * the device: all its batches end failed, the engine is closed with that reason, and memory that
 * those batches used is kept for good.
 */
// The lock guards the fields below it and the slabs. No driver call is made and no other lock taken
// inside it. Lifetime: 'users' counts one for the open engine, one for each thread inside it and
// one for each batch that is not final; whoever takes it to zero frees everything.
public final class CudaCopyEngine implements KVCopyEngine {
  private static final Logger log = LoggerFactory.getLogger(CudaCopyEngine.class);
  private static final long FOLLOW_NANOS = 50_000;

  /** Closed engines whose copies still run: their memory must not be collected. */
  private static final Set<CudaCopyEngine> LEFT_OPEN = ConcurrentHashMap.newKeySet();

  private final Map<Integer, CudaDevice> devices;
  private final List<CudaContext> contexts;
  private final @Nullable Executor executor;
  private final CopyCounters counters = new CopyCounters();
  private final AtomicBoolean isFollowing = new AtomicBoolean();
  private final AtomicInteger users = new AtomicInteger(1);
  private final CountDownLatch closeEnded = new CountDownLatch(1);
  private final ConcurrentLinkedQueue<CopyIssuer> issuers = new ConcurrentLinkedQueue<>();
  private final Set<CudaCopyTicket> running = ConcurrentHashMap.newKeySet();

  /** Why the engine is closed, null while it is open. */
  private volatile @Nullable String closed;

  private volatile @Nullable CloseResult closeResult;

  private final ReentrantLock lock = new ReentrantLock();
  private final Map<Integer, DeviceMemory> memory = new HashMap<>();
  private final Set<Slab> lentSlabs = new HashSet<>();
  private boolean isClosing;
  private final Map<Long, Deque<Slab>> idleSlabs = new HashMap<>();
  private volatile AddressRanges<Slab> slabs = AddressRanges.none();

  private CudaCopyEngine(Map<Integer, CudaDevice> devices, @Nullable Executor executor) {
    this.devices = devices;
    this.executor = executor;
    contexts = devices.values().stream().map(CudaDevice::context).toList();
    devices.keySet().forEach(ordinal -> memory.put(ordinal, new DeviceMemory(ordinal)));
  }

  /** Collects what an engine is opened with. Thread-confined. */
  public static final class Builder {
    private final List<Supplier<CudaContext>> contexts = new ArrayList<>();
    private CudaCopySettings settings = CudaCopySettings.builder().build();
    private @Nullable Executor executor;

    private Builder() {}

    /**
     * Adds a device by its primary context, which the CUDA runtime uses too.
     *
     * @param ordinal the device, at least 0
     * @return this
     */
    public Builder device(int ordinal) {
      if (ordinal < 0) {
        throw UMBPException.invalid("device ordinal %d must be >= 0", ordinal);
      }
      contexts.add(() -> CudaContext.primary(ordinal));
      return this;
    }

    /**
     * Adds a device by a context that the serving engine created itself and keeps alive until this
     * engine is closed.
     *
     * @param handle a raw {@code CUcontext}
     * @return this
     */
    public Builder context(long handle) {
      contexts.add(() -> CudaContext.of(handle));
      return this;
    }

    /**
     * Sets how copies are planned; the defaults of {@link CudaCopySettings} unless set.
     *
     * @param settings the settings, of all devices
     * @return this
     */
    public Builder settings(CudaCopySettings settings) {
      this.settings = settings;
      return this;
    }

    /**
     * Lets an executor read completions and enqueue waiting batches, so that copies make progress
     * though nobody polls. Not needed under a runtime that has an executor.
     *
     * @param executor shared; it runs short tasks on threads of its own while copies run, which are
     *     never interrupted
     * @return this
     */
    public Builder executor(Executor executor) {
      this.executor = executor;
      return this;
    }

    /**
     * Opens the engine: loads the natives, initialises the driver and makes streams, events, kernel
     * and launch tables on each device.
     *
     * @return the engine, which the caller closes
     * @throws UMBPException UNSUPPORTED with the reason of {@link Cuda#availability},
     *     DRIVER_FAILED, OUT_OF_MEMORY, or INVALID_ARGUMENT for a device named twice; nothing is
     *     left behind
     */
    public CudaCopyEngine open() {
      if (contexts.isEmpty()) {
        throw UMBPException.invalid("no device is named");
      }
      Cuda.initialise();
      Map<Integer, CudaDevice> devices = new LinkedHashMap<>();
      try {
        for (Supplier<CudaContext> each : contexts) {
          CudaContext context = each.get();
          if (devices.containsKey(context.ordinal())) {
            context.release();
            throw UMBPException.invalid("device %d is named twice", context.ordinal());
          }
          devices.put(context.ordinal(), CudaDevice.open(context, settings));
        }
        return new CudaCopyEngine(devices, executor);
      } catch (RuntimeException | Error e) {
        devices.values().forEach(CudaDevice::close);
        throw e;
      }
    }
  }

  /**
   * Starts to collect what an engine is opened with.
   *
   * @return a builder; a device or a context is required
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Opens an engine on devices by their primary contexts, with default settings.
   *
   * @param ordinals the devices
   * @return the engine, which the caller closes
   * @throws UMBPException as {@link Builder#open}
   */
  public static CudaCopyEngine open(int... ordinals) {
    Builder builder = builder();
    for (int ordinal : ordinals) {
      builder.device(ordinal);
    }
    return builder.open();
  }

  /** {@inheritDoc} The driver is asked whether the tensor lies in one live allocation. */
  @Override
  public long register(KVCacheTensor tensor) {
    if (!tensor.isDevice()) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "CudaCopyEngine serves device memory only, not " + tensor);
    }
    CudaDevice device = device(tensor.deviceOrdinal());
    enterOpen();
    try {
      DeviceMemory of = Objects.requireNonNull(memory.get(device.ordinal()));
      long[] range;
      int[] mode = device.context().enter();
      try {
        range = of.ask(tensor);
      } finally {
        device.context().exit(mode);
      }
      runLocked(() -> of.add(tensor, range[0], range[1]));
      return tensor.address();
    } finally {
      exit();
    }
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    DeviceMemory of = memory.get(tensor.deviceOrdinal());
    if (of != null) {
      runLocked(() -> of.remove(tensor));
    }
  }

  /**
   * {@inheritDoc}
   *
   * <p>A slab of {@link #prepareSlabs} or {@link #adoptSlabs} of that size is taken when there is
   * one; else memory is allocated and pinned in this call, about 0.2 s for 1 GiB.
   */
  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    checkSlabBytes(sizeBytes);
    enterOpen();
    try {
      Slab slab = takeIdle(sizeBytes);
      if (slab == null) {
        slab = new Slab(allocatePinned(sizeBytes));
      }
      return lend(slab);
    } finally {
      exit();
    }
  }

  private static void checkSlabBytes(long sizeBytes) {
    if (sizeBytes < 1 || sizeBytes > MAX_SLAB_BYTES) {
      throw UMBPException.invalid(
          "slab of %d bytes, allowed are 1 to %d", sizeBytes, MAX_SLAB_BYTES);
    }
  }

  /** Allocates pinned memory, at the cost of slabs that nobody uses. */
  private PinnedBuffer allocatePinned(long sizeBytes) {
    try {
      return PinnedBuffer.allocate(contexts, sizeBytes);
    } catch (UMBPException e) {
      List<Slab> idle = callLocked(this::takeAllIdle);
      if (e.reason() != UMBPException.Reason.OUT_OF_MEMORY || idle.isEmpty()) {
        throw e;
      }
      idle.forEach(slab -> slab.memory().release(contexts.get(0)));
      return PinnedBuffer.allocate(contexts, sizeBytes);
    }
  }

  private @Nullable Slab takeIdle(long sizeBytes) {
    return callLocked(
        () -> {
          Deque<Slab> idle = idleSlabs.get(sizeBytes);
          return idle == null ? null : idle.poll();
        });
  }

  private List<Slab> takeAllIdle() {
    List<Slab> all = idleSlabs.values().stream().flatMap(Deque::stream).toList();
    idleSlabs.clear();
    return all;
  }

  private HostSlab lend(Slab slab) {
    HostSlab lent = new HostSlab(slab.memory().memory(), slab.address(), slab.sizeBytes());
    runLocked(
        () -> {
          slab.lent = lent;
          lentSlabs.add(slab);
          publishSlabs();
        });
    return lent;
  }

  private void publishSlabs() {
    slabs =
        AddressRanges.of(
            lentSlabs.stream()
                .filter(slab -> slab.lent != null)
                .map(
                    slab ->
                        new AddressRanges.Range<>(
                            slab.address(), slab.address() + slab.sizeBytes(), slab))
                .toList());
  }

  /**
   * {@inheritDoc}
   *
   * <p>The memory stays pinned for the next {@link #allocateSlab} of its size, until the engine is
   * closed or another size finds no memory.
   */
  @Override
  public void releaseSlab(HostSlab lent) {
    runLocked(
        () -> {
          for (Slab slab : lentSlabs) {
            if (lent.equals(slab.lent)) {
              slab.lent = null;
              publishSlabs();
              makeIdleIfUnused(slab);
              return;
            }
          }
        });
  }

  private void makeIdleIfUnused(Slab slab) {
    if (slab.lent == null && slab.users == 0 && !slab.isLost && lentSlabs.remove(slab)) {
      idleSlabs.computeIfAbsent(slab.sizeBytes(), size -> new ArrayDeque<>()).push(slab);
    }
  }

  /**
   * Allocates and pins slabs before serving, one after the other on an executor, so that later
   * {@link #allocateSlab} calls of that size return at once. All of them become usable together.
   *
   * @param totalBytes bytes in all, above 0; rounded up to whole slabs
   * @param slabBytes size of each, at most {@link #MAX_SLAB_BYTES}; the runtime's slab size
   * @param executor runs the work
   * @param progress told the bytes that are ready, after each slab, on the executor's thread
   * @return completes when all are ready; exceptionally, with OUT_OF_MEMORY or DRIVER_FAILED, when
   *     one could not be pinned, and then none of them stays pinned
   */
  public CompletableFuture<Void> prepareSlabs(
      long totalBytes, long slabBytes, Executor executor, LongConsumer progress) {
    checkSlabBytes(slabBytes);
    if (totalBytes <= 0) {
      throw UMBPException.invalid("prepared slabs of %d bytes in all, must be > 0", totalBytes);
    }
    List<Supplier<PinnedBuffer>> parts = new ArrayList<>();
    for (long at = 0; at < totalBytes; at += slabBytes) {
      parts.add(() -> PinnedBuffer.allocate(contexts, slabBytes));
    }
    return prepare(parts, executor, progress);
  }

  /**
   * Pins memory of others, such as mapped files, as slabs that {@link #allocateSlab} hands out by
   * their size. All of them become usable together. Positions and limits of the buffers are never
   * moved; what lies between them is a slab.
   *
   * @param memory direct, writable buffers of at most {@link #MAX_SLAB_BYTES} bytes; shared, and
   *     alive until the engine is closed and no copy uses them (the engine holds the buffers)
   * @param executor runs the work
   * @param progress as for {@link #prepareSlabs}
   * @return as for {@link #prepareSlabs}
   */
  public CompletableFuture<Void> adoptSlabs(
      List<ByteBuffer> memory, Executor executor, LongConsumer progress) {
    List<Supplier<PinnedBuffer>> parts = new ArrayList<>();
    for (ByteBuffer buffer : memory) {
      checkSlabBytes(buffer.remaining());
      parts.add(() -> PinnedBuffer.register(contexts, buffer));
    }
    return prepare(parts, executor, progress);
  }

  private CompletableFuture<Void> prepare(
      List<Supplier<PinnedBuffer>> parts, Executor executor, LongConsumer progress) {
    enterOpen();
    CompletableFuture<Void> done = new CompletableFuture<>();
    try {
      executor.execute(
          () -> {
            try {
              pinAll(parts, progress);
              done.complete(null);
            } catch (Throwable e) {
              done.completeExceptionally(e);
            } finally {
              exit();
            }
          });
    } catch (RuntimeException e) {
      exit();
      throw e;
    }
    return done;
  }

  private void pinAll(List<Supplier<PinnedBuffer>> parts, LongConsumer progress) {
    List<PinnedBuffer> ready = new ArrayList<>();
    try {
      long bytes = 0;
      for (Supplier<PinnedBuffer> part : parts) {
        checkOpen();
        PinnedBuffer pinned = part.get();
        ready.add(pinned);
        bytes += pinned.memory().capacity();
        progress.accept(bytes);
      }
    } catch (RuntimeException | Error e) {
      ready.forEach(pinned -> pinned.release(contexts.get(0)));
      throw e;
    }
    runLocked(
        () -> {
          for (PinnedBuffer pinned : ready) {
            Slab slab = new Slab(pinned);
            idleSlabs.computeIfAbsent(slab.sizeBytes(), size -> new ArrayDeque<>()).add(slab);
          }
        });
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    if (fence instanceof DeviceFence.None) {
      throw new UMBPException(
          UMBPException.Reason.FENCE_REQUIRED,
          String.format(
              "a %s on device %d needs a fence: CudaFence.onStream, or hostComplete when the caller"
                  + " has waited",
              batch.direction(), batch.deviceOrdinal()));
    }
    enterOpen();
    try {
      CudaDevice device = device(batch.deviceOrdinal());
      CudaCopyTicket ticket = accept(device, batch, fence);
      if (batch.count() == 0) {
        ticket.end(null);
      } else {
        device.addWaiting(ticket);
        device.pump();
        follow();
      }
      return ticket;
    } finally {
      exit();
    }
  }

  private CudaCopyTicket accept(CudaDevice device, CopyBatch batch, DeviceFence fence) {
    CopyIssuer rows = issuers.poll();
    if (rows == null) {
      rows = new CopyIssuer(counters);
    }
    CudaCopyTicket.@Nullable RecordedFence recorded = null;
    try {
      rows.check(batch, Objects.requireNonNull(memory.get(device.ordinal())).snapshot(), slabs);
      recorded = fence instanceof DeviceFence.OnStream on ? record(on) : null;
      CudaCopyTicket ticket = new CudaCopyTicket(this, device, batch, rows, recorded);
      begin(ticket);
      return ticket;
    } catch (RuntimeException | Error e) {
      issuers.add(rows);
      if (recorded != null) {
        recorded.device().giveBack(recorded.event());
      }
      throw e;
    }
  }

  /** Records an event on a fence's stream, on this thread. */
  private CudaCopyTicket.RecordedFence record(DeviceFence.OnStream fence) {
    CudaDevice device = device(fence.deviceOrdinal());
    CUstream stream = Handles.stream(fence.streamHandle());
    int[] mode = device.context().enter();
    try {
      refuseCapture(stream, fence);
      CUevent event = device.takeEvent();
      int code = Driver.eventRecord(event, stream);
      if (code != Driver.SUCCESS) {
        device.giveBack(event);
        throw refused(fence, "cuEventRecord", code);
      }
      return new CudaCopyTicket.RecordedFence(device, event);
    } finally {
      device.context().exit(mode);
    }
  }

  private static void refuseCapture(CUstream stream, DeviceFence.OnStream fence) {
    int[] status = new int[1];
    int code = Driver.code(() -> JCudaDriver.cuStreamIsCapturing(stream, status));
    if (code == CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        || (code == Driver.SUCCESS && status[0] != 0)) {
      throw new UMBPException(
          UMBPException.Reason.STREAM_CAPTURING,
          String.format(
              "stream 0x%x of device %d is being captured into a graph; copies are not part of a"
                  + " graph, call between captures",
              fence.streamHandle(), fence.deviceOrdinal()));
    }
    if (code != Driver.SUCCESS) {
      throw refused(fence, "cuStreamIsCapturing", code);
    }
  }

  private static UMBPException refused(DeviceFence.OnStream fence, String call, int code) {
    return new UMBPException(
        Driver.isSticky(code)
            ? UMBPException.Reason.DRIVER_FAILED
            : UMBPException.Reason.INVALID_ARGUMENT,
        String.format(
            "stream 0x%x of device %d: %s",
            fence.streamHandle(), fence.deviceOrdinal(), Driver.describe(call, code)));
  }

  /** Lets a stream wait for an event of a ticket. */
  void letStreamWait(DeviceFence.OnStream waiting, CUevent event) {
    CudaDevice device = device(waiting.deviceOrdinal());
    CUstream stream = Handles.stream(waiting.streamHandle());
    int[] mode = device.context().enter();
    try {
      refuseCapture(stream, waiting);
      int code = Driver.streamWaitEvent(stream, event);
      if (code != Driver.SUCCESS) {
        throw refused(waiting, "cuStreamWaitEvent", code);
      }
    } finally {
      device.context().exit(mode);
    }
  }

  private void begin(CudaCopyTicket ticket) {
    runLocked(
        () -> {
          checkOpen();
          for (Slab slab : ticket.slabs()) {
            if (slab.lent == null) {
              throw UMBPException.invalid(
                  "the slab at 0x%x was given back while the batch was submitted", slab.address());
            }
          }
          ticket.slabs().forEach(slab -> slab.users++);
          users.incrementAndGet();
          running.add(ticket);
        });
  }

  /** Ends the batches of a device whose copies have ended. */
  void endAllDone(CudaDevice device) {
    for (CudaCopyTicket ticket : running) {
      if (ticket.device() == device) {
        ticket.endIfDone();
      }
    }
  }

  /** Takes back what a batch used that has ended; with a lost device its slabs are never reused. */
  void finished(CudaCopyTicket ticket, boolean isLost) {
    runLocked(
        () -> {
          for (Slab slab : ticket.slabs()) {
            slab.users--;
            slab.isLost |= isLost;
            makeIdleIfUnused(slab);
          }
        });
    if (ticket.isEnqueued()) {
      ticket.device().landed(ticket.bytes());
    }
    running.remove(ticket);
    exit();
  }

  void giveBack(CopyIssuer issuer) {
    issuers.add(issuer);
  }

  /**
   * Ends all batches of a device that is of no use any more, and closes the engine.
   *
   * @param isDead whether the device has stopped for certain; else its batches end when their
   *     stream is seen to have
   */
  void lose(CudaDevice device, String why, boolean isDead, @Nullable Throwable cause) {
    String reason =
        String.format("CUDA device %d is lost: %s; a new process is needed", device.ordinal(), why);
    if (isDead) {
      device.stop();
    }
    if (device.loss() == null) {
      device.lose(reason);
      log.error("The copy engine is closed: {}", reason, cause);
    }
    runLocked(
        () -> {
          if (closed == null) {
            closed = reason;
          }
        });
    for (CudaDevice each : devices.values()) {
      each.takeWaiting().forEach(ticket -> ticket.end("the copy never began: " + reason));
    }
    endAllDone(device);
  }

  private void follow() {
    Executor runner = executor;
    if (runner != null && isFollowing.compareAndSet(false, true)) {
      try {
        runner.execute(this::pollAll);
      } catch (RejectedExecutionException e) {
        isFollowing.set(false);
        log.warn("The executor refused to follow copies; only poll and await do", e);
      }
    }
  }

  private void pollAll() {
    running.forEach(CudaCopyTicket::poll);
    if (!running.isEmpty()) {
      LockSupport.parkNanos(this, FOLLOW_NANOS);
    }
    isFollowing.set(false);
    if (!running.isEmpty()) {
      follow();
    }
  }

  /**
   * {@inheritDoc}
   *
   * <p>Batches that were never enqueued fail at the bound. When copies still run then, nothing is
   * freed, because freeing can wait for them: the memory that they use is counted, and all of it is
   * freed when the last of them is seen to have ended, or else kept for good.
   */
  @Override
  public CloseResult close(Duration bound) {
    long deadline = System.nanoTime() + nanos(bound);
    boolean isFirst =
        callLocked(
            () -> {
              boolean first = closeResult == null && !isClosing;
              isClosing = true;
              if (closed == null) {
                closed = "";
              }
              return first;
            });
    if (!isFirst) {
      return firstResult(deadline);
    }
    while (!running.isEmpty()) {
      running.forEach(CudaCopyTicket::poll);
      long left = deadline - System.nanoTime();
      if (running.isEmpty() || left <= 0 || Thread.currentThread().isInterrupted()) {
        break;
      }
      LockSupport.parkNanos(this, Math.min(left, FOLLOW_NANOS));
    }
    for (CudaDevice device : devices.values()) {
      device
          .takeWaiting()
          .forEach(ticket -> ticket.end("the copy engine was closed before the copy began"));
    }
    CloseResult result = callLocked(this::leftBehind);
    if (!result.isClean()) {
      LEFT_OPEN.add(this);
      log.warn(
          "Closed with {} batches still copying; {} slab bytes are freed when they end",
          result.unfinishedJobs(),
          result.handedOverBytes());
    }
    closeResult = result;
    closeEnded.countDown();
    exit();
    return result;
  }

  private CloseResult firstResult(long deadline) {
    try {
      closeEnded.await(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
    CloseResult known = closeResult;
    return known != null ? known : callLocked(this::leftBehind);
  }

  private CloseResult leftBehind() {
    long bytes =
        lentSlabs.stream()
            .filter(slab -> slab.users > 0 || slab.isLost)
            .mapToLong(Slab::sizeBytes)
            .sum();
    return new CloseResult(running.size(), bytes);
  }

  /** Frees everything; called once, by the last user of a closed engine. */
  private void free() {
    List<Slab> all =
        callLocked(
            () -> {
              List<Slab> idle = takeAllIdle();
              List<Slab> lent = List.copyOf(lentSlabs);
              lentSlabs.clear();
              publishSlabs();
              List<Slab> both = new ArrayList<>(idle);
              both.addAll(lent);
              return both;
            });
    CudaContext alive =
        devices.values().stream()
            .filter(device -> device.loss() == null)
            .map(CudaDevice::context)
            .findFirst()
            .orElse(null);
    for (Slab slab : all) {
      if (alive == null || slab.isLost) {
        slab.memory().giveUp();
      } else {
        slab.memory().release(alive);
      }
    }
    devices.values().forEach(CudaDevice::close);
    LEFT_OPEN.remove(this);
  }

  /**
   * Counts the calling thread in.
   *
   * @return false when the engine has been freed
   */
  boolean enter() {
    int known;
    do {
      known = users.get();
      if (known == 0) {
        return false;
      }
    } while (!users.compareAndSet(known, known + 1));
    return true;
  }

  private void enterOpen() {
    if (closed != null || !enter()) {
      throw closedException();
    }
  }

  void exit() {
    if (users.decrementAndGet() == 0) {
      free();
    }
  }

  private void checkOpen() {
    if (closed != null) {
      throw closedException();
    }
  }

  private UMBPException closedException() {
    String reason = closed;
    return reason == null || reason.isEmpty()
        ? UMBPException.closed("copy engine")
        : new UMBPException(UMBPException.Reason.CLOSED, "copy engine is closed: " + reason);
  }

  private CudaDevice device(int ordinal) {
    CudaDevice device = devices.get(ordinal);
    if (device == null) {
      throw UMBPException.invalid(
          "device %d is not of this engine, which was opened with %s", ordinal, devices.keySet());
    }
    return device;
  }

  /**
   * Returns what was copied by which path since the engine was opened.
   *
   * @return a snapshot
   */
  public CudaCopyStats stats() {
    return counters.snapshot();
  }

  private void runLocked(Runnable action) {
    lock.lock();
    try {
      action.run();
    } finally {
      lock.unlock();
    }
  }

  private <T extends @Nullable Object> T callLocked(Supplier<T> action) {
    lock.lock();
    try {
      return action.get();
    } finally {
      lock.unlock();
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
