package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.ElementType;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockHasher;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.identity.NamespaceManifest;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostCopyEngine;
import io.umbp.testkit.FakeGpu;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * A million random and mutated inputs: each is refused with a typed error, or gives a value that
 * keeps its promises. A run is repeated with {@code -Dumbp.fuzz.seed}.
 */
@Timeout(300)
class HostileInputTest {
  private static final long SEED = Long.getLong("umbp.fuzz.seed", System.nanoTime());
  private static final int KEYS = 300_000;
  private static final int MANIFESTS = 150_000;
  private static final int SHAPES = 100_000;
  private static final int REGIONS = 150_000;
  private static final int CONFIGS = 150_000;
  private static final int REGISTRATIONS = 150_000;

  private static final String MUTATIONS = "0123456789abcdefABCDEFgtp:-_.*umbvl \n٠\uD800";
  private static final int INPUTS_PER_RUNTIME = 1_000;

  /** Makes a value, or refuses; what it returns checks the value. */
  @FunctionalInterface
  private interface Attempt {
    Runnable make(SplittableRandom random);
  }

  private static void fuzz(String what, int inputs, Attempt attempt) {
    SplittableRandom random = new SplittableRandom(SEED);
    int accepted = 0;
    for (int i = 0; i < inputs; i++) {
      if (isAccepted(what, i, random.split(), attempt)) {
        accepted++;
      }
    }
    int refused = inputs - accepted;
    String line =
        "%d %s, seed %d: %d accepted, %d refused".formatted(inputs, what, SEED, accepted, refused);
    System.out.println(line);
    assertTrue(Math.min(accepted, refused) > inputs / 8, line);
  }

  private static boolean isAccepted(
      String what, int index, SplittableRandom random, Attempt attempt) {
    try {
      Runnable check;
      try {
        check = attempt.make(random);
      } catch (UMBPException e) {
        assertNotNull(e.getMessage());
        return false;
      }
      check.run();
      return true;
    } catch (Throwable e) {
      throw new AssertionError("input %d of the %s, seed %d".formatted(index, what, SEED), e);
    }
  }

  @Test
  void keys() {
    BlockIdentityCodec codec =
        new BlockIdentityCodec(new UMBPNamespace("m1"), RankTopology.single());
    fuzz(
        "keys",
        KEYS,
        random -> {
          String text = keyText(random);
          Optional<BlockKey> own = codec.tryParse(text);
          BlockKey key;
          try {
            key = BlockKey.parse(text);
          } catch (UMBPException e) {
            assertTrue(own.isEmpty(), text);
            assertTrue(e.getMessage().length() < 500, e.getMessage());
            throw e;
          }
          return () -> {
            assertEquals(text, key.toString());
            boolean isOwn = key.namespace().equals(codec.namespace());
            assertEquals(isOwn ? Optional.of(key) : Optional.empty(), own);
            BlockKey again = new BlockKey(key.namespace(), key.rank(), key.groupId(), key.hash());
            assertEquals(key, again);
          };
        });
  }

  private static String keyText(SplittableRandom random) {
    Hostile hostile = new Hostile(random);
    if (random.nextInt(20) == 0) {
      return noise(random, random.nextInt(400) == 0 ? 1 << random.nextInt(20) : 120);
    }
    List<String> parts =
        new ArrayList<>(
            List.of(
                "umbp",
                "vllm",
                "v1",
                namespaceText(hostile),
                "tp" + (random.nextInt(4) == 0 ? "*" : numberText(hostile)),
                "pcp" + numberText(hostile),
                "dcp" + numberText(hostile),
                "pp" + numberText(hostile),
                "g" + numberText(hostile),
                hashText(hostile)));
    StringBuilder text = new StringBuilder(String.join(":", hostile.list(parts)));
    while (hostile.isFault()) {
      mutate(text, random);
    }
    return text.toString();
  }

  private static String noise(SplittableRandom random, int limit) {
    char[] text = new char[random.nextInt(limit + 1)];
    for (int i = 0; i < text.length; i++) {
      text[i] = (char) random.nextInt(random.nextBoolean() ? 128 : 1 << 16);
    }
    return new String(text);
  }

