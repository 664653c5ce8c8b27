package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;

/**
 * A pool of off-heap KV pages for engines that keep their KV cache in heap arrays: {@code [block,
 * layer, page bytes]}. Thread-safe; who may touch a page when is the engine's matter.
 *
 * <p>The engine hands {@link #tensors()} to {@code registerBuffers}, takes a block with {@link
 * #acquire()}, copies the block's tokens from its arrays into the page of each layer and stores the
 * block; or it loads the block and copies the pages back. The block is released when no job uses it
 * any more:
 *
 * <pre>{@code
 * HostKVPages pages = HostKVPages.create(layout, 256);
 * HostKVPages.Layer keys = pages.layer("layer0.k");
 * worker.registerBuffers(pages.tensors());
 * int block = pages.acquire().orElseThrow();
 * keys.put(block, 0, k[0], position * kvDim, blockSize * kvDim);
 * }</pre>
 *
 * <p>Layers with the same block stride share blocks as long as their pages fit into it: with the
 * stride of one page every layer has memory of its own, with the stride of all pages a block is one
 * run. The memory is freed when neither the pool nor its tensors are reachable any more.
 */
public final class HostKVPages {
  private final Map<String, Layer> layers = new LinkedHashMap<>();
  private final Map<String, KVCacheTensor> tensors = new LinkedHashMap<>();
  private final int blockCount;

  /** Guarded by {@link #held}: the free blocks in [0, freeCount), the next one last. */
  private final int[] free;

  private int freeCount;

  private final BitSet held = new BitSet();

  /** Layers that share blocks. */
  private static final class Bundle {
    final long stride;
    final List<KVRegion> regions = new ArrayList<>();
    long usedBytes;

    Bundle(long stride) {
      this.stride = stride;
    }
  }

  private HostKVPages(KVLayoutDescriptor layout, int blockCount, long slabLimit) {
    this.blockCount = blockCount;
    List<Bundle> bundles = bundles(layout, slabLimit);
    long totalBytes = 0;
    for (Bundle bundle : bundles) {
      totalBytes += bundle.stride * blockCount;
    }
    String purpose = "HostKVPages with " + blockCount + " blocks in " + totalBytes + " bytes";
    for (Bundle bundle : bundles) {
      int blocksPerSlab = (int) Math.min(blockCount, slabLimit / bundle.stride);
      addLayers(bundle, blocksPerSlab, slabs(bundle.stride, blocksPerSlab, purpose));
    }
    free = new int[blockCount];
    while (freeCount < blockCount) {
      free[freeCount] = blockCount - 1 - freeCount;
      freeCount++;
    }
  }

  /**
   * Allocates the pages of a layout.
   *
   * @param layout the layers and their pages; a page must be one run of bytes
   * @param blockCount number of blocks, above 0
   * @return the pool, its content undefined, all blocks free
   * @throws UMBPException INVALID_ARGUMENT naming the layer; UNSUPPORTED for a layer with page
   *     segments; OUT_OF_MEMORY naming need and limit
   */
  public static HostKVPages create(KVLayoutDescriptor layout, int blockCount) {
    return create(layout, blockCount, KVCacheTensor.MAX_SLAB_BYTES);
  }

  static HostKVPages create(KVLayoutDescriptor layout, int blockCount, long slabLimit) {
    if (blockCount <= 0) {
      throw UMBPException.invalid("block count %d must be > 0", blockCount);
    }
    return new HostKVPages(layout, blockCount, slabLimit);
  }

  private static List<Bundle> bundles(KVLayoutDescriptor layout, long slabLimit) {
    List<Bundle> bundles = new ArrayList<>();
    Map<Long, Bundle> openByStride = new LinkedHashMap<>();
    for (KVRegion region : layout.regions()) {
      if (!region.pageSegments().isEmpty()) {
        throw new UMBPException(
            UMBPException.Reason.UNSUPPORTED,
            "layer '" + region.layerName() + "' has page segments; host pages are one run");
      }
      long stride = region.blockStride();
      if (stride > slabLimit) {
        throw UMBPException.invalid(
            "layer '%s': block stride %d exceeds the slab limit of %d bytes",
            region.layerName(), stride, slabLimit);
      }
      Bundle bundle = openByStride.get(stride);
      if (bundle == null || bundle.usedBytes + region.blockBytes() > stride) {
        bundle = new Bundle(stride);
        bundles.add(bundle);
        openByStride.put(stride, bundle);
      }
      bundle.regions.add(region);
      bundle.usedBytes += region.blockBytes();
    }
    return bundles;
  }

