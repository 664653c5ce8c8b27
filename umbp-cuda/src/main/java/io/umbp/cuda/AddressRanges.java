package io.umbp.cuda;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Ranges of addresses, ascending and apart, each with what it belongs to. Immutable.
 *
 * @param <T> whose the ranges are
 */
final class AddressRanges<T> {
  private final long[] start;
  private final long[] end;
  private final List<T> owner;

  /** A range that an owner covers. */
  record Range<T>(long start, long end, T owner) {}

  private AddressRanges(long[] start, long[] end, List<T> owner) {
    this.start = start;
    this.end = end;
    this.owner = owner;
  }

  static <T> AddressRanges<T> none() {
    return new AddressRanges<>(new long[0], new long[0], List.of());
  }

  /** Sorts ranges; those of one owner that touch or overlap become one. */
  static <T> AddressRanges<T> of(List<Range<T>> ranges) {
    List<Range<T>> sorted =
        ranges.stream().sorted((a, b) -> Long.compare(a.start(), b.start())).toList();
    long[] start = new long[sorted.size()];
    long[] end = new long[sorted.size()];
    List<T> owner = new ArrayList<>(sorted.size());
    for (Range<T> range : sorted) {
      int last = owner.size() - 1;
      if (last >= 0 && owner.get(last) == range.owner() && range.start() <= end[last]) {
        end[last] = Math.max(end[last], range.end());
      } else {
        start[last + 1] = range.start();
        end[last + 1] = range.end();
        owner.add(range.owner());
      }
    }
    return new AddressRanges<>(
        Arrays.copyOf(start, owner.size()), Arrays.copyOf(end, owner.size()), List.copyOf(owner));
  }

  /**
   * Finds the range that holds some bytes.
   *
   * @param hint where to look first
   * @return its index, or -1
   */
  int find(long address, long length, int hint) {
    if (hint >= 0 && hint < start.length && holds(hint, address, length)) {
      return hint;
    }
    int at = Arrays.binarySearch(start, address);
    int index = at >= 0 ? at : -at - 2;
    return index >= 0 && holds(index, address, length) ? index : -1;
  }

  private boolean holds(int index, long address, long length) {
    return address >= start[index] && address < end[index] && length <= end[index] - address;
  }

  T owner(int index) {
    return owner.get(index);
  }

  int size() {
    return start.length;
  }
}
