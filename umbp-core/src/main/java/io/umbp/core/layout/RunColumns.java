package io.umbp.core.layout;

import java.util.Arrays;

/**
 * The runs of bytes that make the objects of one group, as columns in object order: run {@code i}
 * of block {@code b} lies at {@code base[i] + b * advance[i]}. Single-writer.
 */
final class RunColumns {
  int count;
  long objectBytes;
  long[] base = new long[8];
  long[] advance = new long[8];
  long[] length = new long[8];

  /** Bytes before the run in the object. */
  long[] offset = new long[8];

  /** Appends a run behind all others. */
  void add(long runBase, long runAdvance, long runLength) {
    if (count == base.length) {
      resize(count * 2);
    }
    base[count] = runBase;
    advance[count] = runAdvance;
    length[count] = runLength;
    offset[count] = objectBytes;
    count++;
    objectBytes = Math.addExact(objectBytes, runLength);
  }

  /** Lengthens the last run by one that follows it in memory in every block; false if none does. */
  boolean extend(long runBase, long runAdvance, long runLength) {
    int last = count - 1;
    if (last < 0 || advance[last] != runAdvance || base[last] + length[last] != runBase) {
      return false;
    }
    length[last] += runLength;
    objectBytes = Math.addExact(objectBytes, runLength);
    return true;
  }

  /** Gives up the room for more runs. */
  void trim() {
    resize(count);
  }

  private void resize(int capacity) {
    base = Arrays.copyOf(base, capacity);
    advance = Arrays.copyOf(advance, capacity);
    length = Arrays.copyOf(length, capacity);
    offset = Arrays.copyOf(offset, capacity);
  }
}
