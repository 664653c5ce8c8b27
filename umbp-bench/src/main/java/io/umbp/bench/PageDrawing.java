package io.umbp.bench;

import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.TokenCache;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.bench.TensorMap.Axis;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * One page drawn as bars of memory: each bar shows what the first piece of the bar above it is made
 * of, from the whole tensor to the content of one token and head.
 */
final class PageDrawing {
  private static final int LABEL_WIDTH = 9;
  private static final int BAR_WIDTH = 60;

  /** The most pieces that are shown of an axis with more: the first ones, a gap, the last. */
  private static final int SHOWN = 4;

  private final TensorSketch tensor;
  private final TensorMap map;
  private final Cache cache;
  private final List<String> lines = new ArrayList<>();

  private PageDrawing(TensorSketch tensor, Cache cache, int blockSize) {
    this.tensor = tensor;
    this.cache = cache;
    map = new TensorMap(tensor, blockSize, 1);
  }

  /** Draws the page of a cache of a tensor. */
  static List<String> lines(TensorSketch tensor, Cache cache, int blockSize) {
    PageDrawing drawing = new PageDrawing(tensor, cache, blockSize);
    drawing.draw();
    return drawing.lines;
  }

  private void draw() {
    String label = "tensor";
    boolean isInside = false;
    for (Axis axis : map.order()) {
      int count = map.count(axis, cache);
      if (axis == Axis.BLOCK) {
        List<String> blocks = List.of("[block 0]", "block 1", "block 2", "...");
        bar(label, blocks, "block stride " + number(map.blockStride()));
        label = "block 0";
        isInside = true;
      } else if (count > 1) {
        bar(label, pieces(axis, count), count + (isInside ? "" : " x blocks") + size(axis));
        label = name(axis, 0);
      }
    }
    bar(label, content(), number(map.contentBytes(cache)) + " bytes");
    lines.add(edge());
  }

  private static String number(long value) {
    return String.format(Locale.ROOT, "%,d", value);
  }

  /** The size of one piece; empty when the pieces differ. */
  private String size(Axis axis) {
    if (axis != Axis.LAYER) {
      return " x " + number(map.stride(axis, cache));
    }
    long pages =
        tensor.slots().stream().map(slot -> map.page(0, slot.get(0)).bytes()).distinct().count();
    long bytes = map.contentBytes(cache);
    List<Axis> axes = map.order();
    for (int i = axes.size() - 1; axes.get(i) != Axis.LAYER; i--) {
      bytes *= map.count(axes.get(i), cache);
    }
    return pages == 1 ? " x " + number(bytes) : " of different sizes";
  }

  private List<String> content() {
    if (!(cache instanceof TokenCache tokens)) {
      return List.of("state: convolution, matrix");
    }
    String type = tokens.elementType().name().toLowerCase(Locale.ROOT);
    long keyBytes = (long) tokens.keySize() * tokens.elementType().sizeBytes();
    if (map.contentBytes(cache) == keyBytes) {
      return List.of(tokens.keySize() + " " + type);
    }
    return List.of(
        "key: " + tokens.keySize() + " " + type, "value: " + tokens.valueSize() + " " + type);
  }

  private List<String> pieces(Axis axis, int count) {
    List<String> pieces = new ArrayList<>();
    int first = count > SHOWN ? SHOWN - 2 : count;
    for (int i = 0; i < first; i++) {
      pieces.add(name(axis, i));
    }
    if (count > SHOWN) {
      pieces.add("...");
      pieces.add(name(axis, count - 1));
    }
    return pieces;
  }

  private String name(Axis axis, int index) {
    return switch (axis) {
      case LAYER -> (tensor.slots().get(0).size() > 1 ? "slot " : "layer ") + index;
      case BLOCK -> "block " + index;
      case KV -> index == 0 ? "K" : "V";
      case HEAD -> "head " + index;
      case TOKEN -> "token " + index;
    };
  }

  private static String edge() {
    return " ".repeat(LABEL_WIDTH + 2) + "+" + "-".repeat(BAR_WIDTH) + "+";
  }

  private void bar(String label, List<String> pieces, String note) {
    lines.add(edge());
    StringBuilder line = new StringBuilder("  ");
    line.append(label).append(" ".repeat(LABEL_WIDTH - label.length())).append('|');
    int free = BAR_WIDTH - (pieces.size() - 1);
    for (int i = 0; i < pieces.size(); i++) {
      int width = free / (pieces.size() - i);
      free -= width;
      int left = Math.max(0, (width - pieces.get(i).length()) / 2);
      String cell = " ".repeat(left) + pieces.get(i);
      line.append(cell).append(" ".repeat(Math.max(0, width - cell.length()))).append('|');
    }
    lines.add(line + " " + note);
  }
}
