package io.umbp.cuda;

import io.umbp.api.spi.CopyBatch;
import java.util.Arrays;

final class CopyPlan {
  static final byte COPY = 0;
  static final byte STRIDED = 1;
  static final byte KERNEL = 2;

  private int count;
  private byte[] path = new byte[64];
  private long[] device = new long[64];
  private long[] host = new long[64];
  private long[] width = new long[64];
  private int[] firstRow = new int[64];
  private int[] endRow = new int[64];

  void plan(
      CopyBatch batch,
      int from,
      int to,
      int[] deviceRegion,
      int[] hostRegion,
      CudaCopySettings settings,
      long maxPitchBytes) {
    count = 0;
    int small = 0;
    for (int row = from; row < to; row++) {
      if (count == path.length) {
        int n = count * 2;
        path = Arrays.copyOf(path, n);
        device = Arrays.copyOf(device, n);
        host = Arrays.copyOf(host, n);
        width = Arrays.copyOf(width, n);
        firstRow = Arrays.copyOf(firstRow, n);
        endRow = Arrays.copyOf(endRow, n);
      }
      device[count] = batch.device()[row];
      host[count] = batch.host()[row];
      width[count] = batch.length()[row];
      firstRow[count] = row;
      endRow[count] = row + 1;
      path[count] = width[count] < settings.kernelBelowBytes() ? KERNEL : COPY;
      small += path[count];
      count++;
    }
    if (small / 2 < settings.kernelMinRanges()) {
      Arrays.fill(path, 0, count, COPY);
    }
  }

  int count() {
    return count;
  }

  byte path(int piece) {
    return path[piece];
  }

  long device(int piece) {
    return device[piece];
  }

  long host(int piece) {
    return host[piece];
  }

  long width(int piece) {
    return width[piece];
  }

  int height(int piece) {
    return 1;
  }

  long devicePitch(int piece) {
    return 0;
  }

  long hostPitch(int piece) {
    return 0;
  }

  int firstRow(int piece) {
    return firstRow[piece];
  }

  int endRow(int piece) {
    return endRow[piece];
  }
}
