package io.umbp.bench.sim;

import io.umbp.api.GroupBlock;
import io.umbp.core.connector.BlockPins;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/**
 * The engine's block pool: for each group blocks with reference counts, of which those without a
 * user stay cached until they are needed, the longest unused first. Block 0 is the null block.
 * Thread-confined.
 */
final class SimBlocks implements BlockPins {
  static final int NULL = 0;

  private final List<Group> groups = new ArrayList<>();
  private final Map<GroupBlock, Integer> pins = new HashMap<>();
  private final Predicate<GroupBlock> isCopied;

  private static final class Group {
    final int[] users;
    final long[] cached;
    final Map<Long, Integer> byHash = new HashMap<>();
    final LinkedHashSet<Integer> free = new LinkedHashSet<>();

    Group(int blocks) {
      users = new int[blocks];
      cached = new long[blocks];
      for (int block = 1; block < blocks; block++) {
        free.add(block);
      }
    }
  }

  /**
   * Creates a pool.
   *
   * @param blocks blocks of each group, the null block included
   * @param isCopied tells whether a copy reads or writes a block now
   */
  SimBlocks(int groupCount, int blocks, Predicate<GroupBlock> isCopied) {
    for (int i = 0; i < groupCount; i++) {
      groups.add(new Group(blocks));
    }
    this.isCopied = isCopied;
  }

  int freeCount(int group) {
    return groups.get(group).free.size();
  }

  /** Takes a block for new content. */
  int take(int group) {
    Group of = groups.get(group);
    Iterator<Integer> oldest = of.free.iterator();
    if (!oldest.hasNext()) {
      return NULL;
    }
    int block = oldest.next();
    oldest.remove();
    if (of.cached[block] != 0) {
      of.byHash.remove(of.cached[block]);
      of.cached[block] = 0;
    }
    if (isCopied.test(new GroupBlock(group, block))) {
      throw new SimViolation(
          "block " + block + " of group " + group + " is given away while a copy uses it");
    }
    of.users[block] = 1;
    return block;
  }

  /** Notes what a full block holds, so that another request can share it. */
  void cache(int group, int block, long hash) {
    Group of = groups.get(group);
    if (of.cached[block] == 0 && of.byHash.putIfAbsent(hash, block) == null) {
      of.cached[block] = hash;
    }
  }

  /** The block with a content, or the null block. */
  int find(int group, long hash) {
    return groups.get(group).byHash.getOrDefault(hash, NULL);
  }

  void share(int group, int block) {
    Group of = groups.get(group);
    if (of.users[block]++ == 0) {
      of.free.remove(block);
    }
  }

  void release(int group, int block) {
    Group of = groups.get(group);
    if (of.users[block] <= 0) {
      throw new SimViolation("block " + block + " of group " + group + " is released twice");
    }
    if (--of.users[block] == 0) {
      of.free.add(block);
    }
  }

  /** The blocks that are evicted next. */
  List<GroupBlock> nextEvicted(int count) {
    List<GroupBlock> next = new ArrayList<>();
    for (int group = 0; group < groups.size(); group++) {
      int id = group;
      groups.get(group).free.stream()
          .limit(count)
          .forEach(block -> next.add(new GroupBlock(id, block)));
    }
    return next;
  }

  @Override
  public void pin(Collection<GroupBlock> blocks) {
    for (GroupBlock block : blocks) {
      if (block.blockId() == NULL) {
        throw new SimViolation("the null block is pinned");
      }
      pins.merge(block, 1, Integer::sum);
      share(block.groupId(), block.blockId());
    }
  }

  @Override
  public void unpin(Collection<GroupBlock> blocks) {
    for (GroupBlock block : blocks) {
      Integer count = pins.remove(block);
      if (count == null) {
        throw new SimViolation(block + " is unpinned without a pin");
      }
      if (count > 1) {
        pins.put(block, count - 1);
      }
      release(block.groupId(), block.blockId());
    }
  }

  /** Checks that nobody uses a block any more. */
  void checkAllFree() {
    if (!pins.isEmpty()) {
      throw new SimViolation("blocks stay pinned: " + pins);
    }
    for (int group = 0; group < groups.size(); group++) {
      int all = groups.get(group).users.length - 1;
      if (freeCount(group) != all) {
        throw new SimViolation(
            "group " + group + " has " + freeCount(group) + " of " + all + " blocks free");
      }
    }
  }
}
