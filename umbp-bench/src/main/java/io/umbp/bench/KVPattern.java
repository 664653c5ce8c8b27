package io.umbp.bench;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * What the replay's prefill leaves in GPU memory: each byte depends on rank, layer, block hash and
 * its offset, so that a byte from any other place shows. Stateless.
 */
final class KVPattern {
  private static final VarHandle LONG =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  /** Increment and multipliers of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
  private static final long STEP = 0x9E3779B97F4A7C15L;

  private static final long MULTIPLIER_1 = 0xBF58476D1CE4E5B9L;
  private static final long MULTIPLIER_2 = 0x94D049BB133111EBL;

  private KVPattern() {}

  /**
   * Writes one layer's page of a block.
   *
   * @param page receives the page from its start
   * @param bytes size of the page
   * @param rank index of the rank
   * @param layer index of the layer
   * @param hash the block's hash, shortened to 64 bits
   */
  static void fill(byte[] page, int bytes, int rank, int layer, long hash) {
    long state = mix(hash + mix(((long) rank << 32) + layer + STEP));
    int whole = bytes & -Long.BYTES;
    for (int at = 0; at < whole; at += Long.BYTES) {
      state += STEP;
      LONG.set(page, at, mix(state));
    }
    long last = mix(state + STEP);
    for (int at = whole; at < bytes; at++) {
      page[at] = (byte) last;
      last >>>= Byte.SIZE;
    }
  }

  private static long mix(long value) {
    long mixed = (value ^ (value >>> 30)) * MULTIPLIER_1;
    mixed = (mixed ^ (mixed >>> 27)) * MULTIPLIER_2;
    return mixed ^ (mixed >>> 31);
  }

  /** Returns the first eight bytes of a block hash. */
  static long shortened(byte[] hashes, int offset) {
    return (long) LONG.get(hashes, offset);
  }
}
