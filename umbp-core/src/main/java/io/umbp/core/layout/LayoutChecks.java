package io.umbp.core.layout;

import com.google.common.math.LongMath;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** What must hold between a layout and the buffers that an engine registers for it. */
final class LayoutChecks {
  private LayoutChecks() {}

  static void checkTensors(KVLayoutDescriptor layout, Map<String, KVCacheTensor> tensors) {
    List<KVRegion> regions = layout.regions();
    List<KVCacheTensor> ordered = inRegionOrder(layout, tensors);
    int ordinal = ordered.get(0).deviceOrdinal();
    for (int i = 0; i < regions.size(); i++) {
      KVRegion region = regions.get(i);
      KVCacheTensor tensor = ordered.get(i);
      if (tensor.deviceOrdinal() != ordinal) {
        throw UMBPException.invalid(
            "layer '%s' is %s, layer '%s' is %s; all must be on one device or all in host memory",
            regions.get(0).layerName(),
            place(ordinal),
            region.layerName(),
            place(tensor.deviceOrdinal()));
      }
      checkPlaceOfSmallPage(region, tensor.blockStride());
      checkSize(region, blocks(region, tensor), tensor);
    }
    for (int groupId : layout.groupIds()) {
      checkOverlaps(regions, ordered, groupId);
    }
  }

  /**
   * Returns the values in region order, having checked that there is one for each region, no more.
   */
  static <T> List<T> inRegionOrder(KVLayoutDescriptor layout, Map<String, T> byLayer) {
    List<T> ordered = new ArrayList<>();
    Set<String> missing = new TreeSet<>();
    Set<String> unknown = new TreeSet<>(byLayer.keySet());
    for (KVRegion region : layout.regions()) {
      unknown.remove(region.layerName());
      T value = byLayer.get(region.layerName());
      if (value == null) {
        missing.add(region.layerName());
      } else {
        ordered.add(value);
      }
    }
    if (!missing.isEmpty()) {
      throw UMBPException.invalid("layers %s of the layout are missing", missing);
    }
    if (!unknown.isEmpty()) {
      throw UMBPException.invalid("layers %s are not in the layout", unknown);
    }
    return ordered;
  }

  /**
   * Checks physical strides, and returns how many physical blocks make one block of the engine's
   * block manager. A page in one run that fits into a physical block has one, whatever the declared
   * stride is; one in page segments or of several kernel blocks has as many as the declared stride.
   */
  static int physicalBlocksPerBlock(KVRegion region, long physicalStride, int physicalBlocks) {
    String layer = region.layerName();
    long declared = region.blockStride();
    long bytes = region.blockBytes();
    int kernelBlocks = region.shape().kernelBlocks();
    if (declared % physicalStride != 0) {
      throw UMBPException.invalid(
          "layer '%s': KV block stride mismatch: physical stride %d must divide the declared stride"
              + " %d",
          layer, physicalStride, declared);
    }
    long parts = declared / physicalStride;
    if (kernelBlocks > 1) {
      if (parts != 1 && parts != kernelBlocks) {
        throw UMBPException.invalid(
            "layer '%s': KV block stride mismatch: physical stride %d is neither the declared stride"
                + " %d nor that of one of its %d kernel blocks",
            layer, physicalStride, declared, kernelBlocks);
      }
    } else if (region.pageSegments().isEmpty()) {
      if (bytes > physicalStride && bytes % physicalStride != 0) {
        throw UMBPException.invalid(
            "layer '%s': KV block stride mismatch: block bytes %d are no multiple of the physical"
                + " stride %d",
            layer, bytes, physicalStride);
      }
      parts = Math.max(1, bytes / physicalStride);
    }
    if (parts > TensorGeometry.MAX_PAGE_SEGMENTS) {
      throw UMBPException.invalid(
          "layer '%s': one block is %d kernel blocks of %d bytes, the limit is %d",
          layer, parts, physicalStride, TensorGeometry.MAX_PAGE_SEGMENTS);
    }
    if (parts > physicalBlocks) {
      throw UMBPException.invalid(
          "layer '%s': one block needs %d kernel blocks of %d bytes, the tensor has %d",
          layer, parts, physicalStride, physicalBlocks);
    }
    return (int) parts;
  }

