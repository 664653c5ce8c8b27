package io.umbp.core.layout;

/** What tensor parallelism does to a layer's KV. */
public enum TPSharding {
  /** Each rank has its own part: its heads, or its share of a state. */
  SHARDED,
  /** Every rank has the same bytes: one shard, such as MLA latents and sparse indexers. */
  REPLICATED
}
