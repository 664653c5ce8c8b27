package io.umbp.testkit;

import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe;
import io.umbp.api.UMBPException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The KV cache of an engine in the memory of a {@link FakeGpu}, reached as the engine's kernels
 * would: each layer has a stride for each axis. It knows nothing of how umbp plans layouts, so that
 * the two can be held against each other. Thread-confined.
 */
public final class FakeKVCache implements KVProbe {
  private final FakeGpu gpu;
  private final Map<String, Strides> layers = new HashMap<>();

  /**
   * One layer of a tensor.
   *
   * @param name unique name
   * @param slot its place on the axis L, from 0; layers of one slot use the same bytes
   * @param heads KV heads of this rank; 1 for a state
   * @param tokens tokens in a block; 1 for a state
   * @param keyBytes bytes of a key of one token and head, or of the one content
   * @param valueBytes bytes of a value, 0 when there is one content
   */
  public record Layer(
      String name, int slot, int heads, int tokens, long keyBytes, long valueBytes) {}

  /**
   * A tensor as nested axes.
   *
   * @param order the axes outermost first: L layer, B (kernel) block, H head, N token, C content,
   *     and K for "keys, then values"; without K a value follows its key
   * @param blocks blocks of the block manager
   * @param kernelBlocks blocks of the attention kernel in each of them
   * @param blockStride bytes from block to block; 0 for as few as there must be
   * @param layers the layers, ordered by slot; copied
   */
  public record Tensor(
      String order, int blocks, int kernelBlocks, long blockStride, List<Layer> layers) {
    /** Checks the axes and copies the layers. */
    public Tensor {
      layers = List.copyOf(layers);
      if (!order.matches("(?=.*L)(?=.*B)(?=.*H)(?=.*N)[LBHNK]{4,5}C")) {
        throw UMBPException.invalid("axes '%s' must be L, B, H, N, perhaps K, and C last", order);
      }
    }
  }

  /**
   * Where a layer's keys and values lie; all in bytes.
   *
   * @param base address of block 0
   * @param block from block to block
   * @param kernelBlock from kernel block to kernel block
   * @param kernelTokens tokens in a kernel block
   * @param token from token to token
   * @param head from head to head
   * @param value from a key to its value
   */
  public record Strides(
      long base,
      long block,
      long kernelBlock,
      int kernelTokens,
      long token,
      long head,
      long value) {

    /**
     * Returns where a place starts.
     *
     * @param place a place of the layer
     * @return its address
     */
    public long address(Place place) {
      return base
          + place.blockId() * block
          + place.token() / kernelTokens * kernelBlock
          + place.token() % kernelTokens * token
          + place.head() * head
          + (place.part() == Part.VALUE ? value : 0);
    }
  }

  /**
   * Creates an engine's cache without tensors.
   *
   * @param gpu where it lies
   */
  public FakeKVCache(FakeGpu gpu) {
    this.gpu = gpu;
  }

  /**
   * Allocates a tensor on device 0 and fills it with poison.
   *
   * @param tensor the tensor
   * @return its address
   */
  public long allocate(Tensor tensor) {
    long address = gpu.malloc(0, place(0, tensor));
    place(address, tensor);
    return address;
  }

  /**
   * Takes memory for a tensor.
   *
   * @param address where it begins
   * @param tensor the tensor
   * @return bytes that it needs
   */
  public long place(long address, Tensor tensor) {
    int count = tensor.layers.size();
    long[] inner = new long[count];
    long[] token = new long[count];
    long[] head = new long[count];
    long[] value = new long[count];
    long[] start = new long[count];
    long kernelBlock = 0;
    boolean hasK = tensor.order.indexOf('K') >= 0;
    boolean isBlockInside = false;
    boolean isAnySplit = hasK && tensor.layers.stream().anyMatch(layer -> layer.valueBytes > 0);
    for (int i = 0; i < count; i++) {
      Layer layer = tensor.layers.get(i);
      inner[i] = hasK && layer.valueBytes > 0 ? layer.keyBytes : layer.keyBytes + layer.valueBytes;
      value[i] = layer.keyBytes;
    }
    for (int at = tensor.order.length() - 2; at >= 0; at--) {
      char axis = tensor.order.charAt(at);
      if (axis == 'B') {
        isBlockInside = true;
        for (int i = 0; i < count; i++) {
          long pieces =
              tensor.layers.get(i).tokens % tensor.kernelBlocks == 0 ? 1 : tensor.kernelBlocks;
          kernelBlock = Math.max(kernelBlock, (inner[i] + pieces - 1) / pieces);
        }
        if (tensor.blockStride > 0) {
          kernelBlock = tensor.blockStride / tensor.kernelBlocks;
        }
        Arrays.fill(inner, kernelBlock * tensor.kernelBlocks * tensor.blocks);
      } else if (axis == 'L') {
        Arrays.fill(inner, layOut(tensor.layers, inner, start));
      } else {
        for (int i = 0; i < count; i++) {
          Layer layer = tensor.layers.get(i);
          if (axis == 'N') {
            token[i] = inner[i];
            inner[i] *= kernelTokens(layer, tensor);
          } else if (axis == 'H') {
            head[i] = inner[i];
            inner[i] *= layer.heads;
          } else {
            value[i] = inner[i];
            inner[i] *= layer.valueBytes > 0 || (isBlockInside && isAnySplit) ? 2 : 1;
          }
        }
      }
    }
    for (int i = 0; i < count; i++) {
      Layer layer = tensor.layers.get(i);
      layers.put(
          layer.name,
          new Strides(
              address + start[i],
              kernelBlock * tensor.kernelBlocks,
              kernelBlock,
              kernelTokens(layer, tensor),
              token[i],
              head[i],
              value[i]));
    }
    return inner[0];
  }

  /** Lays slots one after another, each as large as its largest layer; returns the whole size. */
  private static long layOut(List<Layer> layers, long[] sizes, long[] start) {
    long end = 0;
    int i = 0;
    while (i < sizes.length) {
      int slot = layers.get(i).slot;
      long slotBytes = 0;
      for (; i < sizes.length && layers.get(i).slot == slot; i++) {
        start[i] = end;
        slotBytes = Math.max(slotBytes, sizes[i]);
      }
      end += slotBytes;
    }
    return end;
  }

  private static int kernelTokens(Layer layer, Tensor tensor) {
    return Math.max(1, layer.tokens / tensor.kernelBlocks);
  }

  /**
   * Returns where a layer lies.
   *
   * @param layerName a layer that was placed
   * @return its strides
   */
  public Strides strides(String layerName) {
    Strides strides = layers.get(layerName);
    if (strides == null) {
      throw UMBPException.invalid("layer '%s' is in no tensor", layerName);
    }
    return strides;
  }

  /**
   * Puts a layer elsewhere, such as where a test plants a fault.
   *
   * @param layerName any name
   * @param strides where
   */
  public void put(String layerName, Strides strides) {
    layers.put(layerName, strides);
  }

  @Override
  public void write(Place place, byte[] value) {
    gpu.write(strides(place.layerName()).address(place), value);
  }

  @Override
  public void read(Place place, byte[] value) {
    gpu.read(strides(place.layerName()).address(place), value, 0, value.length);
  }
}
