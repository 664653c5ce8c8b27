package io.umbp.core.layout;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVRegion;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongFunction;

/**
 * How much memory one tensor of a {@link KVCacheConfig} takes on a rank, and where in it the layers
 * begin. Immutable.
 *
 * @param sizeBytes bytes of the whole tensor
 * @param blockCount blocks
 * @param layers the layers in the order of the tensor, also those of groups that are not
 *     transferred; copied
 */
public record TensorPlan(long sizeBytes, int blockCount, List<PlannedLayer> layers) {

  /**
   * One layer of the tensor.
   *
   * @param region its pages, in an object of all groups at the offset that it would have alone
   * @param offset bytes from the tensor's start to the layer's block 0
   */
  public record PlannedLayer(KVRegion region, long offset) {}

  /** Copies the list. */
  public TensorPlan {
    layers = List.copyOf(layers);
  }

  /**
   * Returns what to register when the tensor lies in device memory.
   *
   * @param address absolute address of its first byte
   * @param deviceOrdinal the device
   * @return a tensor for each layer
   */
  public Map<String, KVCacheTensor> onDevice(long address, int deviceOrdinal) {
    return tensors(
        offset ->
            KVCacheTensor.device(address + offset, sizeBytes - offset, deviceOrdinal)
                .inAllocation(address, sizeBytes));
  }

  /**
   * Returns what to register when the tensor lies in host memory.
   *
   * @param slabs direct buffers whose bytes from position to limit are the tensor, in order
   * @return a tensor for each layer
   */
  public Map<String, KVCacheTensor> onHost(List<ByteBuffer> slabs) {
    long bytes = slabs.stream().mapToLong(ByteBuffer::remaining).sum();
    if (bytes < sizeBytes) {
      throw UMBPException.invalid(
          "layer '%s': the tensor needs %d bytes, the slabs have %d",
          layers.get(0).region().layerName(), sizeBytes, bytes);
    }
    return tensors(offset -> KVCacheTensor.host(offset, slabs));
  }

  private Map<String, KVCacheTensor> tensors(LongFunction<KVCacheTensor.Builder> at) {
    Map<String, KVCacheTensor> tensors = new HashMap<>();
    for (PlannedLayer layer : layers) {
      KVRegion region = layer.region();
      tensors.put(
          region.layerName(),
          at.apply(layer.offset()).blocks(blockCount, region.blockStride()).build());
    }
    return tensors;
  }
}
