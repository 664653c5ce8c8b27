package io.umbp.bench.sim;

import io.umbp.api.BlockHashes;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * What KV must be: the bytes of each hash unit are a function of all tokens up to its end, of the
 * group and of the rank. Stateless.
 */
final class SimTruth {
  /** Tokens of a hash unit. */
  static final int UNIT_TOKENS = 2;

  /** Bytes of a hash unit in one block. */
  static final int UNIT_BYTES = 8;

  private SimTruth() {}

  /** The finalizer of SplitMix64 (Steele, Lea and Flood 2014). */
  static long mix(long value) {
    long z = value + 0x9E3779B97F4A7C15L;
    z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
    z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
    return z ^ (z >>> 31);
  }

  /** The hash of a prefix that goes on with a unit of tokens. */
  static long next(long prefix, long tokens) {
    return mix(prefix ^ mix(tokens));
  }

  static BlockHashes hashes(long[] chain, int units) {
    ByteBuffer bytes = ByteBuffer.allocate(units * 8).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < units; i++) {
      bytes.putLong(chain[i]);
    }
    return units == 0 ? BlockHashes.empty() : BlockHashes.of(8, bytes.array());
  }

  /** The bytes of a unit whose prefix has a hash. */
  static byte[] unit(int group, int rank, long hash) {
    long value = mix(hash ^ mix(group * 31L + rank + 1));
    return ByteBuffer.allocate(UNIT_BYTES).order(ByteOrder.LITTLE_ENDIAN).putLong(value).array();
  }
}
