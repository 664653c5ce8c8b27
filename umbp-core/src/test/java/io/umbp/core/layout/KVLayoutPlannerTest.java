package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.Golden;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class KVLayoutPlannerTest {
  private static final RankTopology TOPOLOGY = RankTopology.single();

  static Stream<Arguments> plans() {
    return Golden.section("plans");
  }

  @ParameterizedTest(name = "golden plan {0}")
  @MethodSource("plans")
  void goldenPlan(int index, JsonNode vector) {
    List<KVRegion> regions = new ArrayList<>();
    Map<String, LayerPlacement> placements = new HashMap<>();
    for (JsonNode region : vector.get("regions")) {
      String layer = region.get("layer_name").textValue();
      regions.add(
          new KVRegion(
              layer,
              region.get("group_id").intValue(),
              region.get("block_stride").longValue(),
              region.get("block_bytes").longValue(),
              region.get("object_offset").longValue(),
              region.get("block_size").intValue()));
      placements.put(
          layer,
          new LayerPlacement(
              vector.get("base_addresses").get(layer).longValue(),
              vector.get("physical_strides").get(layer).longValue(),
              10_000_000));
    }
    KVLayoutPlanner planner =
        KVLayoutPlanner.place(new KVLayoutDescriptor(regions, TOPOLOGY), placements);
    List<KVRange> expected = new ArrayList<>();
    for (JsonNode row : vector.get("ranges")) {
      expected.add(
          new KVRange(
              row.get(0).textValue(),
              row.get(1).intValue(),
              row.get(2).intValue(),
              row.get(3).longValue(),
              row.get(4).longValue(),
              row.get(5).longValue(),
              row.get(6).longValue()));
    }
    int blockId = vector.get("block_id").intValue();
    JsonNode group = vector.get("group_id");
    List<KVRange> ranges =
        group.isNull()
            ? planner.rangesForBlock(blockId)
            : planner.rangesForBlock(blockId, group.intValue());
    assertEquals(expected, ranges);
    assertEquals(
        vector.get("object_size").longValue(),
        Arrays.stream(planner.groupIds()).mapToLong(planner::objectBytes).sum());
    if (!group.isNull()) {
      assertEquals(
          planner.objectBytes(group.intValue()), ranges.stream().mapToLong(KVRange::length).sum());
    }
  }

  private static KVLayoutPlanner plan(List<KVRegion> regions, LayerPlacement... placements) {
    Map<String, LayerPlacement> byLayer = new HashMap<>();
    for (int i = 0; i < placements.length; i++) {
      byLayer.put(regions.get(i).layerName(), placements[i]);
    }
    return KVLayoutPlanner.place(new KVLayoutDescriptor(regions, TOPOLOGY), byLayer);
  }

  private static BlockTransferBatch batch(int[] groups, int... blocks) {
    List<BlockHash> hashes =
        IntStream.range(0, blocks.length)
            .mapToObj(i -> BlockHash.of(new byte[] {(byte) i}))
            .toList();
    BlockKeys keys =
        BlockKeys.of(
            new UMBPNamespace("m"), TOPOLOGY.localNamespace(), groups, BlockHashes.of(hashes));
    return BlockLoadBatch.of("r", keys, blocks);
  }

  private static CopyBatch emptyBatch(int keys) {
    CopyBatch out = new CopyBatch();
    out.reset(TransferDirection.LOAD, 0, keys);
    return out;
  }

  private static List<String> rows(CopyBatch batch) {
    return IntStream.range(0, batch.count())
        .mapToObj(
            i ->
                String.format(
                    "%x %x %d key %d",
                    batch.device()[i], batch.host()[i], batch.length()[i], batch.key()[i]))
        .toList();
  }

  @Test
  @DisplayName("case 9: stride and copied size are two numbers")
  void case9StrideAndPayload() {
    List<KVRegion> regions =
        List.of(
            new KVRegion("l0", 0, 640, 576, 0, 16),
            new KVRegion("l1", 0, 640, 576, 576, 16),
            new KVRegion("l2", 0, 640, 576, 1152, 16));
    KVLayoutPlanner planner =
        plan(
            regions,
            new LayerPlacement(0x10000000L, 640, 16),
            new LayerPlacement(0x20000000L, 640, 16),
            new LayerPlacement(0x30000000L, 640, 16));
    assertEquals(1728, planner.objectBytes(0));
    assertEquals(
        List.of(
            new KVRange("l0", 0, 7, 0x10000000L + 4480, 640, 576, 0),
            new KVRange("l1", 0, 7, 0x20000000L + 4480, 640, 576, 576),
            new KVRange("l2", 0, 7, 0x30000000L + 4480, 640, 576, 1152)),
        planner.rangesForBlock(7, 0));
    UMBPException e =
        assertThrows(UMBPException.class, () -> new KVRegion("l0", 0, 576, 640, 0, 16));
    assertEquals("layer 'l0': block bytes 640 exceed block stride 576", e.getMessage());
  }

  @Test
  @DisplayName("case 12: layers interleaved in one page move only their own slots")
  void case12LayersInterleavedInOnePage() {
    long page = 1_048_576;
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(
                new Group(List.of(latents("a", 8_448 / 16)), Transfer.ENABLED),
                new Group(List.of(latents("b", 37_376 / 16)), Transfer.ENABLED)),
            List.of(
                new Tensor(
                    List.of(new Slot(List.of("a")), new Slot(List.of("b"))),
                    KVCacheLayout.BLNHC,
                    KVSplit.FUSED,
                    8,
                    1,
                    page)));
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config, TOPOLOGY);
    TensorPlan tensor = KVLayoutPlanner.tensors(config, TOPOLOGY).get(0);
    assertEquals(8 * page, tensor.sizeBytes());
    long base = 0x40000000L;
    Map<String, LayerPlacement> placements = new HashMap<>();
    tensor
        .onDevice(base, 0)
        .forEach((layer, part) -> placements.put(layer, LayerPlacement.of(part.address(), part)));
    KVLayoutPlanner planner = KVLayoutPlanner.place(layout, placements);
    List<KVRange> ranges = planner.rangesForBlock(3);
    assertEquals(
        List.of(
            new KVRange("a", 0, 3, base + 3 * page, page, 8_448, 0),
            new KVRange("b", 1, 3, base + 3 * page + 8_448, page, 37_376, 8_448)),
        ranges);
    assertEquals(45_824, planner.objectBytes(0) + planner.objectBytes(1));
    KVRange last = ranges.get(1);
    assertEquals(base + 3 * page + 45_824, last.address() + last.length());
  }

  @Test
  @DisplayName("case 13: the K/V order is what the layout declares")
  void case13KeyValueOrderIsDeclared() {
    List<KVRegion> blockMajor =
        List.of(new KVRegion("k", 0, 512, 256, 0, 16), new KVRegion("v", 0, 512, 256, 256, 16));
    List<KVRegion> planeMajor =
        List.of(new KVRegion("k", 0, 256, 256, 0, 16), new KVRegion("v", 0, 256, 256, 256, 16));
    KVLayoutPlanner blocks =
        plan(blockMajor, new LayerPlacement(0, 512, 4), new LayerPlacement(256, 512, 4));
    KVLayoutPlanner planes =
        plan(planeMajor, new LayerPlacement(0, 256, 4), new LayerPlacement(1024, 256, 4));
    assertArrayEquals(new long[] {1024, 1280}, addresses(blocks.rangesForBlock(2, 0)));
    assertArrayEquals(new long[] {512, 1536}, addresses(planes.rangesForBlock(2, 0)));

    PageSegment key = new PageSegment(0, 256);
    KVLayoutPlanner onePage =
        plan(
            List.of(
                new KVRegion("kv", 0, 256, 512, 0, 16, List.of(key, new PageSegment(1024, 256)))),
            new LayerPlacement(0, 256, 4));
    assertEquals(
        List.of(
            new KVRange("kv", 0, 2, 512, 256, 256, 0),
            new KVRange("kv", 0, 2, 1536, 256, 256, 256)),
        onePage.rangesForBlock(2, 0));
  }

  private static long[] addresses(List<KVRange> ranges) {
    return ranges.stream().mapToLong(KVRange::address).toArray();
  }

  @Test
  @DisplayName("case 14: a scheduler block is several kernel blocks")
  void case14SchedulerBlockAndKernelBlock() {
    KVRegion region = new KVRegion("l0", 0, 262_144, 262_144, 0, 128);
    KVLayoutPlanner planner = plan(List.of(region), new LayerPlacement(0, 131_072, 20));
    assertEquals(
        List.of(
            new KVRange("l0", 0, 3, 786_432, 131_072, 131_072, 0),
            new KVRange("l0", 0, 3, 917_504, 131_072, 131_072, 131_072)),
        planner.rangesForBlock(3, 0));
    assertEquals(10, planner.blockCount(0));
    assertMessage(
        "layer 'l0': KV block stride mismatch: physical stride 100000 must divide the declared"
            + " stride 262144",
        () -> plan(List.of(region), new LayerPlacement(0, 100_000, 20)));
    assertMessage(
        "layer 'l0': KV block stride mismatch: block bytes 200000 are no multiple of the physical"
            + " stride 131072",
        () ->
            plan(
                List.of(new KVRegion("l0", 0, 262_144, 200_000, 0, 128)),
                new LayerPlacement(0, 131_072, 20)));
  }

  @Test
  @DisplayName("case 16: an id in two groups is two places; a left-out position moves nothing")
  void case16EveryGroupIsHandled() {
    KVLayoutPlanner planner =
        plan(
            List.of(new KVRegion("full", 0, 64, 64, 0, 16), new KVRegion("win", 1, 32, 32, 64, 16)),
            new LayerPlacement(0x1000, 64, 16),
            new LayerPlacement(0x8000, 32, 16));
    BlockTransferBatch batch = batch(new int[] {0, 0, 0, 0, 1, 1, 1, 1}, 4, 5, 6, 7, 0, 0, 6, 9);
    planner.checkBlocks(batch);
    CopyBatch out = emptyBatch(8);
    planner.lower(batch, new long[] {1, 2, 3, 4, 0, 0, 7, 8}, out);
    assertEquals(
        List.of(
            "1100 1 64 key 0",
            "1140 2 64 key 1",
            "1180 3 64 key 2",
            "11c0 4 64 key 3",
            "80c0 7 32 key 6",
            "8120 8 32 key 7"),
        rows(out));
    assertFalse(Arrays.stream(out.device(), 0, out.count()).anyMatch(a -> a == 0x8000));
    assertNotEquals(
        planner.rangesForBlock(6, 0).get(0).address(),
        planner.rangesForBlock(6, 1).get(0).address());
  }

  @Test
  void lowersLayerByLayerWithAMarkForEach() {
    KVLayoutPlanner planner =
        plan(
            List.of(
                new KVRegion("a", 5, 16, 16, 0, 16),
                new KVRegion("w", 2, 32, 24, 16, 16),
                new KVRegion("b", 5, 64, 64, 40, 16)),
            new LayerPlacement(0x1000, 16, 8),
            new LayerPlacement(0x2000, 32, 8),
            new LayerPlacement(0x3000, 32, 8));
    BlockTransferBatch batch = batch(new int[] {5, 2, 5}, 1, 2, 3);
    long[] objects = {0x100, 0x200, 0x300};
    CopyBatch out = emptyBatch(3);
    planner.lowerLayerMajor(batch, objects, out);
    assertEquals(
        List.of(
            "1010 100 16 key 0",
            "1030 300 16 key 2",
            "2040 200 24 key 1",
            "3040 110 64 key 0",
            "30c0 310 64 key 2"),
        rows(out));
    assertEquals(3, out.markCount());
    assertArrayEquals(new int[] {2, 3, 5}, Arrays.copyOf(out.markEnd(), 3));
    assertEquals(0, planner.markOf("a"));
    assertEquals(1, planner.markOf("w"));
    assertEquals(2, planner.markOf("b"));
    assertMessage("layer 'c' is not in the layout", () -> planner.markOf("c"));

    out.reset(TransferDirection.LOAD, 0, 3);
    planner.lowerLayerMajor(batch, new long[] {0, 0x200, 0}, out);
    assertEquals(List.of("2040 200 24 key 1"), rows(out));
    assertArrayEquals(new int[] {0, 1, 1}, Arrays.copyOf(out.markEnd(), 3));
  }

  @Test
  void layersOfOneAllocationThatFollowEachOtherAreOneRowABlock() {
    List<KVRegion> regions =
        List.of(
            new KVRegion("a", 0, 64, 16, 0, 16),
            new KVRegion("b", 0, 64, 32, 16, 16),
            new KVRegion("c", 0, 64, 8, 48, 16));
    KVLayoutPlanner planner =
        plan(
            regions,
            new LayerPlacement(0x1000, 64, 8, 0x1000),
            new LayerPlacement(0x1010, 64, 8, 0x1000),
            new LayerPlacement(0x1038, 64, 8, 0x1000));
    assertEquals(2, planner.rowsPerBlock(0));
    assertEquals(3, planner.rangesForBlock(1, 0).size());
    BlockTransferBatch batch = batch(new int[] {0, 0}, 2, 1);
    CopyBatch out = emptyBatch(2);
    planner.lower(batch, new long[] {0x100, 0x200}, out);
    assertEquals(
        List.of("1080 100 48 key 0", "10b8 130 8 key 0", "1040 200 48 key 1", "1078 230 8 key 1"),
        rows(out));
    out.reset(TransferDirection.LOAD, 0, 2);
    planner.lowerLayerMajor(batch, new long[] {0x100, 0x200}, out);
    assertEquals(
        List.of("1080 100 48 key 0", "1040 200 48 key 1", "10b8 130 8 key 0", "1078 230 8 key 1"),
        rows(out));
    assertArrayEquals(new int[] {2, 2, 4}, Arrays.copyOf(out.markEnd(), out.markCount()));
  }

  @Test
  void rowsStayInsideOfAnAllocationAndOfAStride() {
    List<KVRegion> regions =
        List.of(new KVRegion("a", 0, 64, 16, 0, 16), new KVRegion("b", 0, 64, 16, 16, 16));
    LayerPlacement a = new LayerPlacement(0x1000, 64, 8);
    assertEquals(2, plan(regions, a, new LayerPlacement(0x1010, 64, 8)).rowsPerBlock(0));
    assertEquals(1, plan(regions, a, new LayerPlacement(0x1010, 64, 8, 0x1000)).rowsPerBlock(0));
    List<KVRegion> otherStride = List.of(regions.get(0), new KVRegion("b", 0, 32, 16, 16, 16));
    assertEquals(
        2, plan(otherStride, a, new LayerPlacement(0x1010, 32, 8, 0x1000)).rowsPerBlock(0));
  }

  @Test
  void segmentsLieInBlocksOfSeveralPhysicalOnes() {
    List<PageSegment> halves = List.of(new PageSegment(0, 24), new PageSegment(32, 24));
    KVLayoutPlanner planner =
        plan(
            List.of(new KVRegion("a", 0, 64, 48, 0, 16, halves)),
            new LayerPlacement(0x1000, 32, 9));
    assertEquals(4, planner.blockCount(0));
    assertEquals(
        List.of(
            new KVRange("a", 0, 3, 0x10c0, 32, 24, 0), new KVRange("a", 0, 3, 0x10e0, 32, 24, 24)),
        planner.rangesForBlock(3, 0));
  }

  @Test
  void appendsToRowsThatAreAlreadyThere() {
    KVLayoutPlanner planner =
        plan(List.of(new KVRegion("a", 0, 16, 16, 0, 16)), new LayerPlacement(0x1000, 16, 1000));
    CopyBatch out = emptyBatch(1);
    out.add(1, 2, 3, 0);
    int[] blocks = IntStream.range(0, 200).toArray();
    long[] objects = new long[200];
    Arrays.fill(objects, 0x100);
    planner.lower(batch(new int[200], blocks), objects, out);
    assertEquals(201, out.count());
    assertEquals("1 2 3 key 0", rows(out).get(0));
    assertEquals("1c70 100 16 key 199", rows(out).get(200));
  }

  @Test
  void blocksAndGroupsOutsideTheLayoutAreRefused() {
    KVLayoutPlanner planner =
        plan(
            List.of(new KVRegion("a", 0, 16, 16, 0, 16), new KVRegion("b", 0, 64, 64, 16, 16)),
            new LayerPlacement(0x1000, 16, 8),
            new LayerPlacement(0x3000, 32, 11));
    assertEquals(5, planner.blockCount(0));
    planner.checkBlocks(batch(new int[] {0}, 4));
    assertMessage(
        "block 5 is outside [0, 5) of group 0",
        () -> planner.checkBlocks(batch(new int[] {0, 0}, 4, 5)));
    assertMessage(
        "group 1 is not in the layout, its groups are [0]",
        () -> planner.checkBlocks(batch(new int[] {0, 1}, 0, 0)));
    assertMessage("block 5 is outside [0, 5) of group 0", () -> planner.rangesForBlock(5, 0));
    assertMessage("block -1 is outside [0, 5) of group 0", () -> planner.rangesForBlock(-1));
    assertMessage(
        "2 object addresses do not match 1 keys",
        () -> planner.lower(batch(new int[] {0}, 4), new long[2], emptyBatch(1)));
  }

  @Test
  void placementsMustFitTheLayout() {
    List<KVRegion> regions = List.of(new KVRegion("a", 0, 64, 64, 0, 16));
    KVLayoutDescriptor layout = new KVLayoutDescriptor(regions, TOPOLOGY);
    LayerPlacement any = new LayerPlacement(0, 64, 1);
    assertMessage(
        "layers [a] of the layout are missing", () -> KVLayoutPlanner.place(layout, Map.of()));
    assertMessage(
        "layers [x, y] are not in the layout",
        () -> KVLayoutPlanner.place(layout, Map.of("y", any, "a", any, "x", any)));
    assertMessage(
        "layer 'a': one block needs 4 kernel blocks of 16 bytes, the tensor has 3",
        () -> plan(regions, new LayerPlacement(0, 16, 3)));
    assertMessage(
        "layer 'a': 2 blocks of stride 64 at 0x7fffffffffffffc0 leave the 64-bit address space",
        () -> plan(regions, new LayerPlacement(Long.MAX_VALUE - 63, 64, 2)));
    assertMessage(
        "placement at 0x0 with stride 0 and 1 blocks; the address must be >= 0, the rest > 0",
        () -> new LayerPlacement(0, 0, 1));
  }

  @Test
  void theLayoutFollowsTheTensorsAndLeavesDisabledGroupsOut() {
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(
                new Group(List.of(heads("f0", 16, 2), heads("f1", 16, 2)), Transfer.ENABLED),
                new Group(List.of(state("m0", 300), state("m1", 300)), Transfer.DISABLED),
                new Group(List.of(heads("s0", 32, 1), heads("s1", 32, 1)), Transfer.ENABLED)),
            List.of(
                new Tensor(
                    List.of(new Slot(List.of("s1", "m1", "f0"))),
                    KVCacheLayout.LBNHC,
                    KVSplit.FUSED,
                    4,
                    1,
                    Tensor.PACKED),
                new Tensor(
                    List.of(new Slot(List.of("m0", "f1", "s0"))),
                    KVCacheLayout.LBHNC,
                    KVSplit.BLOCKS,
                    4,
                    1,
                    2048)));
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config, TOPOLOGY);
    assertEquals(
        List.of(
            "s1 2 1024 1024 0 32",
            "f0 0 1024 1024 1024 16",
            "f1 0 2048 1024 2048 16",
            "s0 2 2048 1024 3072 32"),
        layout.regions().stream()
            .map(
                region ->
                    String.join(
                        " ",
                        region.layerName(),
                        Integer.toString(region.groupId()),
                        Long.toString(region.blockStride()),
                        Long.toString(region.blockBytes()),
                        Long.toString(region.objectOffset()),
                        Integer.toString(region.blockSize())))
            .toList());
    assertEquals(KVLayoutDescriptor.RANK_LOCAL, layout.format());
    assertEquals(TOPOLOGY, layout.topology());
  }

  @Test
  void aCacheConfigNamesEachLayerOnce() {
    Layer a = heads("a", 16, 2);
    Layer b = heads("b", 16, 2);
    Group group = new Group(List.of(b, a), Transfer.ENABLED);
    Group disabled = new Group(List.of(a), Transfer.DISABLED);
    Tensor both = Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, List.of("a", "b"));
    Tensor justA = Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, List.of("a"));
    assertMessage(
        "layers [a, b] are in no KV tensor", () -> new KVCacheConfig(List.of(group), List.of()));
    assertMessage(
        "layer 'a' is in group 0 and again in group 1",
        () -> new KVCacheConfig(List.of(group, disabled), List.of(both)));
    assertMessage(
        "layer 'a' is in more than one KV tensor slot",
        () -> new KVCacheConfig(List.of(group), List.of(both, justA)));
    assertMessage(
        "layer 'b' of a KV tensor is in no group",
        () -> new KVCacheConfig(List.of(disabled), List.of(both)));
    assertMessage(
        "layer 'b' shares its slot with another layer of group 0",
        () ->
            new KVCacheConfig(
                List.of(group),
                List.of(
                    new Tensor(
                        List.of(new Slot(List.of("a", "b"))),
                        KVCacheLayout.LBNHC,
                        KVSplit.FUSED,
                        4,
                        1,
                        Tensor.PACKED))));
    assertMessage(
        "a layout needs at least one region",
        () ->
            KVLayoutPlanner.describe(
                new KVCacheConfig(List.of(disabled), List.of(justA)), TOPOLOGY));
    assertMessage(
        "layer 'a': the block stride 512 is less than the 1024 bytes of a block",
        () ->
            KVLayoutPlanner.describe(
                new KVCacheConfig(
                    List.of(disabled, new Group(List.of(b), Transfer.ENABLED)),
                    List.of(
                        new Tensor(both.slots(), KVCacheLayout.LBNHC, KVSplit.FUSED, 4, 1, 512))),
                TOPOLOGY));
    assertMessage(
        "layer 'b' has blocks of 32 tokens, layer 'a' of the same group has 16",
        () -> new Group(List.of(a, heads("b", 32, 1)), Transfer.ENABLED));
    assertMessage("MambaSpec has page bytes 0, must be > 0", () -> state("m", 0));
    assertMessage(
        "the kind of a KV cache spec is empty",
        () -> new KVCacheSpec.State("", 16, ElementType.U8, 1, TPSharding.SHARDED));
    assertMessage("a KV cache group has no layers", () -> new Group(List.of(), Transfer.ENABLED));
    assertMessage("a slot of a KV tensor has no layers", () -> new Slot(List.of()));
    assertMessage(
        "a KV tensor has no slots",
        () -> Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, List.of()));
    assertMessage(
        "layer 'a': the tensor has 0 blocks of 1 kernel blocks with stride 0; the counts must be >"
            + " 0, the stride >= 0",
        () -> Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 0, List.of("a")));
  }

  /** Heads of 8 elements: 64 bytes a token with two heads in BF16, K and V together. */
  private static Layer heads(String name, int blockSize, int heads) {
    return new Layer(
        name,
        new KVCacheSpec.Attention(
            "FullAttentionSpec", blockSize, ElementType.BF16, heads, 8, 8, TPSharding.SHARDED, 0));
  }

  private static Layer latents(String name, int elements) {
    return new Layer(
        name,
        new KVCacheSpec.Attention(
            "MLAAttentionSpec", 16, ElementType.U8, 1, elements, 0, TPSharding.REPLICATED, 0));
  }

  private static Layer state(String name, long bytes) {
    return new Layer(
        name, new KVCacheSpec.State("MambaSpec", 64, ElementType.U8, bytes, TPSharding.SHARDED));
  }

  private static void assertMessage(String message, Runnable call) {
    assertEquals(message, assertThrows(UMBPException.class, call::run).getMessage());
  }
}
