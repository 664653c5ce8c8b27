package io.umbp.core.layout;

/**
 * The physical orders in which engines lay out the logical KV cache [layer L, block B, head H,
 * token N, content C], outermost axis first; the names are those of vLLM.
 *
 * <p>Where layer and block are the two outermost axes, a page is one run of bytes. {@link #LHBNC}
 * and {@link #BHLNC} put the head outside, and a page is one run for each head.
 */
public enum KVCacheLayout {
  /** A tensor a layer, pages by head. */
  LBHNC,
  /** A tensor a layer, pages by token. */
  LBNHC,
  /** A tensor a layer, in it a plane of all blocks for each head. */
  LHBNC,
  /** Blocks of all layers, pages by head. */
  BLHNC,
  /** Blocks of all layers, pages by token. */
  BLNHC,
  /** Blocks of all layers, in them a plane of all layers for each head. */
  BHLNC
}
