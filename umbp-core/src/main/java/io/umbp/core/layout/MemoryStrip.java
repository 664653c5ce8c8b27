package io.umbp.core.layout;

import com.google.common.math.LongMath;
import io.umbp.api.UMBPException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Equal runs of bytes at equal distances, run {@code i} being {@code [start + i * stride, start + i
 * * stride + length)}: what the blocks of one layer cover in one address space.
 *
 * @param layerName whose bytes these are
 * @param space the address space: one for a device, one for each host buffer
 * @param start address of the first byte
 * @param stride bytes from one run to the next
 * @param count number of runs, above 0
 * @param length bytes of each run
 */
record MemoryStrip(String layerName, int space, long start, long stride, int count, long length) {

  /** Greatest number of pairs of strips whose spans cross. */
  private static final int MAX_COMPARISONS = 1 << 24;

  /** Refuses strips of one group that share a byte with each other or with themselves. */
  static void checkDisjoint(int groupId, List<MemoryStrip> strips) {
    strips.sort(Comparator.comparingInt(MemoryStrip::space).thenComparingLong(MemoryStrip::start));
    if (findOverlap(groupId, bundled(strips)) != null) {
      MemoryStrip[] pair = findOverlap(groupId, strips);
      if (pair != null) {
        throw overlap(groupId, pair[0], pair[1]);
      }
    }
  }

  /**
   * Replaces strips that lie apart in one stride by what they span. There are few of these where
   * layers or heads take turns in a block; when they are disjoint, so are the strips.
   */
  private static List<MemoryStrip> bundled(List<MemoryStrip> sorted) {
    List<MemoryStrip> bundles = new ArrayList<>();
    for (MemoryStrip strip : sorted) {
      int last = bundles.size() - 1;
      if (last >= 0 && bundles.get(last).canSpan(strip)) {
        bundles.set(last, bundles.get(last).spanning(strip));
      } else {
        bundles.add(strip);
      }
    }
    return bundles;
  }

  private boolean canSpan(MemoryStrip next) {
    long distance = next.start - start;
    return space == next.space
        && stride == next.stride
        && count == next.count
        && distance >= length
        && distance <= stride - next.length;
  }

  private MemoryStrip spanning(MemoryStrip next) {
    return new MemoryStrip(
        layerName, space, start, stride, count, next.start - start + next.length);
  }

  /** Returns two strips that share a byte, twice the same if it does with itself. */
  private static MemoryStrip @Nullable [] findOverlap(int groupId, List<MemoryStrip> sorted) {
    int comparisons = 0;
    for (int i = 0; i < sorted.size(); i++) {
      MemoryStrip one = sorted.get(i);
      if (one.count > 1 && one.length > one.stride) {
        return new MemoryStrip[] {one, one};
      }
      for (int k = i + 1; k < sorted.size(); k++) {
        MemoryStrip other = sorted.get(k);
        if (other.space != one.space || other.start >= one.end()) {
          break;
        }
        if (++comparisons > MAX_COMPARISONS) {
          throw UMBPException.invalid(
              "layers '%s' and '%s' of group %d run through the same memory in more pieces than can"
                  + " be checked for overlap",
              one.layerName, other.layerName, groupId);
        }
        if (one.overlaps(other)) {
          return new MemoryStrip[] {one, other};
        }
      }
    }
    return null;
  }

  private static UMBPException overlap(int groupId, MemoryStrip one, MemoryStrip other) {
    if (one.layerName.equals(other.layerName)) {
      return UMBPException.invalid(
          "layer '%s' of group %d: pages of its blocks overlap (%d bytes at 0x%x, %d bytes at 0x%x,"
              + " block stride %d)",
          one.layerName, groupId, one.length, one.start, other.length, other.start, one.stride);
    }
    return UMBPException.invalid(
        "layers '%s' and '%s' of group %d overlap (%d bytes at 0x%x with block stride %d, %d bytes at"
            + " 0x%x with block stride %d)",
        one.layerName,
        other.layerName,
        groupId,
        one.length,
        one.start,
        one.stride,
        other.length,
        other.start,
        other.stride);
  }

  long end() {
    return start + (count - 1) * stride + length;
  }

  /**
   * Tells whether this strip and another one share a byte. Neither overlaps itself.
   *
   * <p>Run i of this and run j of the other share one when {@code ahead(i) - j * other.stride} lies
   * in [0, width], where {@code ahead} counts from the other's start to this run's last byte. That
   * is so for the last run j, or else {@code ahead(i) mod other.stride} is at most the width.
   */
  boolean overlaps(MemoryStrip other) {
    if (start >= other.end() || other.start >= end()) {
      return false;
    }
    long ahead = start - other.start + length - 1;
    long width = LongMath.saturatedAdd(length, other.length - 2);
    long lastRun = (other.count - 1) * other.stride;
    long first = Math.max(0, -Math.floorDiv(ahead - lastRun, stride));
    if (first < count && ahead + first * stride - lastRun <= width) {
      return true;
    }
    long from = Math.max(0, -Math.floorDiv(ahead, stride));
    long to = Math.min(count, first) - 1;
    if (from > to) {
      return false;
    }
    long rest = (ahead + from * stride) % other.stride;
    if (rest <= width) {
      return true;
    }
    long low = other.stride - rest;
    return firstMultiple(stride % other.stride, other.stride, low, low + width) <= to - from;
  }

  /**
   * Returns the least x with {@code low <= x * step mod modulus <= high}, where 0 &lt; low &lt;=
   * high &lt; modulus; {@link Long#MAX_VALUE} when there is none, or none whose product is a long.
   *
   * <p>Either a multiple of the step lies in the range at once, or the number y of times that the
   * product has gone round is the answer to the same question with modulus and step in the places
   * of step and modulus: Euclid's algorithm.
   */
  private static long firstMultiple(long step, long modulus, long low, long high) {
    if (step == 0) {
      return Long.MAX_VALUE;
    }
    long x = (low - 1) / step + 1;
    if (x <= high / step) {
      return x;
    }
    long rounds =
        firstMultiple(modulus % step, step, Math.floorMod(-high, step), Math.floorMod(-low, step));
    if (rounds == Long.MAX_VALUE || rounds > (Long.MAX_VALUE - low) / modulus) {
      return Long.MAX_VALUE;
    }
    return (low + modulus * rounds - 1) / step + 1;
  }

  /** Adds the parts of this strip that lie in [low, high), moved into another address space. */
  void clip(long low, long high, int targetSpace, long shift, List<MemoryStrip> out) {
    long first = Math.max(0, Math.floorDiv(low - length - start, stride) + 1);
    long last = Math.min(count - 1L, -Math.floorDiv(start - high, stride) - 1);
    long inside = first;
    while (inside <= last && start + inside * stride < low) {
      addRun(inside++, low, high, targetSpace, shift, out);
    }
    long insideEnd = last;
    while (insideEnd >= inside && start + insideEnd * stride + length > high) {
      addRun(insideEnd--, low, high, targetSpace, shift, out);
    }
    if (inside <= insideEnd) {
      int runs = (int) (insideEnd - inside + 1);
      long from = start + inside * stride + shift;
      out.add(new MemoryStrip(layerName, targetSpace, from, stride, runs, length));
    }
  }

  private void addRun(
      long index, long low, long high, int targetSpace, long shift, List<MemoryStrip> out) {
    long from = Math.max(low, start + index * stride);
    long to = Math.min(high, start + index * stride + length);
    out.add(new MemoryStrip(layerName, targetSpace, from + shift, stride, 1, to - from));
  }
}
