package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.ElementType;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.testkit.FakeGpu;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * Blocks of awkward layouts through a fake GPU, with every byte of its memory checked: what a
 * layout calls payload comes back, all else stays canary.
 */
class LayoutRoundTripTest {
  private static final byte CANARY = (byte) 0xEE;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final Duration LONG = Duration.ofSeconds(20);

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final EmbeddedRuntime runtime =
      EmbeddedRuntime.builder().capacityBytes(64 << 20).copyEngine(gpu::copyEngine).build();
  private final Map<Long, byte[]> expected = new LinkedHashMap<>();
  private final List<KVRegion> regions = new ArrayList<>();
  private final Map<String, KVCacheTensor> tensors = new LinkedHashMap<>();
  private UMBPWorkerHandle worker;

  @AfterEach
  void close() {
    assertEquals(0, runtime.stats().leases());
    runtime.close(LONG);
    gpu.close();
  }

  private long allocation(int bytes) {
    long base = gpu.malloc(0, bytes);
    gpu.fill(base, bytes, CANARY);
    byte[] content = new byte[bytes];
    Arrays.fill(content, CANARY);
    expected.put(base, content);
    return base;
  }

  private void layer(KVRegion region, long base, long offset, int blocks, long physicalStride) {
    byte[] content = expected.get(base);
    regions.add(region);
    tensors.put(
        region.layerName(),
        KVCacheTensor.device(base + offset, content.length - offset, 0)
            .inAllocation(base, content.length)
            .blocks(blocks, physicalStride)
            .build());
  }

  private void start() {
    worker =
        runtime.createWorkerHandle(NAMESPACE, TOPOLOGY, new KVLayoutDescriptor(regions, TOPOLOGY));
    worker.registerBuffers(tensors);
  }

  private static byte pattern(int layer, int block, int offset) {
    return (byte) ((67 * layer + 29 * block + 3 * offset + 11) % 251);
  }

  /** Writes the pattern of a block into a run of memory, on the GPU or only as what is expected. */
  private void run(
      boolean isWritten, long base, int at, int length, int layer, int block, int from) {
    byte[] content = expected.get(base);
    for (int i = 0; i < length; i++) {
      content[at + i] = pattern(layer, block, from + i);
    }
    if (isWritten) {
      gpu.write(base + at, content, at, length);
    }
  }

