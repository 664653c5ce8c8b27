package io.umbp.core.layout;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * Works out which bytes of the objects that an engine of another tensor-parallel (TP) size stored
 * make the objects of this rank. Stateless.
 *
 * <p>The two engines keep the same layers in the same pages but for the number of heads in them.
 * Where the head is the outermost axis of a page, all heads that come from one producer are one
 * piece; where it is inside of the token, they are one piece a token. Pieces that follow each other
 * on both sides are one.
 *
 * <p>The producer's keys say whether a block can be put together: a scheduler asks for {@code new
 * BlockIdentityCodec(producerNamespace, producer).allRankKeys(...)} through a handle made for the
 * producer's namespace, topology and layout, and the block is there when all of them are.
 */
public final class TPShardPlanner {
  /** Greatest number of pieces of one page. */
  static final int MAX_PIECES = 1 << 16;

  private TPShardPlanner() {}

  /** One engine's page of a layer, and where it is in the engine's object. */
  private record Page(KVRegion region, long objectOffset) {}

  /**
   * Plans the objects of one rank.
   *
   * @param producerNamespace the namespace of the engine that stored
   * @param producer the layout of any one of its ranks in this rank's pipeline stage
   * @param consumer this rank's layout
   * @return the pieces of every group
   * @throws UMBPException INVALID_ARGUMENT when the layouts differ in more than the TP size: other
   *     layers, groups, block sizes, page axes, element sizes, pipeline stages or formats; when one
   *     has context parallelism; when a page of unknown inner order would have to be split; when a
   *     page would be more than 65,536 pieces
   */
  public static ShardedSource plan(
      UMBPNamespace producerNamespace, KVLayoutDescriptor producer, KVLayoutDescriptor consumer) {
    checkEngines(producer, consumer);
    Map<String, Page> pages = pages(producer);
    TreeSet<String> left = new TreeSet<>(pages.keySet());
    for (KVRegion region : consumer.regions()) {
      if (!left.remove(region.layerName())) {
        throw UMBPException.invalid(
            "layer '%s' is not in the producer's layout", region.layerName());
      }
    }
    if (!left.isEmpty()) {
      throw UMBPException.invalid("layer '%s' of the producer is not in this layout", left.first());
    }
    List<ShardedSource.Group> groups = new ArrayList<>();
    for (int groupId : consumer.groupIds()) {
      groups.add(new GroupPlan(groupId, producer, consumer).plan(pages));
    }
    return new ShardedSource(producerNamespace, groups);
  }

  /**
   * Refuses a source whose pieces do not make objects of a layout.
   *
   * @param source the source
   * @param consumer the layout
   * @throws UMBPException INVALID_ARGUMENT when a group is not in the layout, or its pieces make
   *     objects of another size
   */
  public static void check(ShardedSource source, KVLayoutDescriptor consumer) {
    for (ShardedSource.Group group : source.groups()) {
      long needed = consumer.objectBytes(group.groupId());
      long covered = group.objectBytes();
      if (covered < needed) {
        throw UMBPException.invalid(
            "group %d: the pieces cover %d of the %d bytes of an object, %d are uncovered",
            group.groupId(), covered, needed, needed - covered);
      }
      if (covered > needed) {
        throw UMBPException.invalid(
            "group %d: the pieces are %d bytes, an object of this layout has %d",
            group.groupId(), covered, needed);
      }
    }
  }

  private static void checkEngines(KVLayoutDescriptor producer, KVLayoutDescriptor consumer) {
    RankTopology from = producer.topology();
    RankTopology to = consumer.topology();
    checkSame("the layouts", "format", producer.format(), consumer.format());
    checkSame("the engines", "pp size", from.ppSize(), to.ppSize());
    checkSame("the engines", "pp rank", from.ppRank(), to.ppRank());
    for (RankTopology topology : List.of(from, to)) {
      if (topology.pcpSize() > 1 || topology.dcpSize() > 1) {
        throw UMBPException.invalid(
            "objects of pcp size %d and dcp size %d can't be read across tp sizes, both must be 1",
            topology.pcpSize(), topology.dcpSize());
      }
    }
  }

