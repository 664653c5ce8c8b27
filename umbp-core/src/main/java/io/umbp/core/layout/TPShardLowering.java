package io.umbp.core.layout;

import io.umbp.api.BlockKeys;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Turns blocks into the runs of bytes that have to be copied out of the objects of several ranks of
 * another engine. Immutable.
 *
 * <p>As in {@link KVLayoutPlanner} each run of a block is a line {@code base + block * advance}; it
 * is a run of this rank's page and of one producer's object, whichever is shorter.
 */
public final class TPShardLowering {
  private final ShardedSource source;
  private final int objectsPerKey;
  private final int[] groupIds;
  private final int[] rowsOfGroup;
  private final Layer[] layers;

  /** The lines of one layer as columns. */
  private static final class Layer {
    final int groupId;
    int rows;
    int[] producer = new int[4];
    long[] base = new long[4];
    long[] advance = new long[4];
    long[] offset = new long[4];
    long[] length = new long[4];

    Layer(int groupId) {
      this.groupId = groupId;
    }

    /** Adds a line, to the one before if both sides go on there. */
    void add(int fromProducer, long rowBase, long rowAdvance, long rowOffset, long rowLength) {
      int last = rows - 1;
      if (last >= 0
          && producer[last] == fromProducer
          && advance[last] == rowAdvance
          && base[last] + length[last] == rowBase
          && offset[last] + length[last] == rowOffset) {
        length[last] += rowLength;
        return;
      }
      if (rows == base.length) {
        resize(rows * 2);
      }
      producer[rows] = fromProducer;
      base[rows] = rowBase;
      advance[rows] = rowAdvance;
      offset[rows] = rowOffset;
      length[rows] = rowLength;
      rows++;
    }

    void resize(int capacity) {
      producer = Arrays.copyOf(producer, capacity);
      base = Arrays.copyOf(base, capacity);
      advance = Arrays.copyOf(advance, capacity);
      offset = Arrays.copyOf(offset, capacity);
      length = Arrays.copyOf(length, capacity);
    }
  }

  private TPShardLowering(KVLayoutPlanner planner, ShardedSource source) {
    TPShardPlanner.check(source, planner.layout());
    this.source = source;
    objectsPerKey = objectsPerKey(source);
    List<KVRegion> regions = planner.layout().regions();
    layers = new Layer[regions.size()];
    Map<String, Layer> byName = new HashMap<>();
    for (int i = 0; i < layers.length; i++) {
      layers[i] = new Layer(regions.get(i).groupId());
      byName.put(regions.get(i).layerName(), layers[i]);
    }
    groupIds = source.groups().stream().mapToInt(ShardedSource.Group::groupId).sorted().toArray();
    rowsOfGroup = new int[groupIds.length];
    for (ShardedSource.Group group : source.groups()) {
      addGroup(planner, group, byName);
    }
    for (Layer layer : layers) {
      layer.resize(layer.rows);
      int group = Arrays.binarySearch(groupIds, layer.groupId);
      if (group >= 0) {
        rowsOfGroup[group] = Math.addExact(rowsOfGroup[group], layer.rows);
      }
    }
  }

  private static void addGroup(
      KVLayoutPlanner planner, ShardedSource.Group group, Map<String, Layer> byName) {
    int groupId = group.groupId();
    List<KVRange> ranges = planner.rangesForBlock(0, groupId);
    List<KVRange> next =
        planner.blockCount(groupId) > 1 ? planner.rangesForBlock(1, groupId) : ranges;
    int piece = 0;
    for (int i = 0; i < ranges.size(); i++) {
      KVRange range = ranges.get(i);
      Layer layer = byName.get(range.layerName());
      if (layer == null) {
        throw new IllegalStateException("no layer '" + range.layerName() + "'");
      }
      long advance = next.get(i).address() - range.address();
      long from = 0;
      while (from < range.length()) {
        Slice slice = group.slices().get(piece);
        long inSlice = range.objectOffset() + from - slice.objectOffset();
        long length = Math.min(range.length() - from, slice.length() - inSlice);
        layer.add(
            slice.producer(),
            range.address() + from,
            advance,
            slice.sourceOffset() + inSlice,
            length);
        from += length;
        if (inSlice + length == slice.length()) {
          piece++;
        }
      }
    }
  }

