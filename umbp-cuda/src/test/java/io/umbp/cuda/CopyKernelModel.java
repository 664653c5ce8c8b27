package io.umbp.cuda;

import java.nio.LongBuffer;

/**
 * copy_ranges.cu line by line in Java: what is tested here is the kernel's arithmetic. Runs the
 * threads one after the other.
 */
final class CopyKernelModel {
  static final int UNROLL = 4;

  private final KernelMemory memory;

  // Of the thread that runs.
  private int threadIdx;
  private int blockDim;
  private int blockIdxX;
  private int blockIdxY;
  private int gridDimX;
  private int gridDimY;

  CopyKernelModel(KernelMemory memory) {
    this.memory = memory;
  }

  void launch(int gridX, int gridY, int threads, int rows) {
    gridDimX = gridX;
    gridDimY = gridY;
    blockDim = threads;
    for (blockIdxX = 0; blockIdxX < gridX; blockIdxX++) {
      for (blockIdxY = 0; blockIdxY < gridY; blockIdxY++) {
        for (threadIdx = 0; threadIdx < threads; threadIdx++) {
          copyRanges(rows);
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

  private void copyRanges(int rows) {
    LongBuffer table = memory.table;
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
    KernelMemory.align(src, sizeofWord);
    KernelMemory.align(dst, sizeofWord);
    for (int i = 0; i < sizeofWord; i++) {
      memory.write(dst + i, memory.read(src + i));
    }
  }
}
