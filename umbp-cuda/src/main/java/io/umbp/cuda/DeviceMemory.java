package io.umbp.cuda;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.UMBPException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import jcuda.Pointer;
import jcuda.driver.CUpointer_attribute;
import jcuda.driver.JCudaDriver;

/**
 * The tensors that are registered on one device. Single-writer, under the engine's lock; the
 * snapshot is immutable and read without it.
 */
final class DeviceMemory {
  private static final int MEMORY_TYPE_DEVICE = 2;

  private final int ordinal;
  private final Map<Long, Registered> byStart = new LinkedHashMap<>();
  private int nextNumber;
  private volatile AddressRanges<Allocation> snapshot = AddressRanges.none();

  /**
   * One allocation, as the driver knows it. No copy may span two.
   *
   * @param number differs from that of every other allocation of the device
   */
  record Allocation(int number, long start, long sizeBytes) {
    boolean holds(long address, long bytes) {
      return address >= start && bytes <= sizeBytes && address - start <= sizeBytes - bytes;
    }
  }

  private record Registered(Allocation allocation, List<KVCacheTensor> tensors) {}

  DeviceMemory(int ordinal) {
    this.ordinal = ordinal;
  }

  /**
   * Asks the driver what memory a tensor is in; the context is current.
   *
   * @throws UMBPException INVALID_ARGUMENT when it is not device memory of this device, or not all
   *     in one live allocation
   */
  long[] ask(KVCacheTensor tensor) {
    long address = tensor.address();
    int[] type = new int[1];
    int[] device = new int[1];
    int code =
        attribute(Pointer.to(type), CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (code != Driver.SUCCESS) {
      throw UMBPException.invalid(
          "%s: the driver knows no memory there (was it freed?): %s",
          tensor, Driver.describe("cuPointerGetAttribute", code));
    }
    if (type[0] != MEMORY_TYPE_DEVICE) {
      throw UMBPException.invalid("%s: the address is of host memory", tensor);
    }
    require(Pointer.to(device), CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, tensor);
    if (device[0] != ordinal) {
      throw UMBPException.invalid("%s: the memory is on device %d", tensor, device[0]);
    }
    long[] range = new long[2];
    long[] size = new long[1];
    require(Pointer.to(range), CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, tensor);
    require(Pointer.to(size), CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, tensor);
    range[1] = size[0];
    Allocation known = new Allocation(-1, range[0], range[1]);
    if (!known.holds(address, tensor.sizeBytes())
        || !known.holds(tensor.allocationBase(), tensor.allocationBytes())) {
      throw UMBPException.invalid(
          "%s in an allocation at 0x%x of %d bytes: the driver knows one at 0x%x of %d bytes",
          tensor, tensor.allocationBase(), tensor.allocationBytes(), range[0], range[1]);
    }
    return range;
  }

  private static void require(Pointer into, int attribute, KVCacheTensor tensor) {
    int code = attribute(into, attribute, tensor.address());
    if (code != Driver.SUCCESS) {
      throw Driver.failed("cuPointerGetAttribute(" + attribute + ") for " + tensor, code);
    }
  }

  private static int attribute(Pointer into, int attribute, long address) {
    return Driver.code(
        () -> JCudaDriver.cuPointerGetAttribute(into, attribute, new Handles.Address(address)));
  }

  /**
   * Enters a tensor in the allocation that {@link #ask} found.
   *
   * @throws UMBPException INVALID_ARGUMENT when tensors of an allocation that was freed meanwhile
   *     are still registered there
   */
  void add(KVCacheTensor tensor, long start, long sizeBytes) {
    for (Registered known : byStart.values()) {
      Allocation old = known.allocation();
      boolean isSame = old.start() == start && old.sizeBytes() == sizeBytes;
      if (!isSame && old.start() < start + sizeBytes && start < old.start() + old.sizeBytes()) {
        throw UMBPException.invalid(
            "%s: tensors of an allocation at 0x%x of %d bytes, which was freed, are still"
                + " registered there",
            tensor, old.start(), old.sizeBytes());
      }
    }
    byStart
        .computeIfAbsent(
            start,
            s -> new Registered(new Allocation(nextNumber++, s, sizeBytes), new ArrayList<>()))
        .tensors()
        .add(tensor);
    publish();
  }

  void remove(KVCacheTensor tensor) {
    for (Iterator<Registered> each = byStart.values().iterator(); each.hasNext(); ) {
      List<KVCacheTensor> tensors = each.next().tensors();
      if (tensors.remove(tensor)) {
        if (tensors.isEmpty()) {
          each.remove();
        }
        publish();
        return;
      }
    }
  }

  private void publish() {
    List<AddressRanges.Range<Allocation>> ranges = new ArrayList<>();
    for (Registered known : byStart.values()) {
      for (KVCacheTensor tensor : known.tensors()) {
        ranges.add(
            new AddressRanges.Range<>(
                tensor.address(), tensor.address() + tensor.sizeBytes(), known.allocation()));
      }
    }
    snapshot = AddressRanges.of(ranges);
  }

  AddressRanges<Allocation> snapshot() {
    return snapshot;
  }
}
