package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.zip.CRC32C;

/** The words of the metadata format, as they are written. Thread-confined. */
final class MetadataWriter {
  /** "UMBP" as bytes in that order. */
  static final int MAGIC = 0x50424D55;

  static final int VERSION = 1;
  static final int STEP = 1;
  static final int REPORT = 2;
  static final int HANDSHAKE = 3;

  private ByteBuffer out = ByteBuffer.allocate(1024).order(ByteOrder.LITTLE_ENDIAN);

  MetadataWriter(int kind) {
    out.putInt(MAGIC);
    out.put((byte) VERSION);
    out.put((byte) kind);
  }

  private void reserve(int bytes) {
    if (out.remaining() < bytes) {
      long doubled = Math.min(2L * out.capacity(), Integer.MAX_VALUE - 8L);
      int size = Math.toIntExact(Math.max(doubled, (long) out.position() + bytes));
      ByteBuffer larger = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
      out = larger.put(out.flip());
    }
  }

  void number(int value) {
    reserve(4);
    out.putInt(value);
  }

  void number64(long value) {
    reserve(8);
    out.putLong(value);
  }

  void count(int value) {
    number(value);
  }

  void text(String value) {
    ByteBuffer encoded;
    try {
      encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(value));
    } catch (CharacterCodingException e) {
      throw UMBPException.invalid("the text '%s' is no valid UTF-16: %s", value, e.getMessage());
    }
    number(encoded.remaining());
    reserve(encoded.remaining());
    out.put(encoded);
  }

  void hash(BlockHash value) {
    byte[] bytes = value.toBytes();
    reserve(1 + bytes.length);
    out.put((byte) bytes.length);
    out.put(bytes);
  }

  void hashes(BlockHashes column) {
    int length = column.hashLength();
    reserve(1);
    out.put((byte) length);
    reserve(Math.multiplyExact(length, column.size()));
    for (int i = 0; i < column.size(); i++) {
      column.copyTo(i, out.array(), out.position());
      out.position(out.position() + length);
    }
  }

  /** All that was written, with its checksum. */
  byte[] bytes() {
    reserve(4);
    CRC32C sum = new CRC32C();
    sum.update(out.array(), 0, out.position());
    out.putInt((int) sum.getValue());
    return Arrays.copyOf(out.array(), out.position());
  }
}
