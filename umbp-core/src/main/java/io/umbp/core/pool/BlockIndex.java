package io.umbp.core.pool;

import io.umbp.api.BlockHashes;
import io.umbp.api.RankNamespace;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * A hash table from (key space, hash bytes) to the one object that has them. Compares whole hashes,
 * works on columns and allocates nothing per lookup; chains run through the objects.
 */
final class BlockIndex {
  /** Greatest group id: groups are array indexes here. */
  static final int MAX_GROUP_ID = 1023;

  private final Map<UMBPNamespace, Map<RankNamespace, @Nullable KeySpace[]>> spaces =
      new HashMap<>();
  private int spaceCount;
  private @Nullable PooledObject[] buckets = new PooledObject[1024];
  private int size;

  /** Returns the one key space of a group on a rank, made on first use. */
  KeySpace space(UMBPNamespace namespace, RankNamespace rank, int groupId) {
    if (groupId > MAX_GROUP_ID) {
      throw UMBPException.invalid("group id %d exceeds the limit of %d", groupId, MAX_GROUP_ID);
    }
    Map<RankNamespace, @Nullable KeySpace[]> byRank =
        spaces.computeIfAbsent(namespace, unused -> new HashMap<>());
    @Nullable KeySpace[] byGroup = byRank.getOrDefault(rank, new KeySpace[0]);
    if (groupId >= byGroup.length) {
      byGroup = Arrays.copyOf(byGroup, groupId + 1);
      byRank.put(rank, byGroup);
    }
    KeySpace space = byGroup[groupId];
    if (space == null) {
      space = new KeySpace(namespace, rank, groupId, spaceCount++);
      byGroup[groupId] = space;
    }
    return space;
  }

  /** Returns the known key spaces of a rank by group, empty when there are none. */
  @Nullable KeySpace[] spaces(UMBPNamespace namespace, RankNamespace rank) {
    Map<RankNamespace, @Nullable KeySpace[]> byRank = spaces.get(namespace);
    @Nullable KeySpace[] byGroup = byRank == null ? null : byRank.get(rank);
    return byGroup == null ? new KeySpace[0] : byGroup;
  }

  static long fingerprint(KeySpace space, BlockHashes hashes, int row) {
    return hashes.fingerprint(row) ^ space.salt();
  }

  @Nullable PooledObject find(KeySpace space, BlockHashes hashes, int row) {
    long fingerprint = fingerprint(space, hashes, row);
    PooledObject object = buckets[bucket(fingerprint)];
    while (object != null
        && (object.fingerprint != fingerprint
            || object.space != space
            || !hashes.matches(row, object.hash))) {
      object = object.nextInBucket;
    }
    return object;
  }

  /** Adds an object whose key is not in the index. */
  void add(PooledObject object) {
    if (size == buckets.length) {
      grow();
    }
    int bucket = bucket(object.fingerprint);
    object.nextInBucket = buckets[bucket];
    buckets[bucket] = object;
    size++;
  }

  /** Takes an object out of the index; it must be there. */
  void remove(PooledObject object) {
    int bucket = bucket(object.fingerprint);
    PooledObject previous = null;
    PooledObject at = buckets[bucket];
    while (at != object) {
      if (at == null) {
        throw new IllegalStateException("object " + object.key() + " is not in the index");
      }
      previous = at;
      at = at.nextInBucket;
    }
    if (previous == null) {
      buckets[bucket] = object.nextInBucket;
    } else {
      previous.nextInBucket = object.nextInBucket;
    }
    object.nextInBucket = null;
    size--;
  }

  int size() {
    return size;
  }

  /** Visits every object; the visitor may remove the one it is given. */
  void forEach(Consumer<PooledObject> visitor) {
    for (PooledObject first : buckets) {
      PooledObject object = first;
      while (object != null) {
        PooledObject next = object.nextInBucket;
        visitor.accept(object);
        object = next;
      }
    }
  }

  private int bucket(long fingerprint) {
    return (int) (fingerprint ^ (fingerprint >>> 32)) & (buckets.length - 1);
  }

  private void grow() {
    @Nullable PooledObject[] old = buckets;
    buckets = new PooledObject[old.length * 2];
    for (PooledObject first : old) {
      PooledObject object = first;
      while (object != null) {
        PooledObject next = object.nextInBucket;
        int bucket = bucket(object.fingerprint);
        object.nextInBucket = buckets[bucket];
        buckets[bucket] = object;
        object = next;
      }
    }
  }
}