  private static void checkSame(String what, String field, Object producer, Object consumer) {
    if (!producer.equals(consumer)) {
      throw UMBPException.invalid(
          "%s: %s is %s where it was stored, %s here", what, field, producer, consumer);
    }
  }

  private static Map<String, Page> pages(KVLayoutDescriptor layout) {
    Map<String, Page> pages = new HashMap<>();
    for (int groupId : layout.groupIds()) {
      // Refuses pages whose sum is no number, so that the running sum is one.
      long objectBytes = layout.objectBytes(groupId);
      long left = objectBytes;
      for (KVRegion region : layout.regions()) {
        if (region.groupId() == groupId) {
          pages.put(region.layerName(), new Page(region, objectBytes - left));
          left -= region.blockBytes();
        }
      }
    }
    return pages;
  }

  /** The pieces of one group's objects, as they are found. */
  private static final class GroupPlan {
    private final int groupId;
    private final KVLayoutDescriptor producer;
    private final KVLayoutDescriptor consumer;
    private final int fromSize;
    private final int toSize;
    private final int toRank;
    private final boolean isFromReplicated;
    private final boolean isToReplicated;
    private final List<RankNamespace> producers = new ArrayList<>();
    private final List<Slice> slices = new ArrayList<>();
    private @Nullable Slice open;
    private long covered;

    GroupPlan(int groupId, KVLayoutDescriptor producer, KVLayoutDescriptor consumer) {
      this.groupId = groupId;
      this.producer = producer;
      this.consumer = consumer;
      fromSize = producer.topology().tpSize();
      toSize = consumer.topology().tpSize();
      toRank = consumer.topology().tpRank();
      isFromReplicated = producer.replicatedGroups().contains(groupId);
      isToReplicated = consumer.replicatedGroups().contains(groupId);
    }

    ShardedSource.Group plan(Map<String, Page> pages) {
      for (KVRegion region : consumer.regions()) {
        if (region.groupId() == groupId) {
          Page page = pages.get(region.layerName());
          if (page != null) {
            addPage(page, region);
          }
        }
      }
      if (open != null) {
        slices.add(open);
      }
      return new ShardedSource.Group(groupId, producers, producer.objectBytes(groupId), slices);
    }

    private void addPage(Page page, KVRegion to) {
      KVRegion from = page.region;
      String layer = "layer '" + to.layerName() + "'";
      KVPageShape source = from.shape();
      KVPageShape target = to.shape();
      checkSame(layer, "group", from.groupId(), to.groupId());
      checkSame(layer, "block size", from.blockSize(), to.blockSize());
      checkSame(layer, "order of page axes", source.axes(), target.axes());
      checkSame(layer, "tokens in a page", source.tokens(), target.tokens());
      checkSame(layer, "kernel blocks", source.kernelBlocks(), target.kernelBlocks());
      checkSame(layer, "key bytes", source.keyBytes(), target.keyBytes());
      checkSame(layer, "value bytes", source.valueBytes(), target.valueBytes());
      checkSame(layer, "number of KV heads", source.totalHeads(), target.totalHeads());
      if (target.equals(KVPageShape.opaque(to.layerName(), to.blockBytes()))) {
        checkWholePage(layer);
        add(rankOfWholePage(), page.objectOffset, to.blockBytes());
        return;
      }
      boolean isFromWhole = hasAllHeads(layer, source, fromSize, isFromReplicated);
      boolean isToWhole = hasAllHeads(layer, target, toSize, isToReplicated);
      TPShardMapping mapping =
          TPShardMapping.of(
              target.totalHeads(),
              isFromWhole ? 1 : fromSize,
              isToWhole ? 1 : toSize,
              isToWhole ? 0 : toRank);
      addHeads(layer, page, target, mapping, isFromWhole);
    }

