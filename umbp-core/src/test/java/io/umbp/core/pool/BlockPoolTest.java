package io.umbp.core.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.ClearResult;
import io.umbp.api.KeyReason;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class BlockPoolTest {
  @Test
  void case30PinsBelongToOneJobAndDoubleReleaseIsHarmless() {
    PoolFixture fixture = new PoolFixture(1024, 1024);
    BlockPool pool = fixture.pool;
    fixture.store(0, 1, 1024);
    PooledObject object = fixture.published(0, 1);
    Lease first = pool.lease(1);
    Lease second = pool.lease(1);
    pool.pin(first, 0, object);
    pool.pin(second, 0, object);
    assertEquals(2, pool.stats().leases());

    pool.release(first, 0);
    assertEquals(1, pool.stats().leases());
    pool.release(first, 0);
    assertEquals(1, pool.stats().leases());
    assertEquals(1, pool.stats().doubleReleases());

    assertFalse(fixture.store(0, 2, 1024), "the other job's pin must hold the only slot");
    assertEquals(0, pool.stats().evictedObjects());
    pool.release(second, 0);
    assertEquals(0, pool.stats().leases());
    assertTrue(fixture.store(0, 2, 1024));
    assertEquals(1, pool.stats().evictedObjects());
  }

  @Test
  void case34CapacityCountsRealBytesOfEachGroup() {
    PoolFixture eightGroups = new PoolFixture(81_920, 81_920);
    int stored = 0;
    while (eightGroups.evicted.isEmpty()) {
      eightGroups.store(stored % 8, stored / 8, 1024);
      stored++;
    }
    assertEquals(80, stored - 1);
    assertEquals(81_920, eightGroups.pool.stats().usedBytes());

    PoolFixture twoSizes = new PoolFixture(81_920, 81_920);
    int objects = 0;
    while (twoSizes.evicted.isEmpty()) {
      twoSizes.store(objects % 2, objects / 2, objects % 2 == 0 ? 1024 : 3072);
      objects++;
    }
    assertEquals(20, (objects - 1) / 2);
    assertEquals(0, (objects - 1) % 2);
  }

  @Test
  void case35EvictsTheLeastRecentOneVictimAtATime() {
    PoolFixture fixture = new PoolFixture(4096, 4096);
    for (int hash = 0; hash < 4; hash++) {
      fixture.store(0, hash, 1024);
    }
    for (int hash = 3; hash >= 0; hash--) {
      fixture.pool.touch(fixture.published(0, hash));
    }
    fixture.store(0, 99, 1024);
    assertEquals(1, fixture.evicted.size());
    assertFalse(fixture.isPresent(0, 3));
    assertTrue(fixture.isPresent(0, 0));
    assertTrue(fixture.isPresent(0, 2));
  }

  @Test
  void evictionTellsTheKeyAndFreesTheVictimsSlotForTheNewObject() {
    PoolFixture fixture = new PoolFixture(1024, 1024);
    fixture.store(0, 1, 1024);
    long address = fixture.published(0, 1).address();
    fixture.store(0, 2, 1024);
    assertEquals(1, fixture.evicted.size());
    assertEquals(fixture.space(0).groupId(), fixture.evicted.get(0).groupId());
    assertEquals(PoolFixture.hash(1).get(0), fixture.evicted.get(0).hash());
    assertEquals(address, fixture.published(0, 2).address());
    assertEquals(1024, fixture.pool.stats().slabBytes());
  }

  @Test
  void aSlabOfAnotherSizeIsEmptiedWhenTheMemoryBudgetIsSpent() {
    PoolFixture fixture = new PoolFixture(64 * 1024, 16 * 1024);
    for (int hash = 0; hash < 64; hash++) {
      fixture.store(0, hash, 1024);
    }
    long slabBytesBefore = fixture.pool.stats().slabBytes();
    int largeHash = 0;
    for (; largeHash < 200; largeHash++) {
      assertTrue(fixture.store(1, largeHash, 4096), "large object " + largeHash);
    }
    PoolStats stats = fixture.pool.stats();
    assertTrue(stats.usedBytes() <= 64 * 1024);
    assertTrue(
        stats.slabBytes() <= 64 * 1024 + 2 * 16 * 1024,
        slabBytesBefore + " bytes of slabs grew to " + stats.slabBytes());
    assertTrue(fixture.isPresent(1, 199));
  }

  @Test
  void withoutMoreMemoryThePoolMakesDoWithWhatItHas() {
    PoolFixture fixture = new PoolFixture(8192, 2048);
    fixture.limitSlabs(1);
    assertTrue(fixture.store(0, 1, 1024));
    assertTrue(fixture.store(0, 2, 1024));
    assertTrue(fixture.store(0, 3, 1024));
    assertEquals(1, fixture.evicted.size());
    assertEquals(2, fixture.pool.stats().publishedObjects());
  }

  @Test
  void nothingIsEvictedForAnObjectThatFitsNowhereEvenThen() {
    PoolFixture fixture = new PoolFixture(8192, 4096);
    fixture.limitSlabs(1);
    for (int hash = 0; hash < 3; hash++) {
      fixture.store(0, hash, 1024);
    }
    Lease lease = fixture.pool.lease(1);
    assertNotNull(fixture.reserve(0, 3, 1024, lease));
    assertFalse(fixture.store(1, 0, 2048), "the only slab holds an object that is being written");
    assertEquals(0, fixture.evicted.size());
    fixture.pool.release(lease, 0);
  }

  @Test
  void oneObjectOfTheSameSizeGoesWhenNoSlabOfAnotherSizeCanBeEmptied() {
    PoolFixture fixture = new PoolFixture(16_384, 4096);
    fixture.limitSlabs(2);
    for (int hash = 0; hash < 3; hash++) {
      fixture.store(0, hash, 1024);
    }
    Lease lease = fixture.pool.lease(1);
    assertNotNull(fixture.reserve(0, 3, 1024, lease));
    fixture.store(1, 0, 2048);
    fixture.store(1, 1, 2048);
    assertTrue(fixture.store(1, 2, 2048));
    assertEquals(1, fixture.evicted.size());
    assertFalse(fixture.isPresent(1, 0));
    fixture.pool.release(lease, 0);
  }

  @Test
  void aDoomedObjectKeepsItsSlotUntilTheLastCopyEnds() {
    PoolFixture fixture = new PoolFixture(2048, 2048);
    BlockPool pool = fixture.pool;
    fixture.store(0, 1, 1024);
    PooledObject object = fixture.published(0, 1);
    Lease lease = pool.lease(1);
    pool.pin(lease, 0, object);

    assertEquals(new ClearResult(0, 1, 0), pool.clear(PoolFixture.NAMESPACE));
    assertFalse(fixture.isPresent(0, 1));
    assertEquals(1024, pool.stats().usedBytes());
    assertTrue(fixture.store(0, 1, 1024), "the key can be stored again at once");
    assertTrue(fixture.published(0, 1).address() != object.address());

    pool.release(lease, 0);
    assertEquals(1024, pool.stats().usedBytes());
    assertEquals(KeyReason.CLEARED, object.doomReason());
  }

  @Test
  void clearLeavesOtherNamespaces() {
    PoolFixture fixture = new PoolFixture(8192, 8192);
    fixture.store(0, 1, 1024);
    Lease lease = fixture.pool.lease(1);
    assertNotNull(fixture.reserve(0, 2, 1024, lease));
    assertEquals(new ClearResult(0, 0, 0), fixture.pool.clear(new UMBPNamespace("other")));
    assertTrue(fixture.isPresent(0, 1));
    assertEquals(new ClearResult(1, 0, 1), fixture.pool.clear(PoolFixture.NAMESPACE));
    fixture.pool.release(lease, 0);
    assertEquals(0, fixture.pool.stats().usedBytes());
  }

  @Test
  void anUnpublishedObjectIsDroppedWhenNobodyHoldsIt() {
    PoolFixture fixture = new PoolFixture(2048, 2048);
    BlockPool pool = fixture.pool;
    Lease lease = pool.lease(1);
    PooledObject object = fixture.reserve(0, 1, 1024, lease);
    pool.hold(object);
    pool.complete(object);
    pool.release(lease, 0);
    pool.unhold(object);
    assertEquals(1024, pool.stats().usedBytes());
    pool.unhold(object);
    assertEquals(0, pool.stats().usedBytes());
    assertEquals(1, pool.stats().droppedObjects());
    assertNull(pool.find(fixture.space(0), PoolFixture.hash(1), 0));
  }

  @Test
  void keysDifferingInAnyPartAreDifferentObjects() {
    PoolFixture fixture = new PoolFixture(1 << 20, 1 << 20);
    Set<Long> addresses = new HashSet<>();
    for (int group = 0; group < 3; group++) {
      for (int hash = 0; hash < 100; hash++) {
        fixture.store(group, hash, 1024);
        addresses.add(fixture.published(group, hash).address());
      }
    }
    assertEquals(300, addresses.size());
    assertEquals(300, fixture.pool.stats().publishedObjects());
  }

  @Test
  void objectsThatNeverFitAreRefusedWithTheLimit() {
    BlockPool pool = new PoolFixture(10_000, 2000).pool;
    assertRefused(
        "an object of group 3 has 2001 bytes, more than a slab's 2000; slabBytes can be up to"
            + " 1073741824",
        () -> pool.checkObjectSize(3, 2001));
    assertRefused(
        "an object of group 3 has 10001 bytes, more than the pool's capacity of 10000",
        () -> pool.checkObjectSize(3, 10_001));
    assertRefused(
        "group id 1024 exceeds the limit of 1023",
        () -> pool.keySpace(PoolFixture.NAMESPACE, PoolFixture.RANK, 1024));
  }

  private static void assertRefused(String message, Executable call) {
    assertEquals(message, assertThrows(UMBPException.class, call).getMessage());
  }
}
