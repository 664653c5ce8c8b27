package io.umbp.api;

import java.time.Duration;
import java.util.Map;

/**
 * A pool of KV objects and the machinery that moves them. Thread-safe. Handles for a scheduler and
 * for the workers of all ranks are made from it; several engines may share one runtime under
 * different namespaces.
 */
public interface UMBPRuntime {
  /**
   * Creates the handle of a scheduler.
   *
   * @param namespace the engine's compatibility namespace
   * @param topology the scheduler's own place; its sizes say which ranks exist
   * @param layout the layout of the KV objects; its topology must equal the given one
   * @return a handle that the caller owns and closes
   * @throws UMBPException INVALID_ARGUMENT when an object does not fit into the pool; CLOSED
   */
  UMBPSchedulerHandle createSchedulerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout);

  /**
   * Creates the handle of one rank's worker.
   *
   * @param namespace the engine's compatibility namespace
   * @param topology the worker's place
   * @param layout the layout of this rank's KV objects; its topology must equal the given one
   * @return a handle that the caller owns and closes
   * @throws UMBPException INVALID_ARGUMENT when an object does not fit into the pool; CLOSED
   */
  UMBPWorkerHandle createWorkerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout);

  /**
   * Keeps the readable text behind a namespace beside the data, for those who find nothing under
   * theirs and want to know why.
   *
   * @param namespace a namespace
   * @param manifest what it was derived from, such as {@code NamespaceManifest} of umbp-core writes
   * @throws UMBPException INVALID_ARGUMENT when another text is kept for the namespace; CLOSED
   */
  void describeNamespace(UMBPNamespace namespace, String manifest);

  /**
   * Returns the texts behind the namespaces of this pool.
   *
   * @return manifests by namespace, those that were described; unmodifiable
   * @throws UMBPException CLOSED
   */
  Map<UMBPNamespace, String> manifests();

  /**
   * Closes all handles and the runtime. Waits for running copies until the bound, returns by it,
   * and never frees memory that a copy still uses. Calling it again returns the first result.
   *
   * @param bound longest time to wait, at least zero
   * @return what was left behind
   */
  CloseResult close(Duration bound);
}
