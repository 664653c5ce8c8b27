package io.umbp.core.runtime;

import io.umbp.api.BlockTransferBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVOrigin;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.ShardedSource;
import io.umbp.api.SupportsShardedLoad;
import io.umbp.api.TransferDirection;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.runtime.EmbeddedRuntime.LeftCopy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One rank's door to an {@link EmbeddedRuntime}. Thread-safe; guarded by the runtime's lock. */
final class EmbeddedWorkerHandle implements SupportsShardedLoad {
  private static final Logger log = LoggerFactory.getLogger(EmbeddedWorkerHandle.class);

  private final EmbeddedRuntime runtime;
  private final UMBPNamespace namespace;
  private final RankNamespace rank;
  private final KVLayoutDescriptor layout;
  private final OwnObjects objects;
  private @Nullable Registration registration;
  private boolean isRegistering;
  private boolean isClosed;
  private @Nullable CloseResult closeResult;

  /** Called under the lock. */
  EmbeddedWorkerHandle(
      EmbeddedRuntime runtime,
      UMBPNamespace namespace,
      RankTopology topology,
      KVLayoutDescriptor layout) {
    this.runtime = runtime;
    this.namespace = namespace;
    this.rank = topology.localNamespace();
    this.layout = layout;
    this.objects = new OwnObjects(runtime, namespace, layout);
  }

  @Override
  public void registerBuffers(Map<String, KVCacheTensor> kvCaches, RegistrationOptions options) {
    if (options.origin() == KVOrigin.OWN_WRITER && namespace.isForeign()) {
      throw UMBPException.invalid(
          "namespace '%s' is for engines that may load foreign KV, but the buffers of %s are said to"
              + " hold the engine's own",
          namespace, rank);
    }
    KVLayoutPlanner.checkTensors(layout, kvCaches);
    runtime.runLocked(
        () -> {
          checkOpen();
          if (registration != null || isRegistering) {
            throw UMBPException.invalid(
                "the buffers of %s are registered; unregister them first", rank);
          }
          isRegistering = true;
        });
    Registration registered;
    try {
      registered = registerAll(kvCaches, options);
    } catch (Throwable e) {
      runtime.runLocked(() -> isRegistering = false);
      throw e;
    }
    boolean isTooLate =
        runtime.callLocked(
            () -> {
              isRegistering = false;
              if (!isClosed) {
                registration = registered;
              }
              return isClosed;
            });
    if (isTooLate) {
      runtime.unregister(registered);
      throw UMBPException.closed("worker handle of " + rank);
    }
  }

  private Registration registerAll(
      Map<String, KVCacheTensor> kvCaches, RegistrationOptions options) {
    Map<String, LayerPlacement> placements = new HashMap<>();
    List<KVCacheTensor> registered = new ArrayList<>();
    List<TrialCanaries.Span> memory = new ArrayList<>();
    Registration candidate = null;
    TrialCopies copies = new TrialCopies(runtime);
    try {
      for (Map.Entry<String, KVCacheTensor> layer : kvCaches.entrySet()) {
        KVCacheTensor tensor = layer.getValue();
        long base = runtime.engine.get().register(tensor);
        registered.add(tensor);
        placements.put(layer.getKey(), LayerPlacement.of(base, tensor));
        memory.add(new TrialCanaries.Span(base, base + tensor.sizeBytes()));
      }
      KVLayoutPlanner planner = KVLayoutPlanner.place(layout, placements);
      candidate = new Registration(this, planner, registered, options.origin());
      tryOut(candidate, memory, options.trial(), copies);
      return candidate;
    } catch (Throwable e) {
      CopyTicket unfinished = copies.unfinished();
      if (candidate == null || unfinished == null) {
        registered.forEach(runtime.engine.get()::unregister);
      } else {
        retire(candidate, unfinished, copies);
      }
      throw e;
    }
  }

  private void tryOut(
      Registration candidate,
      List<TrialCanaries.Span> memory,
      RegistrationOptions.@Nullable Trial trial,
      TrialCopies copies) {
    int layers = layout.regions().size();
    if (trial == null) {
      log.info(
          "{} layers of {} are registered without a trial: only bounds and overlap were checked, not"
              + " where the engine puts KV",
          layers,
          rank);
      return;
    }
    long start = System.nanoTime();
    long places =
        LayoutTrial.run(
            candidate.planner(), candidate.deviceOrdinal(), memory, trial, namespace, copies);
    log.debug(
        "the layout of {} layers of {} held in a trial of {} places in {} us",
        layers,
        rank,
        places,
        TimeUnit.NANOSECONDS.toMicros(System.nanoTime() - start));
  }

