package io.umbp.cuda;

import java.util.concurrent.atomic.LongAdder;

/** Counts for {@link CudaCopyStats}. Thread-safe. */
final class CopyCounters {
  final LongAdder ranges = new LongAdder();
  final LongAdder copyCalls = new LongAdder();
  final LongAdder copyBytes = new LongAdder();
  final LongAdder stridedCalls = new LongAdder();
  final LongAdder stridedBytes = new LongAdder();
  final LongAdder kernelLaunches = new LongAdder();
  final LongAdder kernelBytes = new LongAdder();

  CudaCopyStats snapshot() {
    return new CudaCopyStats(
        ranges.sum(),
        copyCalls.sum(),
        copyBytes.sum(),
        stridedCalls.sum(),
        stridedBytes.sum(),
        kernelLaunches.sum(),
        kernelBytes.sum());
  }
}