  private static BlockKeys keys(int groupId, int... numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(BlockHash.of(new byte[] {(byte) number, 1, 2, 3}));
    }
    return BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), groupId, BlockHashes.of(hashes));
  }

  private void store(int groupId, int block) {
    TransferJobState stored =
        worker.await(
            worker.store(
                BlockStoreBatch.of("r", keys(groupId, block), block), DeviceFence.hostComplete()),
            LONG);
    assertEquals(1, worker.publish(stored), stored::toString);
  }

  private void load(int groupId, int hash, int block) {
    TransferJobState loaded =
        worker.await(
            worker.load(
                BlockLoadBatch.of("r", keys(groupId, hash), block), DeviceFence.hostComplete()),
            LONG);
    assertEquals(KeyOutcome.COMPLETED, loaded.outcome(0), () -> loaded.detail(0));
  }

  private void assertMemory() {
    expected.forEach((base, content) -> assertArrayEquals(content, gpu.read(base, content.length)));
  }

  @Test
  void case9PaddingBehindThePayloadIsNeitherStoredNorWritten() {
    long[] bases = {allocation(16 * 640), allocation(16 * 640), allocation(16 * 640)};
    for (int layer = 0; layer < 3; layer++) {
      layer(new KVRegion("layer" + layer, 0, 640, 576, layer * 576L, 16), bases[layer], 0, 16, 640);
      run(true, bases[layer], 2 * 640, 576, layer, 2, 0);
    }
    start();
    store(0, 2);
    assertEquals(1728, runtime.stats().usedBytes());
    for (int layer = 0; layer < 3; layer++) {
      run(false, bases[layer], 7 * 640, 576, layer, 2, 0);
    }
    load(0, 2, 7);
    assertMemory();
  }

  @Test
  void case12LayersInterleavedInOneBlockPageDoNotSpill() {
    int page = 1_048_576;
    long base = allocation(5 * page);
    layer(new KVRegion("a", 0, page, 8_448, 0, 16), base, 0, 5, page);
    layer(new KVRegion("b", 0, page, 37_376, 8_448, 16), base, 8_448, 5, page);
    run(true, base, page, 8_448, 0, 1, 0);
    run(true, base, page + 8_448, 37_376, 1, 1, 0);
    start();
    store(0, 1);
    assertEquals(45_824, runtime.stats().usedBytes());
    run(false, base, 3 * page, 8_448, 0, 1, 0);
    run(false, base, 3 * page + 8_448, 37_376, 1, 1, 0);
    load(0, 1, 3);
    assertMemory();
  }

  @Test
  void case13KeysAndValuesLieWhereTheyAreDeclared() {
    long blockMajor = allocation(2048);
    layer(new KVRegion("k", 0, 512, 256, 0, 16), blockMajor, 0, 4, 512);
    layer(new KVRegion("v", 0, 512, 256, 256, 16), blockMajor, 256, 4, 512);
    long planeMajor = allocation(2048);
    layer(new KVRegion("k2", 1, 256, 256, 0, 16), planeMajor, 0, 4, 256);
    layer(new KVRegion("v2", 1, 256, 256, 256, 16), planeMajor, 1024, 4, 256);
    run(true, blockMajor, 0, 256, 0, 0, 0);
    run(true, blockMajor, 256, 256, 1, 0, 0);
    run(true, planeMajor, 0, 256, 0, 0, 0);
    run(true, planeMajor, 1024, 256, 1, 0, 0);
    start();
    store(0, 0);
    store(1, 0);
    run(false, blockMajor, 1024, 256, 0, 0, 0);
    run(false, blockMajor, 1280, 256, 1, 0, 0);
    run(false, planeMajor, 512, 256, 0, 0, 0);
    run(false, planeMajor, 1536, 256, 1, 0, 0);
    load(0, 0, 2);
    load(1, 0, 2);
    assertMemory();
  }

  /** One layer of 4 blocks with K and V of 256 bytes each; the runs of block 2 by their starts. */
  private void case13Declared(
      KVSplit split, int keysOfBlock0, int valuesOfBlock0, int keys, int values) {
    Layer layer =
        new Layer(
            "kv",
            new KVCacheSpec.Attention(
                "FullAttentionSpec", 16, ElementType.U8, 2, 8, 8, TPSharding.SHARDED, 0));
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(new Group(List.of(layer), Transfer.ENABLED)),
            List.of(Tensor.packed(KVCacheLayout.LBNHC, split, 4, List.of("kv"))));
    long base = allocation(2048);
    regions.addAll(KVLayoutPlanner.describe(config, TOPOLOGY).regions());
    TensorPlan plan = KVLayoutPlanner.tensors(config, TOPOLOGY).get(0);
    assertEquals(2048, plan.sizeBytes());
    tensors.putAll(plan.onDevice(base, 0));
    run(true, base, keysOfBlock0, 256, 0, 0, 0);
    run(true, base, valuesOfBlock0, 256, 1, 0, 0);
    start();
    store(0, 0);
    assertEquals(512, runtime.stats().usedBytes());
    run(false, base, keys, 256, 0, 0, 0);
    run(false, base, values, 256, 1, 0, 0);
    load(0, 0, 2);
    assertMemory();
  }

  @Test
  void case13BlockMajorAsACacheConfigDeclaresIt() {
    case13Declared(KVSplit.BLOCKS, 0, 256, 1024, 1280);
  }

  @Test
  void case13PlaneMajorAsACacheConfigDeclaresIt() {
    case13Declared(KVSplit.PLANES, 0, 1024, 512, 1536);
  }

  @Test
  void case14ASchedulerBlockOfTwoKernelBlocksMovesWhole() {
    int kernelBlock = 131_072;
    long base = allocation(8 * kernelBlock);
    layer(
        new KVRegion("layer0", 0, 2L * kernelBlock, 2L * kernelBlock, 0, 128),
        base,
        0,
        8,
        kernelBlock);
    run(true, base, 0, 2 * kernelBlock, 0, 0, 0);
    start();
    store(0, 0);
    assertEquals(262_144, runtime.stats().usedBytes());
    run(false, base, 786_432, 262_144, 0, 0, 0);
    load(0, 0, 3);
    assertMemory();
  }

  @Test
  void case16OneBlockIdInTwoGroupsIsTwoPlaces() {
    long full = allocation(8 * 64);
    long window = allocation(8 * 64);
    layer(new KVRegion("full", 0, 64, 64, 0, 16), full, 0, 8, 64);
    layer(new KVRegion("window", 1, 64, 64, 64, 16), window, 0, 8, 64);
    run(true, full, 6 * 64, 64, 0, 6, 0);
    run(true, window, 6 * 64, 64, 1, 6, 0);
    start();
    store(0, 6);
    store(1, 6);
    gpu.fill(full, 8 * 64, CANARY);
    Arrays.fill(expected.get(full), CANARY);
    run(false, full, 6 * 64, 64, 0, 6, 0);
    run(false, window, 3 * 64, 64, 1, 6, 0);
    load(0, 6, 6);
    load(1, 6, 3);
    assertMemory();
  }

  @Test
  void headsOutsideThePageComeBackAsTheirOwnRuns() {
    int blocks = 4;
    int run = 48;
    int heads = 3;
    long base = allocation(heads * blocks * run);
    List<PageSegment> segments = new ArrayList<>();
    for (int head = 0; head < heads; head++) {
      segments.add(new PageSegment((long) head * blocks * run, run));
      run(true, base, (head * blocks + 1) * run, run, 0, 1, head * run);
    }
    layer(
        new KVRegion("layer0", 0, run, (long) heads * run, 0, 16, segments), base, 0, blocks, run);
    start();
    store(0, 1);
    for (int head = 0; head < heads; head++) {
      run(false, base, (head * blocks + 3) * run, run, 0, 1, head * run);
    }
    load(0, 1, 3);
    assertMemory();
  }
}
