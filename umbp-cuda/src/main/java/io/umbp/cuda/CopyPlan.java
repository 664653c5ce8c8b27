package io.umbp.cuda;

import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;

/**
 * The few driver calls that stand for the rows of a {@link CopyBatch}, as columns: piece {@code i}
 * moves {@code height(i)} lines of {@code widthBytes(i)} bytes. Thread-confined, reused from batch
 * to batch; its columns grow, and allocate nothing once they are large enough.
 *
 * <p>Pieces lie in the order of the rows, and each row belongs to one piece, so that a piece which
 * the driver refuses can be copied row by row. No piece spans two allocations or two slabs.
 */
final class CopyPlan {
  /** How a piece is copied. */
  enum Path {
    /** One copy of one line. */
    COPY,
    /** One copy of several lines, each at a pitch from the one before. */
    STRIDED,
    /** One row in the table of a kernel launch. */
    KERNEL
  }

  private int count;
  private long[] device = new long[64];
  private long[] host = new long[64];
  private long[] width = new long[64];
  private long[] devicePitch = new long[64];
  private long[] hostPitch = new long[64];
  private int[] height = new int[64];

  /** First row of each piece, and behind the last piece the row where it ends. */
  private int[] firstRow = new int[65];

  /** Lines shorter than this go to the kernel; 0 if this plan has too few of them. */
  private long kernelBelow;

  /** Creates an empty plan. */
  CopyPlan() {}

  /**
   * Plans some rows of a batch in place of what was planned before. Borrows the batch and the
   * columns until it returns.
   *
   * @param batch the rows, each of at least 1 byte and within one allocation and one slab
   * @param from first row
   * @param to row after the last
   * @param deviceRegion at each row of the batch, which allocation it lies in: rows of one number
   *     lie in one live allocation
   * @param hostRegion the same for slabs
   * @param settings which path is taken when
   * @param maxPitchBytes greatest pitch that the device takes, in bytes
   */
  void plan(
      CopyBatch batch,
      int from,
      int to,
      int[] deviceRegion,
      int[] hostRegion,
      CudaCopySettings settings,
      long maxPitchBytes) {
    if (from < 0 || from > to || to > batch.count()) {
      throw UMBPException.invalid(
          "rows [%d, %d) are planned of a batch of %d", from, to, batch.count());
    }
    if (to > deviceRegion.length || to > hostRegion.length) {
      throw UMBPException.invalid(
          "rows before %d are planned with the regions of %d and %d rows",
          to, deviceRegion.length, hostRegion.length);
    }
    ensureRoom(to - from);
    merge(batch, from, to, deviceRegion, hostRegion);
    fold(deviceRegion, hostRegion, settings, maxPitchBytes);
    choose(settings);
  }

  /** Makes one piece of each run of rows that are adjacent on both sides. */
  private void merge(CopyBatch batch, int from, int to, int[] deviceRegion, int[] hostRegion) {
    long[] rowDevice = batch.device();
    long[] rowHost = batch.host();
    long[] rowBytes = batch.length();
    int piece = 0;
    int row = from;
    while (row < to) {
      int first = row;
      long deviceStart = rowDevice[row];
      long hostStart = rowHost[row];
      long merged = rowBytes[row];
      int deviceId = deviceRegion[row];
      int hostId = hostRegion[row];
      row++;
      while (row < to
          && rowDevice[row] == deviceStart + merged
          && rowHost[row] == hostStart + merged
          && deviceRegion[row] == deviceId
          && hostRegion[row] == hostId) {
        merged += rowBytes[row];
        row++;
      }
      device[piece] = deviceStart;
      host[piece] = hostStart;
      width[piece] = merged;
      firstRow[piece] = first;
      piece++;
    }
    firstRow[piece] = to;
    count = piece;
  }

  /**
   * Makes one piece of each long enough run of merged pieces at one stride, in place. A run that is
   * too short gives up all but its last piece, with which another stride may begin: no run that
   * starts in between is longer.
   */
  private void fold(
      int[] deviceRegion, int[] hostRegion, CudaCopySettings settings, long maxPitchBytes) {
    int minRanges = settings.stridedMinRanges();
    long minBytes = settings.stridedMinBytes();
    int merged = count;
    int piece = 0;
    int next = 0;
    while (next < merged) {
      int end = next + 1;
      if (width[next] >= minBytes) {
        end = strideEnd(next, merged, deviceRegion, hostRegion, maxPitchBytes);
      }
      if (end - next >= minRanges) {
        long deviceStride = device[next + 1] - device[next];
        long hostStride = host[next + 1] - host[next];
        put(piece++, next, end - next, deviceStride, hostStride);
        next = end;
      } else {
        do {
          put(piece++, next, 1, width[next], width[next]);
          next++;
        } while (next < end - 1);
      }
    }
    firstRow[piece] = firstRow[merged];
    count = piece;
  }

