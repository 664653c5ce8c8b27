package io.umbp.bench;

import io.umbp.api.KVPageShape;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.StateCache;
import io.umbp.bench.CatalogueModel.TokenCache;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.core.layout.KVSplit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;

/**
 * Where an engine's attention kernel would look for the bytes of a tensor: worked out from the
 * letters of the layout's name, one content at a time. It knows nothing of the planner that it is
 * compared with. Immutable.
 */
final class TensorMap {
  /** The axes of a tensor. */
  enum Axis {
    LAYER,
    BLOCK,
    KV,
    HEAD,
    TOKEN
  }

  private final TensorSketch tensor;
  private final int blockSize;
  private final int blockCount;
  private final List<Axis> axes;
  private final long[] slotOffset;
  private final long blockStride;
  private final long sizeBytes;

  /** Strides of the axes that lie outside of layer and block. */
  private final Map<Axis, Long> outerStride = new EnumMap<>(Axis.class);

  /**
   * Creates the map of a tensor.
   *
   * @param tensor what it holds
   * @param blockSize tokens in a block
   * @param blockCount blocks
   */
  TensorMap(TensorSketch tensor, int blockSize, int blockCount) {
    this.tensor = tensor;
    this.blockSize = blockSize;
    this.blockCount = blockCount;
    axes = axes(tensor);
    slotOffset = new long[tensor.slots().size()];
    long unit = 0;
    for (int slot = 0; slot < slotOffset.length; slot++) {
      slotOffset[slot] = unit;
      for (Cache cache : tensor.slots().get(slot)) {
        unit = Math.max(unit, slotOffset[slot] + innerBytes(cache));
      }
    }
    long stride = 0;
    Cache first = tensor.slots().get(0).get(0);
    for (int i = innermostOuterAxis() - 1; i >= -1; i--) {
      Axis axis = axes.get(i + 1);
      if (axis == Axis.BLOCK) {
        stride = unit;
        unit = Math.multiplyExact(unit, (long) blockCount);
      } else if (axis != Axis.LAYER) {
        outerStride.put(axis, unit);
        unit = Math.multiplyExact(unit, (long) count(axis, first));
      }
    }
    blockStride = stride;
    sizeBytes = unit;
  }

  /** Layer and block as the name has them; K and V after both, or outside of all blocks. */
  private static List<Axis> axes(TensorSketch tensor) {
    List<Axis> axes = new ArrayList<>();
    for (char letter : tensor.layout().name().toCharArray()) {
      switch (letter) {
        case 'L' -> axes.add(Axis.LAYER);
        case 'B' -> axes.add(Axis.BLOCK);
        case 'H' -> axes.add(Axis.HEAD);
        case 'N' -> axes.add(Axis.TOKEN);
        default -> {}
      }
    }
    if (tensor.split() == KVSplit.BLOCKS) {
      axes.add(Math.max(axes.indexOf(Axis.LAYER), axes.indexOf(Axis.BLOCK)) + 1, Axis.KV);
    } else if (tensor.split() == KVSplit.PLANES) {
      axes.add(axes.get(0) == Axis.LAYER ? 1 : 0, Axis.KV);
    }
    return axes;
  }

  /** The place of the innermost of layer and block among the axes. */
  private int innermostOuterAxis() {
    return Math.max(axes.indexOf(Axis.LAYER), axes.indexOf(Axis.BLOCK));
  }

  /** Bytes of what lies inside of both layer and block. */
  private long innerBytes(Cache cache) {
    long bytes = contentBytes(cache);
    for (int i = innermostOuterAxis() + 1; i < axes.size(); i++) {
      bytes *= count(axes.get(i), cache);
    }
    return bytes;
  }

  /** How many of an axis a cache has. */
  int count(Axis axis, Cache cache) {
    if (axis == Axis.LAYER) {
      return slotOffset.length;
    }
    if (axis == Axis.BLOCK) {
      return blockCount;
    }
    if (!(cache instanceof TokenCache tokens)) {
      return 1;
    }
    return switch (axis) {
      case KV -> isSplit(tokens) ? 2 : 1;
      case HEAD -> tokens.heads();
      case TOKEN -> blockSize;
      default -> throw new AssertionError(axis);
    };
  }

