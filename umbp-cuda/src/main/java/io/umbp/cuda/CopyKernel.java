package io.umbp.cuda;

import io.umbp.api.UMBPException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;

/**
 * The host's side of the kernel that copies a table of ranges: its text, its table and its grid.
 * Touches no driver.
 *
 * <p>The kernel takes {@code (const Row *table, unsigned rows)}. A row is three 64-bit words,
 * source, destination and length in bytes. The blocks with the same x share the rows x, x + width
 * of the grid, and so on; among them, they take turns at the chunks of a row.
 */
final class CopyKernel {
  /** Name of the kernel in its module. */
  static final String ENTRY = "umbp_copy_ranges";

  /** Size of a row of the table. */
  static final int ROW_BYTES = 24;

  /** What one block copies of a row at a time; the same number stands in the kernel. */
  static final int CHUNK_BYTES = 64 << 10;

  /** Threads of a block; the kernel is compiled for no more. */
  static final int THREADS = 256;

  private static final int ROW_WORDS = ROW_BYTES / Long.BYTES;
  private static final String RESOURCE = "copy_ranges.ptx";

  /**
   * A multiprocessor holds four to eight blocks at a time. Some rounds of them even out rows of
   * unequal length.
   */
  private static final int BLOCKS_PER_PROCESSOR = 32;

  private static final int MAX_GRID_Y = 65_535;

  private CopyKernel() {}

  /** Returns the kernel's module as PTX text. */
  static String ptx() {
    try (InputStream in = CopyKernel.class.getResourceAsStream(RESOURCE)) {
      if (in == null) {
        throw new UMBPException(
            UMBPException.Reason.UNSUPPORTED,
            "the kernel " + RESOURCE + " is not on the class path");
      }
      return new String(in.readAllBytes(), StandardCharsets.US_ASCII);
    } catch (IOException e) {
      throw new UncheckedIOException("cannot read the kernel " + RESOURCE, e);
    }
  }

  /** Returns the rows of a table from the buffer's position on, in the order the device reads. */
  static LongBuffer table(ByteBuffer memory) {
    return memory.slice().order(ByteOrder.nativeOrder()).asLongBuffer();
  }

  /** Writes a row of a table. */
  static void putRow(LongBuffer table, int index, long source, long destination, long bytes) {
    int word = index * ROW_WORDS;
    table.put(word, source);
    table.put(word + 1, destination);
    table.put(word + 2, bytes);
  }

  /** Returns the width of the grid: a block for each row, up to what the device can use. */
  static int gridX(int rows, int processors) {
    return Math.max(1, Math.min(rows, usefulBlocks(processors)));
  }

  /** Returns the height of the grid: with few rows, more blocks for the chunks of each. */
  static int gridY(int rows, long longestRowBytes, int processors) {
    long chunks = (longestRowBytes - 1) / CHUNK_BYTES + 1;
    int useful = usefulBlocks(processors);
    int width = gridX(rows, processors);
    int blocksPerRow = (useful - 1) / width + 1;
    return (int) Math.max(1, Math.min(chunks, Math.min(blocksPerRow, MAX_GRID_Y)));
  }

  private static int usefulBlocks(int processors) {
    return Math.max(1, processors) * BLOCKS_PER_PROCESSOR;
  }
}
