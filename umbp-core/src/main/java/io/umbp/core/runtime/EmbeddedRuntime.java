package io.umbp.core.runtime;

import io.umbp.api.BlockKey;
import io.umbp.api.CloseResult;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.core.pool.BlockPool;
import io.umbp.core.pool.PoolStats;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A runtime that lives inside the engine's process and keeps objects in host memory. A scheduler
 * and the workers of all ranks of one JVM share it. Thread-safe.
 *
 * <p>It starts no thread. Without an executor nothing runs unless called: completions and deadlines
 * are seen by whichever call comes next. With one, a task of it follows the running copies, so that
 * pins are given back even when nobody polls.
 *
 * <p><strong>Lock.</strong> One lock guards the pool, all jobs and the registrations. The copy
 * engine is never called under it: a job is first reserved under the lock, then lowered and
 * submitted without it, and its end is first read from the ticket without the lock, then booked
 * under it. So other calls may see a job that is reserved and not yet submitted; they leave it
 * alone.
 */
public final class EmbeddedRuntime implements UMBPRuntime {
  private static final Logger log = LoggerFactory.getLogger(EmbeddedRuntime.class);
  private static final long IDLE_NANOS = 200_000;

  final ReentrantLock lock = new ReentrantLock();
  final BlockPool pool;
  final JobTable jobs = new JobTable();
  final HoldTable holds = new HoldTable(this);
  final OwnCopyEngine engine;
  final LongSupplier clock;
  final long timeoutNanos;
  final ObjectReach reach;

  private final long slabBytes;
  private final @Nullable CopyFollower follower;
  private final Set<EmbeddedSchedulerHandle> schedulers = new HashSet<>();
  private final Set<EmbeddedWorkerHandle> workers = new HashSet<>();
  private final Map<UMBPNamespace, String> manifests = new HashMap<>();
  private final List<LeftCopy> leftCopies = new ArrayList<>();
  private final ReentrantLock closeLock = new ReentrantLock();
  private volatile boolean isClosed;
  private volatile @Nullable CloseResult closeResult;

  /**
   * A copy that a trial of the layout did not wait for to the end.
   *
   * @param ticket the copy
   * @param bytes the bytes that it moves
   * @param registration the buffers that it uses, to be taken back from the engine when it ends
   */
  record LeftCopy(CopyTicket ticket, long bytes, Registration registration) {}

  private EmbeddedRuntime(Builder builder) {
    this.slabBytes = builder.effectiveSlabBytes();
    this.pool = new BlockPool(builder.capacityBytes, slabBytes, this::evicted);
    this.engine = new OwnCopyEngine(builder.effectiveCopyEngine());
    this.follower = builder.executor == null ? null : new CopyFollower(this, builder.executor);
    this.clock = builder.nanoTime;
    this.timeoutNanos = nanos(builder.transferTimeout);
    this.reach = builder.reach;
  }

  /** Collects the settings of a runtime. Thread-confined. */
  public static final class Builder {
    private static final long DEFAULT_SLAB_BYTES = 64L << 20;

    private long capacityBytes;
    private long slabBytes;
    private @Nullable Supplier<? extends KVCopyEngine> copyEngine;
    private @Nullable Executor executor;
    private Duration transferTimeout = Duration.ofSeconds(30);
    private LongSupplier nanoTime = System::nanoTime;
    private ObjectReach reach = ObjectReach.EVERY_RANK;

    private Builder() {}

    /**
     * Sets how many bytes of objects the pool may hold. Required.
     *
     * @param bytes above 0; {@link Long#MAX_VALUE} for no limit but the machine's
     * @return this
     */
    public Builder capacityBytes(long bytes) {
      if (bytes <= 0) {
        throw UMBPException.invalid("capacity of %d bytes must be > 0", bytes);
      }
      capacityBytes = bytes;
      return this;
    }

