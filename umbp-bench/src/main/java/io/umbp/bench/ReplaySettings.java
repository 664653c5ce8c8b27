package io.umbp.bench;

import io.umbp.api.spi.KVCopyEngine;
import java.util.Locale;

/**
 * How a trace is replayed. Immutable.
 *
 * @param poolBytes capacity of the pool in bytes, {@link Long#MAX_VALUE} for no limit
 * @param cache what each tensor-parallel rank keeps for the blocks
 * @param rounds how often the trace is replayed, one after the other
 * @param concurrency requests in flight
 * @param failRate probability that a copied row fails
 * @param seed where the choice of failing rows starts
 * @param verification which loaded bytes are checked
 * @param device what stands for the GPUs
 */
record ReplaySettings(
    long poolBytes,
    EngineCache cache,
    int rounds,
    int concurrency,
    double failRate,
    long seed,
    Verification verification,
    Device device) {

  /** Which loaded bytes are compared with what was stored. */
  enum Verification {
    /** Every one. */
    ALL,
    /** None: for timing. */
    NONE
  }

  /** What stands for the GPUs. */
  enum Device {
    /** The testkit's fake GPU. */
    FAKE_GPU,
    /** The CUDA driver of the testkit, under the real JCuda. */
    FAKE_CUDA,
    /** The machine's CUDA driver. */
    CUDA;

    /** Makes the GPUs of a replay. */
    ReplayGpus open(ReplaySettings settings) {
      return switch (this) {
        case FAKE_GPU -> new FakeGpus(settings.ranks(), settings.failRate, settings.seed);
        case FAKE_CUDA -> CudaGpus.fake(settings.ranks());
        case CUDA -> CudaGpus.real(settings.ranks());
      };
    }

    @Override
    public String toString() {
      return name().toLowerCase(Locale.ROOT).replace('_', '-');
    }
  }

  /** The most ranks: each has three threads. */
  static final int MAX_RANKS = 256;

  /** Refuses what cannot be run. */
  ReplaySettings {
    requireCount("--repeat", rounds, Integer.MAX_VALUE);
    requireCount("--concurrency", concurrency, Integer.MAX_VALUE);
    if (!(failRate >= 0 && failRate <= 1)) {
      throw new BadInputException("--fail-rate is %s, allowed are 0 to 1", failRate);
    }
    if (failRate > 0 && device != Device.FAKE_GPU) {
      throw new BadInputException("--fail-rate needs --device fake-gpu, not %s", device);
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
