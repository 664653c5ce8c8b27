package io.umbp.core.layout;

import io.umbp.api.UMBPException;
import java.util.Comparator;
import java.util.List;

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

  /** Refuses strips of one group that share a byte with each other or with themselves. */
  static void checkDisjoint(int groupId, List<MemoryStrip> strips) {
    strips.sort(Comparator.comparingInt(MemoryStrip::space).thenComparingLong(MemoryStrip::start));
    for (int i = 0; i < strips.size(); i++) {
      MemoryStrip one = strips.get(i);
      if (one.count > 1 && one.length > one.stride) {
        throw overlap(groupId, one, one);
      }
      for (int k = i + 1; k < strips.size(); k++) {
        MemoryStrip other = strips.get(k);
        if (other.space != one.space || other.start >= one.end()) {
          break;
        }
        if (one.overlaps(other)) {
          throw overlap(groupId, one, other);
        }
      }
    }
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

  boolean overlaps(MemoryStrip other) {
    if (start >= other.end() || other.start >= end()) {
      return false;
    }
    if (stride == other.stride || count == 1 || other.count == 1) {
      return overlapsInStep(other, count == 1 ? other.stride : stride);
    }
    return overlapsInSweep(other);
  }

  /**
   * With one common stride, run j of the other starts {@code distance + (j - i) * step} behind run
   * i of this; they share a byte when that lies strictly between -other.length and length.
   */
  private boolean overlapsInStep(MemoryStrip other, long step) {
    long distance = other.start - start;
    long lowest = Math.floorDiv(-other.length - distance, step) + 1;
    long highest = -Math.floorDiv(distance - length, step) - 1;
    return Math.max(lowest, 1L - count) <= Math.min(highest, other.count - 1L);
  }

  private boolean overlapsInSweep(MemoryStrip other) {
    int i = 0;
    int j = 0;
    while (i < count && j < other.count) {
      long mine = start + i * stride;
      long theirs = other.start + j * other.stride;
      if (mine + length <= theirs) {
        i++;
      } else if (theirs + other.length <= mine) {
        j++;
      } else {
        return true;
      }
    }
    return false;
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