    /**
     * Sets the size of the pieces in which host memory is taken from the copy engine; no object can
     * be larger. Unless set it is 64 MiB, or less for a smaller pool.
     *
     * @param bytes 1 to {@link KVCopyEngine#MAX_SLAB_BYTES}
     * @return this
     */
    public Builder slabBytes(long bytes) {
      if (bytes <= 0 || bytes > KVCopyEngine.MAX_SLAB_BYTES) {
        throw UMBPException.invalid(
            "slab of %d bytes, allowed are 1 to %d", bytes, KVCopyEngine.MAX_SLAB_BYTES);
      }
      slabBytes = bytes;
      return this;
    }

    /**
     * Sets the copy engine; a {@link HostCopyEngine} unless set.
     *
     * @param opener opens the engine when buffers are first registered, so that a runtime which
     *     only schedules touches no device; ownership is transferred to the runtime, which closes
     *     it. Called once, unless it throws: then registering fails with that, and may be repeated
     * @return this
     */
    public Builder copyEngine(Supplier<? extends KVCopyEngine> opener) {
      copyEngine = opener;
      return this;
    }

    /**
     * Lets background work run on an executor; without one nothing runs unless called. With the
     * default copy engine that also decides where copies run: on the executor, or without one
     * inside {@code load} and {@code store}, which then return when the bytes have moved.
     *
     * @param executor shared; its threads are never interrupted
     * @return this
     */
    public Builder executor(Executor executor) {
      this.executor = executor;
      return this;
    }

    /**
     * Sets the deadline of each job, from its submission to its publication; 30 s unless set.
     *
     * @param timeout above zero
     * @return this
     */
    public Builder transferTimeout(Duration timeout) {
      if (timeout.isZero() || timeout.isNegative()) {
        throw UMBPException.invalid("transfer timeout %s must be > 0", timeout);
      }
      transferTimeout = timeout;
      return this;
    }

    /**
     * Sets the clock by which deadlines and bounds are judged; {@link System#nanoTime()} unless
     * set.
     *
     * @param clock nanoseconds from any origin, never going back
     * @return this
     */
    public Builder nanoTime(LongSupplier clock) {
      nanoTime = clock;
      return this;
    }

    /**
     * Sets whether the workers of all ranks use this runtime, so that one of them may store what
     * all tensor-parallel ranks share. {@link ObjectReach#EVERY_RANK} unless set; a runtime that
     * serves one rank's process alone needs {@link ObjectReach#OWN_RANK}. Keys are the same either
     * way.
     *
     * @param reach who reaches the objects
     * @return this
     */
    public Builder reach(ObjectReach reach) {
      this.reach = reach;
      return this;
    }

    /**
     * Creates the runtime. Host memory is taken later, as it is needed.
     *
     * @return an open runtime that the caller closes
     */
    public EmbeddedRuntime build() {
      if (capacityBytes == 0) {
        throw UMBPException.invalid("capacityBytes is not set");
      }
      return new EmbeddedRuntime(this);
    }

    private Supplier<? extends KVCopyEngine> effectiveCopyEngine() {
      Supplier<? extends KVCopyEngine> given = copyEngine;
      Executor runner = executor;
      if (given != null) {
        return given;
      }
      return runner == null ? HostCopyEngine::new : () -> HostCopyEngine.on(runner);
    }

    private long effectiveSlabBytes() {
      return slabBytes > 0 ? slabBytes : Math.min(DEFAULT_SLAB_BYTES, capacityBytes);
    }
  }

  /**
   * Starts the settings of a runtime.
   *
   * @return a builder; {@link Builder#capacityBytes} is required
   */
  public static Builder builder() {
    return new Builder();
  }

