package io.umbp.api;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * One layer's KV buffer as the engine owns it, logically {@code [block, page bytes]} with a fixed
 * stride between blocks. Immutable. The memory is shared: the engine keeps owning it and must keep
 * it alive until it is unregistered.
 *
 * <p>Device memory is named by a raw address. Host memory is one or more direct byte buffers that
 * are taken as one run of bytes in order; heap arrays are refused (engines that keep heap arrays
 * use {@code HostKVPages} of umbp-core). Tensors may interleave in one allocation.
 */
public final class KVCacheTensor {
  /** Greatest size of one host slab in bytes (1 GiB). */
  public static final long MAX_SLAB_BYTES = 1L << 30;

  /** The device ordinal of host memory. */
  public static final int HOST = -1;

  private final int deviceOrdinal;
  private final long address;
  private final List<HostSlice> slabs;
  private final long sizeBytes;
  private final long allocationBase;
  private final long allocationBytes;
  private final int blockCount;
  private final long blockStride;
  private final ElementType elementType;

  /**
   * The part of a host buffer that lies between its position and limit when it was handed over.
   *
   * @param buffer the engine's buffer; its position and limit are never moved
   * @param start index of the first byte
   * @param length bytes, above 0
   */
  public record HostSlice(ByteBuffer buffer, int start, int length) {}

  private KVCacheTensor(Builder builder) {
    deviceOrdinal = builder.deviceOrdinal;
    address = builder.address;
    slabs = builder.slabs;
    sizeBytes = builder.sizeBytes;
    allocationBase = builder.allocationBase;
    allocationBytes = builder.allocationBytes;
    blockCount = builder.blockCount;
    blockStride = builder.blockStride;
    elementType = builder.elementType;
  }

  /**
   * Starts a tensor in device memory.
   *
   * @param address absolute device address of block 0, above 0
   * @param sizeBytes bytes from there that belong to the tensor, above 0; the end lies below 2^63
   * @param deviceOrdinal the device, at least 0
   * @return a builder; {@link Builder#blocks} is required
   */
  public static Builder device(long address, long sizeBytes, int deviceOrdinal) {
    if (address == 0) {
      throw UMBPException.invalid("device address is 0 (null)");
    }
    checkAddresses("tensor", address, sizeBytes);
    if (deviceOrdinal < 0) {
      throw UMBPException.invalid("device ordinal %d must be >= 0", deviceOrdinal);
    }
    return new Builder(deviceOrdinal, address, List.of(), 0, sizeBytes);
  }

  private static void checkAddresses(String what, long address, long sizeBytes) {
    if (address < 0 || sizeBytes > Long.MAX_VALUE - address) {
      throw UMBPException.invalid(
          "%s at 0x%x with %d bytes does not lie between address 0 and 2^63",
          what, address, sizeBytes);
    }
  }

  /**
   * Starts a tensor in host memory that begins at the first byte of the slabs.
   *
   * @param slabs writable direct buffers of at most {@value #MAX_SLAB_BYTES} bytes each; the bytes
   *     from position to limit count, in order
   * @return a builder; {@link Builder#blocks} is required
   */
  public static Builder host(ByteBuffer... slabs) {
    return host(0, List.of(slabs));
  }

  /**
   * Starts a tensor in host memory that shares its slabs with other tensors.
   *
   * @param offset bytes from the slabs' first byte to block 0, at least 0
   * @param slabs as for {@link #host(ByteBuffer...)}; pass the same buffer objects for each tensor
   *     that lies in them
   * @return a builder; {@link Builder#blocks} is required
   */
  public static Builder host(long offset, List<ByteBuffer> slabs) {
    if (slabs.isEmpty()) {
      throw UMBPException.invalid("a host tensor needs at least one slab");
    }
    List<HostSlice> slices = new ArrayList<>(slabs.size());
    long total = 0;
    for (ByteBuffer slab : slabs) {
      int index = slices.size();
      if (!slab.isDirect()) {
        throw UMBPException.invalid(
            "slab %d is heap memory; register direct buffers, or copy through HostKVPages", index);
      }
      if (slab.isReadOnly()) {
        throw UMBPException.invalid("slab %d is read-only; loads write into it", index);
      }
      if (slab.remaining() == 0 || slab.remaining() > MAX_SLAB_BYTES) {
        throw UMBPException.invalid(
            "slab %d has %d bytes, allowed are 1 to %d", index, slab.remaining(), MAX_SLAB_BYTES);
      }
      slices.add(new HostSlice(slab, slab.position(), slab.remaining()));
      total += slab.remaining();
    }
    if (offset < 0 || offset >= total) {
      throw UMBPException.invalid("offset %d is outside the slabs' %d bytes", offset, total);
    }
    return new Builder(HOST, offset, List.copyOf(slices), total, total - offset);
  }

  /** Collects the parts of a tensor. Thread-confined. */
  public static final class Builder {
    private final int deviceOrdinal;
    private final long address;
    private final List<HostSlice> slabs;
    private final long sizeBytes;
    private long allocationBase;
    private long allocationBytes;
    private int blockCount;
    private long blockStride;
    private ElementType elementType = ElementType.U8;

