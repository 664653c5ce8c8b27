package io.umbp.core.layout;

import io.umbp.api.KVPageShape.Part;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Where each byte of a tensor lies by the definition of its order: nested loops over the axes from
 * the outermost to the innermost, through memory from the first byte to the last, that write down
 * whose byte they meet. Knows no strides but the distance of kernel blocks, and nothing of umbp's
 * planner.
 *
 * <p>The bytes of a page in the order in which they are met are its bytes in an object.
 */
public final class LayoutOracle {
  /** Axes outermost first: layer, (kernel) block, K and V, head, token, content. */
  private static final Map<String, String> ORDERS =
      Map.ofEntries(
          Map.entry("LBHNC FUSED", "LBHNC"),
          Map.entry("LBHNC BLOCKS", "LBKHNC"),
          Map.entry("LBHNC PLANES", "LKBHNC"),
          Map.entry("LBNHC FUSED", "LBNHC"),
          Map.entry("LBNHC BLOCKS", "LBKNHC"),
          Map.entry("LBNHC PLANES", "LKBNHC"),
          Map.entry("LHBNC FUSED", "LHBNC"),
          Map.entry("LHBNC BLOCKS", "LHBKNC"),
          Map.entry("LHBNC PLANES", "LKHBNC"),
          Map.entry("BLHNC FUSED", "BLHNC"),
          Map.entry("BLHNC BLOCKS", "BLKHNC"),
          Map.entry("BLHNC PLANES", "KBLHNC"),
          Map.entry("BLNHC FUSED", "BLNHC"),
          Map.entry("BLNHC BLOCKS", "BLKNHC"),
          Map.entry("BLNHC PLANES", "KBLNHC"),
          Map.entry("BHLNC FUSED", "BHLNC"),
          Map.entry("BHLNC BLOCKS", "BHLKNC"),
          Map.entry("BHLNC PLANES", "KBHLNC"));

  /**
   * A byte of a page.
   *
   * @param address bytes from the tensor's start
   * @param part key or value
   * @param head head on the rank
   * @param token token in the block
   * @param content byte of that head's and token's key or value
   */
  public record PageByte(long address, Part part, int head, int token, int content) {}

  private final Tensor tensor;
  private final int tpSize;
  private final String order;
  private final List<List<Layer>> slots = new ArrayList<>();
  private final Map<String, List<List<PageByte>>> pages = new HashMap<>();
  private final long packedKernelStride;
  private final long sizeBytes;

  private long kernelStride;
  private boolean isDry;
  private Layer layer;
  private int kernelBlock;
  private int kv;
  private int head;
  private int token;

  /**
   * Walks through a tensor.
   *
   * @param groups the layers
   * @param tensor the tensor; its block stride is the one or the packed one
   * @param tpSize ranks that share the heads
   */
  public LayoutOracle(List<Group> groups, Tensor tensor, int tpSize) {
    this.tensor = tensor;
    this.tpSize = tpSize;
    order = ORDERS.get(tensor.layout() + " " + tensor.split());
    for (Slot slot : tensor.slots()) {
      List<Layer> ofSlot = new ArrayList<>();
      for (Group group : groups) {
        for (Layer candidate : group.layers()) {
          if (slot.layers().contains(candidate.name())) {
            ofSlot.add(candidate);
          }
        }
      }
      slots.add(ofSlot);
    }
    for (List<Layer> slot : slots) {
      for (Layer one : slot) {
        List<List<PageByte>> blocks = new ArrayList<>();
        for (int block = 0; block < tensor.blockCount(); block++) {
          blocks.add(new ArrayList<>());
        }
        pages.put(one.name(), blocks);
      }
    }
    packedKernelStride = largestKernelBlock();
    kernelStride =
        tensor.blockStride() == 0
            ? packedKernelStride
            : tensor.blockStride() / tensor.kernelBlocks();
    sizeBytes = walk(0, 0);
  }

  /** Returns the bytes of one block's page in the order of its object. */
  public List<PageByte> page(String layerName, int block) {
    return pages.get(layerName).get(block);
  }

  /** Returns the bytes of the tensor. */
  public long sizeBytes() {
    return sizeBytes;
  }

  /** Returns the bytes that a kernel block needs. */
  public long packedKernelStride() {
    return packedKernelStride;
  }

