package io.umbp.core.layout;

import io.umbp.api.KVPageShape;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.TensorPlan.PlannedLayer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * The strides of one tensor on one rank: works the places of all pages out from the order of its
 * axes.
 *
 * <p>The axis B counts kernel blocks; a block is some of them in a row. What lies inside both L and
 * B is a layer's piece of a kernel block: pieces of different layers may differ in size, so the
 * axis L has offsets and no stride. Where B is inside L, all pieces of a tensor get the stride of
 * the largest. An axis other than L outside of B makes planes, each with all blocks.
 */
final class TensorGeometry {
  /** Greatest number of runs of one page. */
  static final int MAX_PAGE_SEGMENTS = 1 << 16;

  private final Tensor tensor;
  private final List<KVCacheLayout.Axis> axes;
  private final List<List<Page>> slots = new ArrayList<>();

  /** Bytes of the pieces of all layers next to each other. */
  private final long layersBytes;

  /** Bytes from one kernel block to the next. */
  private final long kernelStride;

  /** Bytes of a plane: all blocks. */
  private final long planeBytes;

  /** A layer and the group that it is in. */
  record Member(Layer layer, int groupId) {}

  /** One layer's page, and its bytes inside both L and B. */
  private record Page(Layer layer, int groupId, KVPageShape shape, long pieceBytes) {
    String name() {
      return layer.name();
    }
  }

  TensorGeometry(Tensor tensor, RankTopology topology, Map<String, Member> members) {
    this.tensor = tensor;
    axes = tensor.layout().axes(tensor.split());
    for (Slot slot : tensor.slots()) {
      List<Page> pages = new ArrayList<>();
      for (String name : slot.layers()) {
        pages.add(page(Objects.requireNonNull(members.get(name)), topology));
      }
      slots.add(pages);
    }
    layersBytes = layersBytes();
    kernelStride = kernelStride();
    String first = firstPage().name();
    planeBytes =
        times(first, times(first, kernelStride, tensor.kernelBlocks()), tensor.blockCount());
  }

  private Page firstPage() {
    return slots.get(0).get(0);
  }

  private Page page(Member member, RankTopology topology) {
    Layer layer = member.layer;
    if (layer.spec() instanceof KVCacheSpec.State state) {
      checkState(layer.name());
      long piece = -Math.floorDiv(-state.pageBytes(), (long) tensor.kernelBlocks());
      return new Page(
          layer, member.groupId, KVPageShape.opaque(layer.name(), state.pageBytes()), piece);
    }
    KVPageShape shape = shape(layer.name(), (KVCacheSpec.Attention) layer.spec(), topology);
    long piece = shape.contentBytes() * size(shape, innerOfLayerAndBlock() + 1, axes.size());
    return new Page(layer, member.groupId, shape, piece);
  }

  /** How many elements of a page the axes [from, to) have. */
  private long size(KVPageShape shape, int from, int to) {
    long size = 1;
    for (KVCacheLayout.Axis axis : axes.subList(from, to)) {
      size *= size(shape, axis);
    }
    return size;
  }

  private static int size(KVPageShape shape, KVCacheLayout.Axis axis) {
    return switch (axis) {
      case LAYER -> 1;
      case BLOCK -> shape.kernelBlocks();
      case KV -> shape.size(KVPageShape.Axis.KV);
      case HEAD -> shape.heads();
      case TOKEN -> shape.size(KVPageShape.Axis.TOKEN);
    };
  }

  private int innerOfLayerAndBlock() {
    return Math.max(axes.indexOf(KVCacheLayout.Axis.LAYER), axes.indexOf(KVCacheLayout.Axis.BLOCK));
  }

  /** A state has neither heads nor tokens that could lie apart: its block must be in one piece. */
  private void checkState(String layer) {
    boolean isBlockWhole = tensor.layout().isLayerFirst() || tensor.kernelBlocks() == 1;
    if (innerOfLayerAndBlock() > 1 || !isBlockWhole) {
      throw UMBPException.invalid(
          "layer '%s': a state is one run of bytes; layout %s with split %s and %d kernel blocks"
              + " cuts a block up",
          layer, tensor.layout(), tensor.split(), tensor.kernelBlocks());
    }
  }