  private List<ByteBuffer> slabs(long stride, int blocksPerSlab, String purpose) {
    List<ByteBuffer> slabs = new ArrayList<>();
    int rest = blockCount;
    while (rest > 0) {
      int blocks = Math.min(rest, blocksPerSlab);
      slabs.add(DirectMemory.allocate((int) (blocks * stride), purpose));
      rest -= blocks;
    }
    return slabs;
  }

  private void addLayers(Bundle bundle, int blocksPerSlab, List<ByteBuffer> slabs) {
    long offset = 0;
    for (KVRegion region : bundle.regions) {
      tensors.put(
          region.layerName(),
          KVCacheTensor.host(offset, slabs).blocks(blockCount, bundle.stride).build());
      layers.put(region.layerName(), new Layer(region, blockCount, blocksPerSlab, offset, slabs));
      offset += region.blockBytes();
    }
  }

  /**
   * Returns the tensors to register with a worker handle.
   *
   * @return a host tensor for each layer of the layout; unmodifiable, the memory shared
   */
  public Map<String, KVCacheTensor> tensors() {
    return Collections.unmodifiableMap(tensors);
  }

  /**
   * Returns the pages of a layer.
   *
   * @param layerName a layer of the layout
   * @return the layer, to be kept for the hot path
   * @throws UMBPException INVALID_ARGUMENT when the layout has no such layer
   */
  public Layer layer(String layerName) {
    Layer layer = layers.get(layerName);
    if (layer == null) {
      throw UMBPException.invalid(
          "layer '%s' is not in the layout, which has %s", layerName, layers.keySet());
    }
    return layer;
  }

  /**
   * Returns the number of blocks.
   *
   * @return count; block ids lie in [0, count)
   */
  public int blockCount() {
    return blockCount;
  }

  /**
   * Returns the number of blocks that can be acquired.
   *
   * @return count, from 0 to {@link #blockCount()}
   */
  public int freeBlocks() {
    synchronized (held) {
      return freeCount;
    }
  }

  /**
   * Takes a free block.
   *
   * @return its id, owned by the caller until {@link #release}; empty when no block is free
   */
  public OptionalInt acquire() {
    synchronized (held) {
      if (freeCount == 0) {
        return OptionalInt.empty();
      }
      int blockId = free[--freeCount];
      held.set(blockId);
      return OptionalInt.of(blockId);
    }
  }

  /**
   * Gives a block back. No job may use it any more.
   *
   * @param blockId a block of {@link #acquire}
   * @throws UMBPException INVALID_ARGUMENT when the block is not held: released before, or never
   *     acquired
   */
  public void release(int blockId) {
    synchronized (held) {
      if (blockId < 0 || blockId >= blockCount || !held.get(blockId)) {
        throw UMBPException.invalid(
            "block %d is not held; blocks of this pool are [0, %d), and each is released once",
            blockId, blockCount);
      }
      held.clear(blockId);
      free[freeCount++] = blockId;
    }
  }

  /**
   * The pages of one layer. Thread-safe. Numbers are in native byte order. Nothing here allocates
   * but {@link #page}.
   */
  public static final class Layer {
    private final String name;
    private final long pageBytes;
    private final int blockCount;
    private final int blocksPerSlab;
    private final int stride;
    private final int offset;
    private final ByteBuffer[] slabs;
    private final FloatBuffer[] floats;

    private Layer(
        KVRegion region, int blockCount, int blocksPerSlab, long offset, List<ByteBuffer> slabs) {
      name = region.layerName();
      pageBytes = region.blockBytes();
      this.blockCount = blockCount;
      this.blocksPerSlab = blocksPerSlab;
      stride = (int) region.blockStride();
      this.offset = (int) offset;
      this.slabs = new ByteBuffer[slabs.size()];
      floats = new FloatBuffer[slabs.size()];
      for (int i = 0; i < floats.length; i++) {
        this.slabs[i] = slabs.get(i).duplicate().order(ByteOrder.nativeOrder());
        floats[i] = this.slabs[i].asFloatBuffer();
      }
    }

    /**
     * Returns the layer's name.
     *
     * @return name in the layout
     */
    public String name() {
      return name;
    }

    /**
     * Returns the size of a page.
     *
     * @return bytes
     */
    public long pageBytes() {
      return pageBytes;
    }

