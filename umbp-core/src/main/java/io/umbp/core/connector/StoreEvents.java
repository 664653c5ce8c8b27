package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.GroupBlock;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * The stores that are under way, so that no object is stored twice at once, and their blocks, which
 * are pinned. Single-writer.
 */
final class StoreEvents {
  private final BlockPins pins;
  private final int ranks;
  private final Map<Long, Event> events = new HashMap<>();
  private final Map<StoredObject, List<Waiter>> inFlight = new HashMap<>();

  /** Stores that wait for the next event with their pins. */
  private final List<Planned> queued = new ArrayList<>();

  private final List<GroupBlock> queuedPins = new ArrayList<>();
  private long next;

  /** A request that would have stored an object which another one stores now. */
  private record Waiter(ScheduledRequest request, int startTokens) {}

  /**
   * Blocks of one request that are stored together.
   *
   * @param request whose watermark they belong to; null when it does not wait for them
   * @param endTokens its prefix that is then stored
   */
  record Planned(
      @Nullable ScheduledRequest request,
      RequestView view,
      BlockRows rows,
      BlockStoreBatch batch,
      int endTokens) {
    BlockHashes hashes() {
      return view.hashes();
    }

    StoredObject object(int row) {
      return rows.object(hashes(), row);
    }
  }

  /** The stores of one step until all ranks have reported them. */
  private static final class Event {
    final List<Planned> stores;
    final List<GroupBlock> pinned;
    boolean isCleared;
    @Nullable StoreEventResult sum;

    Event(List<Planned> stores, List<GroupBlock> pinned) {
      this.stores = stores;
      this.pinned = pinned;
    }
  }

  /**
   * An event that all ranks have reported.
   *
   * @param isCleared whether the namespace was cleared meanwhile, so that nothing became visible
   */
  record Ended(List<Planned> stores, StoreEventResult result, boolean isCleared) {}

  StoreEvents(BlockPins pins, int ranks) {
    this.pins = pins;
    this.ranks = ranks;
  }

  /** The rows of a request whose objects nobody stores now; the request waits for the others. */
  BlockRows notInFlight(ScheduledRequest request, BlockRows rows) {
    if (inFlight.isEmpty()) {
      return rows;
    }
    BlockHashes hashes = request.view.hashes();
    return rows.where(
        row -> {
          List<Waiter> waiters = inFlight.get(rows.object(hashes, row));
          if (waiters != null) {
            waiters.add(new Waiter(request, rows.startTokens(row)));
          }
          return waiters == null;
        });
  }

  boolean isInFlight(StoredObject object) {
    return inFlight.containsKey(object);
  }

  /** Plans a store for the next event, and pins its blocks at once. */
  void queue(Planned store) {
    List<GroupBlock> blocks = blocks(List.of(store));
    pins.pin(blocks);
    queuedPins.addAll(blocks);
    queued.add(store);
    note(store);
  }

  /** Pins the blocks of noted stores, each once; when that fails they are noted no more. */
  List<GroupBlock> pin(List<Planned> stores) {
    List<GroupBlock> blocks = blocks(stores);
    if (!blocks.isEmpty()) {
      try {
        pins.pin(blocks);
      } catch (RuntimeException | Error e) {
        for (Planned store : stores) {
          for (int row = 0; row < store.rows.count(); row++) {
            inFlight.remove(store.object(row));
          }
        }
        throw e;
      }
    }
    return blocks;
  }

  private static List<GroupBlock> blocks(List<Planned> stores) {
    Set<GroupBlock> blocks = new LinkedHashSet<>();
    for (Planned store : stores) {
      int[] blockIds = store.batch.blockIds();
      for (int row = 0; row < blockIds.length; row++) {
        blocks.add(store.rows.place(blockIds, row));
      }
    }
    return List.copyOf(blocks);
  }

  /** Notes that the objects of a store are under way. */
  void note(Planned store) {
    for (int row = 0; row < store.rows.count(); row++) {
      inFlight.putIfAbsent(store.object(row), new ArrayList<>());
    }
  }

  /** Begins an event of these noted stores and all that are queued; there is at least one. */
  long begin(List<Planned> stores, List<GroupBlock> pinned) {
    List<Planned> all = new ArrayList<>(queued);
    all.addAll(stores);
    List<GroupBlock> allPinned = new ArrayList<>(queuedPins);
    allPinned.addAll(pinned);
    queued.clear();
    queuedPins.clear();
    long number = next++;
    events.put(number, new Event(all, allPinned));
    return number;
  }

  List<Planned> queued() {
    return queued;
  }

  boolean isEmpty() {
    return events.isEmpty() && queued.isEmpty();
  }

  int count() {
    return events.size();
  }

  /** Marks what runs: nothing of it will be visible. */
  void cleared() {
    events.values().forEach(event -> event.isCleared = true);
  }

  /**
   * Takes reports of an event. When it ends by them, failed blocks are to be planned again by the
   * requests that own them or wait for them.
   *
   * @param unpinned gets the blocks to be unpinned then, the last first
   */
  @Nullable Ended report(long number, StoreEventResult result, List<GroupBlock> unpinned) {
    Event event = events.get(number);
    if (event == null) {
      return null;
    }
    StoreEventResult sum = event.sum == null ? result : event.sum.plus(result);
    event.sum = sum;
    if (sum.completedWorkers() < ranks) {
      return null;
    }
    events.remove(number);
    for (int i = event.pinned.size() - 1; i >= 0; i--) {
      unpinned.add(event.pinned.get(i));
    }
    Set<StoredObject> failed = new HashSet<>(sum.failedObjects());
    for (Planned store : event.stores) {
      for (int row = 0; row < store.rows.count(); row++) {
        StoredObject object = store.object(row);
        List<Waiter> waiters = inFlight.remove(object);
        if (event.isCleared || failed.contains(object)) {
          if (store.request != null) {
            store.request.retryFrom(store.rows.startTokens(row));
          }
          if (waiters != null) {
            waiters.forEach(waiter -> waiter.request.retryFrom(waiter.startTokens));
          }
        }
      }
    }
    return new Ended(event.stores, sum, event.isCleared);
  }
}
