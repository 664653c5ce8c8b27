package io.umbp.bench;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.connector.WorkerConnector;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * One rank of the replay's engine: its KV buffers on its own GPU, the stream on which it computes,
 * and its connector. Single-writer; the kernels run on the stream's thread.
 */
final class GpuRank {
  /** What a block holds before a load, so that a load that wrote nothing shows. */
  private static final byte UNLOADED = (byte) 0xEE;

  private final FakeGpu gpu;
  private final int rank;
  private final int layerBytes;
  private final long[] layerBase;
  private final FakeStream compute;
  private final byte[] computedPage;
  private final byte[] expectedPage;
  private final byte[] foundPage;
  private final UMBPWorkerHandle handle;
  private final WorkerConnector connector;

  /** Allocates and registers the buffers of a rank on the GPU of the same number. */
  GpuRank(
      FakeGpu gpu,
      UMBPRuntime runtime,
      UMBPNamespace namespace,
      KVLayoutDescriptor layout,
      int blocks) {
    RankTopology topology = layout.topology();
    this.gpu = gpu;
    this.rank = topology.tpRank();
    List<KVRegion> regions = layout.regions();
    layerBytes = Math.toIntExact(regions.get(0).blockBytes());
    layerBase = new long[regions.size()];
    computedPage = new byte[layerBytes];
    expectedPage = new byte[layerBytes];
    foundPage = new byte[layerBytes];
    compute = gpu.stream(rank);
    Map<String, KVCacheTensor> tensors = new HashMap<>();
    long bytes = (long) blocks * layerBytes;
    for (int layer = 0; layer < layerBase.length; layer++) {
      layerBase[layer] = gpu.malloc(rank, bytes);
      KVCacheTensor tensor =
          KVCacheTensor.device(layerBase[layer], bytes, rank).blocks(blocks, layerBytes).build();
      tensors.put(regions.get(layer).layerName(), tensor);
    }
    handle = runtime.createWorkerHandle(namespace, topology, layout);
    handle.registerBuffers(tensors);
    connector = new WorkerConnector(handle, topology);
  }

  /** The layout of a rank: all layers in one group, each in its own buffer. */
  static KVLayoutDescriptor layout(ReplaySettings settings, RankTopology topology) {
    List<KVRegion> regions = new ArrayList<>();
    int bytes = settings.layerBytes();
    for (int layer = 0; layer < settings.layers(); layer++) {
      long offset = (long) layer * bytes;
      regions.add(new KVRegion("layer." + layer, 0, bytes, bytes, offset, Trace.BLOCK_TOKENS));
    }
    return new KVLayoutDescriptor(regions, topology);
  }

  WorkerConnector connector() {
    return connector;
  }

  /** All work that this rank has given its GPU so far. */
  DeviceFence computed() {
    return compute.fence();
  }

  /** Overwrites blocks on the GPU, some time later. */
  void spoil(int[] blockIds, int count) {
    compute.enqueue(
        () -> {
          for (int i = 0; i < count; i++) {
            for (long base : layerBase) {
              gpu.fill(base + (long) blockIds[i] * layerBytes, layerBytes, UNLOADED);
            }
          }
        });
  }

  /** Writes the KV of blocks on the GPU, some time later. */
  void prefill(int[] blockIds, long[] hashes, int first) {
    compute.enqueue(
        () -> {
          for (int i = first; i < blockIds.length; i++) {
            for (int layer = 0; layer < layerBase.length; layer++) {
              KVPattern.fill(computedPage, rank, layer, hashes[i]);
              gpu.write(layerBase[layer] + (long) blockIds[i] * layerBytes, computedPage);
            }
          }
        });
  }

  /**
   * Compares a loaded block with what prefill would have written; returns how many bytes differ.
   */
  long wrongBytes(int blockId, long hash) {
    long wrong = 0;
    for (int layer = 0; layer < layerBase.length; layer++) {
      long address = layerBase[layer] + (long) blockId * layerBytes;
      KVPattern.fill(expectedPage, rank, layer, hash);
      if (gpu.mismatch(address, expectedPage, 0, layerBytes) >= 0) {
        wrong += wrongBytesAt(address);
      }
    }
    return wrong;
  }

  private long wrongBytesAt(long address) {
    gpu.read(address, foundPage, 0, layerBytes);
    long wrong = 0;
    for (int i = 0; i < layerBytes; i++) {
      if (foundPage[i] != expectedPage[i]) {
        wrong++;
      }
    }
    return wrong;
  }

  /** Waits until all work that was given to the GPU is over; throws what a kernel threw. */
  void synchronize() {
    compute.synchronize();
  }
}
