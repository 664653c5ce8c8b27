package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe;
import io.umbp.api.KVProbe.Place;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TensorPlan;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeKVCache;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * An engine with its KV cache on a fake GPU that registers it with a trial. What it tells umbp of
 * its cache and what its kernels do may be two things.
 */
final class TrialEngine implements AutoCloseable {
  static final RankTopology RANK = RankTopology.single();
  static final int FIRST = 1;
  static final int SECOND = 3;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");

  final FakeGpu gpu;
  final Copies copies;
  final FakeKVCache cache;
  final EmbeddedRuntime runtime;
  final UMBPWorkerHandle worker;
  final Map<String, KVCacheTensor> tensors = new HashMap<>();
  final AtomicLong clockStepNanos = new AtomicLong();

  private final AtomicLong now = new AtomicLong();
  private final KVCacheConfig config;
  private final Map<Long, Integer> allocations = new HashMap<>();

  /** Counts what is registered, and lets a test do something to loads. */
  static final class Copies extends FaultyCopyEngine {
    final AtomicLong registered = new AtomicLong();
    volatile LoadFault loadFault = (batch, target) -> target.submit(batch);
    private final FakeGpu gpu;

    Copies(FakeGpu gpu) {
      super(gpu.copyEngine());
      this.gpu = gpu;
    }

    @Override
    public long register(KVCacheTensor tensor) {
      long base = super.register(tensor);
      registered.incrementAndGet();
      return base;
    }

    @Override
    public void unregister(KVCacheTensor tensor) {
      super.unregister(tensor);
      registered.decrementAndGet();
    }

    @Override
    public synchronized CopyTicket submit(CopyBatch batch, DeviceFence fence) {
      CopyTicket ticket =
          switch (batch.direction()) {
            case STORE -> super.submit(batch, fence);
            case LOAD -> loadFault.submit(batch, changed -> super.submit(changed, fence));
          };
      return gpu.isStepped() ? new SteppingTicket(gpu, ticket) : ticket;
    }
  }

  /** Stands between a load and the copy engine. */
  interface LoadFault {
    CopyTicket submit(CopyBatch batch, Target target);

    /** The copy engine. */
    interface Target {
      CopyTicket submit(CopyBatch batch);
    }
  }

  /** Moves a stepped GPU whenever it is asked. */
  private record SteppingTicket(FakeGpu gpu, CopyTicket target) implements CopyTicket {
    @Override
    public boolean poll() {
      gpu.step();
      return target.poll();
    }

    @Override
    public boolean await(Duration timeout) {
      return poll();
    }

    @Override
    public boolean isMarkDone(int mark) {
      return target.isMarkDone(mark);
    }

    @Override
    public String failure(int key) {
      return target.failure(key);
    }
  }

  /** Opens an engine that does what it says. */
  TrialEngine(KVCacheConfig config) {
    this(FakeGpu.asynchronous(1), config, config);
  }

  TrialEngine(FakeGpu gpu, KVCacheConfig told, KVCacheConfig done) {
    this.gpu = gpu;
    config = done;
    copies = new Copies(gpu);
    cache = new FakeKVCache(gpu);
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(64 << 20)
            .copyEngine(() -> copies)
            .nanoTime(() -> now.addAndGet(clockStepNanos.get()))
            .build();
    worker = runtime.createWorkerHandle(NAMESPACE, RANK, KVLayoutPlanner.describe(told, RANK));
    List<TensorPlan> plans = KVLayoutPlanner.tensors(told, RANK);
    for (int i = 0; i < plans.size(); i++) {
      FakeKVCache.Tensor tensor = tensor(done, done.tensors().get(i));
      // Room for what a planted fault moves.
      long bytes = Math.max(plans.get(i).sizeBytes(), cache.place(0, tensor)) + 4096;
      long address = gpu.malloc(0, bytes);
      allocations.put(address, Math.toIntExact(bytes));
      cache.place(address, tensor);
      tensors.putAll(plans.get(i).onDevice(address, 0));
    }
  }

  /** The axes of each order by their definition; K says where keys and values part. */
  static String order(KVCacheLayout layout, KVSplit split) {
    return switch (split) {
      case FUSED -> layout.name();
      case BLOCKS ->
          switch (layout) {
            case LBHNC -> "LBKHNC";
            case LBNHC -> "LBKNHC";
            case LHBNC -> "LHBKNC";
            case BLHNC -> "BLKHNC";
            case BLNHC -> "BLKNHC";
            case BHLNC -> "BHLKNC";
          };
      case PLANES ->
          switch (layout) {
            case LBHNC -> "LKBHNC";
            case LBNHC -> "LKBNHC";
            case LHBNC -> "LKHBNC";
            case BLHNC -> "KBLHNC";
            case BLNHC -> "KBLNHC";
            case BHLNC -> "KBHLNC";
          };
    };
  }

