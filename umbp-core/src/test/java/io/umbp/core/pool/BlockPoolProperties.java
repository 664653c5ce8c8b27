package io.umbp.core.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;

/** The pool against an access-ordered map, over whole sequences of operations. */
class BlockPoolProperties {
  private static final int SLOTS = 8;
  private static final long OBJECT = 1000;

  enum Kind {
    STORE,
    TOUCH,
    PIN,
    UNPIN,
    CLEAR
  }

  record Step(Kind kind, int hash) {}

  @Provide
  Arbitrary<List<Step>> steps() {
    Arbitrary<Kind> kinds =
        Arbitraries.frequencyOf(
            net.jqwik.api.Tuple.of(10, Arbitraries.just(Kind.STORE)),
            net.jqwik.api.Tuple.of(5, Arbitraries.just(Kind.TOUCH)),
            net.jqwik.api.Tuple.of(4, Arbitraries.just(Kind.PIN)),
            net.jqwik.api.Tuple.of(4, Arbitraries.just(Kind.UNPIN)),
            net.jqwik.api.Tuple.of(1, Arbitraries.just(Kind.CLEAR)));
    return Combinators.combine(kinds, Arbitraries.integers().between(0, 15))
        .as(Step::new)
        .list()
        .ofMaxSize(200);
  }

  @Property(tries = 300)
  void evictsExactlyWhatAnLruMapWould(@ForAll("steps") List<Step> steps) {
    PoolFixture fixture = new PoolFixture(SLOTS * OBJECT, 3 * OBJECT);
    Map<Integer, Integer> pinsByHash = new LinkedHashMap<>(16, 0.75f, true);
    List<Pinned> pins = new ArrayList<>();
    int doomed = 0;
    for (Step step : steps) {
      switch (step.kind()) {
        case STORE -> {
          if (!pinsByHash.containsKey(step.hash())) {
            boolean hasRoom = true;
            if (pinsByHash.size() + doomed == SLOTS) {
              hasRoom = evictOldestUnpinned(pinsByHash);
            }
            assertEquals(hasRoom, fixture.store(0, step.hash(), OBJECT));
            if (hasRoom) {
              pinsByHash.put(step.hash(), 0);
            }
          }
        }
        case TOUCH -> {
          if (pinsByHash.get(step.hash()) != null) {
            fixture.pool.touch(fixture.published(0, step.hash()));
          }
        }
        case PIN -> {
          PooledObject object = fixture.published(0, step.hash());
          if (object != null) {
            Pinned pinned = new Pinned(object, step.hash(), fixture.pool.lease(1));
            fixture.pool.pin(pinned.lease, 0, object);
            pins.add(pinned);
            addWithoutTouch(pinsByHash, step.hash(), 1);
          }
        }
        case UNPIN -> {
          if (!pins.isEmpty()) {
            Pinned pinned = pins.remove(step.hash() % pins.size());
            fixture.pool.release(pinned.lease, 0);
            if (pinned.object.state() == PooledObject.State.DOOMED) {
              doomed =
                  (int)
                      pins.stream().filter(Pinned::isDoomed).map(p -> p.object).distinct().count();
            } else {
              addWithoutTouch(pinsByHash, pinned.hash, -1);
            }
          }
        }
        case CLEAR -> {
          fixture.pool.clear(PoolFixture.NAMESPACE);
          pinsByHash.clear();
          doomed = (int) pins.stream().map(p -> p.object).distinct().count();
        }
      }
      for (int hash = 0; hash <= 15; hash++) {
        boolean isExpected = new ArrayList<>(pinsByHash.keySet()).contains(hash);
        assertEquals(isExpected, fixture.isPresent(0, hash), step + ", hash " + hash);
      }
      PoolStats stats = fixture.pool.stats();
      assertEquals(pins.size(), stats.leases());
      assertEquals((pinsByHash.size() + doomed) * OBJECT, stats.usedBytes());
      assertEquals(stats.capacityBytes(), stats.usedBytes() + stats.freeBytes());
    }
    pins.forEach(pinned -> fixture.pool.release(pinned.lease, 0));
    fixture.pool.clear(PoolFixture.NAMESPACE);
    assertEquals(0, fixture.pool.stats().usedBytes());
    assertEquals(0, fixture.pool.stats().leases());
  }

  @Property(tries = 200)
  void liveSlotsNeverOverlap(@ForAll("steps") List<Step> steps) {
    PoolFixture fixture = new PoolFixture(20_000, 5_000);
    int hash = 0;
    for (Step step : steps) {
      long bytes =
          switch (step.hash() % 3) {
            case 0 -> 700;
            case 1 -> 1300;
            default -> 4100;
          };
      fixture.store(step.hash() % 3, hash++, bytes);
    }
    List<PooledObject> live = new ArrayList<>();
    for (int group = 0; group < 3; group++) {
      for (int stored = 0; stored < hash; stored++) {
        PooledObject object = fixture.published(group, stored);
        if (object != null) {
          live.add(object);
        }
      }
    }
    live.sort((a, b) -> Long.compare(a.address(), b.address()));
    for (int i = 1; i < live.size(); i++) {
      PooledObject before = live.get(i - 1);
      assertTrue(before.address() + before.sizeBytes() <= live.get(i).address());
    }
    assertFalse(fixture.pool.stats().usedBytes() > 20_000);
  }

  private record Pinned(PooledObject object, int hash, Lease lease) {
    boolean isDoomed() {
      return object.state() == PooledObject.State.DOOMED;
    }
  }

  private static boolean evictOldestUnpinned(Map<Integer, Integer> pinsByHash) {
    for (Map.Entry<Integer, Integer> entry : pinsByHash.entrySet()) {
      if (entry.getValue() == 0) {
        pinsByHash.remove(entry.getKey());
        return true;
      }
    }
    return false;
  }

  /** Changes a value without moving its key in the access order. */
  private static void addWithoutTouch(Map<Integer, Integer> pinsByHash, int hash, int pins) {
    for (Map.Entry<Integer, Integer> entry : pinsByHash.entrySet()) {
      if (entry.getKey() == hash) {
        entry.setValue(entry.getValue() + pins);
      }
    }
  }
}