  /** Keeps buffers that a trial's copy still uses, until it ends or they are taken back. */
  private void retire(Registration candidate, CopyTicket unfinished, TrialCopies copies) {
    runtime.runLocked(
        () -> {
          candidate.isRetiring = true;
          candidate.isAbandoned = true;
          candidate.activeJobs++;
          if (!isClosed) {
            registration = candidate;
          }
          runtime.keep(new LeftCopy(unfinished, copies.unfinishedBytes(), candidate));
        });
    runtime.follow();
  }

  @Override
  public ObjectReach reach() {
    return runtime.reach;
  }

  @Override
  public boolean unregisterBuffers(Duration timeout) {
    long timeoutNanos = EmbeddedRuntime.nanos(timeout);
    Registration retiring =
        runtime.callLocked(
            () -> {
              if (registration != null) {
                registration.isRetiring = true;
              }
              return registration;
            });
    if (retiring == null) {
      return true;
    }
    if (!runtime.advanceUntil(() -> isIdle(retiring), timeoutNanos, null)) {
      return false;
    }
    boolean isMine =
        runtime.callLocked(
            () -> {
              boolean isStillThere = registration == retiring;
              if (isStillThere) {
                registration = null;
              }
              return isStillThere;
            });
    if (isMine) {
      runtime.unregister(retiring);
    }
    return true;
  }

  private boolean isIdle(Registration retiring) {
    return runtime.callLocked(() -> retiring.activeJobs == 0);
  }

  @Override
  public TransferJobState load(List<BlockTransferPlan> plans, DeviceFence destinationFree) {
    return start(TransferDirection.LOAD, plans, null, destinationFree);
  }

  @Override
  public TransferJobState load(
      List<BlockTransferPlan> plans, ShardedSource source, DeviceFence destinationFree) {
    Objects.requireNonNull(source, "source");
    return start(TransferDirection.LOAD, plans, source, destinationFree);
  }

  @Override
  public TransferJobState store(List<BlockTransferPlan> plans, DeviceFence producer) {
    return start(TransferDirection.STORE, plans, null, producer);
  }

  /** Starts a job; a load of pieces has a source. */
  private TransferJobState start(
      TransferDirection direction,
      List<BlockTransferPlan> plans,
      @Nullable ShardedSource source,
      DeviceFence fence) {
    Objects.requireNonNull(fence, "fence");
    // The caller's list is read before the lock is taken.
    List<BlockTransferPlan> own = plans instanceof BlockTransferBatch ? plans : List.copyOf(plans);
    BlockTransferBatch batch = PlanChecks.toBatch(direction, own, namespace, layout);
    ShardedLoad sharded = source == null ? null : ShardedLoad.of(source, batch, layout);
    runtime.tick();
    TransferJob job = runtime.callLocked(() -> admit(direction, batch, own, sharded, fence));
    try {
      long[] addresses = new long[batch.size() * job.objectsPerKey];
      if (direction == TransferDirection.STORE) {
        objects.reserveAll(job, addresses);
      } else if (sharded == null) {
        runtime.runLocked(() -> objects.leaseAll(job, addresses));
      } else {
        runtime.runLocked(() -> sharded.leaseAll(runtime.pool, job, addresses));
      }
      submit(job, addresses, source, fence);
    } catch (Throwable e) {
      boolean isClosed = e instanceof UMBPException u && u.reason() == UMBPException.Reason.CLOSED;
      abort(job, isClosed ? KeyReason.CLOSED : KeyReason.COPY_FAILED, "not submitted: " + e);
      if (e instanceof Error) {
        runtime.runLocked(() -> runtime.jobs.forget(job));
        throw e;
      }
    }
    runtime.advance(job);
    TransferJobState first = read(job);
    if (!first.isFinal()) {
      runtime.follow();
    }
    return first;
  }