  private long largestKernelBlock() {
    isDry = true;
    int inBlock = order.indexOf('B') + 1;
    long largest = 0;
    if (order.indexOf('L') < order.indexOf('B')) {
      for (List<Layer> slot : slots) {
        for (Layer one : slot) {
          layer = one;
          largest = Math.max(largest, walk(inBlock, 0));
        }
      }
      layer = null;
    } else {
      largest = walk(inBlock, 0);
    }
    isDry = false;
    return largest;
  }

  /** Walks the axes from one on, starting at an address; returns the address behind. */
  private long walk(int axis, long start) {
    if (layer != null && layer.spec() instanceof KVCacheSpec.State && isInBlock(axis)) {
      return walkState(start);
    }
    long at = start;
    switch (order.charAt(axis)) {
      case 'L' -> {
        for (List<Layer> slot : slots) {
          long end = at;
          for (Layer one : slot) {
            layer = one;
            end = Math.max(end, walk(axis + 1, at));
          }
          layer = null;
          at = end;
        }
      }
      case 'B' -> {
        int count = tensor.blockCount() * tensor.kernelBlocks();
        for (kernelBlock = 0; kernelBlock < count; kernelBlock++) {
          walk(axis + 1, at);
          at += kernelStride;
        }
        kernelBlock = 0;
      }
      case 'K' -> {
        for (kv = 0; kv < kvCount(); kv++) {
          at = walk(axis + 1, at);
        }
        kv = 0;
      }
      case 'H' -> {
        int heads = heads();
        for (head = 0; head < heads; head++) {
          at = walk(axis + 1, at);
        }
        head = 0;
      }
      case 'N' -> {
        int tokens = layer.spec().blockSize() / tensor.kernelBlocks();
        for (token = 0; token < tokens; token++) {
          at = walk(axis + 1, at);
        }
        token = 0;
      }
      default -> at = walkContent(at);
    }
    return at;
  }

  private boolean isInBlock(int axis) {
    return axis > Math.max(order.indexOf('B'), order.indexOf('L'));
  }

  private long walkState(long start) {
    int bytes = Math.toIntExact(((KVCacheSpec.State) layer.spec()).pageBytes());
    if (kernelBlock % tensor.kernelBlocks() == 0) {
      for (int i = 0; i < bytes; i++) {
        meet(start + i, Part.KEY, i);
      }
    }
    return start + (bytes + tensor.kernelBlocks() - 1) / tensor.kernelBlocks();
  }

  private long walkContent(long start) {
    KVCacheSpec.Attention spec = (KVCacheSpec.Attention) layer.spec();
    int keyBytes = spec.keySize() * spec.elementType().sizeBytes();
    int valueBytes = spec.valueSize() * spec.elementType().sizeBytes();
    boolean isFused = order.indexOf('K') < 0;
    for (int i = 0; i < keyBytes; i++) {
      if (kv == 0 || kvCount(layer) == 2) {
        meet(start + i, kv == 0 ? Part.KEY : Part.VALUE, i);
      }
    }
    for (int i = 0; isFused && i < valueBytes; i++) {
      meet(start + keyBytes + i, Part.VALUE, i);
    }
    return start + keyBytes + (isFused ? valueBytes : 0);
  }

  private void meet(long address, Part part, int content) {
    if (!isDry) {
      int inBlock = kernelBlock % tensor.kernelBlocks();
      int tokens = layer.spec().blockSize() / tensor.kernelBlocks();
      pages
          .get(layer.name())
          .get(kernelBlock / tensor.kernelBlocks())
          .add(new PageByte(address, part, head, inBlock * tokens + token, content));
    }
  }

  private int kvCount() {
    if (layer != null) {
      return kvCount(layer);
    }
    return slots.stream().flatMap(List::stream).mapToInt(LayoutOracle::kvCount).max().orElseThrow();
  }

  private static int kvCount(Layer layer) {
    return layer.spec() instanceof KVCacheSpec.Attention spec && spec.valueSize() > 0 ? 2 : 1;
  }

  private int heads() {
    Layer any = layer == null ? slots.get(0).get(0) : layer;
    KVCacheSpec.Attention spec = (KVCacheSpec.Attention) any.spec();
    boolean isShared = spec.sharding() == TPSharding.SHARDED;
    return isShared ? Math.max(1, spec.kvHeads() / tpSize) : spec.kvHeads();
  }
}