    /**
     * Copies numbers from an array into a page.
     *
     * @param blockId the block
     * @param offsetBytes where in the page, a multiple of 4
     * @param source borrowed for the call
     * @param from index of the first number in source
     * @param count how many
     * @throws UMBPException INVALID_ARGUMENT when a range does not fit or the page is not aligned
     *     to 4 bytes
     */
    public void put(int blockId, long offsetBytes, float[] source, int from, int count) {
      int index = floatIndex(blockId, offsetBytes, source.length, from, count);
      floats[blockId / blocksPerSlab].put(index, source, from, count);
    }

    /**
     * Copies numbers from a page into an array.
     *
     * @param blockId the block
     * @param offsetBytes where in the page, a multiple of 4
     * @param target borrowed for the call
     * @param from index of the first number in target
     * @param count how many
     * @throws UMBPException INVALID_ARGUMENT when a range does not fit or the page is not aligned
     *     to 4 bytes
     */
    public void take(int blockId, long offsetBytes, float[] target, int from, int count) {
      int index = floatIndex(blockId, offsetBytes, target.length, from, count);
      floats[blockId / blocksPerSlab].get(index, target, from, count);
    }

    /**
     * Copies bytes from an array into a page.
     *
     * @param blockId the block
     * @param offsetBytes where in the page
     * @param source borrowed for the call
     * @param from index of the first byte in source
     * @param count how many
     * @throws UMBPException INVALID_ARGUMENT when a range does not fit
     */
    public void put(int blockId, long offsetBytes, byte[] source, int from, int count) {
      int index = byteIndex(blockId, offsetBytes, source.length, from, count, Byte.BYTES);
      slabs[blockId / blocksPerSlab].put(index, source, from, count);
    }

    /**
     * Copies bytes from a page into an array.
     *
     * @param blockId the block
     * @param offsetBytes where in the page
     * @param target borrowed for the call
     * @param from index of the first byte in target
     * @param count how many
     * @throws UMBPException INVALID_ARGUMENT when a range does not fit
     */
    public void take(int blockId, long offsetBytes, byte[] target, int from, int count) {
      int index = byteIndex(blockId, offsetBytes, target.length, from, count, Byte.BYTES);
      slabs[blockId / blocksPerSlab].get(index, target, from, count);
    }

    /**
     * Returns a view of a page, for every other kind of access.
     *
     * @param blockId the block
     * @return a new direct buffer of {@link #pageBytes()} bytes in native order; the memory shared
     * @throws UMBPException INVALID_ARGUMENT when the pool has no such block
     */
    public ByteBuffer page(int blockId) {
      ByteBuffer slab = slabs[checkedBlock(blockId) / blocksPerSlab];
      return slab.slice(pageStart(blockId), (int) pageBytes).order(ByteOrder.nativeOrder());
    }

    private int floatIndex(int blockId, long offsetBytes, int arrayLength, int from, int count) {
      int index = byteIndex(blockId, offsetBytes, arrayLength, from, count, Float.BYTES);
      if (index % Float.BYTES != 0 || offsetBytes % Float.BYTES != 0) {
        throw UMBPException.invalid(
            "layer '%s', block %d: byte %d of the slab (offset %d of the page) is no multiple of 4",
            name, blockId, index, offsetBytes);
      }
      return index / Float.BYTES;
    }

    private int byteIndex(
        int blockId, long offsetBytes, int arrayLength, int from, int count, int elementBytes) {
      checkedBlock(blockId);
      if (from < 0 || count < 0 || from > arrayLength - count) {
        throw UMBPException.invalid(
            "layer '%s': elements [%d, %d + %d) are outside the array's %d",
            name, from, from, count, arrayLength);
      }
      if (offsetBytes < 0 || offsetBytes > pageBytes - (long) count * elementBytes) {
        throw UMBPException.invalid(
            "layer '%s': %d bytes at offset %d do not fit the page of %d bytes",
            name, (long) count * elementBytes, offsetBytes, pageBytes);
      }
      return pageStart(blockId) + (int) offsetBytes;
    }

    private int checkedBlock(int blockId) {
      if (blockId < 0 || blockId >= blockCount) {
        throw UMBPException.invalid(
            "layer '%s': block %d is outside the pool's [0, %d)", name, blockId, blockCount);
      }
      return blockId;
    }

    private int pageStart(int blockId) {
      return blockId % blocksPerSlab * stride + offset;
    }
  }
}
