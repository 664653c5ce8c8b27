package io.umbp.cuda;

import java.nio.LongBuffer;

final class CopyKernel {
  static final String PTX_RESOURCE = "copy_ranges.ptx";
  static final String ENTRY = "umbp_copy_ranges";
  static final int ROW_BYTES = 24;
  static final int THREADS = 256;

  private CopyKernel() {}

  static int gridX(int rows, long longest, int multiprocessors) {
    return Math.min(rows, multiprocessors * 8);
  }

  static int gridY(int rows, long longest, int multiprocessors) {
    return 1;
  }

  static void putRow(LongBuffer table, int index, long from, long to, long bytes) {
    table.put(index * 3, from);
    table.put(index * 3 + 1, to);
    table.put(index * 3 + 2, bytes);
  }
}
