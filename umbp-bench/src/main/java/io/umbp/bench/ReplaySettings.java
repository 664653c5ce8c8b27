package io.umbp.bench;

import io.umbp.api.spi.KVCopyEngine;

/**
 * How a trace is replayed. Immutable.
 *
 * @param poolBytes capacity of the pool in bytes, {@link Long#MAX_VALUE} for no limit
 * @param cache what each tensor-parallel rank keeps for the blocks
 * @param concurrency requests in flight
 * @param failRate probability that a copied row fails
 * @param seed where the choice of failing rows starts
 * @param verification which loaded bytes are checked
 */
record ReplaySettings(
    long poolBytes,
    EngineCache cache,
    int concurrency,
    double failRate,
    long seed,
    Verification verification) {

  /** Which loaded bytes are compared with what was stored. */
  enum Verification {
    /** Every one. */
    ALL,
    /** None: for timing. */
    NONE
  }

  /** The most ranks: each has three threads. */
  static final int MAX_RANKS = 256;

  /** Refuses what cannot be run. */
  ReplaySettings {
    requireCount("--concurrency", concurrency, Integer.MAX_VALUE);
    if (!(failRate >= 0 && failRate <= 1)) {
      throw new BadInputException("--fail-rate is %s, allowed are 0 to 1", failRate);
    }
    if (cache.largestObjectBytes() > KVCopyEngine.MAX_SLAB_BYTES) {
      throw new BadInputException(
          "an object of %s has %d bytes, allowed are at most %d",
          cache.model().name(), cache.largestObjectBytes(), KVCopyEngine.MAX_SLAB_BYTES);
    }
    if (poolBytes < cache.blockBytes()) {
      throw new BadInputException(
          "a pool of %d bytes holds no block, a block of a rank has %d bytes",
          poolBytes, cache.blockBytes());
    }
  }

  /** Refuses a number that is not in [1, limit]. */
  static void requireCount(String option, int value, int limit) {
    if (value < 1 || value > limit) {
      throw new BadInputException("%s is %d, allowed are 1 to %d", option, value, limit);
    }
  }

  int ranks() {
    return cache.ranks();
  }

  /** What to change when there is too little memory. */
  String remedy() {
    return cache.hasTokens()
        ? "raise --scale, lower --block-size or --tp"
        : "lower --layer-bytes, --layers or --tp";
  }
}