  /**
   * Refuses a page of unknown inner order that could be one physical block or spread over several:
   * taken for one, it would be read from the place of another block.
   */
  private static void checkPlaceOfSmallPage(KVRegion region, long physicalStride) {
    if (region.blockBytes() <= physicalStride
        && physicalStride < region.blockStride()
        && region.pageSegments().isEmpty()
        && region.shape().kernelBlocks() == 1) {
      throw UMBPException.invalid(
          "layer '%s': KV block stride mismatch: the page of %d bytes fits into the physical stride"
              + " %d, but the declared stride is %d; declare the physical stride, or the page's kernel"
              + " blocks",
          region.layerName(), region.blockBytes(), physicalStride, region.blockStride());
    }
  }

  /** The blocks of a layer in a tensor, and the runs of each relative to its start. */
  private record Blocks(int count, long stride, List<PageSegment> runs) {}

  private static Blocks blocks(KVRegion region, KVCacheTensor tensor) {
    long physicalStride = tensor.blockStride();
    int parts = physicalBlocksPerBlock(region, physicalStride, tensor.blockCount());
    List<PageSegment> runs =
        region.pageSegments().isEmpty()
            ? List.of(new PageSegment(0, region.blockBytes()))
            : region.pageSegments();
    return new Blocks(tensor.blockCount() / parts, parts * physicalStride, runs);
  }

  private static void checkSize(KVRegion region, Blocks blocks, KVCacheTensor tensor) {
    long lastBlock = (blocks.count - 1) * blocks.stride;
    long room = tensor.sizeBytes() - lastBlock;
    for (PageSegment run : blocks.runs) {
      if (run.offset() > room - run.length()) {
        throw UMBPException.invalid(
            "layer '%s': tensor has %d bytes, but its %d blocks of stride %d need %d",
            region.layerName(),
            tensor.sizeBytes(),
            blocks.count,
            blocks.stride,
            LongMath.saturatedAdd(lastBlock, run.offset() + run.length()));
      }
    }
  }

  private static void checkOverlaps(
      List<KVRegion> regions, List<KVCacheTensor> tensors, int groupId) {
    IdentityHashMap<ByteBuffer, Integer> buffers = new IdentityHashMap<>();
    List<MemoryStrip> strips = new ArrayList<>();
    for (int i = 0; i < regions.size(); i++) {
      KVRegion region = regions.get(i);
      KVCacheTensor tensor = tensors.get(i);
      if (region.groupId() == groupId) {
        Blocks blocks = blocks(region, tensor);
        for (PageSegment run : blocks.runs) {
          MemoryStrip strip =
              new MemoryStrip(
                  region.layerName(),
                  0,
                  tensor.address() + run.offset(),
                  blocks.stride,
                  blocks.count,
                  run.length());
          addStrips(strip, tensor, buffers, strips);
        }
      }
    }
    MemoryStrip.checkDisjoint(groupId, strips);
  }

  private static void addStrips(
      MemoryStrip strip,
      KVCacheTensor tensor,
      IdentityHashMap<ByteBuffer, Integer> buffers,
      List<MemoryStrip> strips) {
    if (tensor.isDevice()) {
      strips.add(strip);
      return;
    }
    long slabStart = 0;
    for (KVCacheTensor.HostSlice slab : tensor.slabs()) {
      Integer space = buffers.computeIfAbsent(slab.buffer(), ignored -> buffers.size());
      strip.clip(slabStart, slabStart + slab.length(), space, slab.start() - slabStart, strips);
      slabStart += slab.length();
    }
  }

  private static String place(int deviceOrdinal) {
    return deviceOrdinal == KVCacheTensor.HOST ? "in host memory" : "on device " + deviceOrdinal;
  }
}