  private KVPageShape shape(String layer, KVCacheSpec.Attention spec, RankTopology topology) {
    int kernelBlocks = tensor.kernelBlocks();
    if (spec.blockSize() % kernelBlocks != 0) {
      throw UMBPException.invalid(
          "layer '%s': %d kernel blocks do not divide the block size %d",
          layer, kernelBlocks, spec.blockSize());
    }
    long keyBytes = (long) spec.keySize() * spec.elementType().sizeBytes();
    long valueBytes = (long) spec.valueSize() * spec.elementType().sizeBytes();
    boolean isSeparate = tensor.split() != KVSplit.FUSED && valueBytes > 0;
    if (isSeparate && keyBytes != valueBytes) {
      throw UMBPException.invalid(
          "layer '%s': keys of %d and values of %d bytes have no common stride; declare them as two"
              + " layers, or as fused",
          layer, keyBytes, valueBytes);
    }
    return new KVPageShape(
        shapeAxes(isSeparate),
        spec.kvHeads(),
        headsOnRank(layer, spec, topology),
        spec.blockSize(),
        kernelBlocks,
        keyBytes,
        valueBytes);
  }

  /** How many KV heads of an attention layer a rank has. */
  static int headsOnRank(String layer, KVCacheSpec.Attention spec, RankTopology topology) {
    int heads = spec.kvHeads();
    int ranks = topology.tpSize();
    if (spec.sharding() == TPSharding.REPLICATED) {
      return heads;
    }
    if (heads % ranks != 0 && ranks % heads != 0) {
      throw UMBPException.invalid(
          "layer '%s': tp size %d and %d KV heads: one must divide the other", layer, ranks, heads);
    }
    return Math.max(1, heads / ranks);
  }

  /** A page has the axes of the tensor in the same order, B being its kernel blocks. */
  private List<KVPageShape.Axis> shapeAxes(boolean isSeparate) {
    List<KVPageShape.Axis> ofPage = new ArrayList<>();
    for (KVCacheLayout.Axis axis : axes) {
      switch (axis) {
        case LAYER -> {}
        case BLOCK -> {
          if (tensor.kernelBlocks() > 1) {
            ofPage.add(KVPageShape.Axis.KERNEL_BLOCK);
          }
        }
        case KV -> {
          if (isSeparate) {
            ofPage.add(KVPageShape.Axis.KV);
          }
        }
        case HEAD -> ofPage.add(KVPageShape.Axis.HEAD);
        case TOKEN -> ofPage.add(KVPageShape.Axis.TOKEN);
      }
    }
    return ofPage;
  }

  private long kernelStride() {
    long packed = packedKernelStride();
    if (tensor.blockStride() == Tensor.PACKED) {
      return packed;
    }
    long given = tensor.blockStride() / tensor.kernelBlocks();
    if (given < packed) {
      String first = firstPage().name();
      throw UMBPException.invalid(
          "layer '%s': the block stride %d is less than the %d bytes of a block",
          first, tensor.blockStride(), times(first, packed, tensor.kernelBlocks()));
    }
    return given;
  }

  private long packedKernelStride() {
    if (tensor.layout().isLayerFirst()) {
      return slots.stream().mapToLong(TensorGeometry::pieceBytes).max().orElseThrow();
    }
    checkHeadsOutsideOfLayers();
    Page first = firstPage();
    int inBlock = axes.indexOf(KVCacheLayout.Axis.BLOCK) + 1;
    return times(first.name(), layersBytes, size(first.shape, inBlock, innerOfLayerAndBlock()));
  }

  private void checkHeadsOutsideOfLayers() {
    if (tensor.layout() != KVCacheLayout.BHLNC) {
      return;
    }
    Page first = firstPage();
    for (List<Page> slot : slots) {
      for (Page page : slot) {
        if (page.shape.heads() != first.shape.heads()) {
          throw UMBPException.invalid(
              "layer '%s' has %d heads, layer '%s' has %d; layers inside of heads must have the same",
              page.name(), page.shape.heads(), first.name(), first.shape.heads());
        }
      }
    }
  }

