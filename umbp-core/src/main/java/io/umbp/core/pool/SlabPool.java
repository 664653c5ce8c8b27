package io.umbp.core.pool;

import io.umbp.api.spi.HostSlab;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Slots of exact object size in slabs of one size. Each slab serves one size class while any of its
 * slots is taken, and any class again once it is empty: nothing fragments, and taking and giving a
 * slot are O(1).
 *
 * <p>Capacity counts the bytes of the objects that are there, exactly. Slabs may exceed it by what
 * lies free in them: at most one slab for each size class. A class that would need more gets a slab
 * emptied for it (see {@link #slabToEmpty}).
 */
final class SlabPool {
  /** Slots start at multiples of this, one cache line. */
  static final long SLOT_ALIGNMENT = 64;

  private final long capacityBytes;
  private final long slabBytes;
  private final List<SizeClass> classes = new ArrayList<>();
  private final List<Slab> slabs = new ArrayList<>();
  private final ArrayDeque<Slab> emptySlabs = new ArrayDeque<>();
  private long usedBytes;
  private long assignedBytes;
  private long freedCount;

  /** All objects of one size. */
  static final class SizeClass {
    final long objectBytes;
    final long slotBytes;
    final int slotsPerSlab;
    private final List<Slab> withFreeSlots = new ArrayList<>();

    private SizeClass(long objectBytes, long slabBytes) {
      this.objectBytes = objectBytes;
      long aligned = (objectBytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
      slotBytes = Math.min(aligned, slabBytes);
      slotsPerSlab = (int) Math.min(slabBytes / slotBytes, Integer.MAX_VALUE);
    }

    private long assignedBytes() {
      return slotsPerSlab * objectBytes;
    }
  }

  /** One slab and its slots. */
  static final class Slab {
    private final HostSlab memory;
    private @Nullable SizeClass sizeClass;
    private int freshSlot;
    private int[] freeSlots = new int[16];
    private int freeCount;
    private int liveCount;
    private int placeInClass = -1;
    private @Nullable PooledObject[] objects = new PooledObject[0];

    private Slab(HostSlab memory) {
      this.memory = memory;
    }

    private SizeClass assigned() {
      SizeClass assigned = sizeClass;
      if (assigned == null) {
        throw new IllegalStateException("slab at " + memory.baseAddress() + " has no size class");
      }
      return assigned;
    }

    long objectBytes() {
      return assigned().objectBytes;
    }

    long slotAddress(int slot) {
      return memory.baseAddress() + slot * assigned().slotBytes;
    }

    int liveCount() {
      return liveCount;
    }

    @Nullable PooledObject[] objects() {
      return objects;
    }
  }

  SlabPool(long capacityBytes, long slabBytes) {
    this.capacityBytes = capacityBytes;
    this.slabBytes = slabBytes;
  }

  SizeClass sizeClass(long objectBytes) {
    for (int i = 0; i < classes.size(); i++) {
      if (classes.get(i).objectBytes == objectBytes) {
        return classes.get(i);
      }
    }
    SizeClass added = new SizeClass(objectBytes, slabBytes);
    classes.add(added);
    return added;
  }

  /** Returns how many slots have been given back since the start. */
  long freedCount() {
    return freedCount;
  }

  long usedBytes() {
    return usedBytes;
  }

  /** Tells whether one more object of the class stays within the capacity. */
  boolean hasCapacity(SizeClass sizeClass) {
    return capacityBytes - usedBytes >= sizeClass.objectBytes;
  }

  /** Returns a slab of the class with a free slot, taking over an empty one if need be, or null. */
  @Nullable Slab slabWithFreeSlot(SizeClass sizeClass) {
    List<Slab> candidates = sizeClass.withFreeSlots;
    if (!candidates.isEmpty()) {
      return candidates.get(candidates.size() - 1);
    }
    Slab empty = emptySlabs.pollLast();
    if (empty != null) {
      assign(empty, sizeClass);
    }
    return empty;
  }

  /** Tells whether {@link #slabWithFreeSlot} would find one. */
  boolean hasFreeSlot(SizeClass sizeClass) {
    return !sizeClass.withFreeSlots.isEmpty() || !emptySlabs.isEmpty();
  }

  /** Tells whether a new slab for the class keeps the total within its limit. */
  boolean mayGrow(SizeClass sizeClass) {
    long slack = Math.multiplyExact(slabBytes, classes.size());
    return capacityBytes > Long.MAX_VALUE - slack
        || assignedBytes + sizeClass.assignedBytes() <= capacityBytes + slack;
  }

  void addSlab(HostSlab memory) {
    Slab slab = new Slab(memory);
    slabs.add(slab);
    emptySlabs.addLast(slab);
  }

  /** Takes a free slot of a slab that has one. */
  int take(Slab slab) {
    SizeClass sizeClass = slab.assigned();
    int slot = slab.freeCount > 0 ? slab.freeSlots[--slab.freeCount] : slab.freshSlot++;
    slab.liveCount++;
    usedBytes += sizeClass.objectBytes;
    if (slab.liveCount == sizeClass.slotsPerSlab) {
      dropFromClass(slab, sizeClass);
    }
    return slot;
  }

  void put(Slab slab, int slot, PooledObject object) {
    slab.objects[slot] = object;
  }

  /** Gives a slot back. */
  void free(Slab slab, int slot) {
    SizeClass sizeClass = slab.assigned();
    slab.objects[slot] = null;
    slab.liveCount--;
    freedCount++;
    usedBytes -= sizeClass.objectBytes;
    if (slab.liveCount == 0) {
      if (slab.placeInClass >= 0) {
        dropFromClass(slab, sizeClass);
      }
      assignedBytes -= sizeClass.assignedBytes();
      slab.sizeClass = null;
      emptySlabs.addLast(slab);
      return;
    }
    if (slab.freeCount == slab.freeSlots.length) {
      slab.freeSlots = Arrays.copyOf(slab.freeSlots, slab.freeCount * 2);
    }
    slab.freeSlots[slab.freeCount++] = slot;
    if (slab.placeInClass < 0) {
      slab.placeInClass = sizeClass.withFreeSlots.size();
      sizeClass.withFreeSlots.add(slab);
    }
  }

  /**
   * Returns the slab of another class that costs the fewest objects to empty, or null when copies
   * or unpublished objects hold all of them.
   */
  @Nullable Slab slabToEmpty(SizeClass sizeClass) {
    Slab best = null;
    for (Slab slab : slabs) {
      boolean isBetter =
          slab.sizeClass != null
              && slab.sizeClass != sizeClass
              && (best == null || slab.liveCount < best.liveCount);
      if (isBetter && isEvictable(slab)) {
        best = slab;
      }
    }
    return best;
  }

  private static boolean isEvictable(Slab slab) {
    for (PooledObject object : slab.objects) {
      if (object != null && (object.state != PooledObject.State.PUBLISHED || object.copies > 0)) {
        return false;
      }
    }
    return true;
  }

  int slabCount() {
    return slabs.size();
  }

  List<HostSlab> memory() {
    return slabs.stream().map(slab -> slab.memory).toList();
  }

  private void assign(Slab slab, SizeClass sizeClass) {
    slab.sizeClass = sizeClass;
    slab.freshSlot = 0;
    slab.freeCount = 0;
    if (slab.objects.length < sizeClass.slotsPerSlab) {
      slab.objects = new PooledObject[sizeClass.slotsPerSlab];
    }
    slab.placeInClass = sizeClass.withFreeSlots.size();
    sizeClass.withFreeSlots.add(slab);
    assignedBytes += sizeClass.assignedBytes();
  }

  private static void dropFromClass(Slab slab, SizeClass sizeClass) {
    List<Slab> list = sizeClass.withFreeSlots;
    Slab last = list.remove(list.size() - 1);
    if (last != slab) {
      list.set(slab.placeInClass, last);
      last.placeInClass = slab.placeInClass;
    }
    slab.placeInClass = -1;
  }
}
