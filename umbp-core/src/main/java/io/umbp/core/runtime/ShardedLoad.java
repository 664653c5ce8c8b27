package io.umbp.core.runtime;

import io.umbp.api.BlockKeys;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.RankNamespace;
import io.umbp.api.ShardedSource;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.TPShardLowering;
import io.umbp.core.layout.TPShardPlanner;
import io.umbp.core.pool.BlockPool;
import io.umbp.core.pool.KeySpace;
import io.umbp.core.pool.PooledObject;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Which objects of another engine each key of a load needs. Immutable. */
final class ShardedLoad {
  private final ShardedSource source;
  private final ShardedSource.@Nullable Group[] groups;
  private final int objectsPerKey;

  private ShardedLoad(ShardedSource source) {
    this.source = source;
    objectsPerKey = TPShardLowering.objectsPerKey(source);
    int lastId =
        source.groups().stream().mapToInt(ShardedSource.Group::groupId).max().orElseThrow();
    groups = new ShardedSource.Group[lastId + 1];
    for (ShardedSource.Group group : source.groups()) {
      groups[group.groupId()] = group;
    }
  }

  /** Checks that a source makes objects of the layout for all groups of a batch. */
  static ShardedLoad of(ShardedSource source, BlockTransferBatch batch, KVLayoutDescriptor layout) {
    TPShardPlanner.check(source, layout);
    ShardedLoad load = new ShardedLoad(source);
    BlockKeys keys = batch.keys();
    for (int key = 0; key < batch.size(); key++) {
      load.group(keys.groupId(key));
    }
    if ((long) batch.size() * load.objectsPerKey > Integer.MAX_VALUE - 8) {
      throw UMBPException.invalid(
          "%d keys with %d objects each, too many for one load", batch.size(), load.objectsPerKey);
    }
    return load;
  }

  ShardedSource source() {
    return source;
  }

  /** Returns how many objects a key can have. */
  int objectsPerKey() {
    return objectsPerKey;
  }

  private ShardedSource.Group group(int groupId) {
    ShardedSource.Group group = groupId < groups.length ? groups[groupId] : null;
    if (group == null) {
      throw UMBPException.invalid("group %d is not in the source", groupId);
    }
    return group;
  }

  /**
   * Leases all objects of each key, or none and gives the key its outcome. Called under the
   * runtime's lock.
   */
  void leaseAll(BlockPool pool, TransferJob job, long[] addresses) {
    @Nullable KeySpace[][] spaces = keySpaces(pool);
    @Nullable PooledObject[] found = new PooledObject[objectsPerKey];
    BlockKeys keys = job.batch.keys();
    for (int key = 0; key < job.batch.size(); key++) {
      ShardedSource.Group group = group(keys.groupId(key));
      if (findAll(pool, job, key, group, spaces[group.groupId()], found)) {
        for (int i = 0; i < group.producers().size(); i++) {
          PooledObject object = found[i];
          if (object != null) {
            int place = key * objectsPerKey + i;
            pool.pin(job.lease, place, object);
            addresses[place] = object.address();
          }
        }
      }
    }
  }

  /** The key spaces of the producers of each group, null where nothing was ever stored. */
  private @Nullable KeySpace[][] keySpaces(BlockPool pool) {
    @Nullable KeySpace[][] spaces = new KeySpace[groups.length][];
    for (ShardedSource.Group group : source.groups()) {
      List<RankNamespace> producers = group.producers();
      int groupId = group.groupId();
      @Nullable KeySpace[] ofGroup = new KeySpace[producers.size()];
      for (int i = 0; i < ofGroup.length; i++) {
        @Nullable KeySpace[] ofRank = pool.keySpaces(source.namespace(), producers.get(i));
        ofGroup[i] = groupId < ofRank.length ? ofRank[groupId] : null;
      }
      spaces[groupId] = ofGroup;
    }
    return spaces;
  }

  private boolean findAll(
      BlockPool pool,
      TransferJob job,
      int key,
      ShardedSource.Group group,
      @Nullable KeySpace[] spaces,
      @Nullable PooledObject[] found) {
    for (int i = 0; i < spaces.length; i++) {
      KeySpace space = spaces[i];
      PooledObject object = space == null ? null : pool.find(space, job.batch.keys().hashes(), key);
      if (object == null || object.state() != PooledObject.State.PUBLISHED) {
        String state =
            object == null ? " is not there" : " is being stored, or stored and not published";
        job.end(key, KeyOutcome.MISS, KeyReason.NONE, nameOf(group.producers().get(i)) + state);
        return false;
      }
      if (object.sizeBytes() != group.producerObjectBytes()) {
        job.end(
            key,
            KeyOutcome.FAILED,
            KeyReason.SIZE_MISMATCH,
            nameOf(group.producers().get(i))
                + " has "
                + object.sizeBytes()
                + " bytes, the source says "
                + group.producerObjectBytes());
        return false;
      }
      found[i] = object;
    }
    return true;
  }

  private String nameOf(RankNamespace producer) {
    return "the object of " + producer + " in namespace '" + source.namespace() + "'";
  }
}
