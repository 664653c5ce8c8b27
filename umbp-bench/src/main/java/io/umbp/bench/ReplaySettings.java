package io.umbp.bench;

import io.umbp.api.spi.KVCopyEngine;

/**
 * How a trace is replayed. Immutable.
 *
 * @param poolBytes capacity of the pool in bytes, {@link Long#MAX_VALUE} for no limit
 * @param ranks tensor-parallel ranks
 * @param layers layers of each rank
 * @param layerBytes bytes of one block in one layer
 * @param concurrency requests in flight
 * @param failRate probability that a copied row fails
 * @param seed where the choice of failing rows starts
 * @param verification which loaded bytes are checked
 */
record ReplaySettings(
    long poolBytes,
    int ranks,
    int layers,
    int layerBytes,
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
    require("--tp", ranks, MAX_RANKS);
    require("--layers", layers, Integer.MAX_VALUE);
    require("--layer-bytes", layerBytes, Integer.MAX_VALUE);
    require("--concurrency", concurrency, Integer.MAX_VALUE);
    if (!(failRate >= 0 && failRate <= 1)) {
      throw new BadInputException("--fail-rate is %s, allowed are 0 to 1", failRate);
    }
    long objectBytes = (long) layers * layerBytes;
    if (objectBytes > KVCopyEngine.MAX_SLAB_BYTES) {
      throw new BadInputException(
          "--layers %d of --layer-bytes %d make blocks of %d bytes, allowed are at most %d",
          layers, layerBytes, objectBytes, KVCopyEngine.MAX_SLAB_BYTES);
    }
    if (poolBytes < objectBytes) {
      throw new BadInputException(
          "a pool of %d bytes holds no block, a block of a rank has %d bytes",
          poolBytes, objectBytes);
    }
  }

  private static void require(String option, int value, int limit) {
    if (value < 1 || value > limit) {
      throw new BadInputException("%s is %d, allowed are 1 to %d", option, value, limit);
    }
  }

  /** Bytes of one block on one rank. */
  long objectBytes() {
    return (long) layers * layerBytes;
  }
}
