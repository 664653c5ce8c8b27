package io.umbp.core.runtime;

import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.ClearResult;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVOrigin;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.SupportsHold;
import io.umbp.api.TransferDirection;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.testkit.RuntimeFixture;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;

/** A runtime that works but for one {@link Defect}. */
final class BrokenRuntime implements UMBPRuntime {
  private final Defect defect;
  private final UMBPRuntime target;
  private final RuntimeFixture fixture;
  private final List<UMBPSchedulerHandle> schedulers = new CopyOnWriteArrayList<>();
  private final Set<String> storedKeys = ConcurrentHashMap.newKeySet();
  private boolean isClosed;

  BrokenRuntime(Defect defect, UMBPRuntime target, RuntimeFixture fixture) {
    this.defect = defect;
    this.target = target;
    this.fixture = fixture;
  }

  /** Returns what the runtime below is opened with. */
  static RuntimeFixture.Setup setup(Defect defect, RuntimeFixture.Setup setup) {
    boolean isEndless = defect == Defect.HAS_NO_DEADLINE || defect == Defect.LATE_WRITER_PUBLISHES;
    return isEndless ? new RuntimeFixture.Setup(setup.capacityBytes(), Duration.ofDays(1)) : setup;
  }

  @Override
  public UMBPSchedulerHandle createSchedulerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    UMBPSchedulerHandle handle = target.createSchedulerHandle(namespace, topology, layout);
    schedulers.add(handle);
    return new Scheduler(handle);
  }

  @Override
  public UMBPWorkerHandle createWorkerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    Set<Integer> replicated =
        defect == Defect.KEEPS_A_COPY_FOR_EACH_RANK ? Set.of() : layout.replicatedGroups();
    KVLayoutDescriptor seen =
        new KVLayoutDescriptor(layout.regions(), layout.topology(), replicated, layout.format());
    return new Worker(target.createWorkerHandle(namespace, topology, seen), namespace, replicated);
  }

  @Override
  public void describeNamespace(UMBPNamespace namespace, String manifest) {
    try {
      target.describeNamespace(namespace, manifest);
    } catch (UMBPException e) {
      if (defect != Defect.TAKES_ANOTHER_MANIFEST) {
        throw e;
      }
    }
  }

  @Override
  public Map<UMBPNamespace, String> manifests() {
    return defect == Defect.FORGETS_MANIFESTS ? Map.of() : target.manifests();
  }

  @Override
  public CloseResult close(Duration bound) {
    if (isClosed && defect == Defect.SECOND_CLOSE_IS_REFUSED) {
      throw UMBPException.closed("runtime");
    }
    isClosed = true;
    CloseResult result = target.close(bound);
    if (defect == Defect.CLOSE_RETURNS_LATE) {
      fixture.advance(bound);
    }
    return defect == Defect.CLOSE_ALWAYS_SAYS_CLEAN ? CloseResult.CLEAN : result;
  }

  private final class Scheduler implements SupportsHold {
    private final UMBPSchedulerHandle target;

    Scheduler(UMBPSchedulerHandle target) {
      this.target = target;
    }

    @Override
    public boolean[] lookup(List<String> keys) {
      switch (defect) {
        case LOOKUP_WORKS_AFTER_CLOSE -> {
          if (isClosed) {
            return new boolean[keys.size()];
          }
        }
        case LOOKUP_TOUCHES -> target.touch(keys);
        case LOOKUP_SEES_STORES_IN_FLIGHT -> {
          boolean[] seen = target.lookup(keys);
          for (int i = 0; i < seen.length; i++) {
            seen[i] |= storedKeys.contains(keys.get(i));
          }
          return seen;
        }
        default -> {}
      }
      return target.lookup(keys);
    }

    @Override
    public Hold lookupAndHold(List<String> keys, Duration limit) {
      Duration kept = defect == Defect.HOLD_HAS_NO_LIMIT ? Duration.ofDays(1) : limit;
      Hold hold = ((SupportsHold) target).lookupAndHold(keys, kept);
      if (defect == Defect.HOLD_KEEPS_NOTHING) {
        hold.keepFirst(0);
      }
      return hold;
    }

    @Override
    public void touch(List<String> keys) {
      List<String> order = new ArrayList<>(keys);
      if (defect == Defect.TOUCHES_FROM_THE_HEAD) {
        Collections.reverse(order);
      }
      target.touch(order);
    }

    @Override
    public ClearResult clear() {
      switch (defect) {
        case CLEAR_DOES_NOTHING -> {
          return new ClearResult(0, 0, 0);
        }
        case CLEAR_ALWAYS_SAYS_COMPLETE -> {
          ClearResult honest = target.clear();
          return new ClearResult(honest.removed() + honest.loading() + honest.storing(), 0, 0);
        }
        case CLEAR_TAKES_OTHER_NAMESPACES -> {
          ClearResult own = target.clear();
          schedulers.forEach(UMBPSchedulerHandle::clear);
          return own;
        }
        default -> {
          return target.clear();
        }
      }
    }

    @Override
    public List<BlockKey> takeEvictedKeys() {
      return target.takeEvictedKeys();
    }

    @Override
    public void close() {
      target.close();
    }
  }

  private final class Worker implements UMBPWorkerHandle {
    private final UMBPWorkerHandle target;
    private final Set<Long> cancelled = ConcurrentHashMap.newKeySet();
    private final UMBPNamespace namespace;
    private final Set<Integer> replicated;

    Worker(UMBPWorkerHandle target, UMBPNamespace namespace, Set<Integer> replicated) {
      this.target = target;
      this.namespace = namespace;
      this.replicated = replicated;
    }

    @Override
    public void registerBuffers(Map<String, KVCacheTensor> kvCaches, RegistrationOptions options) {
      boolean isWrong =
          defect
              == (namespace.isForeign()
                  ? Defect.TAKES_OWN_KV_FOR_FOREIGN
                  : Defect.TAKES_FOREIGN_KV);
      KVOrigin origin = namespace.isForeign() ? KVOrigin.MAY_BE_FOREIGN : KVOrigin.OWN_WRITER;
      try {
        target.registerBuffers(kvCaches, isWrong ? options.withOrigin(origin) : options);
      } catch (UMBPException e) {
        if (defect != Defect.TAKES_ANY_BUFFERS) {
          throw e;
        }
      }
    }

    @Override
    public ObjectReach reach() {
      return target.reach();
    }

    @Override
    public boolean unregisterBuffers(Duration timeout) {
      return target.unregisterBuffers(timeout) || defect == Defect.UNREGISTER_DOES_NOT_WAIT;
    }

    @Override
    public TransferJobState load(List<BlockTransferPlan> plans, DeviceFence destinationFree) {
      DeviceFence fence =
          defect == Defect.LOAD_TAKES_NO_FENCE ? DeviceFence.hostComplete() : destinationFree;
      return start(TransferDirection.LOAD, plans, fence);
    }

    @Override
    public TransferJobState store(List<BlockTransferPlan> plans, DeviceFence producer) {
      DeviceFence fence =
          defect == Defect.STORE_TAKES_NO_FENCE ? DeviceFence.hostComplete() : producer;
      for (BlockTransferPlan plan : plans) {
        storedKeys.add(plan.key().toString());
      }
      return start(TransferDirection.STORE, plans, fence);
    }

    private TransferJobState start(
        TransferDirection direction, List<BlockTransferPlan> plans, DeviceFence fence) {
      List<BlockTransferPlan> accepted = plans;
      if (defect == Defect.IGNORES_EXPLICIT_RANGES && !(plans instanceof BlockTransferBatch)) {
        accepted =
            plans.stream()
                .map(plan -> new BlockTransferPlan(plan.key(), plan.blockId(), plan.requestId()))
                .toList();
      }
      if (defect == Defect.KEEPS_A_COPY_FOR_EACH_RANK || defect == Defect.TAKES_ANY_REPLICATION) {
        accepted = replicated(plans);
      }
      try {
        return shown(startTarget(direction, accepted, fence));
      } catch (UMBPException e) {
        if (defect != Defect.SKIPS_BAD_TRANSFERS
            || e.reason() != UMBPException.Reason.INVALID_ARGUMENT) {
          throw e;
        }
        KeyOutcome[] outcomes = new KeyOutcome[plans.size()];
        Arrays.fill(outcomes, KeyOutcome.MISS);
        return new TransferJobState(
            -1,
            direction,
            false,
            (BlockTransferBatch) plans,
            outcomes,
            noReasons(outcomes.length),
            null,
            0);
      }
    }

    private List<BlockTransferPlan> replicated(List<BlockTransferPlan> plans) {
      if (plans instanceof BlockLoadBatch load) {
        return BlockLoadBatch.of(
            load.requestId(), load.keys().replicating(replicated), load.blockIds());
      }
      return plans instanceof BlockStoreBatch store
          ? BlockStoreBatch.of(
              store.requestId(), store.keys().replicating(replicated), store.blockIds())
          : plans;
    }

    private TransferJobState startTarget(
        TransferDirection direction, List<BlockTransferPlan> plans, DeviceFence fence) {
      return direction == TransferDirection.LOAD
          ? target.load(plans, fence)
          : target.store(plans, fence);
    }

    @Override
    public TransferJobState poll(TransferJobState job) {
      if (job.isFinal() && defect == Defect.HIDES_WHAT_WAS_NOT_PUBLISHED) {
        return job;
      }
      return shown(target.poll(job));
    }

    @Override
    public TransferJobState await(TransferJobState job, Duration timeout) {
      return shown(target.await(job, timeout));
    }

    /** Passes a snapshot on as the defect has it. */
    private TransferJobState shown(TransferJobState state) {
      switch (defect) {
        case PUBLISHES_WHEN_COMPLETE -> {
          if (state.direction() == TransferDirection.STORE && state.isFinal()) {
            target.publish(state);
          }
        }
        case CANCEL_IS_TAKEN_FOR_THE_END -> {
          if (cancelled.contains(state.jobId())) {
            return replaced(state, KeyOutcome.PENDING, KeyOutcome.CANCELLED);
          }
        }
        case FAILED_LOAD_LOOKS_COMPLETE -> {
          if (state.direction() == TransferDirection.LOAD) {
            return replaced(state, KeyOutcome.FAILED, KeyOutcome.COMPLETED);
          }
        }
        case MISS_LOOKS_COMPLETE -> {
          return replaced(state, KeyOutcome.MISS, KeyOutcome.COMPLETED);
        }
        default -> {}
      }
      return state;
    }

    private TransferJobState replaced(TransferJobState state, KeyOutcome from, KeyOutcome to) {
      KeyOutcome[] outcomes = new KeyOutcome[state.size()];
      int[] blockIds = new int[state.size()];
      for (int i = 0; i < outcomes.length; i++) {
        outcomes[i] = state.outcome(i) == from ? to : state.outcome(i);
        blockIds[i] = state.blockId(i);
      }
      BlockKeys keys = state.keys();
      BlockTransferBatch batch =
          state.direction() == TransferDirection.LOAD
              ? BlockLoadBatch.of(state.requestId(), keys, blockIds)
              : BlockStoreBatch.of(state.requestId(), keys, blockIds);
      return new TransferJobState(
          state.jobId(),
          state.direction(),
          state.status() == TransferJobState.Status.OVERDUE,
          batch,
          outcomes,
          noReasons(outcomes.length),
          null,
          state.completedBytes());
    }

    private static KeyReason[] noReasons(int keys) {
      KeyReason[] reasons = new KeyReason[keys];
      Arrays.fill(reasons, KeyReason.NONE);
      return reasons;
    }

    @Override
    public int publish(TransferJobState job) {
      return target.publish(job);
    }

    @Override
    public TransferJobState cancel(TransferJobState job) {
      if (defect == Defect.PUBLISHES_WHAT_WAS_CANCELLED) {
        return target.poll(job);
      }
      cancelled.add(job.jobId());
      return shown(target.cancel(job));
    }

    @Override
    public boolean isLayerLoaded(TransferJobState job, String layerName) {
      return target.isLayerLoaded(job, layerName);
    }

    @Override
    public CloseResult close(Duration bound) {
      return target.close(bound);
    }
  }
}
