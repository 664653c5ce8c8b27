package io.umbp.testkit;

import io.umbp.api.UMBPException;
import java.util.Arrays;
import java.util.function.LongFunction;
import org.jspecify.annotations.Nullable;

/**
 * Issues addresses and resolves them by table. Thread-safe; lookups take no lock.
 *
 * <p>The space is cut into slots of 2 MiB. A region starts somewhere in a fresh slot and owns every
 * slot it reaches into, so an address names its region by its upper bits, no two regions touch, and
 * no address is issued twice.
 *
 * @param <R> what lies at the addresses
 */
final class AddressSpace<R extends AddressSpace.Region> {
  /** Something that occupies addresses. Its place never changes. */
  interface Region {
    /** Address of its first byte. */
    long base();

    /** Its size in bytes. */
    long sizeBytes();

    /** Tells whether a range lies inside, for any values. */
    default boolean contains(long address, long length) {
      long offset = address - base();
      return offset >= 0 && length >= 0 && length <= sizeBytes() && offset <= sizeBytes() - length;
    }
  }

  private static final int SLOT_BITS = 21;
  private static final int SLOT_COUNT = 1 << 19;

  private final long origin;
  private final long alignment;
  private int nextSlot;
  private volatile @Nullable Region[] slots = new @Nullable Region[64];

  /**
   * Creates an empty space of 1 TiB.
   *
   * @param origin lowest address, a multiple of 2 MiB
   * @param alignment of each region's base, a power of two up to 4096
   */
  AddressSpace(long origin, long alignment) {
    this.origin = origin;
    this.alignment = alignment;
  }

  /** Makes a region of a size at a fresh address. */
  synchronized R place(long sizeBytes, LongFunction<R> atBase) {
    long lead = alignment * (1 + (nextSlot * 37L) % 61);
    long end = nextSlot + ((lead + sizeBytes - 1) >>> SLOT_BITS) + 1;
    if (end > SLOT_COUNT) {
      throw new UMBPException(
          UMBPException.Reason.OUT_OF_MEMORY,
          String.format(
              "%d bytes need %d address slots, %d of %d are left",
              sizeBytes, end - nextSlot, SLOT_COUNT - nextSlot, SLOT_COUNT));
    }
    R region = atBase.apply(origin + ((long) nextSlot << SLOT_BITS) + lead);
    @Nullable Region[] table = slots;
    if (end > table.length) {
      table = Arrays.copyOf(table, (int) Math.max(end, table.length * 2L));
    }
    Arrays.fill(table, nextSlot, (int) end, region);
    slots = table;
    nextSlot = (int) end;
    return region;
  }

  /** Returns the region in whose slots an address lies; the address itself may lie outside it. */
  @SuppressWarnings("unchecked")
  @Nullable R find(long address) {
    @Nullable Region[] table = slots;
    long slot = (address - origin) >>> SLOT_BITS;
    return slot < table.length ? (R) table[(int) slot] : null;
  }

  /** Says in words what lies at or near an address. */
  String describe(long address) {
    @Nullable Region[] table = slots;
    Region nearest = null;
    long best = Long.MAX_VALUE;
    for (Region region : table) {
      if (region == null || region == nearest) {
        continue;
      }
      long end = region.base() + region.sizeBytes();
      long distance =
          address < region.base() ? region.base() - address : Math.max(0, address - end + 1);
      if (distance >= 0 && distance < best) {
        best = distance;
        nearest = region;
      }
    }
    return nearest == null ? "nothing was ever allocated" : String.format("nearest is %s", nearest);
  }
}
