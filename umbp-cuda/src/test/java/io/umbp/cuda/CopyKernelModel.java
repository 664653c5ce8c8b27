package io.umbp.cuda;

import java.nio.LongBuffer;

/**
 * copy_ranges.cu line by line in Java, on an array for memory: what is tested here is the kernel's
 * arithmetic. Runs the threads one after the other, and expects each access to be aligned, and each
 * byte to be written once.
 */
final class CopyKernelModel {
  static final int UNROLL = 4;

  /** Address of the first byte of the memory, aligned for every word. */
  static final long BASE = 0x7fff_ffff_ffff_0000L;

  private final byte[] memory;
  private final boolean[] isWritten;

  // Of the thread that runs.
  private int threadIdx;
  private int blockDim;
  private int blockIdxX;
  private int blockIdxY;
  private int gridDimX;
  private int gridDimY;

  CopyKernelModel(byte[] memory) {
    this.memory = memory;
    isWritten = new boolean[memory.length];
  }

  void launch(int gridX, int gridY, int threads, LongBuffer table, int rows) {
    gridDimX = gridX;
    gridDimY = gridY;
    blockDim = threads;
    for (blockIdxX = 0; blockIdxX < gridX; blockIdxX++) {
      for (blockIdxY = 0; blockIdxY < gridY; blockIdxY++) {
        for (threadIdx = 0; threadIdx < threads; threadIdx++) {
          copyRanges(table, rows);
        }
      }
    }
  }

  private void copyWords(long dst, long src, int count, int sizeofWord) {
    for (int i = threadIdx; i < count; i += UNROLL * blockDim) {
      for (int u = 0; u < UNROLL; u++) {
        if (i + u * blockDim < count) {
          long word = (i + u * blockDim) * (long) sizeofWord;
          move(dst + word, src + word, sizeofWord);
        }
      }
    }
  }

  private void copyChunk(long dst, long src, int bytes, int sizeofWord) {
    int toAligned = (int) -dst & (sizeofWord - 1);
    int head = Math.min(toAligned, bytes);
    int words = (bytes - head) / sizeofWord;
    int body = words * sizeofWord;
    copyWords(dst + head, src + head, words, sizeofWord);
    for (int i = threadIdx; i < bytes - body; i += blockDim) {
      int at = i < head ? i : i + body;
      move(dst + at, src + at, 1);
    }
  }

  private void copyRanges(LongBuffer table, int rows) {
    for (int r = blockIdxX; r < rows; r += gridDimX) {
      long src = table.get(r * 3);
      long dst = table.get(r * 3 + 1);
      long bytes = table.get(r * 3 + 2);
      int apart = (int) (src ^ dst);
      for (long at = (long) blockIdxY * CopyKernel.CHUNK_BYTES;
          at < bytes;
          at += (long) gridDimY * CopyKernel.CHUNK_BYTES) {
        long left = bytes - at;
        int n = (int) Math.min(left, CopyKernel.CHUNK_BYTES);
        if ((apart & 15) == 0) {
          copyChunk(dst + at, src + at, n, 16);
        } else if ((apart & 7) == 0) {
          copyChunk(dst + at, src + at, n, 8);
        } else if ((apart & 3) == 0) {
          copyChunk(dst + at, src + at, n, 4);
        } else if ((apart & 1) == 0) {
          copyChunk(dst + at, src + at, n, 2);
        } else {
          copyChunk(dst + at, src + at, n, 1);
        }
      }
    }
  }

  private void move(long dst, long src, int sizeofWord) {
    if ((dst | src) % sizeofWord != 0) {
      throw new AssertionError("a word of " + sizeofWord + " bytes from " + src + " to " + dst);
    }
    int from = (int) (src - BASE);
    int to = (int) (dst - BASE);
    for (int i = 0; i < sizeofWord; i++) {
      if (isWritten[to + i]) {
        throw new AssertionError("byte " + (to + i) + " is written twice");
      }
      isWritten[to + i] = true;
      memory[to + i] = memory[from + i];
    }
  }
}
