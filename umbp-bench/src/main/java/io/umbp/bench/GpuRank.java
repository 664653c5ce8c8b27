package io.umbp.bench;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVProbe;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.bench.TensorMap.Page;
import io.umbp.core.connector.WorkerConnector;
import io.umbp.core.identity.NamespaceManifest;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.TensorPlan;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * One rank of the replay's engine: its KV buffers on its own GPU, the stream on which it computes,
 * and its connector. Single-writer; the kernels run later, in order.
 */
final class GpuRank {
  /** What a block holds before a load, so that a load that wrote nothing shows. */
  private static final byte UNLOADED = (byte) 0xEE;

  private final ReplayGpus gpus;
  private final int rank;
  private final List<List<Layer>> groups = new ArrayList<>();
  private final byte[] computedPage;
  private final byte[] expectedPage;
  private final byte[] foundPage;
  private final long[] addresses;
  private final int[] lengths;
  private final UMBPWorkerHandle handle;
  private final WorkerConnector connector;

  /**
   * Where the pages of one layer lie on the GPU.
   *
   * @param rank the rank whose bytes they hold: for all ranks the same one when they are replicated
   * @param index index of the layer
   * @param base address of its tensor
   * @param page its runs in block 0
   * @param blockStride bytes from one block to the next
   */
  private record Layer(int rank, int index, long base, Page page, long blockStride) {
    long address(int blockId, int run) {
      return base + blockId * blockStride + page.offset(run);
    }
  }

  /** Where the engine itself looks for one layer, so that the layout can be tried out. */
  private record Placed(TensorMap map, int slot, Cache cache, long base) {
    long address(KVProbe.Place place) {
      return base
          + place.blockId() * map.blockStride()
          + map.offset(slot, cache, place.part(), place.head(), place.token());
    }
  }

  private record Probe(ReplayGpus gpus, int rank, Map<String, Placed> layers) implements KVProbe {
    private long address(Place place) {
      return Objects.requireNonNull(layers.get(place.layerName())).address(place);
    }

    @Override
    public void write(Place place, byte[] value) {
      gpus.write(rank, address(place), value);
    }

    @Override
    public void read(Place place, byte[] value) {
      gpus.read(rank, new long[] {address(place)}, new int[] {value.length}, 1, value);
    }
  }

  /**
   * Allocates the buffers of a rank on the GPU of the same number, and registers them after a trial
   * of their layout.
   *
   * @param cache what the rank keeps
   * @param layout the layout of the rank's objects
   * @param blocks blocks of each tensor
   */
  GpuRank(
      ReplayGpus gpus,
      UMBPRuntime runtime,
      EngineCache cache,
      KVLayoutDescriptor layout,
      int blocks) {
    this.gpus = gpus;
    rank = layout.topology().tpRank();
    Map<String, KVCacheTensor> tensors = new HashMap<>();
    Map<String, Layer> layers = new HashMap<>();
    Map<String, Placed> placed = new HashMap<>();
    List<TensorPlan> plans = KVLayoutPlanner.tensors(cache.config(blocks), layout.topology());
    int index = 0;
    int largestPage = 0;
    int mostRuns = 0;
    for (int i = 0; i < plans.size(); i++) {
      TensorSketch tensor = cache.tensors().get(i);
      TensorMap map = new TensorMap(tensor, cache.blockSize(), blocks);
      long base = gpus.malloc(rank, map.sizeBytes());
      tensors.putAll(plans.get(i).onDevice(base, gpus.ordinal(rank)));
      for (int slot = 0; slot < tensor.slots().size(); slot++) {
        for (Cache part : tensor.slots().get(slot)) {
          Page page = map.page(slot, part);
          largestPage = Math.max(largestPage, page.bytes());
          mostRuns = Math.max(mostRuns, page.runs());
          int writer = cache.isReplicated(part) ? 0 : rank;
          layers.put(part.layerName(), new Layer(writer, index++, base, page, map.blockStride()));
          placed.put(part.layerName(), new Placed(map, slot, part, base));
        }
      }
    }
    for (int group = 0; group < cache.groupCount(); group++) {
      List<Layer> ofGroup = new ArrayList<>();
      for (Cache part : cache.group(group)) {
        ofGroup.add(Objects.requireNonNull(layers.get(part.layerName())));
      }
      groups.add(ofGroup);
    }
    computedPage = new byte[largestPage];
    expectedPage = new byte[largestPage];
    foundPage = new byte[largestPage];
    addresses = new long[mostRuns];
    lengths = new int[mostRuns];
    NamespaceManifest manifest = cache.manifest();
    UMBPNamespace namespace = manifest.namespace();
    handle = runtime.createWorkerHandle(namespace, layout.topology(), layout);
    RegistrationOptions options = RegistrationOptions.ownWriter();
    handle.registerBuffers(
        tensors,
        blocks == 1 ? options : options.withTrial(new Probe(gpus, rank, placed), 0, blocks - 1));
    connector =
        new WorkerConnector(handle, new UMBPHandshakeMetadata(namespace, manifest.text(), layout));
  }

