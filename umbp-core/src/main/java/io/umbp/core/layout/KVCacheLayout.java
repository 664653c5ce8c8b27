package io.umbp.core.layout;

import com.google.common.collect.ImmutableList;
import java.util.ArrayList;
import java.util.List;

/**
 * The physical orders in which engines lay out the logical KV cache [layer L, block B, head H,
 * token N, content C], outermost axis first; the names are those of vLLM.
 *
 * <p>Where layer and block are the two outermost axes, a page is one run of bytes. {@link #LHBNC}
 * and {@link #BHLNC} put the head outside, and a page is one run for each head.
 */
public enum KVCacheLayout {
  /** A tensor a layer, pages by head. */
  LBHNC(Axis.LAYER, Axis.BLOCK, Axis.HEAD, Axis.TOKEN),
  /** A tensor a layer, pages by token. */
  LBNHC(Axis.LAYER, Axis.BLOCK, Axis.TOKEN, Axis.HEAD),
  /** A tensor a layer, in it a plane of all blocks for each head. */
  LHBNC(Axis.LAYER, Axis.HEAD, Axis.BLOCK, Axis.TOKEN),
  /** Blocks of all layers, pages by head. */
  BLHNC(Axis.BLOCK, Axis.LAYER, Axis.HEAD, Axis.TOKEN),
  /** Blocks of all layers, pages by token. */
  BLNHC(Axis.BLOCK, Axis.LAYER, Axis.TOKEN, Axis.HEAD),
  /** Blocks of all layers, in them a plane of all layers for each head. */
  BHLNC(Axis.BLOCK, Axis.HEAD, Axis.LAYER, Axis.TOKEN);

  /** An axis of a tensor around the content of one token and head. */
  enum Axis {
    LAYER('L'),
    BLOCK('B'),
    KV('K'),
    HEAD('H'),
    TOKEN('N');

    final char letter;

    Axis(char letter) {
      this.letter = letter;
    }
  }

  private final ImmutableList<Axis> axes;

  KVCacheLayout(Axis... axes) {
    this.axes = ImmutableList.copyOf(axes);
  }

  /** Whether a layer's blocks lie together; else a block's layers do. */
  boolean isLayerFirst() {
    return axes.get(0) == Axis.LAYER;
  }

  /** The axes outermost first, with KV where the split has it: nowhere when it is fused. */
  List<Axis> axes(KVSplit split) {
    List<Axis> all = new ArrayList<>(axes);
    switch (split) {
      case FUSED -> {}
      case BLOCKS ->
          all.add(Math.max(all.indexOf(Axis.LAYER), all.indexOf(Axis.BLOCK)) + 1, Axis.KV);
      case PLANES -> all.add(isLayerFirst() ? 1 : 0, Axis.KV);
    }
    return all;
  }
}
