package io.umbp.api;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * One rank's door to the store: moves whole blocks between the engine's buffers and objects.
 * Thread-safe.
 *
 * <p>{@link #load}, {@link #store}, {@link #poll}, {@link #publish} and {@link #cancel} never wait
 * for a copy and never call back. The engine keeps the blocks of a job untouched (a load's
 * destination unread, a store's source unwritten) until the job is final. Each job has the
 * runtime's deadline.
 */
public interface UMBPWorkerHandle {
  /**
   * Registers the engine's KV buffers. They may come late, after the handle was made, and again
   * after {@link #unregisterBuffers}. All or nothing: when it throws, nothing is registered.
   *
   * <p>A trial of the layout writes the lent blocks through the probe and waits for each of its
   * copies, at most the runtime's timeout. A copy that has not ended by then keeps the buffers
   * until it ends; {@link #unregisterBuffers} waits for that.
   *
   * @param kvCaches a tensor for each layer of the layout, all on one device or all in host memory;
   *     the memory is shared until it is unregistered
   * @param options who writes the buffers, and how the layout is tried out
   * @throws UMBPException INVALID_ARGUMENT when a layer is missing or unknown, sizes do not fit the
   *     layout, a tensor's stride does not divide its region's, two layers of a group overlap, or
   *     the engine's own KV is to be kept in a {@linkplain UMBPNamespace#foreign() namespace for
   *     foreign KV}; LAYOUT_MISMATCH when the probe finds KV elsewhere than the layout says;
   *     COPY_FAILED when a copy of the trial fails or does not end; CLOSED
   */
  void registerBuffers(Map<String, KVCacheTensor> kvCaches, RegistrationOptions options);

  /**
   * Registers buffers that the engine alone writes, without a probe: only bounds and overlap are
   * checked.
   *
   * @param kvCaches as above
   * @throws UMBPException as above
   */
  default void registerBuffers(Map<String, KVCacheTensor> kvCaches) {
    registerBuffers(kvCaches, RegistrationOptions.ownWriter());
  }

  /**
   * Tells who can reach the objects that this handle stores, and so whether one rank may store what
   * all tensor-parallel ranks share.
   *
   * @return always the same
   */
  ObjectReach reach();

  /**
   * Takes the registration back. New jobs are refused at once; waits until no copy uses the memory.
   *
   * @param timeout longest time to wait, at least zero
   * @return true when no copy uses the memory any more; false when one still does, call it again
   */
  boolean unregisterBuffers(Duration timeout);

  /**
   * Starts loading objects into blocks. A key without a visible object ends as {@link
   * KeyOutcome#MISS}.
   *
   * @param plans keys of this rank with distinct destination blocks in each group
   * @param destinationFree the last user of the destination blocks
   * @return the first snapshot of the job
   * @throws UMBPException INVALID_ARGUMENT, NOT_REGISTERED, FENCE_REQUIRED, CLOSED; nothing was
   *     touched
   */
  TransferJobState load(List<BlockTransferPlan> plans, DeviceFence destinationFree);

  /**
   * Starts storing blocks as objects. They become visible when published. A key that is already
   * present completes without a copy; one that another job is storing ends as that store ends.
   * Without room a key ends as {@link KeyOutcome#REJECTED}.
   *
   * @param plans keys of this rank with their source blocks
   * @param producer the last writer of the source blocks
   * @return the first snapshot of the job
   * @throws UMBPException INVALID_ARGUMENT, NOT_REGISTERED, FENCE_REQUIRED, CLOSED; nothing was
   *     touched
   */
  TransferJobState store(List<BlockTransferPlan> plans, DeviceFence producer);

  /**
   * Returns the newest snapshot of a job.
   *
   * @param job any snapshot of the job
   * @return the newest snapshot; the given one when the job is over and forgotten
   */
  TransferJobState poll(TransferJobState job);

  /**
   * Waits until a job is final, overdue, or the time is up.
   *
   * @param job any snapshot of the job
   * @param timeout longest time to wait, at least zero
   * @return the newest snapshot; it may still be running. An interrupt ends the wait and stays set
   */
  TransferJobState await(TransferJobState job, Duration timeout);

  /**
   * Makes the completed keys of a store visible. Late, cleared and failed keys are left out; a
   * completed key that is left out has a {@link KeyReason} in the next snapshot. Works once for
   * each key; a second call changes nothing. A store that is never published stays invisible and is
   * dropped at its deadline. The blocks may be reused as soon as the store is final, published or
   * not.
   *
   * @param job a final snapshot of a store job
   * @return how many keys of the job this call made visible; 0 when all were visible before
   * @throws UMBPException INVALID_ARGUMENT when the job is no store or not final; CLOSED
   */
  int publish(TransferJobState job);

  /**
   * Asks that a job end early. Its keys are final only when the runtime no longer touches their
   * memory; copies that already run end first. Nothing of a cancelled store is published.
   *
   * @param job any snapshot of the job
   * @return the newest snapshot
   */
  TransferJobState cancel(TransferJobState job);

  /**
   * Tells whether a running load has brought all bytes of one layer. The outcome of a key must
   * still be read before its block is trusted.
   *
   * @param job any snapshot of a load job
   * @param layerName a layer of the layout
   * @return true when no copy of the job will write to the layer any more
   * @throws UMBPException INVALID_ARGUMENT when the job is no load or the layer is unknown
   */
  boolean isLayerLoaded(TransferJobState job, String layerName);

  /**
   * Closes the handle: refuses new jobs, cancels running ones, waits for their copies until the
   * bound and unregisters the buffers. Objects stay. Calling it again returns the first result.
   *
   * @param bound longest time to wait, at least zero
   * @return what was left behind
   */
  CloseResult close(Duration bound);
}
