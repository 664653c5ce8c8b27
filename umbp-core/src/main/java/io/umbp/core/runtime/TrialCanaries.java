package io.umbp.core.runtime;

import io.umbp.api.KVRange;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.HostSlab;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.function.ToLongFunction;
import org.jspecify.annotations.Nullable;

/**
 * The bytes next to the runs of one block, which a load of the block must not touch. Immutable, but
 * for the snapshots.
 */
final class TrialCanaries {
  /** How many bytes before and behind each run are looked at, where they are registered. */
  static final int WIDTH = 64;

  private static final long MAX_BYTES = 16 << 20;

  private final List<Span> spans = new ArrayList<>();
  private final List<KVRange> runs;

  /** A range of addresses [start, end). */
  record Span(long start, long end) {}

  /**
   * Finds the canaries of a block.
   *
   * @param runs the runs of the block in one group; they do not overlap
   * @param registered the memory of the registered tensors
   */
  TrialCanaries(List<KVRange> runs, List<Span> registered) {
    this.runs = sorted(runs, KVRange::address);
    List<Span> memory = union(registered);
    int width = WIDTH;
    do {
      spans.clear();
      find(width, memory);
      width /= 2;
    } while (sizeBytes() > MAX_BYTES && width > 0);
  }

  private static <T> List<T> sorted(List<T> items, ToLongFunction<T> byAddress) {
    return items.stream().sorted(Comparator.comparingLong(byAddress)).toList();
  }

  private static List<Span> union(List<Span> overlapping) {
    List<Span> union = new ArrayList<>();
    for (Span span : sorted(overlapping, Span::start)) {
      int last = union.size() - 1;
      if (last >= 0 && span.start < union.get(last).end) {
        Span before = union.remove(last);
        union.add(new Span(before.start, Math.max(before.end, span.end)));
      } else {
        union.add(span);
      }
    }
    return union;
  }

  private void find(int width, List<Span> memory) {
    int at = 0;
    for (int i = 0; i < runs.size(); i++) {
      KVRange run = runs.get(i);
      long gapStart = i == 0 ? Long.MIN_VALUE : Math.addExact(end(runs.get(i - 1)), width);
      long nextRun = i == runs.size() - 1 ? Long.MAX_VALUE : runs.get(i + 1).address();
      at = addInside(Math.max(gapStart, run.address() - width), run.address(), memory, at);
      at = addInside(end(run), Math.min(end(run) + width, nextRun), memory, at);
    }
  }

  /** Adds what of a range is registered; looks from a piece of memory on, and returns the next. */
  private int addInside(long start, long end, List<Span> memory, int from) {
    int at = from;
    if (start < end) {
      while (at < memory.size() && memory.get(at).end <= start) {
        at++;
      }
      for (int i = at; i < memory.size() && memory.get(i).start < end; i++) {
        Span piece = memory.get(i);
        spans.add(new Span(Math.max(start, piece.start), Math.min(end, piece.end)));
      }
    }
    return at;
  }

  private static long end(KVRange run) {
    return run.address() + run.length();
  }

  long sizeBytes() {
    return spans.stream().mapToLong(span -> span.end - span.start).sum();
  }

  /** Fills in the rows that read all canaries, one behind the other, into a slab. */
  void lower(CopyBatch rows, int deviceOrdinal, long hostAddress) {
    rows.reset(TransferDirection.STORE, deviceOrdinal, 1);
    long at = hostAddress;
    for (Span span : spans) {
      rows.add(span.start, at, span.end - span.start, 0);
      at += span.end - span.start;
    }
  }

  /** Returns which canary differs between two snapshots, in words; null when none does. */
  @Nullable String difference(HostSlab before, HostSlab after) {
    int at = 0;
    for (Span span : spans) {
      for (long address = span.start; address < span.end; address++, at++) {
        if (before.buffer().get(at) != after.buffer().get(at)) {
          return describe(address);
        }
      }
    }
    return null;
  }

  private String describe(long address) {
    for (KVRange run : runs) {
      long behind = address - end(run);
      if (behind >= 0 && behind < WIDTH) {
        return words(address, behind + 1, "behind", run);
      }
      if (address < run.address()) {
        return words(address, run.address() - address, "before", run);
      }
    }
    return String.format("0x%x", address);
  }

  private static String words(long address, long distance, String side, KVRange run) {
    return String.format(
        "0x%x, byte %d %s a run of layer '%s'", address, distance, side, run.layerName());
  }
}