  private static String namespaceText(Hostile hostile) {
    String name = hostile.oneOf("m1", "194ba6ca064be076ca7fed5e5a6a505e", "A.b_c-9", "m.L1");
    return hostile.isFault()
        ? hostile.oneOf("", "a".repeat(hostile.between(100, 200)), "m:g1", name + "/", "é")
        : name;
  }

  private static String numberText(Hostile hostile) {
    int value = hostile.random().nextInt(3) > 0 ? 0 : hostile.between(0, 40);
    return hostile.isFault()
        ? hostile.oneOf("", "00", "+1", "-0", "2147483647", "2147483648", "9999999999", "1٣", "*")
        : Integer.toString(hostile.number(value));
  }

  private static String hashText(Hostile hostile) {
    byte[] hash = new byte[hostile.isFault() ? hostile.between(1, 300) : hostile.oneOf(1, 8, 32)];
    for (int i = 0; i < hash.length; i++) {
      hash[i] = (byte) hostile.random().nextInt();
    }
    StringBuilder text = new StringBuilder();
    for (byte b : hash) {
      text.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
    }
    return hostile.isFault() ? hostile.oneOf("", "0", text + "0", "AB" + text) : text.toString();
  }

  private static void mutate(StringBuilder text, SplittableRandom random) {
    char c = MUTATIONS.charAt(random.nextInt(MUTATIONS.length()));
    int at = random.nextInt(text.length() + 1);
    int end = Math.min(text.length(), at + 1 + random.nextInt(8));
    switch (random.nextInt(4)) {
      case 0 -> text.insert(at, c);
      case 1 -> text.delete(at, end);
      case 2 -> text.insert(at, text.substring(at, end));
      default -> text.replace(at, Math.min(text.length(), at + 1), String.valueOf(c));
    }
  }

  @Test
  void manifests() {
    BlockHasher hasher = BlockHasher.strict("0", 16);
    List<NamespaceManifest> whole = new ArrayList<>();
    for (SplittableRandom random = new SplittableRandom(SEED); whole.size() < 50; ) {
      Hostile faultless = Hostile.faultless(random);
      try {
        whole.add(
            NamespaceManifest.builder("modèle/x=\n" + whole.size())
                .overrides(Map.of("rope", "{\"factor\": 8}", "a\\b", "=", "wide", "\uD83D\uDE00"))
                .cache(config(faultless), RankTopology.tensorParallel(0, 1 + random.nextInt(2)))
                .hash(hasher)
                .build());
      } catch (UMBPException e) {
        // Heads that the ranks cannot share.
      }
    }
    fuzz(
        "manifests",
        MANIFESTS,
        random -> {
          Hostile hostile = new Hostile(random);
          NamespaceManifest base = whole.get(random.nextInt(whole.size()));
          List<String> lines = base.text().lines().toList();
          for (int i = random.nextInt(6); i > 0; i--) {
            lines = hostile.list(lines);
          }
          StringBuilder text =
              new StringBuilder(
                  random.nextInt(50) == 0 ? noise(random, 90) : String.join("\n", lines) + "\n");
          for (int i = random.nextInt(6); i > 0; i--) {
            mutate(text, random);
          }
          NamespaceManifest manifest = NamespaceManifest.parse(text.toString());
          return () -> {
            assertEquals(text.toString(), manifest.text());
            boolean isBase = manifest.equals(base);
            assertEquals(isBase, manifest.namespace().equals(base.namespace()));
            assertEquals(isBase, manifest.explain(base).isEmpty());
            assertEquals(manifest.explain(base).size(), base.explain(manifest).size());
          };
        });
  }

  @Test
  void pageShapes() {
    fuzz(
        "page shapes",
        SHAPES,
        random -> {
          Hostile hostile = new Hostile(random);
          KVPageShape shape = shape(hostile);
          return () -> {
            boolean isValue = shape.hasValues() && random.nextBoolean();
            long offset =
                shape.offset(
                    isValue ? KVPageShape.Part.VALUE : KVPageShape.Part.KEY,
                    random.nextInt(shape.heads()),
                    random.nextInt(shape.tokens()));
            long bytes = isValue ? shape.valueBytes() : shape.keyBytes();
            assertInside(offset, bytes, 0, shape.pageBytes());
          };
        });
  }

