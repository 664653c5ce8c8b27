package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.core.connector.KVEvent.AllBlocksCleared;
import io.umbp.core.connector.KVEvent.BlocksRemoved;
import io.umbp.core.connector.KVEvent.BlocksStored;
import io.umbp.core.connector.StoreEvents.Planned;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * What routers were told, and what they are told next. Whether an object is there is asked at the
 * store when the events are taken, so that their order never depends on which of a store and an
 * eviction was heard of first: an object is stored and removed in turn. Single-writer.
 */
final class KVEventLog {
  private static final int MAX_EVICTED = 65_536;

  private final boolean isOn;
  private final List<KVEvent> ready = new ArrayList<>();
  private final List<Stored> stored = new ArrayList<>();
  private final Set<StoredObject> told = new HashSet<>();

  /** Objects known to be evicted, the oldest first. */
  private final LinkedHashSet<StoredObject> evicted = new LinkedHashSet<>();

  /** A store that has ended, and which of its rows are whole. */
  private record Stored(Planned store, BlockRows rows) {}

  KVEventLog(ConnectorSettings.EventPolicy policy) {
    isOn = policy == ConnectorSettings.EventPolicy.ON;
  }

  /** Notes the whole objects of a store. */
  void stored(Planned store, Set<StoredObject> failed) {
    if (isOn) {
      stored.add(new Stored(store, store.rows().where(row -> !failed.contains(store.object(row)))));
    }
  }

  /** Notes that nothing is left. */
  void cleared(UMBPSchedulerHandle handle) {
    handle.takeEvictedKeys();
    stored.clear();
    told.clear();
    evicted.clear();
    if (isOn) {
      ready.add(new AllBlocksCleared());
    }
  }

  boolean wasEvicted(UMBPSchedulerHandle handle, CacheGroups groups, StoredObject object) {
    drainEvicted(handle, groups);
    return evicted.contains(object);
  }

  /** Hears of evictions; a router is told of those that it knows. */
  private void drainEvicted(UMBPSchedulerHandle handle, CacheGroups groups) {
    List<BlockKey> keys = handle.takeEvictedKeys();
    Set<StoredObject> gone = new LinkedHashSet<>();
    for (BlockKey key : keys) {
      StoredObject object = new StoredObject(key.groupId(), key.hash());
      gone.add(object);
      evicted.remove(object);
      evicted.add(object);
    }
    while (evicted.size() > MAX_EVICTED) {
      evicted.remove(evicted.iterator().next());
    }
    if (isOn) {
      boolean mayHaveLost = keys.size() >= UMBPSchedulerHandle.MAX_EVICTED_KEYS;
      removed(handle, groups, mayHaveLost ? told : gone);
    }
  }

  private void removed(
      UMBPSchedulerHandle handle, CacheGroups groups, Collection<StoredObject> objects) {
    List<StoredObject> known = objects.stream().filter(told::contains).toList();
    Set<StoredObject> there = groups.present(handle, known);
    Map<Integer, List<BlockHash>> byGroup = new LinkedHashMap<>();
    for (StoredObject object : known) {
      if (!there.contains(object)) {
        told.remove(object);
        byGroup.computeIfAbsent(object.groupId(), id -> new ArrayList<>()).add(object.hash());
      }
    }
    byGroup.forEach(
        (groupId, hashes) -> ready.add(new BlocksRemoved(groupId, hashes, KVEvent.CPU)));
  }

  /** Takes all events since the last call. */
  List<KVEvent> take(UMBPSchedulerHandle handle, CacheGroups groups) {
    if (!isOn) {
      return List.of();
    }
    drainEvicted(handle, groups);
    List<StoredObject> candidates = new ArrayList<>();
    for (Stored each : stored) {
      for (int row = 0; row < each.rows.count(); row++) {
        candidates.add(each.rows.object(each.store.hashes(), row));
      }
    }
    Set<StoredObject> there = groups.present(handle, candidates);
    stored.forEach(each -> tell(each, groups, there));
    stored.clear();
    List<KVEvent> events = List.copyOf(ready);
    ready.clear();
    return events;
  }

  /** Tells of the objects of a store that routers do not know, group by group and run by run. */
  private void tell(Stored each, CacheGroups groups, Set<StoredObject> there) {
    BlockHashes hashes = each.store.hashes();
    Map<Integer, Run> runs = new HashMap<>();
    for (int row = 0; row < each.rows.count(); row++) {
      StoredObject object = each.rows.object(hashes, row);
      if (!there.contains(object) || !told.add(object)) {
        continue;
      }
      evicted.remove(object);
      int group = each.rows.group(row);
      Run run = runs.get(group);
      if (run == null || run.endTokens != each.rows.startTokens(row)) {
        if (run != null) {
          ready.add(run.event(each.store, groups));
        }
        run = new Run(group, each.rows.startTokens(row));
        runs.put(group, run);
      }
      run.hashes.add(object.hash());
      run.endTokens = each.rows.endTokens(row);
    }
    runs.values().forEach(run -> ready.add(run.event(each.store, groups)));
  }

  /** Blocks of a group that follow each other. */
  private static final class Run {
    final int group;
    final int startTokens;
    final List<BlockHash> hashes = new ArrayList<>();
    int endTokens;

    Run(int group, int startTokens) {
      this.group = group;
      this.startTokens = startTokens;
    }

    KVEvent event(Planned store, CacheGroups groups) {
      Optional<BlockHash> parent =
          startTokens == 0
              ? Optional.empty()
              : Optional.of(store.hashes().get(startTokens / groups.hashUnit() - 1));
      return new BlocksStored(
          groups.id(group),
          hashes,
          parent,
          store.view().tokenIds(startTokens, endTokens),
          groups.blockSize(group),
          KVEvent.CPU);
    }
  }
}
