package io.umbp.api;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;

/**
 * A column of block hashes of one length, held as plain bytes: the hot-path form of {@code
 * List<BlockHash>}. Immutable. Reading an element's bytes or fingerprint allocates nothing.
 */
public final class BlockHashes {
  private static final VarHandle LONG =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final byte[] HEX_DIGITS = "0123456789abcdef".getBytes(US_ASCII);

  /** What a virtual machine can allocate in one array. */
  private static final int MAX_COLUMN_BYTES = Integer.MAX_VALUE - 8;

  private static final BlockHashes EMPTY = new BlockHashes(new byte[0], 1, 0, 0);

  private final byte[] bytes;
  private final int hashLength;
  private final int first;
  private final int size;

  private BlockHashes(byte[] bytes, int hashLength, int first, int size) {
    this.bytes = bytes;
    this.hashLength = hashLength;
    this.first = first;
    this.size = size;
  }

  /**
   * Returns a column over a copy of concatenated hashes.
   *
   * @param hashLength length of each hash in bytes, 1 to {@value BlockHash#MAX_LENGTH}
   * @param concatenated the hashes one after another; a multiple of hashLength; copied
   * @return the column
   */
  public static BlockHashes of(int hashLength, byte[] concatenated) {
    BlockHash.checkLength(hashLength);
    if (concatenated.length % hashLength != 0) {
      throw UMBPException.invalid(
          "%d bytes of hashes are no multiple of the hash length %d",
          concatenated.length, hashLength);
    }
    return new BlockHashes(concatenated.clone(), hashLength, 0, concatenated.length / hashLength);
  }

  /**
   * Returns a column of the given hashes.
   *
   * @param hashes hashes of one length
   * @return the column, empty for an empty list
   */
  public static BlockHashes of(List<BlockHash> hashes) {
    if (hashes.isEmpty()) {
      return EMPTY;
    }
    int length = hashes.get(0).length();
    byte[] bytes = new byte[columnBytes(hashes.size(), length)];
    int index = 0;
    for (BlockHash hash : hashes) {
      if (hash.length() != length) {
        throw UMBPException.invalid(
            "block hash %d has %d bytes, the first has %d; a column needs one length",
            index, hash.length(), length);
      }
      System.arraycopy(hash.shared(), 0, bytes, index++ * length, length);
    }
    return new BlockHashes(bytes, length, 0, hashes.size());
  }

  /**
   * Collects hashes one after another. Thread-confined; the columns taken from it are not.
   *
   * <p>Columns share the builder's room: nothing is copied but when it is full and doubles, and
   * what is appended later lies behind all that was taken.
   */
  public static final class Builder {
    private final int hashLength;
    private byte[] bytes;
    private int size;

    /**
     * Creates an empty builder.
     *
     * @param hashLength length of each hash in bytes, 1 to {@value BlockHash#MAX_LENGTH}
     * @param expected hashes for which room is taken at once, at least 0
     */
    public Builder(int hashLength, int expected) {
      BlockHash.checkLength(hashLength);
      if (expected < 0) {
        throw UMBPException.invalid("%d expected hashes; must be >= 0", expected);
      }
      this.hashLength = hashLength;
      this.bytes = new byte[columnBytes(expected, hashLength)];
    }

    /**
     * Appends a hash.
     *
     * @param source has the hash's bytes; copied
     * @param offset where in source
     * @throws UMBPException INVALID_ARGUMENT when the column would have more than {@link
     *     Integer#MAX_VALUE} bytes
     */
    public void append(byte[] source, int offset) {
      int end = size * hashLength;
      if (end > bytes.length - hashLength) {
        int needed = columnBytes(size + 1, hashLength);
        long room = Math.max(8L * hashLength, 2L * bytes.length);
        bytes = Arrays.copyOf(bytes, (int) Math.max(needed, Math.min(room, MAX_COLUMN_BYTES)));
      }
      System.arraycopy(source, offset, bytes, end, hashLength);
      size++;
    }

    /**
     * Returns the number of hashes.
     *
     * @return how many were appended
     */
    public int size() {
      return size;
    }

    /**
     * Returns a column of all hashes appended so far. Allocates nothing for the hashes.
     *
     * @return a column that later hashes do not change
     */
    public BlockHashes column() {
      return new BlockHashes(bytes, hashLength, 0, size);
    }
  }

  /**
   * Returns the column without elements.
   *
   * @return an empty column
   */
  public static BlockHashes empty() {
    return EMPTY;
  }

