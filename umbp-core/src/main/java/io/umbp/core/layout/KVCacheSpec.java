package io.umbp.core.layout;

import io.umbp.api.ElementType;
import io.umbp.api.UMBPException;

/** What one layer keeps for each block. Immutable. */
public sealed interface KVCacheSpec {
  /**
   * Returns the engine's name for the kind of cache, such as {@code FullAttentionSpec}.
   *
   * @return not empty
   */
  String kind();

  /**
   * Returns the number of tokens in one block.
   *
   * @return above 0
   */
  int blockSize();

  /**
   * Returns the number format.
   *
   * @return format of the page's elements
   */
  ElementType elementType();

  /**
   * Returns what tensor parallelism does to the layer's KV.
   *
   * @return whether ranks share it
   */
  TPSharding sharding();

  /**
   * Keys and values of each token and head, or one latent for both.
   *
   * @param kind the engine's name for the kind of cache, not empty
   * @param blockSize tokens in one block, above 0
   * @param elementType number format of the elements
   * @param kvHeads KV heads over all tensor-parallel ranks, above 0; a rank has {@code kvHeads /
   *     tpSize} of them, at least 1, and all of them when the layer is replicated
   * @param keySize elements of a key, above 0
   * @param valueSize elements of a value; 0 when there is one content, such as a latent, or when
   *     the layer has only the keys or the values and another layer name the rest
   * @param sharding what tensor parallelism does
   * @param slidingWindow tokens that a token attends to; 0 when all
   */
  record Attention(
      String kind,
      int blockSize,
      ElementType elementType,
      int kvHeads,
      int keySize,
      int valueSize,
      TPSharding sharding,
      int slidingWindow)
      implements KVCacheSpec {

    /** Checks the bounds. */
    public Attention {
      checkCommon(kind, blockSize);
      if (kvHeads <= 0 || kvHeads > TPShardMapping.MAX_KV_HEADS) {
        throw UMBPException.invalid(
            "%s has %d KV heads, allowed are 1 to %d", kind, kvHeads, TPShardMapping.MAX_KV_HEADS);
      }
      if (keySize <= 0 || valueSize < 0 || slidingWindow < 0) {
        throw UMBPException.invalid(
            "%s has key size %d, value size %d, sliding window %d; the key size must be > 0, the"
                + " rest >= 0",
            kind, keySize, valueSize, slidingWindow);
      }
    }
  }

  /**
   * A state as of a block's end, such as that of a Mamba layer: bytes without heads and tokens.
   *
   * @param kind the engine's name for the kind of cache, not empty
   * @param blockSize tokens in one block, above 0
   * @param elementType number format of the elements
   * @param pageBytes bytes of the state on one rank, above 0
   * @param sharding what tensor parallelism does
   */
  record State(
      String kind, int blockSize, ElementType elementType, long pageBytes, TPSharding sharding)
      implements KVCacheSpec {

    /** Checks the bounds. */
    public State {
      checkCommon(kind, blockSize);
      if (pageBytes <= 0) {
        throw UMBPException.invalid("%s has page bytes %d, must be > 0", kind, pageBytes);
      }
    }
  }

  private static void checkCommon(String kind, int blockSize) {
    if (kind.isEmpty()) {
      throw UMBPException.invalid("the kind of a KV cache spec is empty");
    }
    if (blockSize <= 0) {
      throw UMBPException.invalid("%s has block size %d, must be > 0", kind, blockSize);
    }
  }
}
