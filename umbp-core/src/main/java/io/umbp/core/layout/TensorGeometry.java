package io.umbp.core.layout;

import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
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
 * <p>A block is some kernel blocks in a row, each of which holds, in the order of the layout, the
 * axes inside of B. An object has a page's bytes in the same order, without the axes L and B.
 */
final class TensorGeometry {
  /** Greatest number of runs of one page. */
  static final int MAX_PAGE_SEGMENTS = 1 << 16;

  private final Tensor tensor;
  private final int planes;
  private final long kernelStride;
  private final List<List<Page>> pages = new ArrayList<>();

  /** A layer and the group that it is in. */
  record Member(Layer layer, int groupId) {}

  /** One layer's page: its shape, and the bytes that it takes next to each other at one place. */
  private record Page(Layer layer, int groupId, KVPageShape shape, long pieceBytes) {}

  TensorGeometry(Tensor tensor, RankTopology topology, Map<String, Member> members) {
    this.tensor = tensor;
    boolean hasPlanes = false;
    for (Slot slot : tensor.slots()) {
      List<Page> ofSlot = new ArrayList<>();
      for (String name : slot.layers()) {
        Page page = page(Objects.requireNonNull(members.get(name)), topology);
        hasPlanes |= tensor.split() == KVSplit.PLANES && page.shape.size(Axis.KV) == 2;
        ofSlot.add(page);
      }
      pages.add(ofSlot);
    }
    planes = hasPlanes ? 2 : 1;
    long packed = packedKernelStride();
    String first = tensor.slots().get(0).layers().get(0);
    long given = tensor.blockStride() / tensor.kernelBlocks();
    if (tensor.blockStride() != Tensor.PACKED && given < packed) {
      throw UMBPException.invalid(
          "layer '%s': the block stride %d is less than the %d bytes of a block",
          first, tensor.blockStride(), exact(first, packed, tensor.kernelBlocks()));
    }
    kernelStride = tensor.blockStride() == Tensor.PACKED ? packed : given;
  }

  private Page page(Member member, RankTopology topology) {
    Layer layer = member.layer;
    int kernelBlocks = tensor.kernelBlocks();
    if (layer.spec() instanceof KVCacheSpec.State state) {
      boolean isInOnePiece =
          isPageOneRun()
              && tensor.split() != KVSplit.PLANES
              && (isLayerFirst() || kernelBlocks == 1);
      if (!isInOnePiece) {
        throw UMBPException.invalid(
            "layer '%s': a state is one run of bytes; layout %s with split %s and %d kernel blocks"
                + " cuts a block up",
            layer.name(), tensor.layout(), tensor.split(), kernelBlocks);
      }
      long piece = -Math.floorDiv(-state.pageBytes(), (long) kernelBlocks);
      return new Page(
          layer, member.groupId, KVPageShape.opaque(layer.name(), state.pageBytes()), piece);
    }
    KVCacheSpec.Attention spec = (KVCacheSpec.Attention) layer.spec();
    if (spec.blockSize() % kernelBlocks != 0) {
      throw UMBPException.invalid(
          "layer '%s': %d kernel blocks do not divide the block size %d",
          layer.name(), kernelBlocks, spec.blockSize());
    }
    long keyBytes = (long) spec.keySize() * spec.elementType().sizeBytes();
    long valueBytes = (long) spec.valueSize() * spec.elementType().sizeBytes();
    boolean isSeparate = tensor.split() != KVSplit.FUSED && valueBytes > 0;
    if (isSeparate && keyBytes != valueBytes) {
      throw UMBPException.invalid(
          "layer '%s': keys of %d and values of %d bytes have no common stride; declare them as two"
              + " layers, or as fused",
          layer.name(), keyBytes, valueBytes);
    }
    KVPageShape shape =
        new KVPageShape(
            axes(isSeparate),
            spec.kvHeads(),
            headsOnRank(layer.name(), spec, topology),
            spec.blockSize(),
            kernelBlocks,
            keyBytes,
            valueBytes);
    long outside = (isPageOneRun() ? 1L : shape.heads()) * kernelBlocks;
    if (isSeparate && tensor.split() == KVSplit.PLANES) {
      outside *= 2;
    }
    return new Page(layer, member.groupId, shape, shape.pageBytes() / outside);
  }

