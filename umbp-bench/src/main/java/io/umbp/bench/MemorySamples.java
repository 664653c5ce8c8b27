package io.umbp.bench;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.ToLongFunction;

/** What this JVM holds after each round of a long run. Thread-confined. */
final class MemorySamples {
  private static final int LINES = 30;

  private final List<Sample> samples = new ArrayList<>();

  /**
   * One look.
   *
   * @param heapBytes live objects, after a garbage collection
   * @param directBytes direct buffers
   * @param threads live threads
   */
  private record Sample(long heapBytes, long directBytes, long threads) {}

  /** Collects garbage and looks. */
  void take() {
    System.gc();
    long heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    long direct = 0;
    for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
      if (pool.getName().equals("direct")) {
        direct = pool.getMemoryUsed();
      }
    }
    int threads = ManagementFactory.getThreadMXBean().getThreadCount();
    samples.add(new Sample(heap, direct, threads));
  }

  /** Some of the samples, and the medians of the middle and the last third side by side. */
  List<String> table() {
    List<String> lines = new ArrayList<>();
    lines.add("  round    heap bytes  direct bytes  threads");
    int step = Math.max(1, (samples.size() + LINES - 1) / LINES);
    for (int i = step - 1; i < samples.size(); i += step) {
      Sample sample = samples.get(i);
      lines.add(
          String.format(
              Locale.ROOT,
              "  %5d  %,12d  %,12d  %,7d",
              i + 1,
              sample.heapBytes,
              sample.directBytes,
              sample.threads));
    }
    if (samples.size() >= 3) {
      lines.add(
          String.format(
              Locale.ROOT,
              "  medians of the middle and the last third: heap %s, direct %s, threads %s",
              thirds(Sample::heapBytes),
              thirds(Sample::directBytes),
              thirds(Sample::threads)));
    }
    return lines;
  }

  private String thirds(ToLongFunction<Sample> figure) {
    int size = samples.size();
    return String.format(
        Locale.ROOT,
        "%,d and %,d",
        median(samples.subList(size / 3, 2 * size / 3), figure),
        median(samples.subList(2 * size / 3, size), figure));
  }

  private static long median(List<Sample> some, ToLongFunction<Sample> figure) {
    long[] sorted = some.stream().mapToLong(figure).sorted().toArray();
    return sorted[sorted.length / 2];
  }
}