  @Override
  public EmbeddedSchedulerHandle createSchedulerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    checkLayout(topology, layout);
    EmbeddedSchedulerHandle handle = new EmbeddedSchedulerHandle(this, namespace, topology);
    runLocked(
        () -> {
          checkOpen();
          schedulers.add(handle);
        });
    return handle;
  }

  @Override
  public EmbeddedWorkerHandle createWorkerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    checkLayout(topology, layout);
    return callLocked(
        () -> {
          checkOpen();
          EmbeddedWorkerHandle handle = new EmbeddedWorkerHandle(this, namespace, topology, layout);
          workers.add(handle);
          return handle;
        });
  }

  @Override
  public void describeNamespace(UMBPNamespace namespace, String manifest) {
    String kept =
        callLocked(
            () -> {
              checkOpen();
              return manifests.putIfAbsent(namespace, manifest);
            });
    if (kept != null && !kept.equals(manifest)) {
      throw UMBPException.invalid(
          "namespace '%s' is described by another manifest already", namespace);
    }
  }

  @Override
  public Map<UMBPNamespace, String> manifests() {
    return callLocked(
        () -> {
          checkOpen();
          return Map.copyOf(manifests);
        });
  }

  private void checkLayout(RankTopology topology, KVLayoutDescriptor layout) {
    if (!layout.topology().equals(topology)) {
      throw UMBPException.invalid(
          "the layout is of rank %s, the handle of rank %s", layout.topology(), topology);
    }
    for (int groupId : layout.groupIds()) {
      pool.checkObjectSize(groupId, layout.objectBytes(groupId));
    }
  }

  void checkOpen() {
    if (isClosed) {
      throw UMBPException.closed("runtime");
    }
  }

  /**
   * Returns the pool's content, after booking what has ended.
   *
   * @return a snapshot
   */
  public PoolStats stats() {
    sweep();
    return callLocked(pool::stats);
  }

  /** Runs something under the lock. */
  void runLocked(Runnable action) {
    lock.lock();
    try {
      action.run();
    } finally {
      lock.unlock();
    }
  }

  /** Computes something under the lock. */
  <T extends @Nullable Object> T callLocked(Supplier<T> action) {
    lock.lock();
    try {
      return action.get();
    } finally {
      lock.unlock();
    }
  }

  /** Books passed deadlines, of jobs and of holds, if there are any. Called without the lock. */
  void tick() {
    long now = clock.getAsLong();
    if (jobs.isDue(now) || holds.isDue(now)) {
      sweep();
    }
  }

  /** Ends passed holds, and books the end of every job that has ended or is late, oldest first. */
  void sweep() {
    if (holds.isDue(clock.getAsLong())) {
      runLocked(() -> holds.endPassed(clock.getAsLong()));
    }
    callLocked(jobs::live).forEach(this::settle);
    callLocked(() -> List.copyOf(leftCopies)).forEach(this::settle);
  }

  /** Takes note of a copy that nobody waits for. Called under the lock. */
  void keep(LeftCopy copy) {
    leftCopies.add(copy);
  }

  /** Returns how many left copies use some buffers. Called under the lock. */
  int leftCopies(Registration registration) {
    return (int) leftCopies.stream().filter(copy -> copy.registration == registration).count();
  }

  /** Returns the bytes that left copies move from or to some buffers. Called under the lock. */
  long leftBytes(Registration registration) {
    return leftCopies.stream()
        .filter(copy -> copy.registration == registration)
        .mapToLong(LeftCopy::bytes)
        .sum();
  }

  private void settle(LeftCopy copy) {
    boolean hasEnded;
    try {
      hasEnded = copy.ticket.poll();
    } catch (Throwable e) {
      hasEnded = false;
    }
    boolean isMine =
        hasEnded
            && callLocked(
                () -> {
                  boolean isStillThere = leftCopies.remove(copy);
                  if (isStillThere) {
                    copy.registration.activeJobs--;
                    copy.registration.owner().forget(copy.registration);
                  }
                  return isStillThere;
                });
    if (isMine) {
      unregister(copy.registration);
    }
  }

  /** Brings a job up to date, and the jobs whose copies it waits for. */
  void advance(TransferJob job) {
    if (callLocked(job::hasPendingJoins)) {
      sweep();
    } else {
      settle(job);
    }
  }

  /** Books what has become of one job. Called without the lock. */
  private void settle(TransferJob job) {
    CopyTicket ticket = callLocked(() -> job.ticket);
    boolean hasEnded = ticket != null && hasEnded(ticket, job);
    @Nullable String @Nullable [] failures = hasEnded ? failures(ticket, job) : null;
    Registration unused =
        callLocked(
            () -> {
              Registration freed = hasEnded && !job.hasCopyEnded() ? endCopy(job, failures) : null;
              job.resolveJoins();
              if (!job.isOver() && clock.getAsLong() - job.deadlineNanos >= 0) {
                job.deadlinePassed();
              }
              jobs.settleIfOver(job);
              return freed;
            });
    if (unused != null) {
      unregister(unused);
    }
  }

  /** Asks a ticket; one that breaks is the trouble of its own job, not of whoever calls. */
  private boolean hasEnded(CopyTicket ticket, TransferJob job) {
    try {
      return ticket.poll();
    } catch (Throwable e) {
      // The copy may still run, so the job keeps its pins. It is asked again.
      if (callLocked(job::ticketBroke)) {
        log.warn("job {} can't learn whether its copy has ended", job.id, e);
      }
      return false;
    }
  }

  private static @Nullable String failure(CopyTicket ticket, int key) {
    try {
      return ticket.failure(key);
    } catch (Throwable e) {
      return "the copy engine can't tell whether the key arrived: " + e;
    }
  }

  private static @Nullable String @Nullable [] failures(CopyTicket ticket, TransferJob job) {
    @Nullable String[] failures = null;
    for (int key = 0; key < job.batch.size(); key++) {
      String failure = failure(ticket, key);
      if (failure != null) {
        if (failures == null) {
          failures = new String[job.batch.size()];
        }
        failures[key] = failure;
      }
    }
    return failures;
  }

  /**
   * Books the end of a job's copy under the lock.
   *
   * @return the registration to take back from the engine if this was its last job, else null
   */
  @Nullable Registration endCopy(TransferJob job, @Nullable String @Nullable [] failures) {
    if (job.rows != null) {
      job.registration.recycle(job.rows);
    }
    job.copyEnded(failures);
    return leave(job);
  }

  /** Books that a job no longer touches the registered buffers. Called under the lock. */
  @Nullable Registration leave(TransferJob job) {
    Registration registration = job.registration;
    registration.activeJobs--;
    return registration.isAbandoned && registration.activeJobs == 0 ? registration : null;
  }

  void unregister(Registration registration) {
    registration.tensors().forEach(engine.get()::unregister);
  }

  /**
   * Takes one more slab from the copy engine for objects of a size, and gives it back when the pool
   * does not want it any more: another store may have taken one meanwhile. Called without the lock.
   *
   * @throws UMBPException CLOSED
   */
  void grow(long objectBytes) {
    HostSlab slab;
    try {
      slab = engine.get().allocateSlab(slabBytes);
    } catch (UMBPException e) {
      if (e.reason() != UMBPException.Reason.OUT_OF_MEMORY) {
        throw e;
      }
      if (callLocked(() -> isStillShort(objectBytes))) {
        log.warn("the pool stays below its capacity: {}", e.getMessage());
      }
      return;
    }
    boolean isTaken =
        callLocked(
            () -> {
              boolean isWanted = !isClosed && pool.needsSlab(objectBytes);
              if (isWanted) {
                pool.addSlab(slab);
              }
              return isWanted;
            });
    if (!isTaken) {
      engine.get().releaseSlab(slab);
      checkOpen();
    }
  }

  /** Lets the pool make do with what it has, if it still needs memory that can't be had. */
  private boolean isStillShort(long objectBytes) {
    boolean isShort = pool.needsSlab(objectBytes);
    if (isShort) {
      pool.outOfMemory();
    }
    return isShort;
  }

  /** Called by the pool under the lock. */
  private void evicted(BlockKey key) {
    for (EmbeddedSchedulerHandle scheduler : schedulers) {
      scheduler.evicted(key);
    }
  }

  /** Called under the lock. */
  void forget(EmbeddedSchedulerHandle handle) {
    schedulers.remove(handle);
  }

  /** Called under the lock. */
  void forget(EmbeddedWorkerHandle handle) {
    workers.remove(handle);
    jobs.forget(handle);
  }

  /**
   * Brings jobs up to date until a condition holds or the time is up. The time is judged by the
   * runtime's clock and by the wall, whichever is earlier, so that a clock that stands still can't
   * hang a caller.
   *
   * @param job the one job that matters, null when all do
   */
  boolean advanceUntil(BooleanSupplier condition, long timeoutNanos, @Nullable TransferJob job) {
    long start = clock.getAsLong();
    long wallStart = System.nanoTime();
    while (true) {
      if (job == null) {
        sweep();
      } else {
        advance(job);
      }
      if (condition.getAsBoolean()) {
        return true;
      }
      if (Thread.currentThread().isInterrupted()
          || clock.getAsLong() - start >= timeoutNanos
          || System.nanoTime() - wallStart >= timeoutNanos) {
        return false;
      }
      idle(job);
    }
  }

  /** Waits a moment, at most until the job's copy ends, or that of the oldest running job. */
  void idle(@Nullable TransferJob preferred) {
    CopyTicket running =
        callLocked(
            () ->
                preferred != null && !preferred.hasCopyEnded()
                    ? preferred.ticket
                    : jobs.oldestTicket());
    if (running == null || !waits(running)) {
      LockSupport.parkNanos(IDLE_NANOS);
    }
  }

  private static boolean waits(CopyTicket ticket) {
    try {
      boolean unused = ticket.await(Duration.ofNanos(IDLE_NANOS));
      return true;
    } catch (Throwable e) {
      // Whether the copy has ended is judged, and its trouble logged, where the ticket is polled.
      return false;
    }
  }

  /** Returns a time in nanoseconds; one that is too long for that is as good as no limit. */
  static long nanos(Duration time) {
    if (time.isNegative()) {
      throw UMBPException.invalid("time %s must be >= 0", time);
    }
    return TimeUnit.NANOSECONDS.convert(time);
  }

  /** Lets the executor, if there is one, follow the running copies. Called without the lock. */
  void follow() {
    if (follower != null) {
      follower.follow();
    }
  }

  @Override
  public CloseResult close(Duration bound) {
    long boundNanos = nanos(bound);
    if (!isCloseMine(boundNanos)) {
      CloseResult known = closeResult;
      return known != null
          ? known
          : callLocked(() -> new CloseResult(jobs.runningCount(), jobs.runningBytes()));
    }
    try {
      CloseResult result = closeResult;
      if (result == null) {
        result = closeOnce(boundNanos);
        closeResult = result;
      }
      return result;
    } finally {
      closeLock.unlock();
    }
  }

  /** Takes the close lock; false when another close has it for the whole bound. */
  private boolean isCloseMine(long boundNanos) {
    try {
      return closeLock.tryLock() || closeLock.tryLock(boundNanos, TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  private CloseResult closeOnce(long boundNanos) {
    long start = clock.getAsLong();
    long wallStart = System.nanoTime();
    List<EmbeddedWorkerHandle> openWorkers =
        callLocked(
            () -> {
              isClosed = true;
              holds.endAll(handle -> true);
              return List.copyOf(workers);
            });
    for (EmbeddedWorkerHandle worker : openWorkers) {
      worker.beginClose();
    }
    advanceUntil(() -> runningJobs() == 0, boundNanos, null);
    for (EmbeddedWorkerHandle worker : openWorkers) {
      worker.close(Duration.ZERO);
    }
    callLocked(pool::memory).forEach(slab -> engine.get().releaseSlab(slab));
    long spent = Math.max(clock.getAsLong() - start, System.nanoTime() - wallStart);
    CloseResult engineResult = engine.close(Duration.ofNanos(Math.max(0, boundNanos - spent)));
    sweep();
    CloseResult result = new CloseResult(runningJobs(), engineResult.handedOverBytes());
    if (!result.isClean()) {
      log.warn(
          "closed after {} ms with {} jobs still running; {} bytes are left to the copy engine",
          TimeUnit.NANOSECONDS.toMillis(boundNanos),
          result.unfinishedJobs(),
          result.handedOverBytes());
    }
    return result;
  }

  /** Returns how many jobs have a copy that has not ended. Called without the lock. */
  int runningJobs() {
    return callLocked(() -> jobs.runningCount() + leftCopies.size());
  }
}