  /** Writes a piece that starts with a merged one, at or behind it. */
  private void put(int piece, int merged, int lines, long deviceStride, long hostStride) {
    device[piece] = device[merged];
    host[piece] = host[merged];
    width[piece] = width[merged];
    firstRow[piece] = firstRow[merged];
    height[piece] = lines;
    devicePitch[piece] = deviceStride;
    hostPitch[piece] = hostStride;
  }

  /** Returns where the run of equal lines at one stride ends that starts with a merged piece. */
  private int strideEnd(
      int start, int merged, int[] deviceRegion, int[] hostRegion, long maxPitchBytes) {
    int next = start + 1;
    if (next == merged || !isInLine(start, next, deviceRegion, hostRegion)) {
      return next;
    }
    // Within one allocation: the difference fits, wherever the addresses lie.
    long deviceStride = device[next] - device[start];
    long hostStride = host[next] - host[start];
    long lineBytes = width[start];
    if (deviceStride < lineBytes
        || hostStride < lineBytes
        || deviceStride > maxPitchBytes
        || hostStride > maxPitchBytes) {
      return next;
    }
    next++;
    while (next < merged
        && device[next] - device[next - 1] == deviceStride
        && host[next] - host[next - 1] == hostStride
        && isInLine(start, next, deviceRegion, hostRegion)) {
      next++;
    }
    return next;
  }

  private boolean isInLine(int start, int next, int[] deviceRegion, int[] hostRegion) {
    return width[next] == width[start]
        && deviceRegion[firstRow[next]] == deviceRegion[firstRow[start]]
        && hostRegion[firstRow[next]] == hostRegion[firstRow[start]];
  }

  /** Sends short lines to the kernel if they are many. */
  private void choose(CudaCopySettings settings) {
    long below = settings.kernelBelowBytes();
    int shortLines = 0;
    for (int piece = 0; piece < count; piece++) {
      if (height[piece] == 1 && width[piece] < below) {
        shortLines++;
      }
    }
    kernelBelow = shortLines >= settings.kernelMinRanges() ? below : 0;
  }

  private void ensureRoom(int rows) {
    if (rows > device.length) {
      int capacity = (int) Math.min(Integer.MAX_VALUE - 9L, Math.max(rows, device.length * 2L));
      device = new long[capacity];
      host = new long[capacity];
      width = new long[capacity];
      devicePitch = new long[capacity];
      hostPitch = new long[capacity];
      height = new int[capacity];
      firstRow = new int[capacity + 1];
    }
  }

  /**
   * Returns the number of pieces.
   *
   * @return count, at most the number of rows
   */
  int count() {
    return count;
  }

  /**
   * Returns how a piece is copied.
   *
   * @param piece which, in [0, count)
   * @return its path
   */
  Path path(int piece) {
    if (height[piece] > 1) {
      return Path.STRIDED;
    }
    return width[piece] < kernelBelow ? Path.KERNEL : Path.COPY;
  }

  /**
   * Returns where a piece starts in engine memory.
   *
   * @param piece which, in [0, count)
   * @return device address
   */
  long deviceAddress(int piece) {
    return device[piece];
  }

  /**
   * Returns where a piece starts in its slab.
   *
   * @param piece which, in [0, count)
   * @return host address
   */
  long hostAddress(int piece) {
    return host[piece];
  }

  /**
   * Returns the length of one line.
   *
   * @param piece which, in [0, count)
   * @return length in bytes
   */
  long widthBytes(int piece) {
    return width[piece];
  }

  /**
   * Returns the number of lines.
   *
   * @param piece which, in [0, count)
   * @return lines, 1 except on the strided path
   */
  int height(int piece) {
    return height[piece];
  }

  /**
   * Returns the distance from one line to the next in engine memory.
   *
   * @param piece which, in [0, count)
   * @return pitch in bytes, at least the width
   */
  long devicePitchBytes(int piece) {
    return devicePitch[piece];
  }

  /**
   * Returns the distance from one line to the next in the slab.
   *
   * @param piece which, in [0, count)
   * @return pitch in bytes, at least the width
   */
  long hostPitchBytes(int piece) {
    return hostPitch[piece];
  }

  /**
   * Returns the first row of the batch that a piece stands for.
   *
   * @param piece which, in [0, count)
   * @return row
   */
  int firstRow(int piece) {
    return firstRow[piece];
  }

  /**
   * Returns the row after the last that a piece stands for.
   *
   * @param piece which, in [0, count)
   * @return row, the first one of the next piece
   */
  int endRow(int piece) {
    return firstRow[piece + 1];
  }
}