  /**
   * Returns the number of hashes.
   *
   * @return count, at least 0
   */
  public int size() {
    return size;
  }

  /**
   * Returns the length of each hash.
   *
   * @return length in bytes
   */
  public int hashLength() {
    return hashLength;
  }

  /**
   * Returns one hash as a value.
   *
   * @param index element in [0, size)
   * @return a new value
   */
  public BlockHash get(int index) {
    int from = offset(index);
    return BlockHash.wrap(Arrays.copyOfRange(bytes, from, from + hashLength));
  }

  /**
   * Returns a part of this column that shares its bytes.
   *
   * @param from first element
   * @param to end, exclusive
   * @return the part
   */
  public BlockHashes slice(int from, int to) {
    if (from < 0 || to < from || to > size) {
      throw UMBPException.invalid("slice [%d, %d) is outside [0, %d)", from, to, size);
    }
    return new BlockHashes(bytes, hashLength, first + from, to - from);
  }

  /**
   * Returns a column with the elements at the given places, in that order.
   *
   * @param indexes elements of this column, each in [0, size)
   * @return a new column of {@code indexes.length} hashes
   */
  public BlockHashes select(int... indexes) {
    byte[] picked = new byte[columnBytes(indexes.length, hashLength)];
    for (int i = 0; i < indexes.length; i++) {
      copyTo(indexes[i], picked, i * hashLength);
    }
    return new BlockHashes(picked, hashLength, 0, indexes.length);
  }

  /**
   * Copies one hash.
   *
   * @param index element in [0, size)
   * @param target receives {@link #hashLength()} bytes
   * @param targetOffset where in target
   */
  public void copyTo(int index, byte[] target, int targetOffset) {
    System.arraycopy(bytes, offset(index), target, targetOffset, hashLength);
  }

  /**
   * Tells whether one hash has exactly the given bytes.
   *
   * @param index element in [0, size)
   * @param hash bytes to compare with
   * @return true when equal in length and content
   */
  public boolean matches(int index, byte[] hash) {
    int from = offset(index);
    return hash.length == hashLength
        && Arrays.equals(bytes, from, from + hashLength, hash, 0, hashLength);
  }

  /**
   * Returns a 64-bit digest of one hash for use in hash tables: every byte counts, in the low bits
   * and in {@link Long#hashCode(long)} too; equal hashes have equal fingerprints in every column.
   *
   * @param index element in [0, size)
   * @return the fingerprint
   */
  public long fingerprint(int index) {
    int at = offset(index);
    int end = at + hashLength;
    long mixed = hashLength;
    for (; at + Long.BYTES <= end; at += Long.BYTES) {
      mixed = mix(mixed ^ (long) LONG.get(bytes, at));
    }
    for (; at < end; at++) {
      mixed = mix(mixed ^ (bytes[at] & 0xFF));
    }
    return mix(mixed);
  }

  /**
   * A multiply and a shift, with the 64-bit golden ratio as in Fibonacci hashing (Knuth, vol. 3).
   * The shift is not 32: tables fold a long by 32, and folding twice takes the high half out again.
   */
  private static long mix(long value) {
    long product = value * 0x9E3779B97F4A7C15L;
    return product ^ (product >>> 29);
  }

  /** Writes one hash as two lower-case ASCII digits a byte, starting at textOffset. */
  void copyHexTo(int index, byte[] text, int textOffset) {
    int from = offset(index);
    for (int i = 0; i < hashLength; i++) {
      byte value = bytes[from + i];
      text[textOffset + 2 * i] = HEX_DIGITS[(value >> 4) & 0xF];
      text[textOffset + 2 * i + 1] = HEX_DIGITS[value & 0xF];
    }
  }

  private static int columnBytes(int size, int hashLength) {
    long bytes = (long) size * hashLength;
    if (bytes > Integer.MAX_VALUE) {
      throw UMBPException.invalid(
          "%d hashes of %d bytes exceed the limit of %d bytes a column",
          size, hashLength, Integer.MAX_VALUE);
    }
    return (int) bytes;
  }

  private int offset(int index) {
    if (index < 0 || index >= size) {
      throw UMBPException.invalid("hash index %d is outside [0, %d)", index, size);
    }
    return (first + index) * hashLength;
  }

  @Override
  public String toString() {
    return size + " hashes of " + hashLength + " bytes";
  }
}
