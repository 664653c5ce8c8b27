package io.umbp.core.identity;

import io.umbp.api.UMBPException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * The few items of canonical CBOR (RFC 8949, section 4.2.1: every head in its shortest form) that
 * block hashes are made over. Writers put an item at an index and return the index behind it; bytes
 * behind the item are overwritten too.
 */
final class CanonicalCbor {
  static final byte NULL = (byte) 0xF6;

  /** Greatest length of a head whose argument is an {@code int}, in bytes. */
  static final int MAX_HEAD = 5;

  /** Bytes that must be free where an item is put, although it may be shorter. */
  static final int ROOM = Long.BYTES;

  private static final VarHandle LONG =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

  /** Heads of arguments from 24 on without their major type, in the top byte, by leading zeros. */
  private static final long[] HEADS = new long[Integer.SIZE];

  /** How far the argument is shifted left to stand behind its head byte, by leading zeros. */
  private static final int[] SHIFTS = new int[Integer.SIZE];

  static {
    fill(0, 16, 26, 4);
    fill(16, 24, 25, 2);
    fill(24, 32, 24, 1);
  }

  private static final int UNSIGNED = 0;
  private static final int NEGATIVE = 1 << 5;
  private static final int BYTE_STRING = 2 << 5;
  private static final int TEXT = 3 << 5;
  private static final int ARRAY = 4 << 5;

  private CanonicalCbor() {}

  private static void fill(int fromZeros, int toZeros, long head, int argumentBytes) {
    Arrays.fill(HEADS, fromZeros, toZeros, head << 56);
    Arrays.fill(SHIFTS, fromZeros, toZeros, Long.SIZE - 8 * (1 + argumentBytes));
  }

  static int putUnsigned(byte[] target, int at, int value) {
    return putHead(target, at, UNSIGNED, value);
  }

  static int putInteger(byte[] target, int at, int value) {
    return value < 0
        ? putHead(target, at, NEGATIVE, -1 - value)
        : putHead(target, at, UNSIGNED, value);
  }

  static int putArrayHead(byte[] target, int at, int size) {
    return putHead(target, at, ARRAY, size);
  }

  static int putBytesHead(byte[] target, int at, int length) {
    return putHead(target, at, BYTE_STRING, length);
  }

  /**
   * Returns one text item.
   *
   * @param what names the text in an error; the text itself may be a secret and is never told
   */
  static byte[] text(String what, String text) {
    ByteBuffer utf8;
    try {
      utf8 = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
    } catch (CharacterCodingException e) {
      throw new UMBPException(
          UMBPException.Reason.INVALID_ARGUMENT,
          what + " of " + text.length() + " characters has a lone surrogate and no UTF-8 form",
          e);
    }
    int length = utf8.remaining();
    byte[] item = new byte[ROOM + length];
    int at = putHead(item, 0, TEXT, length);
    utf8.get(item, at, length);
    return Arrays.copyOf(item, at + length);
  }

  /**
   * Puts head byte and argument with one write of 8 bytes and no branch on the argument's length:
   * the lengths of token ids are hard to predict.
   */
  private static int putHead(byte[] target, int at, int majorType, int value) {
    if (value < 24) {
      target[at] = (byte) (majorType | value);
      return at + 1;
    }
    int zeros = Integer.numberOfLeadingZeros(value) & 31;
    int shift = SHIFTS[zeros];
    LONG.set(target, at, (long) majorType << 56 | HEADS[zeros] | (long) value << shift);
    return at + (Long.BYTES - (shift >>> 3));
  }
}