  private static int headsOnRank(String layer, KVCacheSpec.Attention spec, RankTopology topology) {
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

  private boolean isPageOneRun() {
    return tensor.layout() != KVCacheLayout.LHBNC && tensor.layout() != KVCacheLayout.BHLNC;
  }

  private boolean isLayerFirst() {
    return switch (tensor.layout()) {
      case LBHNC, LBNHC, LHBNC -> true;
      case BLHNC, BLNHC, BHLNC -> false;
    };
  }

  /** The axes of a page outermost first: those of the layout without L and B. */
  private List<Axis> axes(boolean isSeparate) {
    List<Axis> axes = new ArrayList<>();
    if (isSeparate && tensor.split() == KVSplit.PLANES) {
      axes.add(Axis.KV);
    }
    if (tensor.layout() == KVCacheLayout.LHBNC) {
      axes.add(Axis.HEAD);
    }
    if (tensor.kernelBlocks() > 1) {
      axes.add(Axis.KERNEL_BLOCK);
    }
    if (tensor.layout() == KVCacheLayout.BHLNC) {
      axes.add(Axis.HEAD);
    }
    if (isSeparate && tensor.split() == KVSplit.BLOCKS) {
      axes.add(Axis.KV);
    }
    switch (tensor.layout()) {
      case LBHNC, BLHNC -> axes.addAll(List.of(Axis.HEAD, Axis.TOKEN));
      case LBNHC, BLNHC -> axes.addAll(List.of(Axis.TOKEN, Axis.HEAD));
      case LHBNC, BHLNC -> axes.add(Axis.TOKEN);
    }
    return axes;
  }

  /** The bytes of one kernel block at one place of each outer axis. */
  private long packedKernelStride() {
    Page first = pages.get(0).get(0);
    long sum = 0;
    long greatest = 0;
    for (List<Page> slot : pages) {
      long piece = pieceBytes(slot);
      sum = plus(slot, sum, piece);
      greatest = Math.max(greatest, piece);
      for (Page page : slot) {
        if (tensor.layout() == KVCacheLayout.BHLNC
            && (page.pieceBytes != first.pieceBytes || page.shape.heads() != first.shape.heads())) {
          throw UMBPException.invalid(
              "layer '%s': %d heads of %d bytes, but layer '%s' has %d of %d; layers inside of"
                  + " heads must be alike",
              page.layer.name(),
              page.shape.heads(),
              page.pieceBytes,
              first.layer.name(),
              first.shape.heads(),
              first.pieceBytes);
        }
      }
    }
    return switch (tensor.layout()) {
      case LBHNC, LBNHC, LHBNC -> greatest;
      case BLHNC, BLNHC -> sum;
      case BHLNC -> exact(first.layer.name(), sum, first.shape.heads());
    };
  }

  private static long pieceBytes(List<Page> slot) {
    return slot.stream().mapToLong(Page::pieceBytes).max().orElseThrow();
  }

  /** Works all places out. */
  TensorPlan plan() {
    List<PlannedLayer> planned = new ArrayList<>();
    String first = pages.get(0).get(0).layer.name();
    long blockStride = exact(first, kernelStride, tensor.kernelBlocks());
    long blocksBytes = exact(first, blockStride, tensor.blockCount());
    long offset = 0;
    for (List<Page> slot : pages) {
      long heads = 1;
      for (Page page : slot) {
        planned.add(new PlannedLayer(region(page, blockStride, blocksBytes), offset));
        heads = Math.max(heads, page.shape.heads());
      }
      long slotBytes = pieceBytes(slot);
      if (isLayerFirst()) {
        String name = slot.get(0).layer.name();
        slotBytes = exact(name, blocksBytes, planes);
        if (tensor.layout() == KVCacheLayout.LHBNC) {
          slotBytes = exact(name, slotBytes, heads);
        }
      }
      offset = plus(slot, offset, slotBytes);
    }
    long sizeBytes = isLayerFirst() ? offset : exact(first, blocksBytes, planes);
    return new TensorPlan(sizeBytes, tensor.blockCount(), planned);
  }

  private KVRegion region(Page page, long blockStride, long blocksBytes) {
    KVPageShape shape = page.shape;
    String name = page.layer.name();
    List<PageSegment> runs = runs(name, shape, stridesOutermostFirst(page, blocksBytes));
    PageSegment first = runs.get(0);
    boolean isOneRun = runs.size() == 1 && first.length() <= blockStride;
    return new KVRegion(
        name,
        page.groupId,
        blockStride,
        shape.pageBytes(),
        0,
        page.layer.spec().blockSize(),
        isOneRun ? List.of() : runs,
        shape);
  }

  private long[] stridesOutermostFirst(Page page, long blocksBytes) {
    KVPageShape shape = page.shape;
    String name = page.layer.name();
    List<Axis> axes = shape.axes();
    long[] strides = new long[axes.size()];
    long inner = shape.contentBytes();
    for (int i = axes.size() - 1; i >= 0; i--) {
      Axis axis = axes.get(i);
      strides[i] =
          switch (axis) {
            case KERNEL_BLOCK -> kernelStride;
            case TOKEN -> inner;
            case KV ->
                tensor.split() == KVSplit.BLOCKS
                    ? inner
                    : exact(
                        name,
                        blocksBytes,
                        tensor.layout() == KVCacheLayout.LHBNC ? shape.heads() : 1);
            case HEAD ->
                switch (tensor.layout()) {
                  case LBHNC, LBNHC, BLHNC, BLNHC -> inner;
                  case LHBNC -> blocksBytes;
                  case BHLNC -> exact(name, pieceBytes(pages.get(0)), pages.size());
                };
          };
      inner = exact(name, strides[i], shape.size(axis));
    }
    return strides;
  }

  /** The runs of a page in object order, adjacent ones merged. */
  private static List<PageSegment> runs(String layer, KVPageShape shape, long[] strides) {
    List<Axis> axes = shape.axes();
    int inside = axes.size();
    long length = shape.contentBytes();
    while (inside > 0 && (strides[inside - 1] == length || shape.size(axes.get(inside - 1)) == 1)) {
      inside--;
      length = exact(layer, length, shape.size(axes.get(inside)));
    }
    List<PageSegment> runs = new ArrayList<>();
    long count = 1;
    for (int i = 0; i < inside; i++) {
      count = exact(layer, count, shape.size(axes.get(i)));
    }
    if (count > MAX_PAGE_SEGMENTS) {
      throw UMBPException.invalid(
          "layer '%s': a page of %d runs, the limit is %d", layer, count, MAX_PAGE_SEGMENTS);
    }
    for (long number = 0; number < count; number++) {
      long rest = number;
      long offset = 0;
      for (int i = inside - 1; i >= 0; i--) {
        int size = shape.size(axes.get(i));
        offset += rest % size * strides[i];
        rest /= size;
      }
      int last = runs.size() - 1;
      if (last >= 0 && runs.get(last).offset() + runs.get(last).length() == offset) {
        PageSegment before = runs.remove(last);
        runs.add(new PageSegment(before.offset(), before.length() + length));
      } else {
        runs.add(new PageSegment(offset, length));
      }
    }
    return runs;
  }

  private static long plus(List<Page> slot, long a, long b) {
    if (b > Long.MAX_VALUE - a) {
      throw tooLarge(slot.get(0).layer.name());
    }
    return a + b;
  }

  private static long exact(String layer, long a, long b) {
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