  private static FakeKVCache.Tensor tensor(KVCacheConfig config, KVCacheConfig.Tensor tensor) {
    List<FakeKVCache.Layer> layers = new ArrayList<>();
    for (int slot = 0; slot < tensor.slots().size(); slot++) {
      for (String name : tensor.slots().get(slot).layers()) {
        layers.add(layer(name, slot, spec(config, name)));
      }
    }
    return new FakeKVCache.Tensor(
        order(tensor.layout(), tensor.split()),
        tensor.blockCount(),
        tensor.kernelBlocks(),
        tensor.blockStride(),
        layers);
  }

  private static FakeKVCache.Layer layer(String name, int slot, KVCacheSpec spec) {
    if (spec instanceof KVCacheSpec.State state) {
      return new FakeKVCache.Layer(name, slot, 1, 1, state.pageBytes(), 0);
    }
    KVCacheSpec.Attention attention = (KVCacheSpec.Attention) spec;
    long size = attention.elementType().sizeBytes();
    return new FakeKVCache.Layer(
        name,
        slot,
        attention.kvHeads(),
        attention.blockSize(),
        attention.keySize() * size,
        attention.valueSize() * size);
  }

  private static KVCacheSpec spec(KVCacheConfig config, String name) {
    return config.groups().stream()
        .flatMap(group -> group.layers().stream())
        .filter(layer -> layer.name().equals(name))
        .findFirst()
        .orElseThrow()
        .spec();
  }

  /** One group of like layers, each in a slot of its own. */
  static KVCacheConfig config(
      KVCacheSpec spec, int layers, KVCacheLayout layout, KVSplit split, int kernels, long stride) {
    List<Layer> all = new ArrayList<>();
    List<Slot> slots = new ArrayList<>();
    for (int i = 0; i < layers; i++) {
      all.add(new Layer("layers." + i, spec));
      slots.add(new Slot(List.of("layers." + i)));
    }
    return new KVCacheConfig(
        List.of(new Group(all, KVCacheConfig.Transfer.ENABLED)),
        List.of(new KVCacheConfig.Tensor(slots, layout, split, 5, kernels, stride)));
  }

  void register() {
    register(cache);
  }

  void register(KVProbe probe) {
    worker.registerBuffers(
        tensors, RegistrationOptions.ownWriter().withTrial(probe, FIRST, SECOND));
  }

  UMBPException refused() {
    return refused(cache);
  }

  UMBPException refused(KVProbe probe) {
    return assertThrows(UMBPException.class, () -> register(probe));
  }

  /** Checks that the engine can go on as if nothing had been registered. */
  void assertNothingLeft() {
    assertEquals(0, copies.registered.get(), "registered tensors");
    assertEquals(0, gpu.copyEngine().liveSlabCount(), "slabs");
    assertEquals(0, copies.runningCopies(), "copies");
    assertEquals(
        UMBPException.Reason.NOT_REGISTERED,
        assertThrows(UMBPException.class, this::store).reason());
  }

  void store() {
    BlockKeys keys =
        BlockKeys.of(
            NAMESPACE, RANK.localNamespace(), 0, BlockHashes.of(List.of(BlockHash.fromHex("aa"))));
    worker.store(BlockStoreBatch.of("r", keys, 0), DeviceFence.hostComplete());
  }

  /** All bytes of the cache, with those of the lent blocks blanked. */
  Map<Long, byte[]> otherBytes() {
    Map<Long, byte[]> all = new HashMap<>();
    allocations.forEach((address, bytes) -> all.put(address, gpu.read(address, bytes)));
    for (Group group : config.groups()) {
      for (Layer layer : group.layers()) {
        FakeKVCache.Layer shape = layer(layer.name(), 0, layer.spec());
        for (int block : new int[] {FIRST, SECOND}) {
          for (int token = 0; token < shape.tokens(); token++) {
            for (int head = 0; head < shape.heads(); head++) {
              blank(all, new Place(layer.name(), block, Part.KEY, head, token), shape.keyBytes());
              blank(
                  all, new Place(layer.name(), block, Part.VALUE, head, token), shape.valueBytes());
            }
          }
        }
      }
    }
    return all;
  }

  private void blank(Map<Long, byte[]> all, Place place, long bytes) {
    long address = cache.strides(place.layerName()).address(place);
    all.forEach(
        (base, content) -> {
          if (address >= base && address < base + content.length) {
            int at = (int) (address - base);
            Arrays.fill(content, at, at + (int) bytes, (byte) 0);
          }
        });
  }

  @Override
  public void close() {
    clockStepNanos.set(0);
    gpu.copyEngine().releaseCopies();
    if (gpu.isStepped()) {
      gpu.runAll();
    }
    assertFalse(Thread.interrupted(), "interrupted");
    runtime.close(Duration.ofSeconds(20));
    assertEquals(0, gpu.copyEngine().liveSlabCount(), "slabs");
    gpu.close();
    assertEquals(0, gpu.useAfterFreeCount(), "uses of freed memory");
  }
}