  WorkerConnector connector() {
    return connector;
  }

  /** All work that this rank has given its GPU so far. */
  DeviceFence computed() {
    return gpus.fence(rank);
  }

  /** Overwrites the first blocks of each group on the GPU, some time later. */
  void spoil(int[][] blockIds, int count) {
    gpus.launch(
        rank,
        gpu -> {
          for (int group = 0; group < blockIds.length; group++) {
            for (Layer layer : groups.get(group)) {
              for (int i = 0; i < count; i++) {
                spoil(gpu, layer, blockIds[group][i]);
              }
            }
          }
        });
  }

  private static void spoil(ReplayGpus.Writer gpu, Layer layer, int blockId) {
    for (int run = 0; run < layer.page.runs(); run++) {
      gpu.fill(layer.address(blockId, run), layer.page.length(run), UNLOADED);
    }
  }

  /** Writes the KV of blocks on the GPU, some time later. */
  void prefill(int[][] blockIds, long[] hashes, int first) {
    gpus.launch(
        rank,
        gpu -> {
          for (int group = 0; group < blockIds.length; group++) {
            for (int i = first; i < hashes.length; i++) {
              for (Layer layer : groups.get(group)) {
                prefill(gpu, layer, blockIds[group][i], hashes[i]);
              }
            }
          }
        });
  }

  private void prefill(ReplayGpus.Writer gpu, Layer layer, int blockId, long hash) {
    KVPattern.fill(computedPage, layer.page.bytes(), layer.rank, layer.index, hash);
    int from = 0;
    for (int run = 0; run < layer.page.runs(); run++) {
      int length = layer.page.length(run);
      gpu.write(layer.address(blockId, run), computedPage, from, length);
      from += length;
    }
  }

  /**
   * Compares a loaded block of a group with what prefill would have written; returns how many bytes
   * differ.
   */
  long wrongBytes(int group, int blockId, long hash) {
    long wrong = 0;
    for (Layer layer : groups.get(group)) {
      int bytes = layer.page.bytes();
      KVPattern.fill(expectedPage, bytes, layer.rank, layer.index, hash);
      int runs = layer.page.runs();
      for (int run = 0; run < runs; run++) {
        addresses[run] = layer.address(blockId, run);
        lengths[run] = layer.page.length(run);
      }
      gpus.read(rank, addresses, lengths, runs, foundPage);
      if (!Arrays.equals(foundPage, 0, bytes, expectedPage, 0, bytes)) {
        for (int i = 0; i < bytes; i++) {
          wrong += foundPage[i] == expectedPage[i] ? 0 : 1;
        }
      }
    }
    return wrong;
  }

  /** Waits until all work that was given to the GPU is over; throws what a kernel threw. */
  void synchronize() {
    gpus.synchronize(rank);
  }
}