  /**
   * Prepares the lowering of loads from one source.
   *
   * @param planner the layout whose layers are placed
   * @param source the pieces of its objects
   * @return the lowering
   * @throws UMBPException INVALID_ARGUMENT as {@link TPShardPlanner#check}
   */
  public static TPShardLowering of(KVLayoutPlanner planner, ShardedSource source) {
    return new TPShardLowering(planner, source);
  }

  /**
   * Returns where the pieces come from.
   *
   * @return the source
   */
  public ShardedSource source() {
    return source;
  }

  /**
   * Returns how many addresses each key has in {@link #lowerLayerMajor}.
   *
   * @param source the source
   * @return the greatest number of producers of a group
   */
  public static int objectsPerKey(ShardedSource source) {
    return source.groups().stream().mapToInt(group -> group.producers().size()).max().orElseThrow();
  }

  /**
   * Appends the rows of a batch layer by layer, and ends a mark after each layer of the layout, as
   * {@link KVLayoutPlanner#lowerLayerMajor} does.
   *
   * @param batch loads accepted by {@link KVLayoutPlanner#checkBlocks}, all of groups of the source
   * @param objectAddresses slab addresses of the objects of each key, {@link #objectsPerKey} a key
   *     in the order of its group's producers; 0 in the first place to leave the key out
   * @param out receives the rows and marks; key {@code i} of the batch is key {@code i} of the rows
   */
  public void lowerLayerMajor(BlockTransferBatch batch, long[] objectAddresses, CopyBatch out) {
    makeRoom(batch, objectAddresses, out);
    BlockKeys keys = batch.keys();
    int keyCount = batch.size();
    long[] device = out.device();
    long[] host = out.host();
    long[] length = out.length();
    int[] key = out.key();
    boolean severalGroups = groupIds.length > 1;
    for (Layer layer : layers) {
      int rows = layer.rows;
      int[] producer = layer.producer;
      long[] base = layer.base;
      long[] advance = layer.advance;
      long[] offset = layer.offset;
      int start = out.count();
      int at = start;
      for (int i = 0; i < keyCount; i++) {
        int objects = i * objectsPerKey;
        if (rows == 0
            || objectAddresses[objects] == 0
            || (severalGroups && keys.groupId(i) != layer.groupId)) {
          continue;
        }
        long blockId = batch.blockId(i);
        for (int row = 0; row < rows; row++) {
          device[at + row] = base[row] + blockId * advance[row];
          host[at + row] = objectAddresses[objects + producer[row]] + offset[row];
        }
        System.arraycopy(layer.length, 0, length, at, rows);
        Arrays.fill(key, at, at + rows, i);
        at += rows;
      }
      out.commit(at - start);
      out.endMark();
    }
  }

  private void makeRoom(BlockTransferBatch batch, long[] objectAddresses, CopyBatch out) {
    if (objectAddresses.length != (long) batch.size() * objectsPerKey) {
      throw UMBPException.invalid(
          "%d object addresses do not match %d keys with %d objects",
          objectAddresses.length, batch.size(), objectsPerKey);
    }
    BlockKeys keys = batch.keys();
    long rows = 0;
    int group = 0;
    for (int i = 0; i < batch.size(); i++) {
      int groupId = keys.groupId(i);
      if (groupIds[group] != groupId) {
        group = Math.max(0, Arrays.binarySearch(groupIds, groupId));
        if (groupIds[group] != groupId) {
          throw UMBPException.invalid(
              "group %d is not in the source, its groups are %s",
              groupId, Arrays.toString(groupIds));
        }
      }
      if (objectAddresses[i * objectsPerKey] != 0) {
        rows += rowsOfGroup[group];
      }
    }
    if (rows > Integer.MAX_VALUE - 8 - out.count()) {
      throw UMBPException.invalid(
          "%d keys are %d rows, too many for one batch", batch.size(), rows);
    }
    out.ensureRoom((int) rows);
  }
}
