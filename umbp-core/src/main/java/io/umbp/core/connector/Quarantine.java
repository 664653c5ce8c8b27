package io.umbp.core.connector;

import io.umbp.api.StoreEventResult.StoredObject;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Objects whose load failed a short time ago: taking them again at once would most likely fail
 * again. The oldest go first when there are too many. Single-writer.
 */
final class Quarantine {
  private static final int MAX_OBJECTS = 65_536;

  private final long nanos;
  private final LongSupplier clock;
  private final Map<StoredObject, Long> since = new LinkedHashMap<>();

  Quarantine(Duration time, LongSupplier clock) {
    this.nanos = time.compareTo(Duration.ofDays(36_500)) > 0 ? Long.MAX_VALUE : time.toNanos();
    this.clock = clock;
  }

  void add(StoredObject object) {
    since.remove(object);
    since.put(object, clock.getAsLong());
    if (since.size() > MAX_OBJECTS) {
      since.remove(since.keySet().iterator().next());
    }
  }

  /** The objects of now, for any thread. */
  Set<StoredObject> current() {
    long now = clock.getAsLong();
    Iterator<Long> oldest = since.values().iterator();
    while (oldest.hasNext() && now - oldest.next() >= nanos) {
      oldest.remove();
    }
    return Set.copyOf(since.keySet());
  }

  void clear() {
    since.clear();
  }
}