  private static KVPageShape shape(Hostile hostile) {
    SplittableRandom random = hostile.random();
    List<KVPageShape.Axis> axes =
        new ArrayList<>(List.of(KVPageShape.Axis.HEAD, KVPageShape.Axis.TOKEN));
    int kernelBlocks = 1 << random.nextInt(3);
    if (kernelBlocks > 1) {
      axes.add(KVPageShape.Axis.KERNEL_BLOCK);
    }
    long keyBytes = 1L << random.nextInt(30);
    long valueBytes = random.nextInt(3) == 0 ? 0 : keyBytes;
    if (valueBytes > 0 && random.nextBoolean()) {
      axes.add(KVPageShape.Axis.KV);
    }
    Collections.shuffle(axes, new Random(random.nextLong()));
    int heads = hostile.between(1, 64);
    return new KVPageShape(
        hostile.list(axes),
        hostile.number(heads << random.nextInt(3)),
        hostile.number(heads),
        hostile.number(kernelBlocks << random.nextInt(20)),
        hostile.number(kernelBlocks),
        hostile.number(keyBytes),
        hostile.number(valueBytes));
  }

  @Test
  void regions() {
    fuzz(
        "regions",
        REGIONS,
        random -> {
          Hostile hostile = new Hostile(random);
          Map<String, KVCacheTensor> tensors = new HashMap<>();
          List<KVRegion> regions = new ArrayList<>();
          long address = 1L + random.nextInt(1 << 20);
          int layers = hostile.between(1, 4);
          for (int i = 0; i < layers; i++) {
            address += addLayer(hostile, "L" + i, address, regions, tensors);
          }
          KVLayoutDescriptor layout =
              new KVLayoutDescriptor(hostile.list(regions), topology(hostile));
          KVLayoutPlanner.checkTensors(layout, tensors);
          KVLayoutPlanner planner = place(layout, tensors);
          return () -> assertBlockInside(random, planner, tensors);
        });
  }

  /** Adds a layer whose page is one run, several kernel blocks or several segments. */
  private static long addLayer(
      Hostile hostile,
      String name,
      long address,
      List<KVRegion> regions,
      Map<String, KVCacheTensor> tensors) {
    SplittableRandom random = hostile.random();
    int blocks = hostile.between(1, 1000);
    long unit = hostile.between(1, 64);
    long stride = unit + (random.nextBoolean() ? 0 : random.nextInt(64));
    long size = stride * blocks;
    int parts = 1;
    List<PageSegment> segments = new ArrayList<>();
    switch (random.nextInt(3)) {
      case 0 -> {
        parts = hostile.between(1, 4);
        blocks *= parts;
        size *= parts;
        if (parts > 1) {
          size = size / stride * unit;
          stride = unit;
        }
      }
      case 1 -> {
        int heads = hostile.between(1, 4);
        for (int head = 0; head < heads; head++) {
          segments.add(new PageSegment(hostile.number(size * head), hostile.number(unit)));
        }
        size *= heads;
      }
      default -> {}
    }
    long blockBytes = unit * parts * Math.max(1, segments.size());
    regions.add(
        new KVRegion(
            hostile.name(name),
            hostile.number(random.nextInt(3)),
            hostile.number(stride * parts),
            hostile.number(blockBytes),
            hostile.number((long) random.nextInt(100)),
            hostile.number(16),
            hostile.list(segments)));
    tensors.put(
        name,
        KVCacheTensor.device(hostile.number(address), hostile.number(size), 0)
            .blocks(hostile.number(blocks), hostile.number(stride))
            .build());
    return size;
  }

  private static RankTopology topology(Hostile hostile) {
    int tp = 1 << hostile.random().nextInt(3);
    int rank = hostile.random().nextInt(tp);
    return new RankTopology(
        hostile.number(rank),
        hostile.number(tp),
        hostile.number(0),
        hostile.number(1),
        hostile.number(0),
        hostile.number(1),
        hostile.number(0),
        hostile.number(1));
  }

