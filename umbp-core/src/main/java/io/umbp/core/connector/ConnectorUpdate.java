package io.umbp.core.connector;

import io.umbp.api.GroupBlock;
import io.umbp.api.StoreEventResult;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * What came to its end by the workers' reports. Immutable.
 *
 * @param loads the loads that all ranks have ended, by request id; copied
 * @param storeEvents the store events that all ranks have ended, with what failed; copied
 */
public record ConnectorUpdate(
    Map<String, LoadedPrefix> loads, Map<Long, StoreEventResult> storeEvents) {
  /** Copies the maps, and keeps the order of the reports. */
  public ConnectorUpdate {
    loads = Collections.unmodifiableMap(new LinkedHashMap<>(loads));
    storeEvents = Collections.unmodifiableMap(new LinkedHashMap<>(storeEvents));
  }

  /**
   * What a load has brought.
   *
   * @param validTokens tokens from the first on whose KV is there, in all groups on all ranks
   * @param invalidBlocks blocks of the load that hold KV of later tokens, or nothing: they are to
   *     be computed; copied
   */
  public record LoadedPrefix(int validTokens, Set<GroupBlock> invalidBlocks) {
    /** Copies the set. */
    public LoadedPrefix {
      invalidBlocks = Set.copyOf(invalidBlocks);
    }
  }
}
