package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor.HostSlice;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import java.util.Arrays;
import java.util.List;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Issues addresses for host memory and resolves them: region number times 2^40 plus offset. Numbers
 * go round and at least half of them rest, so that the address of a region that is gone is refused
 * for long and does not hit other memory.
 *
 * <p>Single-writer: the engine's lock. Readers take a {@link #snapshot()}, an array that is never
 * written again.
 */
final class HostAddressSpace {
  static final int OFFSET_BITS = 40;
  static final long OFFSET_MASK = (1L << OFFSET_BITS) - 1;

  private static final int MAX_REGIONS = 1 << 22;

  /** Regions by number; number 0 is never issued. */
  private volatile @Nullable HostRegion[] regions = new @Nullable HostRegion[256];

  private int lastNumber;
  private int count;

  @Nullable HostRegion[] snapshot() {
    return regions;
  }

  static long address(HostRegion region) {
    return (long) region.number << OFFSET_BITS;
  }

  static @Nullable HostRegion find(@Nullable HostRegion[] regions, long address) {
    long number = address >>> OFFSET_BITS;
    return number < regions.length ? regions[(int) number] : null;
  }

  @Nullable HostRegion findTensorMemory(List<HostSlice> slabs) {
    for (HostRegion region : regions) {
      if (region != null && region.holds(slabs)) {
        return region;
      }
    }
    return null;
  }

  /** Adds the region that the factory makes of a free number. */
  HostRegion add(IntFunction<HostRegion> factory) {
    int length = regions.length;
    if (count >= length / 2) {
      if (length == MAX_REGIONS) {
        throw new UMBPException(
            UMBPException.Reason.OUT_OF_MEMORY,
            "no address left: " + count + " tensors and slabs are registered");
      }
      lastNumber = length - 1;
      length *= 2;
    }
    @Nullable HostRegion[] next = Arrays.copyOf(regions, length);
    int number = lastNumber;
    do {
      number = number + 1 == length ? 1 : number + 1;
    } while (next[number] != null);
    HostRegion region = factory.apply(number);
    next[number] = region;
    regions = next;
    lastNumber = number;
    count++;
    return region;
  }

  void remove(HostRegion region) {
    @Nullable HostRegion[] next = regions.clone();
    next[region.number] = null;
    regions = next;
    count--;
  }

  /** Empties the space and returns what was in it. */
  @Nullable HostRegion[] clear() {
    @Nullable HostRegion[] all = regions;
    regions = new @Nullable HostRegion[all.length];
    count = 0;
    return all;
  }

  /**
   * Checks that every row of a batch lies in tensor memory on one side and in a slab on the other.
   *
   * @param usedSlabs receives a bit for the number of each slab that the rows use
   * @return sum of the rows' lengths in bytes
   */
  static long check(CopyBatch batch, @Nullable HostRegion[] regions, long[] usedSlabs) {
    long[] device = batch.device();
    long[] host = batch.host();
    long[] length = batch.length();
    int[] key = batch.key();
    int keyCount = batch.keyCount();
    int rows = batch.count();
    long total = 0;
    for (int row = 0; row < rows; row++) {
      if (key[row] < 0 || key[row] >= keyCount) {
        throw UMBPException.invalid(
            "row %d serves key %d, outside the batch's [0, %d)", row, key[row], keyCount);
      }
      HostRegion tensorMemory = find(regions, device[row]);
      if (tensorMemory == null || tensorMemory.isSlab()) {
        throw refused(batch, row, device[row], "lies in no registered tensor");
      }
      HostRegion slab = find(regions, host[row]);
      if (slab == null || !slab.isSlab()) {
        throw refused(batch, row, host[row], "lies in no live slab");
      }
      checkEnd(batch, row, device[row], tensorMemory);
      checkEnd(batch, row, host[row], slab);
      usedSlabs[slab.number >>> 6] |= 1L << slab.number;
      total += length[row];
    }
    return total;
  }

  private static void checkEnd(CopyBatch batch, int row, long address, HostRegion region) {
    long length = batch.length()[row];
    if (length <= 0) {
      throw refused(batch, row, address, "needs a length > 0");
    }
    long offset = address & OFFSET_MASK;
    if (offset > region.sizeBytes - length) {
      throw refused(
          batch, row, address, "ends behind the limit of " + region.sizeBytes + " bytes there");
    }
  }

  private static UMBPException refused(CopyBatch batch, int row, long address, String why) {
    return UMBPException.invalid(
        "row %d of key %d, %d bytes at address 0x%x (offset %d), %s",
        row, batch.key()[row], batch.length()[row], address, address & OFFSET_MASK, why);
  }
}
