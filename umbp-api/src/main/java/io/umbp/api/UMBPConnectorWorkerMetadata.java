package io.umbp.api;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What workers tell the scheduler after a step, summed over ranks by {@link #plus}. Immutable.
 *
 * @param loads newly ended loads by request id; copied
 * @param storeEvents newly finished store events by number; copied
 */
public record UMBPConnectorWorkerMetadata(
    Map<String, LoadResult> loads, Map<Long, StoreEventResult> storeEvents) {
  /** The report of a worker on which nothing has ended. */
  public static final UMBPConnectorWorkerMetadata NOTHING =
      new UMBPConnectorWorkerMetadata(Map.of(), Map.of());

  /** Copies the maps. */
  public UMBPConnectorWorkerMetadata {
    loads = UMBPConnectorMetadata.inOrder(loads);
    storeEvents = UMBPConnectorMetadata.inOrder(storeEvents);
  }

  /**
   * Tells whether there is nothing to report.
   *
   * @return whether no load and no store event has ended
   */
  public boolean isEmpty() {
    return loads.isEmpty() && storeEvents.isEmpty();
  }

  /**
   * Adds what other workers report.
   *
   * @param other reports of other workers
   * @return the sum, load by load and event by event
   */
  public UMBPConnectorWorkerMetadata plus(UMBPConnectorWorkerMetadata other) {
    if (other.isEmpty()) {
      return this;
    }
    Map<String, LoadResult> loadSum = new LinkedHashMap<>(loads);
    other.loads.forEach((request, result) -> loadSum.merge(request, result, LoadResult::plus));
    Map<Long, StoreEventResult> eventSum = new LinkedHashMap<>(storeEvents);
    other.storeEvents.forEach(
        (event, result) -> eventSum.merge(event, result, StoreEventResult::plus));
    return new UMBPConnectorWorkerMetadata(loadSum, eventSum);
  }
}