  @Test
  void configs() {
    fuzz(
        "cache configs",
        CONFIGS,
        random -> {
          Hostile hostile = new Hostile(random);
          KVCacheConfig config = config(hostile);
          RankTopology topology = topology(hostile);
          KVLayoutDescriptor layout = KVLayoutPlanner.describe(config, topology);
          Map<String, KVCacheTensor> tensors = new HashMap<>();
          long address = hostile.number(1L + random.nextInt(1 << 20));
          for (TensorPlan tensor : KVLayoutPlanner.tensors(config, topology)) {
            tensors.putAll(tensor.onDevice(address, 0));
            address += tensor.sizeBytes();
          }
          Map<String, KVCacheTensor> kept = new HashMap<>();
          for (KVRegion region : layout.regions()) {
            kept.put(region.layerName(), tensors.get(region.layerName()));
          }
          KVLayoutPlanner.checkTensors(layout, kept);
          KVLayoutPlanner planner = place(layout, kept);
          return () -> assertBlockInside(random, planner, kept);
        });
  }

  /** Some tensors of a layer or two, in groups of their own or together. */
  private static KVCacheConfig config(Hostile hostile) {
    SplittableRandom random = hostile.random();
    List<Group> groups = new ArrayList<>();
    List<Tensor> tensors = new ArrayList<>();
    int groupCount = hostile.between(1, 3);
    int layersPerGroup = hostile.between(1, 3);
    int blockSize = 1 << hostile.between(2, 5);
    int kernelBlocks = random.nextInt(4) == 0 ? 2 : 1;
    KVCacheSpec spec = spec(hostile, blockSize);
    for (int g = 0; g < groupCount; g++) {
      List<Layer> layers = new ArrayList<>();
      for (int i = 0; i < layersPerGroup; i++) {
        KVCacheSpec own = hostile.isFault() ? spec(hostile, hostile.number(blockSize)) : spec;
        layers.add(new Layer(hostile.name("L" + (g * layersPerGroup + i)), own));
      }
      Transfer transfer = random.nextInt(8) == 0 ? Transfer.DISABLED : Transfer.ENABLED;
      groups.add(new Group(hostile.list(layers), transfer));
    }
    boolean isShared = random.nextBoolean();
    KVCacheLayout layout = hostile.oneOf(KVCacheLayout.values());
    KVSplit split =
        spec instanceof KVCacheSpec.State ? KVSplit.FUSED : hostile.oneOf(KVSplit.values());
    if (spec instanceof KVCacheSpec.State) {
      layout = hostile.oneOf(KVCacheLayout.LBHNC, KVCacheLayout.LBNHC);
    }
    List<Slot> slots = new ArrayList<>();
    for (int i = 0; i < layersPerGroup; i++) {
      List<String> names = new ArrayList<>();
      for (int g = 0; g < groupCount; g++) {
        names.add("L" + (g * layersPerGroup + i));
      }
      if (isShared) {
        slots.add(new Slot(hostile.list(names)));
      } else {
        names.forEach(name -> slots.add(new Slot(List.of(hostile.name(name)))));
      }
    }
    for (List<Slot> ofTensor : random.nextBoolean() ? List.of(slots) : each(slots)) {
      tensors.add(
          new Tensor(
              hostile.list(ofTensor),
              layout,
              split,
              hostile.number(hostile.between(1, 50)),
              hostile.number(kernelBlocks),
              hostile.number(Tensor.PACKED)));
    }
    return new KVCacheConfig(hostile.list(groups), hostile.list(tensors));
  }

  private static List<List<Slot>> each(List<Slot> slots) {
    return slots.stream().map(List::of).toList();
  }

  private static KVCacheSpec spec(Hostile hostile, int blockSize) {
    TPSharding sharding = hostile.oneOf(TPSharding.values());
    ElementType type = hostile.oneOf(ElementType.values());
    if (hostile.random().nextInt(5) == 0) {
      return new KVCacheSpec.State(
          "MambaSpec", blockSize, type, hostile.number((long) hostile.between(1, 512)), sharding);
    }
    int size = 1 << hostile.random().nextInt(6);
    return new KVCacheSpec.Attention(
        hostile.isFault() ? "" : "FullAttentionSpec",
        blockSize,
        type,
        hostile.number(1 << hostile.random().nextInt(4)),
        hostile.number(size),
        hostile.number(hostile.random().nextInt(4) == 0 ? 0 : size),
        sharding,
        hostile.number(0));
  }