  /** Checks everything that can be refused, then enters the job. Called under the lock. */
  private TransferJob admit(
      TransferDirection direction,
      BlockTransferBatch batch,
      List<BlockTransferPlan> plans,
      @Nullable ShardedLoad sharded,
      DeviceFence fence) {
    checkOpen();
    Registration current = registration;
    if (current == null || current.isRetiring) {
      throw new UMBPException(
          UMBPException.Reason.NOT_REGISTERED,
          "the buffers of "
              + rank
              + " are not registered (registerBuffers), or are being taken back");
    }
    if (current.isDevice() && fence instanceof DeviceFence.None) {
      throw new UMBPException(
          UMBPException.Reason.FENCE_REQUIRED,
          direction + " on device " + current.deviceOrdinal() + " needs a fence");
    }
    if (!current.isDevice() && fence instanceof DeviceFence.OnStream) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          direction
              + " of host memory can't wait for a stream; wait for it, then pass hostComplete");
    }
    if (sharded != null) {
      checkOrigin(sharded.source(), current);
    }
    PlanChecks.checkBlocks(direction, batch, plans, current.planner());
    TransferJob job =
        new TransferJob(
            runtime.jobs.nextId(),
            direction,
            batch,
            current,
            runtime.pool,
            sharded == null ? 1 : sharded.objectsPerKey(),
            runtime.clock.getAsLong() + runtime.timeoutNanos);
    current.activeJobs++;
    runtime.jobs.enter(job);
    return job;
  }

  /** Keeps foreign KV out of buffers from which an engine stores as its own. */
  private static void checkOrigin(ShardedSource source, Registration current) {
    if (source.namespace().isForeign() && current.origin() == KVOrigin.OWN_WRITER) {
      throw UMBPException.invalid(
          "namespace '%s' may hold foreign KV, but the buffers are said to hold the engine's own",
          source.namespace());
    }
  }

  /** Lowers and submits the rows of a job; a job without rows is done with its copy at once. */
  private void submit(
      TransferJob job, long[] addresses, @Nullable ShardedSource source, DeviceFence fence) {
    if (Arrays.stream(addresses).allMatch(address -> address == 0)) {
      endCopyAtOnce(job);
      return;
    }
    Registration current = job.registration;
    CopyBatch rows = runtime.callLocked(current::rows);
    rows.reset(job.direction, current.deviceOrdinal(), job.batch.size());
    if (source != null) {
      current.lowering(source).lowerLayerMajor(job.batch, addresses, rows);
    } else if (job.direction == TransferDirection.LOAD) {
      current.planner().lowerLayerMajor(job.batch, addresses, rows);
    } else {
      current.planner().lower(job.batch, addresses, rows);
    }
    CopyTicket ticket = runtime.engine.get().submit(rows, fence);
    runtime.runLocked(
        () -> {
          job.rows = rows;
          job.ticket = ticket;
        });
  }

  private void endCopyAtOnce(TransferJob job) {
    unregisterIfUnused(
        runtime.callLocked(
            () -> {
              Registration unused = runtime.endCopy(job, null);
              runtime.jobs.settleIfOver(job);
              return unused;
            }));
  }

  private void abort(TransferJob job, KeyReason reason, String detail) {
    unregisterIfUnused(
        runtime.callLocked(
            () -> {
              if (job.hasCopyEnded()) {
                return null;
              }
              job.abort(reason, detail);
              Registration unused = runtime.leave(job);
              runtime.jobs.settleIfOver(job);
              return unused;
            }));
  }

  private void unregisterIfUnused(@Nullable Registration unused) {
    if (unused != null) {
      runtime.unregister(unused);
    }
  }

  @Override
  public TransferJobState poll(TransferJobState state) {
    runtime.tick();
    TransferJob job = known(state);
    if (job == null) {
      return state;
    }
    runtime.advance(job);
    return read(job);
  }

  @Override
  public TransferJobState await(TransferJobState state, Duration timeout) {
    long timeoutNanos = EmbeddedRuntime.nanos(timeout);
    TransferJob job = known(state);
    if (job == null) {
      return state;
    }
    runtime.advanceUntil(() -> isFinalOrOverdue(job), timeoutNanos, job);
    return read(job);
  }

  private boolean isFinalOrOverdue(TransferJob job) {
    return runtime.callLocked(() -> job.isFinal() || job.isOverdue());
  }

  @Override
  public int publish(TransferJobState state) {
    if (state.direction() != TransferDirection.STORE || !state.isFinal()) {
      throw UMBPException.invalid("only a final store can be published, this is %s", state);
    }
    runtime.tick();
    TransferJob job = known(state);
    if (job == null) {
      return 0;
    }
    return runtime.callLocked(
        () -> {
          checkOpen();
          int published = job.publish();
          runtime.jobs.settleIfOver(job);
          return published;
        });
  }

  @Override
  public TransferJobState cancel(TransferJobState state) {
    TransferJob job = known(state);
    if (job == null) {
      return state;
    }
    cancel(job, KeyOutcome.CANCELLED, KeyReason.NONE);
    runtime.advance(job);
    return read(job);
  }

  private void cancel(TransferJob job, KeyOutcome outcome, KeyReason reason) {
    runtime.runLocked(
        () -> {
          job.cancel(outcome, reason);
          runtime.jobs.settleIfOver(job);
        });
  }

  @Override
  public boolean isLayerLoaded(TransferJobState state, String layerName) {
    if (state.direction() != TransferDirection.LOAD) {
      throw UMBPException.invalid("only a load brings layers, this is %s", state);
    }
    TransferJob job = known(state);
    if (job == null) {
      return true;
    }
    int mark = job.registration.planner().markOf(layerName);
    if (runtime.callLocked(job::hasCopyEnded)) {
      return true;
    }
    CopyTicket ticket = runtime.callLocked(() -> job.ticket);
    return ticket != null && ticket.isMarkDone(mark);
  }

  /** Returns the job of a snapshot, or null when it is over, read and forgotten. */
  private @Nullable TransferJob known(TransferJobState state) {
    TransferJob job = runtime.callLocked(() -> runtime.jobs.find(state.jobId()));
    if (job != null && job.registration.owner() != this) {
      job = null;
    }
    if (job == null && !state.isFinal()) {
      throw UMBPException.invalid("%s is a job of another handle, or over for long", state);
    }
    return job;
  }

  private TransferJobState read(TransferJob job) {
    return runtime.callLocked(() -> runtime.jobs.read(job));
  }

  private void checkOpen() {
    runtime.checkOpen();
    if (isClosed) {
      throw UMBPException.closed("worker handle of " + rank);
    }
  }

  /** Refuses new jobs and asks the running ones to end. */
  void beginClose() {
    List<TransferJob> open =
        runtime.callLocked(
            () -> {
              isClosed = true;
              return runtime.jobs.live(this);
            });
    for (TransferJob job : open) {
      cancel(job, KeyOutcome.FAILED, KeyReason.CLOSED);
    }
  }

  @Override
  public CloseResult close(Duration bound) {
    long boundNanos = EmbeddedRuntime.nanos(bound);
    beginClose();
    Registration last = runtime.callLocked(() -> registration);
    if (last != null) {
      runtime.advanceUntil(() -> isIdle(last), boundNanos, null);
    }
    unregisterIfUnused(runtime.callLocked(this::endClose));
    return runtime.callLocked(() -> Objects.requireNonNull(closeResult));
  }

  /**
   * Books that no copy uses buffers any more which a failed registration left. Called under the
   * lock.
   */
  void forget(Registration retired) {
    if (registration == retired) {
      registration = null;
    }
  }

  /**
   * Books the end of the handle, the first time. Called under the lock.
   *
   * @return the registration to take back from the engine now; one that a copy still uses is taken
   *     back when that ends
   */
  private @Nullable Registration endClose() {
    if (closeResult != null) {
      return null;
    }
    int unfinished = 0;
    long bytes = 0;
    for (TransferJob job : runtime.jobs.live(this)) {
      if (!job.hasCopyEnded()) {
        unfinished++;
        bytes += job.pinnedBytes();
      }
    }
    Registration last = registration;
    if (last != null) {
      unfinished += runtime.leftCopies(last);
      bytes += runtime.leftBytes(last);
    }
    closeResult = new CloseResult(unfinished, bytes);
    runtime.forget(this);
    registration = null;
    if (last == null) {
      return null;
    }
    last.isAbandoned = true;
    return last.activeJobs == 0 ? last : null;
  }
}
