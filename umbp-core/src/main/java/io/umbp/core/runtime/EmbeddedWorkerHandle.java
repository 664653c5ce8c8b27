package io.umbp.core.runtime;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.pool.KeySpace;
import io.umbp.core.pool.PooledObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** One rank's door to an {@link EmbeddedRuntime}. Thread-safe; guarded by the runtime's lock. */
final class EmbeddedWorkerHandle implements UMBPWorkerHandle {
  private final EmbeddedRuntime runtime;
  private final UMBPNamespace namespace;
  private final RankNamespace rank;
  private final KVLayoutDescriptor layout;
  private final @Nullable KeySpace[] spaces;
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
    int[] groupIds = layout.groupIds();
    // From the last group down, so that an id beyond the limit is refused before anything is made.
    KeySpace last = runtime.pool.keySpace(namespace, rank, groupIds[groupIds.length - 1]);
    this.spaces = new KeySpace[last.groupId() + 1];
    for (int groupId : groupIds) {
      spaces[groupId] = runtime.pool.keySpace(namespace, rank, groupId);
    }
  }

  @Override
  public void registerBuffers(Map<String, KVCacheTensor> kvCaches) {
    KVLayoutPlanner.checkTensors(layout, kvCaches);
    runtime.lock.lock();
    try {
      checkOpen();
      if (registration != null || isRegistering) {
        throw UMBPException.invalid(
            "the buffers of rank %s are registered; unregister them first", rank);
      }
      isRegistering = true;
    } finally {
      runtime.lock.unlock();
    }
    Registration registered = null;
    boolean isTooLate;
    try {
      registered = registerAll(kvCaches);
    } finally {
      runtime.lock.lock();
      try {
        isRegistering = false;
        isTooLate = isClosed;
        if (!isTooLate) {
          registration = registered;
        }
      } finally {
        runtime.lock.unlock();
      }
    }
    if (isTooLate) {
      runtime.unregister(registered);
      throw UMBPException.closed("worker handle of rank " + rank);
    }
  }

  private Registration registerAll(Map<String, KVCacheTensor> kvCaches) {
    Map<String, LayerPlacement> placements = new HashMap<>();
    List<KVCacheTensor> registered = new ArrayList<>();
    try {
      for (Map.Entry<String, KVCacheTensor> layer : kvCaches.entrySet()) {
        KVCacheTensor tensor = layer.getValue();
        long base = runtime.engine.register(tensor);
        registered.add(tensor);
        placements.put(layer.getKey(), LayerPlacement.of(base, tensor));
      }
      return new Registration(this, KVLayoutPlanner.place(layout, placements), registered);
    } catch (Throwable e) {
      registered.forEach(runtime.engine::unregister);
      throw e;
    }
  }

  @Override
  public boolean unregisterBuffers(Duration timeout) {
    Registration retiring;
    runtime.lock.lock();
    try {
      retiring = registration;
      if (retiring == null) {
        return true;
      }
      retiring.isRetiring = true;
    } finally {
      runtime.lock.unlock();
    }
    if (!runtime.advanceUntil(() -> isIdle(retiring), timeout.toNanos(), null)) {
      return false;
    }
    runtime.lock.lock();
    try {
      if (registration != retiring) {
        return true;
      }
      registration = null;
    } finally {
      runtime.lock.unlock();
    }
    runtime.unregister(retiring);
    return true;
  }

  private boolean isIdle(Registration retiring) {
    runtime.lock.lock();
    try {
      return retiring.activeJobs == 0;
    } finally {
      runtime.lock.unlock();
    }
  }

  @Override
  public TransferJobState load(List<BlockTransferPlan> plans, DeviceFence destinationFree) {
    return start(TransferDirection.LOAD, plans, destinationFree);
  }

  @Override
  public TransferJobState store(List<BlockTransferPlan> plans, DeviceFence producer) {
    return start(TransferDirection.STORE, plans, producer);
  }

  private TransferJobState start(
      TransferDirection direction, List<BlockTransferPlan> plans, DeviceFence fence) {
    BlockTransferBatch batch = toBatch(direction, plans);
    checkKeys(batch.keys());
    runtime.tick();
    TransferJob job = admit(direction, batch, plans, fence);
    try {
      long[] addresses = new long[batch.size()];
      if (direction == TransferDirection.STORE) {
        reserveAll(job, addresses);
      } else {
        leaseAll(job, addresses);
      }
      submit(job, addresses, fence);
    } catch (Throwable e) {
      abort(job, "not submitted: " + e);
      if (e instanceof Error) {
        throw e;
      }
    }
    runtime.advance(job);
    TransferJobState first = runtime.read(job);
    if (!first.isFinal()) {
      runtime.follow();
    }
    return first;
  }

  private static BlockTransferBatch toBatch(
      TransferDirection direction, List<BlockTransferPlan> plans) {
    if (plans instanceof BlockTransferBatch batch) {
      boolean isLoad = batch instanceof BlockLoadBatch;
      if (isLoad != (direction == TransferDirection.LOAD)) {
        throw UMBPException.invalid(
            "a %s was given to a %s", batch.getClass().getSimpleName(), direction);
      }
      return batch;
    }
    if (plans.isEmpty()) {
      throw UMBPException.invalid(
          "a list without plans names no rank; pass an empty batch instead");
    }
    BlockKey first = plans.get(0).key();
    String requestId = plans.get(0).requestId();
    List<BlockHash> hashes = new ArrayList<>(plans.size());
    int[] groupIds = new int[plans.size()];
    int[] blockIds = new int[plans.size()];
    for (BlockTransferPlan plan : plans) {
      BlockKey key = plan.key();
      if (!key.namespace().equals(first.namespace()) || !key.rank().equals(first.rank())) {
        throw UMBPException.invalid(
            "key %s has another namespace or rank than the first, %s", key, first);
      }
      groupIds[hashes.size()] = key.groupId();
      blockIds[hashes.size()] = plan.blockId();
      hashes.add(key.hash());
    }
    BlockKeys keys =
        BlockKeys.of(first.namespace(), first.rank(), groupIds, BlockHashes.of(hashes));
    return direction == TransferDirection.LOAD
        ? BlockLoadBatch.of(requestId, keys, blockIds)
        : BlockStoreBatch.of(requestId, keys, blockIds);
  }

  private void checkKeys(BlockKeys keys) {
    if (!keys.namespace().equals(namespace)) {
      throw UMBPException.invalid(
          "keys of namespace '%s' were given to a handle of '%s'", keys.namespace(), namespace);
    }
    RankNamespace given = keys.ranks().get(0);
    if (!given.equals(rank)) {
      throw UMBPException.invalid("keys of %s were given to the handle of %s", given, rank);
    }
  }

  /** Checks everything that can be refused, then enters the job. */
  private TransferJob admit(
      TransferDirection direction,
      BlockTransferBatch batch,
      List<BlockTransferPlan> plans,
      DeviceFence fence) {
    runtime.lock.lock();
    try {
      checkOpen();
      Registration current = registration;
      if (current == null || current.isRetiring) {
        throw new UMBPException(
            UMBPException.Reason.NOT_REGISTERED,
            "the buffers of rank " + rank + " are not registered, or are being unregistered");
      }
      if (current.isDevice() && fence instanceof DeviceFence.None) {
        throw new UMBPException(
            UMBPException.Reason.FENCE_REQUIRED,
            direction + " on device " + current.deviceOrdinal() + " needs a fence");
      }
      KVLayoutPlanner planner = current.planner();
      planner.checkBlocks(batch);
      if (direction == TransferDirection.LOAD) {
        checkDistinctBlocks(batch);
      }
      if (plans != batch) {
        checkRanges(plans, planner);
      }
      TransferJob job =
          new TransferJob(
              runtime.nextJobId(),
              direction,
              batch,
              current,
              runtime.pool,
              runtime.clock.getAsLong() + runtime.timeoutNanos);
      current.activeJobs++;
      runtime.enter(job);
      return job;
    } finally {
      runtime.lock.unlock();
    }
  }

  private static void checkDistinctBlocks(BlockTransferBatch batch) {
    long[] places = new long[batch.size()];
    for (int i = 0; i < places.length; i++) {
      places[i] = ((long) batch.keys().groupId(i) << 32) | batch.blockId(i);
    }
    Arrays.sort(places);
    for (int i = 1; i < places.length; i++) {
      if (places[i] == places[i - 1]) {
        throw UMBPException.invalid(
            "block %d of group %d is the destination of two keys of one load",
            (int) places[i], places[i] >> 32);
      }
    }
  }

  private static void checkRanges(List<BlockTransferPlan> plans, KVLayoutPlanner planner) {
    for (BlockTransferPlan plan : plans) {
      if (!plan.ranges().isEmpty()
          && !plan.ranges().equals(planner.rangesForBlock(plan.blockId(), plan.key().groupId()))) {
        throw UMBPException.invalid(
            "the ranges of block %d for key %s are not those of the registered layout",
            plan.blockId(), plan.key());
      }
    }
  }

  private void leaseAll(TransferJob job, long[] addresses) {
    BlockKeys keys = job.batch.keys();
    runtime.lock.lock();
    try {
      for (int key = 0; key < addresses.length; key++) {
        PooledObject object = runtime.pool.findPublished(space(keys, key), keys.hashes(), key);
        if (object == null) {
          job.end(key, KeyOutcome.MISS, KeyReason.NONE, null);
        } else if (hasOtherSize(job, key, object)) {
          endWithOtherSize(job, key, object);
        } else {
          runtime.pool.pin(job.lease, key, object);
          addresses[key] = object.address();
        }
      }
    } finally {
      runtime.lock.unlock();
    }
  }

  /** What came of the attempt to give one key of a store its object. */
  private enum Reserved {
    DONE,
    NEEDS_SLAB,
    BUSY
  }

  /**
   * Gives each key of a store an object to write, or its outcome. Takes host memory and books ended
   * jobs, both outside the lock, when a key can't go on without; then goes on with that key.
   */
  private void reserveAll(TransferJob job, long[] addresses) {
    int key = 0;
    boolean hasSwept = false;
    while (key < addresses.length) {
      Reserved reserved = Reserved.DONE;
      runtime.lock.lock();
      try {
        while (key < addresses.length && reserved == Reserved.DONE) {
          reserved = reserve(job, key, addresses);
          if (reserved == Reserved.BUSY && hasSwept) {
            job.end(
                key,
                KeyOutcome.REJECTED,
                KeyReason.POOL_BUSY,
                "no room: every object that could be evicted is in use");
            reserved = Reserved.DONE;
          }
          if (reserved == Reserved.DONE) {
            key++;
          }
        }
      } finally {
        runtime.lock.unlock();
      }
      if (reserved == Reserved.NEEDS_SLAB) {
        runtime.grow();
      } else if (reserved == Reserved.BUSY) {
        runtime.sweep();
        hasSwept = true;
      }
    }
  }

  /** Called under the lock. */
  private Reserved reserve(TransferJob job, int key, long[] addresses) {
    BlockKeys keys = job.batch.keys();
    KeySpace space = space(keys, key);
    PooledObject object = runtime.pool.find(space, keys.hashes(), key);
    if (object != null
        && object.state() != PooledObject.State.PUBLISHED
        && runtime.clock.getAsLong() - object.expiresAtNanos() >= 0) {
      runtime.pool.doom(object, KeyReason.WRITER_OVERDUE);
      object = null;
    }
    if (object == null) {
      long objectBytes = job.registration.planner().objectBytes(keys.groupId(key));
      object =
          runtime.pool.reserve(
              space, keys.hashes(), key, objectBytes, job.lease, key, job.id, job.deadlineNanos);
      if (object == null) {
        return runtime.pool.needsSlab(objectBytes) ? Reserved.NEEDS_SLAB : Reserved.BUSY;
      }
      job.writes(key, object);
      addresses[key] = object.address();
    } else if (hasOtherSize(job, key, object)) {
      endWithOtherSize(job, key, object);
    } else if (object.state() == PooledObject.State.PUBLISHED) {
      job.end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
    } else {
      job.join(key, object);
    }
    return Reserved.DONE;
  }

  private static boolean hasOtherSize(TransferJob job, int key, PooledObject object) {
    int groupId = job.batch.keys().groupId(key);
    return object.sizeBytes() != job.registration.planner().objectBytes(groupId);
  }

  private static void endWithOtherSize(TransferJob job, int key, PooledObject object) {
    int groupId = job.batch.keys().groupId(key);
    job.end(
        key,
        KeyOutcome.FAILED,
        KeyReason.SIZE_MISMATCH,
        String.format(
            "the stored object has %d bytes, an object of group %d in this layout has %d",
            object.sizeBytes(), groupId, job.registration.planner().objectBytes(groupId)));
  }

  private KeySpace space(BlockKeys keys, int key) {
    int groupId = keys.groupId(key);
    KeySpace space = groupId < spaces.length ? spaces[groupId] : null;
    if (space == null) {
      throw UMBPException.invalid("group %d is not in the layout", groupId);
    }
    return space;
  }

  /** Lowers and submits the rows of a job; a job without rows is done with its copy at once. */
  private void submit(TransferJob job, long[] addresses, DeviceFence fence) {
    if (Arrays.stream(addresses).allMatch(address -> address == 0)) {
      endCopyAtOnce(job);
      return;
    }
    Registration current = job.registration;
    CopyBatch rows;
    runtime.lock.lock();
    try {
      rows = current.rows();
    } finally {
      runtime.lock.unlock();
    }
    rows.reset(job.direction, current.deviceOrdinal(), addresses.length);
    if (job.direction == TransferDirection.LOAD) {
      current.planner().lowerLayerMajor(job.batch, addresses, rows);
    } else {
      current.planner().lower(job.batch, addresses, rows);
    }
    CopyTicket ticket = runtime.engine.submit(rows, fence);
    runtime.lock.lock();
    try {
      job.rows = rows;
      job.ticket = ticket;
    } finally {
      runtime.lock.unlock();
    }
  }

  private void endCopyAtOnce(TransferJob job) {
    Registration retired;
    runtime.lock.lock();
    try {
      retired = runtime.endCopy(job, null);
      runtime.dropIfOver(job);
    } finally {
      runtime.lock.unlock();
    }
    if (retired != null) {
      runtime.unregister(retired);
    }
  }

  private void abort(TransferJob job, String detail) {
    Registration retired = null;
    runtime.lock.lock();
    try {
      if (!job.hasCopyEnded()) {
        job.abort(KeyReason.COPY_FAILED, detail);
        retired = runtime.leave(job);
        runtime.dropIfOver(job);
      }
    } finally {
      runtime.lock.unlock();
    }
    if (retired != null) {
      runtime.unregister(retired);
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
    return runtime.read(job);
  }

  @Override
  public TransferJobState await(TransferJobState state, Duration timeout) {
    TransferJob job = known(state);
    if (job == null) {
      return state;
    }
    runtime.advanceUntil(() -> isFinalOrOverdue(job), timeout.toNanos(), job);
    return runtime.read(job);
  }

  private boolean isFinalOrOverdue(TransferJob job) {
    runtime.lock.lock();
    try {
      return job.isFinal() || job.isOverdue();
    } finally {
      runtime.lock.unlock();
    }
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
    runtime.lock.lock();
    try {
      checkOpen();
      int published = job.publish();
      runtime.dropIfOver(job);
      return published;
    } finally {
      runtime.lock.unlock();
    }
  }

  @Override
  public TransferJobState cancel(TransferJobState state) {
    TransferJob job = known(state);
    if (job == null) {
      return state;
    }
    cancel(job, KeyOutcome.CANCELLED, KeyReason.NONE);
    runtime.advance(job);
    return runtime.read(job);
  }

  private void cancel(TransferJob job, KeyOutcome outcome, KeyReason reason) {
    runtime.lock.lock();
    try {
      job.cancel(outcome, reason);
      runtime.dropIfOver(job);
    } finally {
      runtime.lock.unlock();
    }
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
    CopyTicket ticket;
    runtime.lock.lock();
    try {
      if (job.hasCopyEnded()) {
        return true;
      }
      ticket = job.ticket;
    } finally {
      runtime.lock.unlock();
    }
    return ticket != null && ticket.isMarkDone(mark);
  }

  /** Returns the job of a snapshot, or null when it is over, read and forgotten. */
  private @Nullable TransferJob known(TransferJobState state) {
    TransferJob job;
    runtime.lock.lock();
    try {
      job = runtime.job(state.jobId());
    } finally {
      runtime.lock.unlock();
    }
    if (job != null && job.registration.owner() != this) {
      job = null;
    }
    if (job == null && !state.isFinal()) {
      throw UMBPException.invalid("%s is a job of another handle, or over for long", state);
    }
    return job;
  }

  private void checkOpen() {
    runtime.checkOpen();
    if (isClosed) {
      throw UMBPException.closed("worker handle of rank " + rank);
    }
  }

  /** Refuses new jobs and asks the running ones to end. */
  void beginClose() {
    List<TransferJob> open;
    runtime.lock.lock();
    try {
      isClosed = true;
      open = runtime.liveJobs(this);
    } finally {
      runtime.lock.unlock();
    }
    for (TransferJob job : open) {
      cancel(job, KeyOutcome.FAILED, KeyReason.CLOSED);
    }
  }

  @Override
  public CloseResult close(Duration bound) {
    beginClose();
    Registration last;
    runtime.lock.lock();
    try {
      if (closeResult != null) {
        return closeResult;
      }
      last = registration;
    } finally {
      runtime.lock.unlock();
    }
    if (last != null) {
      runtime.advanceUntil(() -> isIdle(last), bound.toNanos(), null);
    }
    boolean isUnused = false;
    CloseResult result;
    runtime.lock.lock();
    try {
      if (closeResult != null) {
        return closeResult;
      }
      int unfinished = 0;
      long bytes = 0;
      for (TransferJob job : runtime.liveJobs(this)) {
        if (!job.hasCopyEnded()) {
          unfinished++;
          bytes += job.pinnedBytes();
        }
      }
      result = new CloseResult(unfinished, bytes);
      closeResult = result;
      runtime.forget(this);
      if (registration != null) {
        isUnused = registration.activeJobs == 0;
        registration.isAbandoned = true;
        registration = null;
      }
    } finally {
      runtime.lock.unlock();
    }
    if (isUnused && last != null) {
      runtime.unregister(last);
    }
    return result;
  }
}
