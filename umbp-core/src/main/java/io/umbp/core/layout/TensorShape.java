package io.umbp.core.layout;

import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import java.util.Arrays;
import java.util.List;

/**
 * A shape with a letter for each axis, as engines name them, held against what the layers keep. The
 * order of K and V, heads and tokens is taken from the letters only: sizes can't tell them apart.
 */
final class TensorShape {
  private static final String HOW =
      "name each axis, outermost first, such as \"BNHC\" (L layer, B block, K key and value, H head,"
          + " N token, C content)";

  private final String axes;
  private final int[] sizes;
  private final Layer first;

  private TensorShape(String axes, int[] sizes, Layer first) {
    this.axes = axes;
    this.sizes = sizes;
    this.first = first;
    if (axes.isEmpty()) {
      throw refused("has no axis names; " + HOW);
    }
    if (axes.length() != sizes.length) {
      throw refused(axes.length() + " axis names for " + sizes.length + " axes; " + HOW);
    }
    for (int i = 0; i < sizes.length; i++) {
      char axis = axes.charAt(i);
      if ("LBKHNC".indexOf(axis) < 0 || axes.indexOf(axis) != i) {
        throw refused("'" + axis + "' is no axis or named twice; " + HOW);
      }
      if (sizes[i] <= 0) {
        throw refused("all sizes must be > 0");
      }
    }
  }

  static Tensor tensor(List<Layer> layers, RankTopology topology, String axes, int... sizes) {
    if (layers.isEmpty()) {
      throw UMBPException.invalid("a KV tensor has no slots");
    }
    return new TensorShape(axes, sizes, layers.get(0)).tensor(layers, topology);
  }

  private Tensor tensor(List<Layer> layers, RankTopology topology) {
    String order = axes.endsWith("KC") ? axes.replace("K", "") : axes;
    if (axes.indexOf('L') < 0) {
      order = "L" + order;
    }
    if (axes.indexOf('H') < 0) {
      order = order.replace("N", "NH");
    }
    check('L', layers.size(), "layers");
    for (Layer layer : layers) {
      checkContent(layer, topology);
    }
    int blocks = sizeOf('B');
    int kernelBlocks = first.spec().blockSize() / sizeOf('N');
    if (blocks % kernelBlocks != 0) {
      throw refused(
          String.format("a block is %d kernel blocks, but there are %d", kernelBlocks, blocks));
    }
    List<Slot> slots = layers.stream().map(layer -> new Slot(List.of(layer.name()))).toList();
    for (KVCacheLayout layout : KVCacheLayout.values()) {
      for (KVSplit split : KVSplit.values()) {
        if (letters(layout, split).equals(order)) {
          return new Tensor(
              slots, layout, split, blocks / kernelBlocks, kernelBlocks, Tensor.PACKED);
        }
      }
    }
    throw refused("no layout and split have the axes in this order");
  }

  private static String letters(KVCacheLayout layout, KVSplit split) {
    StringBuilder letters = new StringBuilder();
    layout.axes(split).forEach(axis -> letters.append(axis.letter));
    return letters.append('C').toString();
  }

  private void checkContent(Layer layer, RankTopology topology) {
    if (!(layer.spec() instanceof KVCacheSpec.Attention spec)) {
      throw refused("layer '" + layer.name() + "' is a state, which has no such axes");
    }
    int blockSize = spec.blockSize();
    if (blockSize != first.spec().blockSize() || blockSize % sizeOf('N') != 0) {
      throw refused(
          String.format(
              "axis N is %d, layer '%s' has blocks of %d tokens",
              sizeOf('N'), layer.name(), blockSize));
    }
    check('H', TensorGeometry.headsOnRank(layer.name(), spec, topology), "heads on the rank");
    boolean isPair = axes.indexOf('K') >= 0;
    if (isPair && spec.keySize() != spec.valueSize()) {
      throw refused(
          String.format(
              "keys of %d and values of %d elements can't be one axis K",
              spec.keySize(), spec.valueSize()));
    }
    check('K', isPair ? 2 : 1, "contents, key and value");
    check('C', spec.keySize() + (isPair ? 0L : spec.valueSize()), "elements");
  }

  private void check(char axis, long expected, String what) {
    if (sizeOf(axis) != expected) {
      throw refused(
          String.format("axis %s is %d, expected are %d %s", axis, sizeOf(axis), expected, what));
    }
  }

  /** The size of an axis; 1 when it is left out, which B, N and C may not be. */
  private int sizeOf(char axis) {
    int at = axes.indexOf(axis);
    if (at < 0 && "BNC".indexOf(axis) >= 0) {
      throw refused("axis " + axis + " is missing; " + HOW);
    }
    return at < 0 ? 1 : sizes[at];
  }

  private UMBPException refused(String why) {
    return UMBPException.invalid(
        "layer '%s': shape %s \"%s\": %s", first.name(), Arrays.toString(sizes), axes, why);
  }
}