    /** Adds the heads of one page, run by run, as often as the axes outside of the head repeat. */
    private void addHeads(
        String layer, Page page, KVPageShape target, TPShardMapping mapping, boolean isFromWhole) {
      List<TPShardMapping.HeadSlice> runs = mapping.slices();
      int sourceHeads = page.region.shape().heads();
      if (runs.size() == 1 && sourceHeads == target.heads()) {
        add(rank(runs.get(0), isFromWhole), page.objectOffset, target.pageBytes());
        return;
      }
      List<Axis> axes = target.axes();
      long headBytes = target.contentBytes();
      for (Axis inside : axes.subList(axes.indexOf(Axis.HEAD) + 1, axes.size())) {
        headBytes *= target.size(inside);
      }
      long repeats = target.pageBytes() / (headBytes * target.heads());
      if (repeats > MAX_PIECES / runs.size()) {
        throw UMBPException.invalid(
            "%s: the page is %d times %d pieces, the limit is %d",
            layer, repeats, runs.size(), MAX_PIECES);
      }
      for (long repeat = 0; repeat < repeats; repeat++) {
        for (TPShardMapping.HeadSlice run : runs) {
          long head = repeat * sourceHeads + run.sourceHead();
          add(
              rank(run, isFromWhole),
              page.objectOffset + head * headBytes,
              run.numHeads() * headBytes);
        }
      }
    }

    /** Adds a piece, to the one before if it goes on there. */
    private void add(RankNamespace rank, long sourceOffset, long length) {
      int index = producers.indexOf(rank);
      if (index < 0) {
        index = producers.size();
        producers.add(rank);
      }
      Slice last = open;
      if (last == null) {
        open = new Slice(index, sourceOffset, covered, length);
      } else if (last.producer() == index && last.sourceOffset() + last.length() == sourceOffset) {
        open = new Slice(index, last.sourceOffset(), last.objectOffset(), last.length() + length);
      } else {
        slices.add(last);
        open = new Slice(index, sourceOffset, covered, length);
      }
      covered += length;
    }

    private RankNamespace rank(TPShardMapping.HeadSlice run, boolean isFromWhole) {
      return isFromWhole ? rankOfWholePage() : rank(run.producerRank());
    }

    private RankNamespace rank(int tpRank) {
      return new RankNamespace(tpRank, 0, 0, producer.topology().ppRank());
    }

    /** One of the producers that all have the whole page; between equal sizes this rank's own. */
    private RankNamespace rankOfWholePage() {
      return isFromReplicated
          ? producer.topology().localNamespace().replicated()
          : rank((int) ((long) toRank * fromSize / toSize));
    }

    private static boolean hasAllHeads(
        String layer, KVPageShape shape, int tpSize, boolean isReplicated) {
      int heads = shape.heads();
      int total = shape.totalHeads();
      if (heads == total) {
        return true;
      }
      boolean isShare =
          (total % tpSize == 0 || tpSize % total == 0) && heads == Math.max(1, total / tpSize);
      if (isReplicated || !isShare || total > TPShardMapping.MAX_KV_HEADS) {
        throw UMBPException.invalid(
            "%s: %d of %d KV heads in a %s page with tp size %d",
            layer, heads, total, isReplicated ? "replicated" : "sharded", tpSize);
      }
      return false;
    }

    /** Checks that a page of unknown inner order needs no splitting. */
    private void checkWholePage(String layer) {
      boolean isSame = fromSize == toSize && isFromReplicated == isToReplicated;
      boolean isWhole = (isFromReplicated || fromSize == 1) && (isToReplicated || toSize == 1);
      if (!isSame && !isWhole) {
        throw UMBPException.invalid(
            "%s: a page of unknown inner order can't be read across tp sizes %d and %d",
            layer, fromSize, toSize);
      }
    }
  }
}
