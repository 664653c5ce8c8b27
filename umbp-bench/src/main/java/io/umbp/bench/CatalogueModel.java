package io.umbp.bench;

import io.umbp.api.ElementType;
import java.util.List;

/**
 * What a model keeps for the tokens it has seen: one entry for each cache it has, in the order of
 * its layers. Immutable.
 *
 * @param name the model's name in the catalogue
 * @param source public address of the configuration
 * @param scale by how much keys, values and states are smaller than the model's; 1 for the model
 * @param caches the caches, at least one; copied
 */
record CatalogueModel(String name, String source, int scale, List<Cache> caches) {

  /** What a cache holds. */
  enum Kind {
    /** Keys and values of every token. */
    FULL("FullAttentionSpec", "full attention"),
    /** Keys and values of the last tokens only. */
    SLIDING("SlidingWindowSpec", "sliding window"),
    /** One latent vector a token, from which keys and values are computed (MLA). */
    LATENT("MLAAttentionSpec", "latent (MLA)"),
    /** The keys that choose which tokens a sparse attention reads. */
    INDEXER("MLAAttentionSpec", "sparse indexer"),
    /** The state of a recurrence: its size does not depend on the number of tokens. */
    STATE("MambaSpec", "recurrent state");

    private final String specName;
    private final String title;

    Kind(String specName, String title) {
      this.specName = specName;
      this.title = title;
    }

    /** vLLM's name for the kind, which is part of a namespace. */
    String specName() {
      return specName;
    }

    /** The name for people. */
    String title() {
      return title;
    }
  }

  /** One cache of one layer, whole or as one rank has it. Immutable. */
  sealed interface Cache {
    /** The engine's name of the layer. */
    String layerName();

    /** What it holds. */
    Kind kind();

    /**
     * Returns the part that one of several tensor-parallel ranks has.
     *
     * @param ranks tensor-parallel ranks
     * @throws BadInputException when the cache cannot be divided so
     */
    Cache onRank(int ranks);

    /**
     * Returns the same cache with a content that is smaller by a factor, at least one element a
     * head.
     */
    Cache scaledDown(int factor);
  }

  /**
   * A vector or two of each head for each token.
   *
   * @param layerName the engine's name of the layer
   * @param kind anything but {@link Kind#STATE}
   * @param elementType number format
   * @param heads KV heads, above 0
   * @param keySize elements of a head's key, above 0
   * @param valueSize elements of a head's value, 0 when there is none
   * @param slidingWindow tokens that are read, 0 when all are
   */
  record TokenCache(
      String layerName,
      Kind kind,
      ElementType elementType,
      int heads,
      int keySize,
      int valueSize,
      int slidingWindow)
      implements Cache {

    /** Whether every tensor-parallel rank holds the whole of it. */
    boolean isReplicated() {
      return kind == Kind.LATENT || kind == Kind.INDEXER;
    }

    long bytesPerToken() {
      return (long) heads * (keySize + valueSize) * elementType.sizeBytes();
    }

    @Override
    public TokenCache onRank(int ranks) {
      if (isReplicated()) {
        return this;
      }
      if (heads % ranks != 0 && ranks % heads != 0) {
        throw new BadInputException(
            "%d KV heads of layer %s cannot be shared by %d ranks: neither number divides the other",
            heads, layerName, ranks);
      }
      int part = Math.max(1, heads / ranks);
      return new TokenCache(layerName, kind, elementType, part, keySize, valueSize, slidingWindow);
    }

    @Override
    public TokenCache scaledDown(int factor) {
      return new TokenCache(
          layerName,
          kind,
          elementType,
          heads,
          Math.max(1, keySize / factor),
          valueSize == 0 ? 0 : Math.max(1, valueSize / factor),
          slidingWindow);
    }
  }

  /**
   * A recurrence's state: the last inputs of its convolution, and a matrix for each head.
   *
   * @param layerName the engine's name of the layer
   * @param elementType number format of both parts
   * @param convolution elements of the convolution's inputs
   * @param matrix elements of the heads' matrices
   * @param groups groups of heads that share their inputs, above 0
   * @param heads heads, above 0
   * @param sharedInputs elements of the convolution's inputs that belong to the groups
   */
  record StateCache(
      String layerName,
      ElementType elementType,
      long convolution,
      long matrix,
      int groups,
      int heads,
      long sharedInputs)
      implements Cache {

    @Override
    public Kind kind() {
      return Kind.STATE;
    }

    long bytes() {
      return (convolution + matrix) * elementType.sizeBytes();
    }

    @Override
    public StateCache onRank(int ranks) {
      if (heads % ranks != 0 || (groups % ranks != 0 && ranks % groups != 0)) {
        throw new BadInputException(
            "%d state heads in %d groups of layer %s cannot be shared by %d ranks",
            heads, groups, layerName, ranks);
      }
      int groupParts = Math.min(groups, ranks);
      long shared = sharedInputs / groupParts;
      long own = (convolution - sharedInputs) / ranks;
      return new StateCache(
          layerName,
          elementType,
          own + shared,
          matrix / ranks,
          groups / groupParts,
          heads / ranks,
          shared);
    }

    @Override
    public StateCache scaledDown(int factor) {
      long ofHead = Math.max(1, (convolution + matrix) / heads / factor);
      return new StateCache(layerName, elementType, 0, heads * ofHead, groups, heads, 0);
    }
  }

  /** Copies the caches. */
  CatalogueModel {
    caches = List.copyOf(caches);
  }

  /** The model as one of several tensor-parallel ranks has it. */
  CatalogueModel onRank(int ranks) {
    return new CatalogueModel(
        name, source, scale, caches.stream().map(cache -> cache.onRank(ranks)).toList());
  }

  /** The model with key and value sizes and states that are smaller by a factor. */
  CatalogueModel scaledDown(int factor) {
    return new CatalogueModel(
        name,
        source,
        Math.multiplyExact(scale, factor),
        caches.stream().map(cache -> cache.scaledDown(factor)).toList());
  }

  /** Bytes that one token adds, as long as it is inside all windows. */
  long bytesPerToken() {
    long sum = 0;
    for (Cache cache : caches) {
      sum += cache instanceof TokenCache tokens ? tokens.bytesPerToken() : 0;
    }
    return sum;
  }

  /** Bytes of all recurrent states of one sequence. */
  long stateBytes() {
    long sum = 0;
    for (Cache cache : caches) {
      sum += cache instanceof StateCache state ? state.bytes() : 0;
    }
    return sum;
  }
}
