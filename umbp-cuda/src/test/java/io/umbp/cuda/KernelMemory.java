package io.umbp.cuda;

import java.nio.LongBuffer;

/**
 * What a copy of the kernel works on in tests: a table and an array of bytes. Only sources of the
 * table are read, each byte of its destinations is written once, and every access is aligned.
 */
final class KernelMemory {
  /** Address of the first byte, aligned for every word. */
  static final long BASE = 0x7fff_ffff_ff00_0000L;

  /** Address of the table. */
  static final long TABLE = 0x1000;

  final byte[] bytes;
  final LongBuffer table;
  private final boolean[] isReadable;
  private final boolean[] isWritable;

  KernelMemory(byte[] bytes, LongBuffer table, int rows) {
    this.bytes = bytes;
    this.table = table;
    isReadable = new boolean[bytes.length];
    isWritable = new boolean[bytes.length];
    for (int row = 0; row < rows; row++) {
      for (int i = 0; i < table.get(row * 3 + 2); i++) {
        isReadable[(int) (table.get(row * 3) - BASE) + i] = true;
        isWritable[(int) (table.get(row * 3 + 1) - BASE) + i] = true;
      }
    }
  }

  /** Expects an address to be aligned for a word. */
  static void align(long address, int wordBytes) {
    if (address % wordBytes != 0) {
      throw new AssertionError("a word of " + wordBytes + " bytes at " + address);
    }
  }

  byte read(long address) {
    int at = (int) (address - BASE);
    if (!isReadable[at]) {
      throw new AssertionError("byte " + at + " is in no source and is read");
    }
    return bytes[at];
  }

  void write(long address, byte value) {
    int at = (int) (address - BASE);
    if (!isWritable[at]) {
      throw new AssertionError("byte " + at + " is in no destination, or is written twice");
    }
    isWritable[at] = false;
    bytes[at] = value;
  }
}
