package io.umbp.core.layout;

import com.google.common.math.LongMath;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
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
      kernelBlocksPerBlock(region, tensor.blockStride(), tensor.blockCount());
      checkSize(region, tensor);
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
   * Checks physical strides, and returns how many physical (kernel) blocks make one block of the
   * engine's block manager: 1 unless the page is larger than the physical stride.
   */
  static int kernelBlocksPerBlock(KVRegion region, long physicalStride, int physicalBlocks) {
    String layer = region.layerName();
    long declared = region.blockStride();
    if (declared % physicalStride != 0) {
      throw UMBPException.invalid(
          "layer '%s': KV block stride mismatch: physical stride %d must divide the declared stride"
              + " %d",
          layer, physicalStride, declared);
    }
    if (!region.pageSegments().isEmpty()) {
      if (physicalStride != declared) {
        throw UMBPException.invalid(
            "layer '%s': page segments need the declared stride %d, but the physical stride is %d;"
                + " segments inside smaller kernel blocks are not supported",
            layer, declared, physicalStride);
      }
      return 1;
    }
    long bytes = region.blockBytes();
    if (bytes <= physicalStride) {
      return 1;
    }
    if (bytes % physicalStride != 0) {
      throw UMBPException.invalid(
          "layer '%s': KV block stride mismatch: block bytes %d are no multiple of the physical"
              + " stride %d",
          layer, bytes, physicalStride);
    }
    long parts = bytes / physicalStride;
    if (parts > physicalBlocks) {
      throw UMBPException.invalid(
          "layer '%s': one block needs %d kernel blocks of %d bytes, the tensor has %d",
          layer, parts, physicalStride, physicalBlocks);
    }
    return (int) parts;
  }

  private static void checkSize(KVRegion region, KVCacheTensor tensor) {
    long lastBlock = (tensor.blockCount() - 1) * tensor.blockStride();
    long room = tensor.sizeBytes() - lastBlock;
    for (KVRegion.PageSegment run : runs(region, tensor.blockStride())) {
      if (run.offset() > room - run.length()) {
        throw UMBPException.invalid(
            "layer '%s': tensor has %d bytes, but its %d blocks of stride %d need %d",
            region.layerName(),
            tensor.sizeBytes(),
            tensor.blockCount(),
            tensor.blockStride(),
            LongMath.saturatedAdd(lastBlock, LongMath.saturatedAdd(run.offset(), run.length())));
      }
    }
  }

  /** The runs of a physical block. */
  private static List<KVRegion.PageSegment> runs(KVRegion region, long physicalStride) {
    if (region.pageSegments().isEmpty()) {
      long length = Math.min(region.blockBytes(), physicalStride);
      return List.of(new KVRegion.PageSegment(0, length));
    }
    return region.pageSegments();
  }

  private static void checkOverlaps(
      List<KVRegion> regions, List<KVCacheTensor> tensors, int groupId) {
    IdentityHashMap<ByteBuffer, Integer> buffers = new IdentityHashMap<>();
    List<MemoryStrip> strips = new ArrayList<>();
    for (int i = 0; i < regions.size(); i++) {
      KVRegion region = regions.get(i);
      KVCacheTensor tensor = tensors.get(i);
      if (region.groupId() == groupId) {
        for (KVRegion.PageSegment run : runs(region, tensor.blockStride())) {
          MemoryStrip strip =
              new MemoryStrip(
                  region.layerName(),
                  0,
                  tensor.address() + run.offset(),
                  tensor.blockStride(),
                  tensor.blockCount(),
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