  private long layersBytes() {
    long sum = 0;
    for (List<Page> slot : slots) {
      sum = plus(slot.get(0).name(), sum, pieceBytes(slot));
    }
    return sum;
  }

  private static long pieceBytes(List<Page> slot) {
    return slot.stream().mapToLong(Page::pieceBytes).max().orElseThrow();
  }

  private long planesBytes(List<Page> pages) {
    int block = axes.indexOf(KVCacheLayout.Axis.BLOCK);
    long planes = pages.stream().mapToLong(page -> size(page.shape, 0, block)).max().orElseThrow();
    return times(pages.get(0).name(), planeBytes, planes);
  }

  /** Works all places out. */
  TensorPlan plan() {
    boolean isLayerFirst = tensor.layout().isLayerFirst();
    List<Page> pages = new ArrayList<>();
    List<Long> offsets = new ArrayList<>();
    long offset = 0;
    for (List<Page> slot : slots) {
      for (Page page : slot) {
        pages.add(page);
        offsets.add(offset);
      }
      long slotBytes = isLayerFirst ? planesBytes(slot) : pieceBytes(slot);
      offset = plus(slot.get(0).name(), offset, slotBytes);
    }
    long sizeBytes = isLayerFirst ? offset : planesBytes(pages);
    List<PlannedLayer> planned = new ArrayList<>();
    for (int i = 0; i < pages.size(); i++) {
      planned.add(new PlannedLayer(region(pages.get(i)), offsets.get(i)));
    }
    return new TensorPlan(sizeBytes, tensor.blockCount(), planned);
  }

  private KVRegion region(Page page) {
    long blockStride = kernelStride * tensor.kernelBlocks();
    List<PageSegment> runs = runs(page);
    boolean isOneRun = runs.size() == 1 && runs.get(0).length() <= blockStride;
    return new KVRegion(
        page.name(),
        page.groupId,
        blockStride,
        page.shape.pageBytes(),
        0,
        page.layer.spec().blockSize(),
        isOneRun ? List.of() : runs,
        page.shape);
  }

  /** The runs of a page in the order of the object, which is that of their addresses. */
  private List<PageSegment> runs(Page page) {
    List<PageSegment> runs = List.of(new PageSegment(0, page.shape.contentBytes()));
    long inside = page.shape.contentBytes();
    for (int i = axes.size() - 1; i >= 0; i--) {
      KVCacheLayout.Axis axis = axes.get(i);
      switch (axis) {
        case LAYER -> inside = layersBytes;
        case BLOCK -> {
          runs = repeat(page.name(), runs, size(page.shape, axis), kernelStride);
          inside = planeBytes;
        }
        default -> {
          runs = repeat(page.name(), runs, size(page.shape, axis), inside);
          inside *= size(page.shape, axis);
        }
      }
    }
    return runs;
  }

  private static List<PageSegment> repeat(
      String layer, List<PageSegment> runs, int times, long stride) {
    PageSegment first = runs.get(0);
    if (runs.size() == 1 && (times == 1 || first.length() == stride)) {
      return List.of(new PageSegment(0, first.length() * times));
    }
    long count = (long) runs.size() * times;
    if (count > MAX_PAGE_SEGMENTS) {
      throw UMBPException.invalid(
          "layer '%s': a page of %d runs, the limit is %d", layer, count, MAX_PAGE_SEGMENTS);
    }
    List<PageSegment> repeated = new ArrayList<>((int) count);
    for (int i = 0; i < times; i++) {
      for (PageSegment run : runs) {
        repeated.add(new PageSegment(run.offset() + i * stride, run.length()));
      }
    }
    return repeated;
  }

  private static long plus(String layer, long a, long b) {
    if (b > Long.MAX_VALUE - a) {
      throw tooLarge(layer);
    }
    return a + b;
  }

  private static long times(String layer, long a, long b) {
    if (Math.multiplyHigh(a, b) != 0 || a * b < 0) {
      throw tooLarge(layer);
    }
    return a * b;
  }

  private static UMBPException tooLarge(String layer) {
    return UMBPException.invalid(
        "layer '%s': the tensor has more than %d bytes", layer, Long.MAX_VALUE);
  }
}
