package io.umbp.core.identity;

import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * The few items of canonical CBOR (RFC 8949, section 4.2.1: every head in its shortest form) that
 * block hashes are made over. Writers put an item at an index and return the index behind it.
 */
final class CanonicalCbor {
  static final byte NULL = (byte) 0xF6;

  /** Greatest length of a head whose argument is an {@code int}, in bytes. */
  static final int MAX_HEAD = 5;

  private static final int UNSIGNED = 0;
  private static final int BYTE_STRING = 2 << 5;
  private static final int TEXT = 3 << 5;
  private static final int ARRAY = 4 << 5;

  private CanonicalCbor() {}

  static int putUnsigned(byte[] target, int at, int value) {
    return putHead(target, at, UNSIGNED, value);
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
    byte[] item = new byte[MAX_HEAD + length];
    int at = putHead(item, 0, TEXT, length);
    utf8.get(item, at, length);
    return Arrays.copyOf(item, at + length);
  }

  private static int putHead(byte[] target, int at, int majorType, int value) {
    int next = at;
    if (value < 24) {
      target[next++] = (byte) (majorType | value);
    } else if (value < 1 << 8) {
      target[next++] = (byte) (majorType | 24);
      target[next++] = (byte) value;
    } else if (value < 1 << 16) {
      target[next++] = (byte) (majorType | 25);
      target[next++] = (byte) (value >> 8);
      target[next++] = (byte) value;
    } else {
      target[next++] = (byte) (majorType | 26);
      target[next++] = (byte) (value >> 24);
      target[next++] = (byte) (value >> 16);
      target[next++] = (byte) (value >> 8);
      target[next++] = (byte) value;
    }
    return next;
  }
}