  private boolean isSplit(TokenCache tokens) {
    return tensor.split() != KVSplit.FUSED && tokens.valueSize() > 0;
  }

  /** Bytes of the innermost content. */
  long contentBytes(Cache cache) {
    if (cache instanceof StateCache state) {
      return state.bytes();
    }
    TokenCache tokens = (TokenCache) cache;
    int elements = isSplit(tokens) ? tokens.keySize() : tokens.keySize() + tokens.valueSize();
    return (long) elements * tokens.elementType().sizeBytes();
  }

  /** Bytes from one of an axis to the next. */
  long stride(Axis axis, Cache cache) {
    if (axis == Axis.BLOCK) {
      return blockStride;
    }
    Long outer = outerStride.get(axis);
    if (outer != null) {
      return outer;
    }
    long bytes = contentBytes(cache);
    for (int i = axes.size() - 1; axes.get(i) != axis; i--) {
      bytes *= count(axes.get(i), cache);
    }
    return bytes;
  }

  /** The axes, outermost first. */
  List<Axis> order() {
    return axes;
  }

  long blockStride() {
    return blockStride;
  }

  long sizeBytes() {
    return sizeBytes;
  }

  /**
   * The runs of bytes that one cache has in block 0, by address. Block b has them {@code b *
   * blockStride} bytes further on. Immutable.
   */
  static final class Page {
    private final long[] offset;
    private final int[] length;
    private final int bytes;

    private Page(long[] offset, int[] length, int bytes) {
      this.offset = offset;
      this.length = length;
      this.bytes = bytes;
    }

    int runs() {
      return offset.length;
    }

    /** Bytes from the tensor's start to a run of block 0. */
    long offset(int run) {
      return offset[run];
    }

    int length(int run) {
      return length[run];
    }

    /** Bytes of all runs. */
    int bytes() {
      return bytes;
    }
  }

  /** Bytes from the tensor's start to a content of block 0. */
  private long offset(int slot, Cache cache, int part, int head, int token) {
    return slotOffset[slot]
        + (part == 0 ? 0 : part * stride(Axis.KV, cache))
        + (head == 0 ? 0 : head * stride(Axis.HEAD, cache))
        + (token == 0 ? 0 : token * stride(Axis.TOKEN, cache));
  }

  /** Bytes from the tensor's start to the key, or the value, of a head and token of block 0. */
  long offset(int slot, Cache cache, KVPageShape.Part part, int head, int token) {
    boolean isValue = part == KVPageShape.Part.VALUE;
    if (!isValue || count(Axis.KV, cache) == 2) {
      return offset(slot, cache, isValue ? 1 : 0, head, token);
    }
    TokenCache tokens = (TokenCache) cache;
    long keyBytes = (long) tokens.keySize() * tokens.elementType().sizeBytes();
    return offset(slot, cache, 0, head, token) + keyBytes;
  }

  /** Places every content of a cache in block 0, and joins those that touch. */
  Page page(int slot, Cache cache) {
    long content = contentBytes(cache);
    int parts = count(Axis.KV, cache);
    int heads = count(Axis.HEAD, cache);
    int tokens = count(Axis.TOKEN, cache);
    List<Long> starts = new ArrayList<>();
    for (int part = 0; part < parts; part++) {
      for (int head = 0; head < heads; head++) {
        for (int token = 0; token < tokens; token++) {
          starts.add(offset(slot, cache, part, head, token));
        }
      }
    }
    starts.sort(Comparator.naturalOrder());
    long[] offset = new long[starts.size()];
    int[] length = new int[starts.size()];
    int runs = 0;
    for (long start : starts) {
      if (runs > 0 && offset[runs - 1] + length[runs - 1] == start) {
        length[runs - 1] = Math.toIntExact(length[runs - 1] + content);
      } else {
        offset[runs] = start;
        length[runs++] = Math.toIntExact(content);
      }
    }
    int bytes = Math.toIntExact(starts.size() * content);
    return new Page(Arrays.copyOf(offset, runs), Arrays.copyOf(length, runs), bytes);
  }
}
