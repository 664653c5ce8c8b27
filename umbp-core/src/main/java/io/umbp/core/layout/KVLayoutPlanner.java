package io.umbp.core.layout;

import com.google.common.math.LongMath;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Turns blocks into the runs of bytes that have to be copied: a layout whose layers have been given
 * their places in memory. Immutable.
 *
 * <p>Each run of a block lies at {@code base + block * advance}, with a fixed length and a fixed
 * offset in the object. A page in one piece is one run; a page made of page segments is a run a
 * segment; a page made of several physical blocks (the engine's attention kernel uses smaller
 * blocks than its block manager) is a run a physical block. {@link #rangesForBlock(int, int)} gives
 * these runs. The lowerings give rows: runs that follow each other in memory and in the object are
 * one row, also those of several layers in one allocation. Either way a whole batch is lowered
 * without an object per block or run.
 */
public final class KVLayoutPlanner {
  private final KVLayoutDescriptor layout;
  private final Layer[] layers;
  private final Map<String, Integer> layerIndex;
  private final int[] groupIds;
  private final GroupRuns[] groups;

  /**
   * Where one layer's blocks lie.
   *
   * @param baseAddress address of block 0 as the copy engine issued or confirmed it, at least 0
   * @param physicalStride bytes from one physical (kernel) block to the next, above 0
   * @param blockCount number of physical blocks, above 0
   * @param allocationAddress where the memory begins that a copy may run through, the same for all
   *     layers in it
   */
  public record LayerPlacement(
      long baseAddress, long physicalStride, int blockCount, long allocationAddress) {
    /** Checks the signs. */
    public LayerPlacement {
      if (baseAddress < 0 || physicalStride <= 0 || blockCount <= 0) {
        throw UMBPException.invalid(
            "placement at 0x%x with stride %d and %d blocks; the address must be >= 0, the rest > 0",
            baseAddress, physicalStride, blockCount);
      }
    }

    /**
     * Places a layer in an allocation of its own.
     *
     * @param baseAddress address of block 0, at least 0
     * @param physicalStride bytes from one physical (kernel) block to the next, above 0
     * @param blockCount number of physical blocks, above 0
     */
    public LayerPlacement(long baseAddress, long physicalStride, int blockCount) {
      this(baseAddress, physicalStride, blockCount, baseAddress);
    }

    /**
     * Returns the place of a registered tensor.
     *
     * @param baseAddress address of block 0 that registering it gave
     * @param tensor the tensor
     * @return the place
     */
    public static LayerPlacement of(long baseAddress, KVCacheTensor tensor) {
      return new LayerPlacement(
          baseAddress,
          tensor.blockStride(),
          tensor.blockCount(),
          baseAddress - (tensor.address() - tensor.allocationBase()));
    }
  }

  /**
   * One region with its runs [firstRun, endRun), and the rows [firstRow, endRow) that begin in it.
   */
  private record Layer(
      KVRegion region,
      GroupRuns group,
      long physicalStride,
      int firstRun,
      int endRun,
      int firstRow,
      int endRow) {}

  private KVLayoutPlanner(KVLayoutDescriptor layout, List<LayerPlacement> placements) {
    this.layout = layout;
    groupIds = layout.groupIds();
    groups = new GroupRuns[groupIds.length];
    for (int i = 0; i < groups.length; i++) {
      groups[i] = new GroupRuns(groupIds[i]);
    }
    List<KVRegion> regions = layout.regions();
    layers = new Layer[regions.size()];
    layerIndex = new HashMap<>();
    for (int i = 0; i < layers.length; i++) {
      KVRegion region = regions.get(i);
      layers[i] = addLayer(region, placements.get(i));
      layerIndex.put(region.layerName(), i);
    }
    for (GroupRuns group : groups) {
      group.trim();
    }
  }

  private Layer addLayer(KVRegion region, LayerPlacement placement) {
    GroupRuns group = group(region.groupId());
    int firstRun = group.runs.count;
    int firstRow = group.rows.count;
    group.add(region, placement);
    return new Layer(
        region,
        group,
        placement.physicalStride(),
        firstRun,
        group.runs.count,
        firstRow,
        group.rows.count);
  }

  /**
   * Derives the layout of an engine's cache: one region a layer, in the order of the tensors, of
   * the slots and of the layers inside each, without the groups whose transfer is disabled.
   *
   * @param config the cache
   * @param topology the rank it belongs to
   * @return the layout
   * @throws UMBPException INVALID_ARGUMENT as {@link #tensors}, or when no group is left
   */
  public static KVLayoutDescriptor describe(KVCacheConfig config, RankTopology topology) {
    List<KVRegion> regions = new ArrayList<>();
    long objectOffset = 0;
    for (TensorPlan tensor : tensors(config, topology)) {
      for (TensorPlan.PlannedLayer layer : tensor.layers()) {
        KVRegion region = layer.region();
        if (config.groups().get(region.groupId()).transfer() == KVCacheConfig.Transfer.ENABLED) {
          regions.add(
              new KVRegion(
                  region.layerName(),
                  region.groupId(),
                  region.blockStride(),
                  region.blockBytes(),
                  objectOffset,
                  region.blockSize(),
                  region.pageSegments(),
                  region.shape()));
          objectOffset = LongMath.saturatedAdd(objectOffset, region.blockBytes());
        }
      }
    }
    return new KVLayoutDescriptor(
        regions, topology, config.replicatedGroups(topology), KVLayoutDescriptor.RANK_LOCAL);
  }

  /**
   * Works out how the tensors of an engine's cache lie in memory.
   *
   * @param config the cache
   * @param topology the rank it belongs to; its size says how many heads there are
   * @return one plan a tensor, in their order
   * @throws UMBPException INVALID_ARGUMENT when pages do not fit the block stride, heads or kernel
   *     blocks do not divide, or layers in one tensor do not go together
   */
  public static List<TensorPlan> tensors(KVCacheConfig config, RankTopology topology) {
    Map<String, TensorGeometry.Member> members = new HashMap<>();
    for (int id = 0; id < config.groups().size(); id++) {
      for (KVCacheConfig.Layer layer : config.groups().get(id).layers()) {
        members.put(layer.name(), new TensorGeometry.Member(layer, id));
      }
    }
    return config.tensors().stream()
        .map(tensor -> new TensorGeometry(tensor, topology, members).plan())
        .toList();
  }

  /**
   * Checks an engine's buffers against a layout, before any of them is registered anywhere.
   *
   * @param layout the layout
   * @param tensors a tensor for each layer
   * @throws UMBPException INVALID_ARGUMENT when layers are missing or unknown; when tensors are not
   *     all on one device or all in host memory; when strides do not fit the layout; when a tensor
   *     is too small for its last block; when pages of one group share a byte
   */
  public static void checkTensors(KVLayoutDescriptor layout, Map<String, KVCacheTensor> tensors) {
    LayoutChecks.checkTensors(layout, tensors);
  }

  /**
   * Gives the layers of a layout their places.
   *
   * @param layout the layout
   * @param placements the place of each layer, in the copy engine's addresses
   * @return the planner
   * @throws UMBPException INVALID_ARGUMENT when layers are missing or unknown, or strides do not
   *     fit the layout
   */
  public static KVLayoutPlanner place(
      KVLayoutDescriptor layout, Map<String, LayerPlacement> placements) {
    return new KVLayoutPlanner(layout, LayoutChecks.inRegionOrder(layout, placements));
  }

  /**
   * Returns the layout.
   *
   * @return the layout whose layers are placed
   */
  public KVLayoutDescriptor layout() {
    return layout;
  }

  /**
   * Returns the groups.
   *
   * @return a new array of distinct group ids, ascending
   */
  public int[] groupIds() {
    return groupIds.clone();
  }

  /**
   * Returns how many blocks of a group can be moved.
   *
   * @param groupId a group of the layout
   * @return the engine's blocks that every layer of the group has
   */
  public int blockCount(int groupId) {
    return group(groupId).blockCount;
  }

  /**
   * Returns the size of a group's objects.
   *
   * @param groupId a group of the layout
   * @return bytes
   */
  public long objectBytes(int groupId) {
    return group(groupId).runs.objectBytes;
  }

  /**
   * Returns how many copies a block takes, adjacent runs being one.
   *
   * @param groupId a group of the layout
   * @return rows of each key in a lowered batch, above 0
   */
  public int rowsPerBlock(int groupId) {
    return group(groupId).rows.count;
  }

  /**
   * Returns the mark that a layer-major batch has for a layer.
   *
   * @param layerName a layer of the layout
   * @return the layer's place in the layout's regions
   */
  public int markOf(String layerName) {
    Integer index = layerIndex.get(layerName);
    if (index == null) {
      throw UMBPException.invalid("layer '%s' is not in the layout", layerName);
    }
    return index;
  }

  /**
   * Returns the runs of a block in one group, adjacent ones apart; object offsets count from the
   * group's object.
   *
   * @param blockId block in [0, blockCount(groupId))
   * @param groupId a group of the layout
   * @return new list in object order
   */
  public List<KVRange> rangesForBlock(int blockId, int groupId) {
    GroupRuns group = group(groupId);
    checkBlock(blockId, group);
    List<KVRange> ranges = new ArrayList<>(group.runs.count);
    for (Layer layer : layers) {
      if (layer.group == group) {
        addRanges(layer, blockId, 0, ranges);
      }
    }
    return ranges;
  }

  /**
   * Returns the runs of a block in all groups; object offsets are those of the regions.
   *
   * @param blockId a block that every group has
   * @return new list in region order
   */
  public List<KVRange> rangesForBlock(int blockId) {
    List<KVRange> ranges = new ArrayList<>();
    for (Layer layer : layers) {
      checkBlock(blockId, layer.group);
      long shift = layer.region.objectOffset() - layer.group.runs.offset[layer.firstRun];
      addRanges(layer, blockId, shift, ranges);
    }
    return ranges;
  }

  private static void addRanges(Layer layer, int blockId, long offsetShift, List<KVRange> ranges) {
    RunColumns runs = layer.group.runs;
    for (int run = layer.firstRun; run < layer.endRun; run++) {
      ranges.add(
          new KVRange(
              layer.region.layerName(),
              layer.group.groupId,
              blockId,
              runs.base[run] + blockId * runs.advance[run],
              layer.physicalStride,
              runs.length[run],
              runs.offset[run] + offsetShift));
    }
  }

  /**
   * Checks that a batch names blocks of this layout only; to be called before anything is reserved
   * for it.
   *
   * @param batch the transfers
   * @throws UMBPException INVALID_ARGUMENT when a group is unknown or a block is outside its group
   */
  public void checkBlocks(BlockTransferBatch batch) {
    BlockKeys keys = batch.keys();
    GroupRuns group = groups[0];
    for (int i = 0; i < batch.size(); i++) {
      group = group(keys.groupId(i), group);
      checkBlock(batch.blockId(i), group);
    }
  }

  /**
   * Appends the rows of a batch block by block: all rows of one key together, in object order.
   *
   * @param batch the transfers, accepted by {@link #checkBlocks}
   * @param objectAddresses slab address of each key's object, 0 to leave the key out
   * @param out receives the rows; key {@code i} of the batch is key {@code i} of the rows
   */
  public void lower(BlockTransferBatch batch, long[] objectAddresses, CopyBatch out) {
    makeRoom(batch, objectAddresses, out);
    BlockKeys keys = batch.keys();
    long[] device = out.device();
    long[] host = out.host();
    long[] length = out.length();
    int[] key = out.key();
    int start = out.count();
    int at = start;
    GroupRuns group = groups[0];
    for (int i = 0; i < objectAddresses.length; i++) {
      long object = objectAddresses[i];
      if (object == 0) {
        continue;
      }
      group = group(keys.groupId(i), group);
      int blockId = batch.blockId(i);
      RunColumns rows = group.rows;
      int count = rows.count;
      for (int row = 0; row < count; row++) {
        device[at + row] = rows.base[row] + blockId * rows.advance[row];
        host[at + row] = object + rows.offset[row];
      }
      System.arraycopy(rows.length, 0, length, at, count);
      Arrays.fill(key, at, at + count, i);
      at += count;
    }
    out.commit(at - start);
  }

  /**
   * Appends the same rows as {@link #lower} layer by layer, and ends a mark after each layer of the
   * layout. A row with bytes of several layers stands at the first of them, so that mark {@link
   * #markOf} stands for all rows that have a byte of that layer, and of those before it.
   *
   * @param batch the transfers, accepted by {@link #checkBlocks}
   * @param objectAddresses slab address of each key's object, 0 to leave the key out
   * @param out receives the rows and marks
   */
  public void lowerLayerMajor(BlockTransferBatch batch, long[] objectAddresses, CopyBatch out) {
    makeRoom(batch, objectAddresses, out);
    BlockKeys keys = batch.keys();
    long[] device = out.device();
    long[] host = out.host();
    long[] length = out.length();
    int[] key = out.key();
    boolean severalGroups = groups.length > 1;
    for (Layer layer : layers) {
      if (layer.firstRow == layer.endRow) {
        out.endMark();
        continue;
      }
      GroupRuns group = layer.group;
      RunColumns rows = group.rows;
      int start = out.count();
      int at = start;
      for (int i = 0; i < objectAddresses.length; i++) {
        long object = objectAddresses[i];
        if (object == 0 || (severalGroups && keys.groupId(i) != group.groupId)) {
          continue;
        }
        int blockId = batch.blockId(i);
        for (int row = layer.firstRow; row < layer.endRow; row++) {
          device[at] = rows.base[row] + blockId * rows.advance[row];
          host[at] = object + rows.offset[row];
          length[at] = rows.length[row];
          key[at] = i;
          at++;
        }
      }
      out.commit(at - start);
      out.endMark();
    }
  }

  private void makeRoom(BlockTransferBatch batch, long[] objectAddresses, CopyBatch out) {
    if (objectAddresses.length != batch.size()) {
      throw UMBPException.invalid(
          "%d object addresses do not match %d keys", objectAddresses.length, batch.size());
    }
    BlockKeys keys = batch.keys();
    long rows = 0;
    GroupRuns group = groups[0];
    for (int i = 0; i < objectAddresses.length; i++) {
      if (objectAddresses[i] != 0) {
        group = group(keys.groupId(i), group);
        rows += group.rows.count;
      }
    }
    if (rows > Integer.MAX_VALUE - 8 - out.count()) {
      throw UMBPException.invalid(
          "%d keys are %d rows, too many for one batch", batch.size(), rows);
    }
    out.ensureRoom((int) rows);
  }

  private static void checkBlock(int blockId, GroupRuns group) {
    if (blockId < 0 || blockId >= group.blockCount) {
      throw UMBPException.invalid(
          "block %d is outside [0, %d) of group %d", blockId, group.blockCount, group.groupId);
    }
  }

  /** As {@link #group(int)}, with a guess that spares the search in runs of one group. */
  private GroupRuns group(int groupId, GroupRuns guess) {
    return guess.groupId == groupId ? guess : group(groupId);
  }

  private GroupRuns group(int groupId) {
    int index = Arrays.binarySearch(groupIds, groupId);
    if (index < 0) {
      throw UMBPException.invalid(
          "group %d is not in the layout, its groups are %s", groupId, Arrays.toString(groupIds));
    }
    return groups[index];
  }
}
