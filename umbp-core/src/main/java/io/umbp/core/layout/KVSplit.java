package io.umbp.core.layout;

/** Where values lie with respect to keys. */
public enum KVSplit {
  /** The content of a token and head is its key followed by its value, or a latent. */
  FUSED,
  /** Each block has its keys, then its values. */
  BLOCKS,
  /** A tensor has the keys of all its blocks, then the values of all. */
  PLANES
}