  private static KVLayoutPlanner place(
      KVLayoutDescriptor layout, Map<String, KVCacheTensor> tensors) {
    Map<String, LayerPlacement> placements = new HashMap<>();
    tensors.forEach((name, t) -> placements.put(name, LayerPlacement.of(t.address(), t)));
    return KVLayoutPlanner.place(layout, placements);
  }

  private static void assertBlockInside(
      SplittableRandom random, KVLayoutPlanner planner, Map<String, KVCacheTensor> tensors) {
    int[] groups = planner.groupIds();
    int group = groups[random.nextInt(groups.length)];
    int block = random.nextInt(planner.blockCount(group));
    long bytes = 0;
    for (KVRange range : planner.rangesForBlock(block, group)) {
      KVCacheTensor tensor = tensors.get(range.layerName());
      assertInside(range.address(), range.length(), tensor.address(), tensor.sizeBytes());
      assertEquals(bytes, range.objectOffset());
      bytes += range.length();
    }
    assertEquals(planner.objectBytes(group), bytes);
    assertEquals(planner.layout().objectBytes(group), bytes);
  }

  private static void assertInside(long address, long bytes, long start, long size) {
    long offset = address - start;
    assertTrue(
        offset >= 0 && bytes > 0 && bytes <= size && offset <= size - bytes,
        () -> "%d bytes at %d, outside the %d at %d".formatted(bytes, address, size, start));
  }

  /** Memory of a place, and a runtime that copies from it; renewed now and then. */
  private abstract static class Machine implements AutoCloseable {
    static final UMBPNamespace NAMESPACE = new UMBPNamespace("m1");

    final EmbeddedRuntime runtime;

    Machine(EmbeddedRuntime.Builder builder) {
      runtime = builder.capacityBytes(4 << 20).slabBytes(1 << 20).build();
    }

    /** Returns a layer's tensor at a place in the memory, with faults. */
    abstract KVCacheTensor tensor(
        Hostile hostile, long start, TensorPlan plan, TensorPlan.PlannedLayer layer);

    abstract DeviceFence runAllAndFence();

    @Override
    public void close() {
      assertEquals(CloseResult.CLEAN, runtime.close(Duration.ZERO));
    }
  }

  private static final class DeviceMachine extends Machine {
    private static final long BYTES = 256 << 20;

    private final FakeGpu gpu;
    private final long address;

    DeviceMachine(FakeGpu gpu) {
      super(EmbeddedRuntime.builder().copyEngine(gpu::copyEngine));
      this.gpu = gpu;
      address = gpu.malloc(0, BYTES);
    }

    @Override
    KVCacheTensor tensor(
        Hostile hostile, long start, TensorPlan plan, TensorPlan.PlannedLayer layer) {
      KVCacheTensor.Builder tensor =
          KVCacheTensor.device(
              hostile.number(address + start + layer.offset()),
              hostile.number(plan.sizeBytes() - layer.offset()),
              hostile.number(0));
      if (hostile.random().nextBoolean()) {
        tensor.inAllocation(hostile.number(address), hostile.number(BYTES));
      }
      return tensor
          .blocks(hostile.number(plan.blockCount()), hostile.number(layer.region().blockStride()))
          .build();
    }

    @Override
    DeviceFence runAllAndFence() {
      gpu.runAll();
      return DeviceFence.hostComplete();
    }

    @Override
    public void close() {
      super.close();
      gpu.close();
    }
  }

  private static final class HostMachine extends Machine {
    private final List<ByteBuffer> slabs;

    HostMachine(List<ByteBuffer> slabs) {
      super(EmbeddedRuntime.builder().copyEngine(HostCopyEngine::new));
      this.slabs = slabs;
    }

    @Override
    KVCacheTensor tensor(
        Hostile hostile, long start, TensorPlan plan, TensorPlan.PlannedLayer layer) {
      List<ByteBuffer> given = hostile.list(slabs);
      if (hostile.isFault()) {
        given.add(
            0,
            hostile.oneOf(
                ByteBuffer.allocate(64),
                slabs.get(0).asReadOnlyBuffer(),
                slabs.get(0).slice(0, 0),
                slabs.get(0).slice(7, 1000),
                slabs.get(1).duplicate()));
      }
      return KVCacheTensor.host(hostile.number(start + layer.offset()), given)
          .blocks(hostile.number(plan.blockCount()), hostile.number(layer.region().blockStride()))
          .build();
    }

