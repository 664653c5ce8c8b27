package io.umbp.api;

import java.util.Arrays;
import java.util.HexFormat;

/**
 * The content hash of one full block's token prefix, as the engine computed it. Immutable; equal by
 * content. Many hashes at once travel as {@link BlockHashes}.
 */
public final class BlockHash {
  /** Greatest length in bytes. */
  public static final int MAX_LENGTH = 255;

  private final byte[] bytes;

  private BlockHash(byte[] bytes) {
    this.bytes = bytes;
  }

  /**
   * Returns the hash with the given bytes.
   *
   * @param bytes 1 to {@value #MAX_LENGTH} bytes; copied
   * @return the hash
   */
  public static BlockHash of(byte[] bytes) {
    checkLength(bytes.length);
    return new BlockHash(bytes.clone());
  }

  /**
   * Parses hexadecimal text.
   *
   * @param hex two digits a byte, either case
   * @return the hash
   */
  public static BlockHash fromHex(String hex) {
    byte[] bytes;
    try {
      bytes = HexFormat.of().parseHex(hex);
    } catch (IllegalArgumentException e) {
      throw new UMBPException(
          UMBPException.Reason.INVALID_ARGUMENT,
          "block hash " + BlockKey.quote(hex) + " is not hexadecimal",
          e);
    }
    checkLength(bytes.length);
    return new BlockHash(bytes);
  }

  static void checkLength(int length) {
    if (length < 1 || length > MAX_LENGTH) {
      throw UMBPException.invalid(
          "block hash has %d bytes, allowed are 1 to %d", length, MAX_LENGTH);
    }
  }

  /** Wraps a private copy without checking or copying it again. */
  static BlockHash wrap(byte[] owned) {
    return new BlockHash(owned);
  }

  byte[] shared() {
    return bytes;
  }

  /**
   * Returns the length.
   *
   * @return length in bytes
   */
  public int length() {
    return bytes.length;
  }

  /**
   * Returns a copy of the bytes.
   *
   * @return a new array
   */
  public byte[] toBytes() {
    return bytes.clone();
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof BlockHash that && Arrays.equals(bytes, that.bytes);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(bytes);
  }

  /**
   * Returns the hash as it stands in keys.
   *
   * @return lower-case hexadecimal
   */
  @Override
  public String toString() {
    return HexFormat.of().formatHex(bytes);
  }
}
