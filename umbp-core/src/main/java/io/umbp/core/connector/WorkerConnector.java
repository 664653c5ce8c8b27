package io.umbp.core.connector;

import com.google.common.base.Throwables;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.GroupBlock;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.LoadResult;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankNamespace;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPWorkerHandle;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * One rank's front door: starts the loads and stores that the scheduler planned, under this rank's
 * keys, and reports how they ended. Single-writer. No call waits for a copy.
 *
 * <p>Objects of replicated groups are loaded by every rank. Where every rank reaches what one of
 * them stores ({@link ObjectReach#EVERY_RANK}), tensor-parallel rank 0 of each pipeline stage
 * stores them for all; the others leave them out, and report the event all the same.
 */
public final class WorkerConnector {
  /** How long a wait for a layer goes between two looks at its marks. */
  private static final Duration LAYER_LOOK = Duration.ofNanos(100_000);

  private final UMBPWorkerHandle handle;
  private final UMBPHandshakeMetadata handshake;
  private final RankNamespace rank;
  private final Set<Integer> othersStore;
  private final List<TransferJobState> loads = new ArrayList<>();
  private final Map<Long, OpenEvent> events = new HashMap<>();
  private Map<String, LoadResult> endedLoads = new HashMap<>();
  private Map<Long, StoreEventResult> endedEvents = new HashMap<>();

  /** A store event until the last of its jobs has ended on this rank. */
  private static final class OpenEvent {
    final List<TransferJobState> stores = new ArrayList<>();
    final Set<StoredObject> failed = new HashSet<>();
  }

  /**
   * Creates the connector of one rank.
   *
   * @param handle the rank's handle; borrowed, closed by the caller
   * @param handshake namespace and layout of the handle, and the manifest of the namespace
   */
  public WorkerConnector(UMBPWorkerHandle handle, UMBPHandshakeMetadata handshake) {
    this.handle = handle;
    this.handshake = handshake;
    KVLayoutDescriptor layout = handshake.layout();
    this.rank = layout.topology().localNamespace();
    boolean isStored = rank.tp() > 0 && handle.reach() == ObjectReach.EVERY_RANK;
    this.othersStore = isStored ? layout.replicatedGroups() : Set.of();
  }

  /**
   * Returns what the scheduler needs to know of this rank before it can plan for it.
   *
   * @return the report for {@link SchedulerConnector#adopt}
   */
  public UMBPHandshakeMetadata handshake() {
    return handshake;
  }

  /**
   * Starts the loads of a step, after what runs for requests that were preempted before it was
   * cancelled ({@link #preempt}). A load that the runtime refuses, or that an error ends, keeps no
   * other from starting; it is reported with all its blocks missing.
   *
   * @param step what the scheduler planned; its loads are started once
   * @param destinationFree the last user of the destination blocks
   * @throws UMBPException INVALID_ARGUMENT when a load of one of the requests has not been reported
   *     yet: nothing was started. Else the first refusal, after all loads were tried
   */
  public void startLoads(UMBPConnectorMetadata step, DeviceFence destinationFree) {
    if (!step.preempted().isEmpty()) {
      preempt(step.preempted());
    }
    for (String requestId : step.loads().keySet()) {
      if (endedLoads.containsKey(requestId)
          || loads.stream().anyMatch(load -> load.requestId().equals(requestId))) {
        throw UMBPException.invalid(
            "rank %s has a load of request '%s' that was not reported yet; a step is started once",
            rank, requestId);
      }
    }
    Throwable refusal = null;
    for (BlockLoadBatch planned : step.loads().values()) {
      BlockLoadBatch batch = planned.onRank(rank);
      try {
        loads.add(handle.load(batch, destinationFree));
      } catch (RuntimeException | Error e) {
        refusal = first(refusal, e);
        Set<GroupBlock> all = new HashSet<>();
        for (int i = 0; i < batch.size(); i++) {
          all.add(new GroupBlock(batch.keys().groupId(i), batch.blockId(i)));
        }
        endedLoads.put(batch.requestId(), new LoadResult(1, all, Set.of()));
      }
    }
    if (refusal != null) {
      Throwables.throwIfUnchecked(refusal);
    }
  }

  /**
   * Starts the stores of a step under its event. A store that the runtime refuses, or that an error
   * ends, keeps no other from starting; all its objects are reported as failed.
   *
   * @param step what the scheduler planned; its stores are started once
   * @param producer the last writer of the source blocks
   * @throws UMBPException INVALID_ARGUMENT when the event was started and has not been reported
   *     yet: nothing was started. Else the first refusal, after all stores were tried
   */
  public void startStores(UMBPConnectorMetadata step, DeviceFence producer) {
    if (step.storeEvent() == UMBPConnectorMetadata.NO_EVENT) {
      return;
    }
    if (events.containsKey(step.storeEvent()) || endedEvents.containsKey(step.storeEvent())) {
      throw UMBPException.invalid(
          "rank %s has started store event %d before; a step is started once",
          rank, step.storeEvent());
    }
    OpenEvent event = new OpenEvent();
    events.put(step.storeEvent(), event);
    Throwable refusal = null;
    for (BlockStoreBatch planned : step.stores().values()) {
      BlockStoreBatch batch = ownPart(planned.onRank(rank));
      if (batch.isEmpty()) {
        continue;
      }
      try {
        event.stores.add(handle.store(batch, producer));
      } catch (RuntimeException | Error e) {
        refusal = first(refusal, e);
        for (int i = 0; i < batch.size(); i++) {
          event.failed.add(object(batch.keys(), i));
        }
      }
    }
    if (refusal != null) {
      Throwables.throwIfUnchecked(refusal);
    }
  }

  /** The blocks of a store that this rank stores itself. */
  private BlockStoreBatch ownPart(BlockStoreBatch batch) {
    if (othersStore.isEmpty()) {
      return batch;
    }
    BlockKeys keys = batch.keys();
    int[] own = new int[batch.size()];
    int[] groupIds = new int[own.length];
    int[] blockIds = new int[own.length];
    int count = 0;
    for (int i = 0; i < own.length; i++) {
      if (!othersStore.contains(keys.groupId(i))) {
        own[count] = i;
        groupIds[count] = keys.groupId(i);
        blockIds[count++] = batch.blockId(i);
      }
    }
    if (count == own.length) {
      return batch;
    }
    BlockKeys ownKeys =
        BlockKeys.of(
                keys.namespace(),
                rank,
                Arrays.copyOf(groupIds, count),
                keys.hashes().select(Arrays.copyOf(own, count)))
            .replicating(keys.replicatedGroups());
    return BlockStoreBatch.of(batch.requestId(), ownKeys, Arrays.copyOf(blockIds, count));
  }

  private static Throwable first(@Nullable Throwable earlier, Throwable later) {
    if (earlier == null) {
      return later;
    }
    earlier.addSuppressed(later);
    return earlier;
  }

  /**
   * Cancels the loads and stores of requests that lose their blocks, because they were preempted or
   * aborted. Copies that have begun go on: their blocks are named, and the engine gives none of
   * them away while {@link #blocksInUse} names it. What was cancelled is still reported by {@link
   * #poll}; nothing of a cancelled store becomes visible. Other requests are not touched.
   *
   * @param requestIds the requests; those without a load or store are ignored
   * @return the blocks of these requests that copies of this rank still read or write
   */
  public List<GroupBlock> preempt(Collection<String> requestIds) {
    UnaryOperator<TransferJobState> cancel =
        job -> requestIds.contains(job.requestId()) ? handle.cancel(job) : job;
    loads.replaceAll(cancel);
    events.values().forEach(event -> event.stores.replaceAll(cancel));
    return blocksInUse(requestIds);
  }

  /**
   * Looks which blocks of some requests copies of this rank still read or write.
   *
   * @param requestIds the requests
   * @return the blocks, each once; all others of these requests may be given away
   */
  public List<GroupBlock> blocksInUse(Collection<String> requestIds) {
    Set<GroupBlock> inUse = new LinkedHashSet<>();
    Consumer<TransferJobState> look =
        job -> {
          if (requestIds.contains(job.requestId())) {
            collect(handle.poll(job), KeyOutcome.PENDING::equals, inUse);
          }
        };
    loads.forEach(look);
    events.values().forEach(event -> event.stores.forEach(look));
    return List.copyOf(inUse);
  }

  /**
   * Waits until no load of this rank will write to a layer any more, so that the engine can compute
   * it while the loads of later layers go on. What failed is still to be learned from {@link
   * #poll}.
   *
   * @param layerName a layer of the layout
   * @param timeout longest time to wait, at least zero
   * @return false when the time is up. An interrupt ends the wait and stays set
   * @throws UMBPException INVALID_ARGUMENT when a load runs and the layer is unknown
   */
  public boolean awaitLayer(String layerName, Duration timeout) {
    long start = System.nanoTime();
    for (TransferJobState load : loads) {
      while (!handle.isLayerLoaded(load, layerName)) {
        Duration left = timeout.minusNanos(System.nanoTime() - start);
        if (left.isNegative() || left.isZero() || Thread.currentThread().isInterrupted()) {
          return false;
        }
        handle.await(load, left.compareTo(LAYER_LOOK) < 0 ? left : LAYER_LOOK);
      }
    }
    return true;
  }

  /**
   * Looks which jobs have ended and publishes the stores among them. A job past its deadline counts
   * as running until its copies have ended.
   *
   * @return what has ended since the last call
   * @throws UMBPException CLOSED when a store has ended and the handle is closed
   */
  public UMBPConnectorWorkerMetadata poll() {
    for (Iterator<TransferJobState> each = loads.iterator(); each.hasNext(); ) {
      TransferJobState load = handle.poll(each.next());
      if (load.isFinal()) {
        each.remove();
        endedLoads.put(load.requestId(), result(load));
      }
    }
    for (Iterator<Map.Entry<Long, OpenEvent>> each = events.entrySet().iterator();
        each.hasNext(); ) {
      Map.Entry<Long, OpenEvent> entry = each.next();
      OpenEvent event = entry.getValue();
      event.stores.removeIf(store -> isEnded(store, event));
      if (event.stores.isEmpty()) {
        each.remove();
        endedEvents.put(entry.getKey(), new StoreEventResult(1, event.failed));
      }
    }
    UMBPConnectorWorkerMetadata report = new UMBPConnectorWorkerMetadata(endedLoads, endedEvents);
    endedLoads = new HashMap<>();
    endedEvents = new HashMap<>();
    return report;
  }

  /** Publishes a store when it has ended, and notes its failures. */
  private boolean isEnded(TransferJobState running, OpenEvent event) {
    TransferJobState store = handle.poll(running);
    if (!store.isFinal()) {
      return false;
    }
    if (handle.publish(store) < store.count(KeyOutcome.COMPLETED)) {
      store = handle.poll(store);
    }
    for (int i = 0; i < store.size(); i++) {
      if (store.outcome(i) != KeyOutcome.COMPLETED || store.reason(i) != KeyReason.NONE) {
        event.failed.add(object(store.keys(), i));
      }
    }
    return true;
  }

  private static StoredObject object(BlockKeys keys, int index) {
    return new StoredObject(keys.groupId(index), keys.hashes().get(keys.row(index)));
  }

  private static LoadResult result(TransferJobState load) {
    Set<GroupBlock> missing = new HashSet<>();
    Set<GroupBlock> failed = new HashSet<>();
    collect(load, outcome -> outcome != KeyOutcome.COMPLETED && !isSuspect(outcome), missing);
    collect(load, WorkerConnector::isSuspect, failed);
    return new LoadResult(1, missing, failed);
  }

  /** Tells whether an outcome gives reason to doubt the object. */
  private static boolean isSuspect(KeyOutcome outcome) {
    return outcome == KeyOutcome.FAILED || outcome == KeyOutcome.TIMED_OUT;
  }

  /** Adds the blocks of a job's keys whose outcomes are such. */
  private static void collect(
      TransferJobState job, Predicate<KeyOutcome> outcomes, Collection<GroupBlock> into) {
    for (int i = 0; i < job.size(); i++) {
      if (outcomes.test(job.outcome(i))) {
        into.add(new GroupBlock(job.keys().groupId(i), job.blockId(i)));
      }
    }
  }

  /**
   * Returns how many loads and store events run on this rank.
   *
   * @return loads and events that {@link #poll} has not reported as ended
   */
  public int runningCount() {
    return loads.size() + endedLoads.size() + events.size() + endedEvents.size();
  }
}