    private Builder(
        int deviceOrdinal, long address, List<HostSlice> slabs, long hostBytes, long sizeBytes) {
      if (sizeBytes <= 0) {
        throw UMBPException.invalid("tensor size %d must be > 0", sizeBytes);
      }
      this.deviceOrdinal = deviceOrdinal;
      this.address = address;
      this.slabs = slabs;
      this.sizeBytes = sizeBytes;
      this.allocationBase = deviceOrdinal == HOST ? 0 : address;
      this.allocationBytes = deviceOrdinal == HOST ? hostBytes : sizeBytes;
    }

    /**
     * Names the device allocation that holds the tensor, when it is larger than the tensor.
     *
     * @param base absolute address of the allocation
     * @param sizeBytes its size
     * @return this
     */
    public Builder inAllocation(long base, long sizeBytes) {
      if (deviceOrdinal == HOST) {
        throw UMBPException.invalid("the allocation of a host tensor is its slabs");
      }
      checkAddresses("allocation", base, sizeBytes);
      allocationBase = base;
      allocationBytes = sizeBytes;
      return this;
    }

    /**
     * Sets the blocks.
     *
     * @param count number of blocks, above 0
     * @param strideBytes bytes from one block's start to the next, above 0
     * @return this
     */
    public Builder blocks(int count, long strideBytes) {
      blockCount = count;
      blockStride = strideBytes;
      return this;
    }

    /**
     * Sets the number format; {@link ElementType#U8} unless set.
     *
     * @param type the elements' format
     * @return this
     */
    public Builder elementType(ElementType type) {
      elementType = type;
      return this;
    }

    /**
     * Checks the parts against each other and builds the tensor. That the last block's payload fits
     * is checked when the tensor is registered, where the payload is known.
     *
     * @return the tensor
     */
    public KVCacheTensor build() {
      if (blockCount == 0 && blockStride == 0) {
        throw UMBPException.invalid("the tensor's blocks(count, strideBytes) are not set");
      }
      if (blockCount <= 0 || blockStride <= 0) {
        throw UMBPException.invalid(
            "tensor has %d blocks of stride %d, both must be > 0", blockCount, blockStride);
      }
      long lastBlock = (blockCount - 1L) * blockStride;
      if (Math.multiplyHigh(blockCount - 1L, blockStride) != 0
          || lastBlock < 0
          || lastBlock >= sizeBytes) {
        throw UMBPException.invalid(
            "block %d of stride %d starts behind the tensor's %d bytes",
            blockCount - 1, blockStride, sizeBytes);
      }
      long before = address - allocationBase;
      if (deviceOrdinal != HOST
          && (before < 0 || allocationBytes < sizeBytes || before > allocationBytes - sizeBytes)) {
        throw UMBPException.invalid(
            "tensor at 0x%x with %d bytes is outside its allocation at 0x%x with %d bytes",
            address, sizeBytes, allocationBase, allocationBytes);
      }
      return new KVCacheTensor(this);
    }
  }

  /**
   * Tells whether the memory is on a device.
   *
   * @return false for host memory
   */
  public boolean isDevice() {
    return deviceOrdinal != HOST;
  }

  /**
   * Returns the device.
   *
   * @return ordinal, {@link #HOST} for host memory
   */
  public int deviceOrdinal() {
    return deviceOrdinal;
  }

  /**
   * Returns where block 0 starts.
   *
   * @return absolute device address; for host memory bytes from the first byte of the slabs
   */
  public long address() {
    return address;
  }

  /**
   * Returns the host memory.
   *
   * @return the engine's buffers in order, empty for device memory; unmodifiable, the bytes shared
   */
  public List<HostSlice> slabs() {
    return slabs;
  }

  /**
   * Returns the tensor's size.
   *
   * @return bytes from block 0 to the end
   */
  public long sizeBytes() {
    return sizeBytes;
  }

  /**
   * Returns where the allocation starts.
   *
   * @return absolute device address, 0 for host memory
   */
  public long allocationBase() {
    return allocationBase;
  }

  /**
   * Returns the size of the allocation.
   *
   * @return bytes
   */
  public long allocationBytes() {
    return allocationBytes;
  }

  /**
   * Returns the number of blocks.
   *
   * @return count, above 0
   */
  public int blockCount() {
    return blockCount;
  }

  /**
   * Returns the distance of blocks.
   *
   * @return bytes from one block's start to the next
   */
  public long blockStride() {
    return blockStride;
  }

  /**
   * Returns the number format.
   *
   * @return the elements' format
   */
  public ElementType elementType() {
    return elementType;
  }

  @Override
  public String toString() {
    String where =
        isDevice()
            ? String.format(Locale.ROOT, "device %d at 0x%x", deviceOrdinal, address)
            : "host at offset " + address + " of " + slabs.size() + " slabs";
    return String.format(
        Locale.ROOT,
        "KVCacheTensor[%s, %d bytes, %d blocks, stride %d, %s]",
        where,
        sizeBytes,
        blockCount,
        blockStride,
        elementType);
  }
}
