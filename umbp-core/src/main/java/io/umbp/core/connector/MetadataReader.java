package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.zip.CRC32C;

/**
 * The words of the metadata format, as they are read from bytes that nobody vouches for.
 * Thread-confined.
 */
final class MetadataReader {
  private static final int HEADER_BYTES = 6;
  private static final int SUM_BYTES = 4;

  private final byte[] bytes;
  private final ByteBuffer in;

  MetadataReader(byte[] bytes, int kind) {
    this.bytes = bytes.clone();
    this.in = ByteBuffer.wrap(this.bytes).order(ByteOrder.LITTLE_ENDIAN);
    if (bytes.length < HEADER_BYTES + SUM_BYTES) {
      throw wrong(
          "there are %d bytes, the shortest metadata has %d",
          bytes.length, HEADER_BYTES + SUM_BYTES);
    }
    if (in.getInt() != MetadataWriter.MAGIC) {
      throw wrong("it does not begin with 'UMBP'");
    }
    int version = in.get() & 0xff;
    if (version != MetadataWriter.VERSION) {
      throw wrong("it has the version %d, read is %d only", version, MetadataWriter.VERSION);
    }
    int found = in.get() & 0xff;
    if (found != kind) {
      throw wrong("it is of kind %d, %d is wanted", found, kind);
    }
    int end = bytes.length - SUM_BYTES;
    CRC32C sum = new CRC32C();
    sum.update(this.bytes, 0, end);
    int stored = in.getInt(end);
    if ((int) sum.getValue() != stored) {
      throw wrong("its CRC32C is %08x, %08x is stored", (int) sum.getValue(), stored);
    }
    in.limit(end);
  }

  /** The refusal of what stands just before the place that was reached. */
  UMBPException wrong(String format, Object... arguments) {
    return UMBPException.invalid(
        "metadata of %d bytes, at byte %d: %s",
        bytes.length, in.position(), String.format(Locale.ROOT, format, arguments));
  }

  private void need(int count) {
    if (in.remaining() < count) {
      throw wrong("%d more bytes are needed, %d are left", count, in.remaining());
    }
  }

  int number() {
    need(4);
    return in.getInt();
  }

  long number64() {
    need(8);
    return in.getLong();
  }

  /** A count of things that have so many bytes each at least, so that it can't be a lie. */
  int count(String what, int leastBytes) {
    int count = number();
    if (count < 0 || (long) count * leastBytes > in.remaining()) {
      throw wrong(
          "%d %s of at least %d bytes each, %d bytes are left",
          count & 0xffffffffL, what, leastBytes, in.remaining());
    }
    return count;
  }

  String text() {
    int length = count("bytes of text", 1);
    ByteBuffer encoded = in.slice(in.position(), length);
    in.position(in.position() + length);
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(encoded).toString();
    } catch (CharacterCodingException e) {
      throw wrong("a text of %d bytes is no valid UTF-8: %s", length, e.toString());
    }
  }

  BlockHash hash() {
    need(1);
    byte[] hash = new byte[in.get() & 0xff];
    need(hash.length);
    in.get(hash);
    return BlockHash.of(hash);
  }

  BlockHashes hashes(int count) {
    need(1);
    int length = in.get() & 0xff;
    if ((long) length * count > in.remaining()) {
      throw wrong("%d hashes of %d bytes, %d bytes are left", count, length, in.remaining());
    }
    byte[] column = new byte[length * count];
    in.get(column);
    return BlockHashes.of(length, column);
  }

  /**
   * Reads a value and all that is there.
   *
   * @param body reads what follows the header
   * @param write writes the value again: other bytes for the same value are refused, so that a
   *     value has one form
   */
  <T> T whole(Supplier<T> body, Function<T, byte[]> write) {
    T value;
    try {
      value = body.get();
    } catch (UMBPException e) {
      throw String.valueOf(e.getMessage()).startsWith("metadata of ")
          ? e
          : wrong("%s", String.valueOf(e.getMessage()));
    }
    if (in.hasRemaining()) {
      throw wrong("%d bytes are left over", in.remaining());
    }
    byte[] again = write.apply(value);
    if (!Arrays.equals(again, bytes)) {
      int at = Arrays.mismatch(again, bytes);
      in.position(Math.min(at, in.limit()));
      throw wrong("the value has another form from here on: sorted, each entry once");
    }
    return value;
  }
}
