package io.umbp.api;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * What the scheduler tells every worker for one engine step. Keys carry the scheduler's rank; each
 * worker turns them into its own. Immutable.
 *
 * @param preempted requests that lost their blocks since the last step: workers cancel what runs
 *     for them before they start anything of this step; copied
 * @param loads loads to start in this order, by request id; copied
 * @param stores stores to start in this order, by request id; copied
 * @param storeEvent number under which workers report the stores of this step, {@link #NO_EVENT}
 *     when there are none
 */
public record UMBPConnectorMetadata(
    Set<String> preempted,
    Map<String, BlockLoadBatch> loads,
    Map<String, BlockStoreBatch> stores,
    long storeEvent) {
  /** The store event of a step that stores nothing. */
  public static final long NO_EVENT = -1;

  /** Checks that stores and event come together. */
  public UMBPConnectorMetadata {
    preempted = Set.copyOf(preempted);
    loads = inOrder(loads);
    stores = inOrder(stores);
    if (storeEvent < NO_EVENT || stores.isEmpty() != (storeEvent == NO_EVENT)) {
      throw UMBPException.invalid(
          "store event %d with stores of %d requests; an event is >= 0 exactly when there are stores",
          storeEvent, stores.size());
    }
  }

  /** Copies a map without null, and keeps its order. */
  static <K, V> Map<K, V> inOrder(Map<K, V> map) {
    Map<K, V> copy = new LinkedHashMap<>();
    map.forEach(
        (key, value) ->
            copy.put(Objects.requireNonNull(key, "key"), Objects.requireNonNull(value, "value")));
    return Collections.unmodifiableMap(copy);
  }
}
