package io.umbp.api;

import java.util.HashMap;
import java.util.Map;

/**
 * What workers tell the scheduler after a step, summed over ranks by {@link #plus}. Immutable.
 *
 * @param storeEvents newly finished store events by number; copied
 */
public record UMBPConnectorWorkerMetadata(Map<Long, StoreEventResult> storeEvents) {
  /** Copies the map. */
  public UMBPConnectorWorkerMetadata {
    storeEvents = Map.copyOf(storeEvents);
  }

  /**
   * Adds what other workers report.
   *
   * @param other reports of other workers
   * @return the sum, event by event
   */
  public UMBPConnectorWorkerMetadata plus(UMBPConnectorWorkerMetadata other) {
    Map<Long, StoreEventResult> sum = new HashMap<>(storeEvents);
    other.storeEvents.forEach((event, result) -> sum.merge(event, result, StoreEventResult::plus));
    return new UMBPConnectorWorkerMetadata(sum);
  }
}
