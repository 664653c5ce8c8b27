// Copies a table of ranges between device memory and mapped host memory, in either direction.
// CopyKernelModel, in the tests, is this file line by line in Java: change both.

typedef unsigned long long u64;

struct Row {
  u64 src;
  u64 dst;
  u64 bytes;
};

// As in CopyKernel.java. A multiple of 16, so that all chunks of a row are aligned like the first.
constexpr u64 CHUNK_BYTES = 65536;
constexpr unsigned THREADS = 256;
// Reads that each thread has under way at once: host memory is far.
constexpr unsigned UNROLL = 4;

// Copies count words with the threads of a block.
template <typename Word>
__device__ void copy_words(u64 dst, u64 src, unsigned count) {
  const Word *from = reinterpret_cast<const Word *>(src);
  Word *to = reinterpret_cast<Word *>(dst);
  for (unsigned i = threadIdx.x; i < count; i += UNROLL * blockDim.x) {
    Word word[UNROLL];
#pragma unroll
    for (unsigned u = 0; u < UNROLL; u++) {
      if (i + u * blockDim.x < count) {
        word[u] = from[i + u * blockDim.x];
      }
    }
#pragma unroll
    for (unsigned u = 0; u < UNROLL; u++) {
      if (i + u * blockDim.x < count) {
        to[i + u * blockDim.x] = word[u];
      }
    }
  }
}

// Copies at most a chunk: whole words between the first and the last place where dst is aligned to
// one, and what lies before and behind them byte by byte.
template <typename Word>
__device__ void copy_chunk(u64 dst, u64 src, unsigned bytes) {
  const unsigned to_aligned = static_cast<unsigned>(-dst) & (sizeof(Word) - 1);
  const unsigned head = to_aligned < bytes ? to_aligned : bytes;
  const unsigned words = (bytes - head) / sizeof(Word);
  const unsigned body = words * sizeof(Word);
  copy_words<Word>(dst + head, src + head, words);
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < bytes - body; i += blockDim.x) {
    const unsigned at = i < head ? i : i + body;
    reinterpret_cast<unsigned char *>(dst)[at] = reinterpret_cast<const unsigned char *>(src)[at];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    umbp_copy_ranges(const Row *table, unsigned rows) {
  for (unsigned r = blockIdx.x; r < rows; r += gridDim.x) {
    const u64 src = table[r].src;
    const u64 dst = table[r].dst;
    const u64 bytes = table[r].bytes;
    // Words are as wide as the alignment that source and destination have in common.
    const unsigned apart = static_cast<unsigned>(src ^ dst);
    for (u64 at = blockIdx.y * CHUNK_BYTES; at < bytes; at += gridDim.y * CHUNK_BYTES) {
      const u64 left = bytes - at;
      const unsigned n = static_cast<unsigned>(left < CHUNK_BYTES ? left : CHUNK_BYTES);
      if ((apart & 15) == 0) {
        copy_chunk<uint4>(dst + at, src + at, n);
      } else if ((apart & 7) == 0) {
        copy_chunk<u64>(dst + at, src + at, n);
      } else if ((apart & 3) == 0) {
        copy_chunk<unsigned>(dst + at, src + at, n);
      } else if ((apart & 1) == 0) {
        copy_chunk<unsigned short>(dst + at, src + at, n);
      } else {
        copy_chunk<unsigned char>(dst + at, src + at, n);
      }
    }
  }
}