    @Override
    DeviceFence runAllAndFence() {
      return DeviceFence.hostComplete();
    }
  }

  @Test
  void registrationsOfDeviceMemory() {
    fuzzRegistrations(
        "registrations of device memory", () -> new DeviceMachine(FakeGpu.stepped(1)));
  }

  @Test
  void registrationsOfHostMemory() {
    List<ByteBuffer> slabs =
        List.of(
            ByteBuffer.allocateDirect(1 << 20),
            ByteBuffer.allocateDirect((1 << 20) + 1),
            ByteBuffer.allocateDirect(62 << 20).position(3));
    fuzzRegistrations("registrations of host memory", () -> new HostMachine(slabs));
  }

  private static void fuzzRegistrations(String what, Supplier<Machine> factory) {
    Machine[] machine = {factory.get()};
    int[] uses = {0};
    fuzz(
        what,
        REGISTRATIONS / 2,
        random -> {
          if (++uses[0] % INPUTS_PER_RUNTIME == 0) {
            machine[0].close();
            machine[0] = factory.get();
          }
          return register(machine[0], random);
        });
    machine[0].close();
  }

  private static Runnable register(Machine machine, SplittableRandom random) {
    KVCacheConfig config = config(Hostile.faultless(random));
    RankTopology topology = RankTopology.single();
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config, topology);
    Map<String, KVCacheTensor> tensors = tensors(machine, random, config, layout);
    UMBPWorkerHandle worker =
        machine.runtime.createWorkerHandle(Machine.NAMESPACE, topology, layout);
    try {
      worker.registerBuffers(tensors);
    } catch (Throwable e) {
      worker.close(Duration.ZERO);
      throw e;
    }
    return () -> {
      KVLayoutPlanner planner = place(layout, tensors);
      assertBlockInside(random, planner, tensors);
      if (random.nextInt(8) == 0) {
        assertStores(machine, worker, random, planner);
      }
      assertTrue(worker.unregisterBuffers(Duration.ZERO));
      assertEquals(CloseResult.CLEAN, worker.close(Duration.ZERO));
    };
  }

  private static Map<String, KVCacheTensor> tensors(
      Machine machine, SplittableRandom random, KVCacheConfig config, KVLayoutDescriptor layout) {
    Hostile hostile = new Hostile(random);
    Map<String, KVCacheTensor> planned = new HashMap<>();
    long start = 0;
    for (TensorPlan plan : KVLayoutPlanner.tensors(config, layout.topology())) {
      for (TensorPlan.PlannedLayer layer : plan.layers()) {
        planned.put(layer.region().layerName(), machine.tensor(hostile, start, plan, layer));
      }
      start += plan.sizeBytes();
    }
    Map<String, KVCacheTensor> given = new HashMap<>();
    List<String> names = layout.regions().stream().map(KVRegion::layerName).toList();
    List<String> sources = hostile.list(names);
    for (int i = 0; i < Math.min(names.size(), sources.size()); i++) {
      given.put(hostile.name(names.get(i)), Objects.requireNonNull(planned.get(sources.get(i))));
    }
    return given;
  }

  private static void assertStores(
      Machine machine, UMBPWorkerHandle worker, SplittableRandom random, KVLayoutPlanner planner) {
    int[] groups = planner.groupIds();
    int group = groups[random.nextInt(groups.length)];
    byte[] hash = new byte[8];
    random.nextBytes(hash);
    RankNamespace rank = planner.layout().topology().localNamespace();
    BlockKeys keys = BlockKeys.of(Machine.NAMESPACE, rank, group, BlockHashes.of(8, hash));
    int block = random.nextInt(planner.blockCount(group));
    TransferJobState state =
        worker.store(BlockStoreBatch.of("r", keys, block), machine.runAllAndFence());
    machine.runAllAndFence();
    state = worker.poll(state);
    assertEquals(KeyOutcome.COMPLETED, state.outcome(0), state.detail(0));
    assertEquals(planner.objectBytes(group), state.completedBytes());
    worker.publish(state);
  }
}
