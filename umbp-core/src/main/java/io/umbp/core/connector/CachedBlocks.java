package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.GroupBlock;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.core.connector.StoreEvents.Planned;
import io.umbp.core.request.RequestTracker;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * What the blocks of the engine's own prefix cache hold, for stores that wait until a block is
 * about to be evicted. A block is forgotten as soon as it is given to a request for new tokens, so
 * that no block is ever stored under the hash of what it held before. Single-writer.
 */
final class CachedBlocks {
  private final Map<GroupBlock, Content> contents = new HashMap<>();
  private final Map<StoredObject, GroupBlock> places = new HashMap<>();

  /** The content of a block: the one of a group that ends so in a request's prefix. */
  private record Content(RequestView view, StoredObject object, int endTokens) {}

  /** Notes what blocks of a request hold. */
  void note(RequestView view, BlockRows rows, RequestTracker tables) {
    int[] blockIds = rows.blockIds(tables);
    for (int row = 0; row < blockIds.length; row++) {
      GroupBlock block = rows.place(blockIds, row);
      StoredObject object = rows.object(view.hashes(), row);
      forget(block);
      contents.put(block, new Content(view, object, rows.endTokens(row)));
      places.put(object, block);
    }
  }

  void forget(GroupBlock block) {
    Content content = contents.remove(block);
    if (content != null) {
      places.remove(content.object, block);
    }
  }

  void clear() {
    contents.clear();
    places.clear();
  }

  /**
   * Plans the store of a block's content, and of its prefix as far as the cache still holds it,
   * without which it would be of no use.
   *
   * @param wanted which of some objects are to be stored
   * @return null when there is nothing to store
   */
  @Nullable Planned plan(
      String batchId,
      GroupBlock block,
      CacheGroups groups,
      Function<List<StoredObject>, Set<StoredObject>> wanted) {
    Content last = contents.get(block);
    if (last == null) {
      return null;
    }
    BlockHashes hashes = last.view.hashes();
    BlockRows prefix = groups.between(0, last.endTokens);
    List<StoredObject> held = new ArrayList<>();
    for (int row = 0; row < prefix.count(); row++) {
      StoredObject object = prefix.object(hashes, row);
      if (places.containsKey(object)) {
        held.add(object);
      }
    }
    Set<StoredObject> stored = wanted.apply(held);
    BlockRows rows = prefix.where(row -> stored.contains(prefix.object(hashes, row)));
    if (rows.count() == 0) {
      return null;
    }
    int[] blockIds = new int[rows.count()];
    for (int row = 0; row < blockIds.length; row++) {
      blockIds[row] = Objects.requireNonNull(places.get(rows.object(hashes, row))).blockId();
    }
    BlockStoreBatch batch = BlockStoreBatch.of(batchId, rows.localKeys(hashes), blockIds);
    return new Planned(null, last.view, rows, batch, last.endTokens);
  }
}
