package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.ElementType;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Places of pages by hand: tiny caches whose every address is written down. */
class TensorGeometryTest {
  private static final RankTopology SINGLE = RankTopology.single();

  private static Layer layer(String name, int tokens, int heads, int key, int value) {
    return new Layer(
        name,
        new KVCacheSpec.Attention(
            "FullAttentionSpec", tokens, ElementType.U8, heads, key, value, TPSharding.SHARDED, 0));
  }

  private static Layer state(String name, int tokens, long bytes) {
    return new Layer(
        name,
        new KVCacheSpec.State("MambaSpec", tokens, ElementType.U8, bytes, TPSharding.SHARDED));
  }

  private static List<Slot> slots(String... layers) {
    List<Slot> slots = new ArrayList<>();
    for (String ofSlot : layers) {
      slots.add(new Slot(List.of(ofSlot.split("=", -1))));
    }
    return slots;
  }

  private static KVCacheConfig oneGroup(Tensor tensor, Layer... layers) {
    return new KVCacheConfig(
        List.of(new Group(List.of(layers), Transfer.ENABLED)), List.of(tensor));
  }

  private static KVLayoutPlanner planner(KVCacheConfig config) {
    return planner(config, 0x1000);
  }

  /** Places the tensors one behind the other, the first at an address. */
  private static KVLayoutPlanner planner(KVCacheConfig config, long base) {
    Map<String, LayerPlacement> placements = new HashMap<>();
    long at = base;
    for (TensorPlan plan : KVLayoutPlanner.tensors(config, SINGLE)) {
      for (Map.Entry<String, KVCacheTensor> one : plan.onDevice(at, 0).entrySet()) {
        KVCacheTensor tensor = one.getValue();
        placements.put(one.getKey(), LayerPlacement.of(tensor.address(), tensor));
      }
      at += plan.sizeBytes();
    }
    return KVLayoutPlanner.place(KVLayoutPlanner.describe(config, SINGLE), placements);
  }

  /** The runs of a block as bytes from the first tensor's start, "layer at+length". */
  private static String runs(KVLayoutPlanner planner, int block, int group) {
    return planner.rangesForBlock(block, group).stream()
        .map(r -> r.layerName() + " " + (r.address() - 0x1000) + "+" + r.length())
        .collect(Collectors.joining(", "));
  }

  /** Two layers of 3 blocks, 2 heads, 2 tokens, K and V of 1 byte: pages of 8 bytes. */
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          LBHNC | FUSED  | a 8+8, b 32+8                  | 2
          LBNHC | FUSED  | a 8+8, b 32+8                  | 2
          LHBNC | FUSED  | a 4+4, a 16+4, b 28+4, b 40+4  | 4
          BLHNC | FUSED  | a 16+8, b 24+8                 | 1
          BLNHC | FUSED  | a 16+8, b 24+8                 | 1
          BHLNC | FUSED  | a 16+4, a 24+4, b 20+4, b 28+4 | 4
          LBHNC | BLOCKS | a 8+8, b 32+8                  | 2
          LBNHC | BLOCKS | a 8+8, b 32+8                  | 2
          LHBNC | BLOCKS | a 4+4, a 16+4, b 28+4, b 40+4  | 4
          BLHNC | BLOCKS | a 16+8, b 24+8                 | 1
          BLNHC | BLOCKS | a 16+8, b 24+8                 | 1
          BHLNC | BLOCKS | a 16+4, a 24+4, b 20+4, b 28+4 | 4
          LBHNC | PLANES | a 4+4, a 16+4, b 28+4, b 40+4  | 4
          LBNHC | PLANES | a 4+4, a 16+4, b 28+4, b 40+4  | 4
          LHBNC | PLANES | a 2+2, a 8+2, a 14+2, a 20+2, b 26+2, b 32+2, b 38+2, b 44+2 | 8
          BLHNC | PLANES | a 8+4, a 32+4, b 12+4, b 36+4  | 4
          BLNHC | PLANES | a 8+4, a 32+4, b 12+4, b 36+4  | 4
          BHLNC | PLANES | a 8+2, a 12+2, a 32+2, a 36+2, b 10+2, b 14+2, b 34+2, b 38+2 | 8
          """)
  void blockOneOfEachOrderAndSplit(
      KVCacheLayout layout, KVSplit split, String expected, int expectedRows) {
    KVCacheConfig config =
        oneGroup(
            Tensor.packed(layout, split, 3, List.of("a", "b")),
            layer("a", 2, 2, 1, 1),
            layer("b", 2, 2, 1, 1));
    KVLayoutPlanner planner = planner(config);
    assertEquals(48, KVLayoutPlanner.tensors(config, SINGLE).get(0).sizeBytes());
    assertEquals(expected, runs(planner, 1, 0));
    assertEquals(expectedRows, planner.rowsPerBlock(0));
  }

  /** The bytes of K and V of head 1, token 0, and of head 0, token 1, inside a page. */
  @ParameterizedTest
  @CsvSource({
    "LBHNC, FUSED, 4, 5, 2, 3",
    "LBNHC, FUSED, 2, 3, 4, 5",
    "LHBNC, FUSED, 4, 5, 2, 3",
    "BLHNC, FUSED, 4, 5, 2, 3",
    "BLNHC, FUSED, 2, 3, 4, 5",
    "BHLNC, FUSED, 4, 5, 2, 3",
    "LBHNC, BLOCKS, 2, 6, 1, 5",
    "LBNHC, BLOCKS, 1, 5, 2, 6",
    "LHBNC, BLOCKS, 4, 6, 1, 3",
    "BLHNC, BLOCKS, 2, 6, 1, 5",
    "BLNHC, BLOCKS, 1, 5, 2, 6",
    "BHLNC, BLOCKS, 4, 6, 1, 3",
    "LBHNC, PLANES, 2, 6, 1, 5",
    "LBNHC, PLANES, 1, 5, 2, 6",
    "LHBNC, PLANES, 2, 6, 1, 5",
    "BLHNC, PLANES, 2, 6, 1, 5",
    "BLNHC, PLANES, 1, 5, 2, 6",
    "BHLNC, PLANES, 2, 6, 1, 5",
  })
  void keysAndValuesInsideOfAPage(
      KVCacheLayout layout, KVSplit split, long headK, long headV, long tokenK, long tokenV) {
    KVCacheConfig config =
        oneGroup(Tensor.packed(layout, split, 3, List.of("a")), layer("a", 2, 2, 1, 1));
    KVRegion region = KVLayoutPlanner.describe(config, SINGLE).regions().get(0);
    assertEquals(headK, region.shape().offset(Part.KEY, 1, 0));
    assertEquals(headV, region.shape().offset(Part.VALUE, 1, 0));
    assertEquals(tokenK, region.shape().offset(Part.KEY, 0, 1));
    assertEquals(tokenV, region.shape().offset(Part.VALUE, 0, 1));
  }

  @Test
  @DisplayName("case 9: padding behind 576 of 640 bytes is not part of a block")
  void case9PaddedBlocks() {
    List<Layer> layers = new ArrayList<>();
    List<Tensor> tensors = new ArrayList<>();
    for (String name : List.of("l0", "l1", "l2")) {
      layers.add(layer(name, 16, 1, 36, 0));
      tensors.add(new Tensor(slots(name), KVCacheLayout.LBNHC, KVSplit.FUSED, 16, 1, 640));
    }
    KVCacheConfig config = new KVCacheConfig(List.of(new Group(layers, Transfer.ENABLED)), tensors);
    KVLayoutPlanner planner = planner(config);
    assertEquals("l0 4480+576, l1 14720+576, l2 24960+576", runs(planner, 7, 0));
    assertEquals(1728, planner.objectBytes(0));
    assertRefused(
        "layer 'a': the block stride 576 is less than the 640 bytes of a block",
        oneGroup(
            new Tensor(slots("a"), KVCacheLayout.LBNHC, KVSplit.FUSED, 16, 1, 576),
            layer("a", 16, 1, 40, 0)));
  }

  @Test
  @DisplayName("case 13: block-major and plane-major are declared, K and V are 256 bytes each")
  void case13BlocksOrPlanes() {
    KVCacheConfig blocks =
        oneGroup(
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 4, List.of("a")),
            layer("a", 16, 2, 8, 8));
    KVLayoutPlanner blockMajor = planner(blocks);
    assertEquals(2048, KVLayoutPlanner.tensors(blocks, SINGLE).get(0).sizeBytes());
    assertEquals("a 1024+512", runs(blockMajor, 2, 0));
    KVRegion region = blockMajor.layout().regions().get(0);
    assertEquals(1024, 2 * region.blockStride() + region.shape().offset(Part.KEY, 0, 0));
    assertEquals(1280, 2 * region.blockStride() + region.shape().offset(Part.VALUE, 0, 0));

    KVCacheConfig planes =
        oneGroup(
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.PLANES, 4, List.of("a")),
            layer("a", 16, 2, 8, 8));
    assertEquals(2048, KVLayoutPlanner.tensors(planes, SINGLE).get(0).sizeBytes());
    assertEquals("a 512+256, a 1536+256", runs(planner(planes), 2, 0));
  }

  @Test
  @DisplayName("case 14: a block of 128 tokens is two kernel blocks of 64")
  void case14KernelBlocks() {
    Layer layer = layer("a", 128, 8, 128, 128);
    KVCacheConfig config =
        oneGroup(
            new Tensor(slots("a"), KVCacheLayout.LBNHC, KVSplit.FUSED, 4, 2, Tensor.PACKED), layer);
    assertEquals("a 786432+262144", runs(planner(config), 3, 0));
    assertRefused(
        "layer 'a': 3 kernel blocks do not divide the block size 128",
        oneGroup(
            new Tensor(slots("a"), KVCacheLayout.LBNHC, KVSplit.FUSED, 4, 3, Tensor.PACKED),
            layer));
  }

  @Test
  void paddingStandsBehindEachKernelBlock() {
    Tensor tensor = new Tensor(slots("a"), KVCacheLayout.LBNHC, KVSplit.FUSED, 3, 2, 12);
    KVLayoutPlanner planner = planner(oneGroup(tensor, layer("a", 4, 1, 1, 1)));
    assertEquals("a 12+4, a 18+4", runs(planner, 1, 0));
    assertEquals(2, planner.rowsPerBlock(0));

    Tensor heads = new Tensor(slots("a"), KVCacheLayout.BHLNC, KVSplit.FUSED, 3, 2, 20);
    KVRegion region = planner(oneGroup(heads, layer("a", 4, 2, 1, 1))).layout().regions().get(0);
    assertEquals(20, region.blockStride());
    assertEquals("[0+8, 10+8]", segments(region));
  }

  private static String segments(KVRegion region) {
    return region.pageSegments().stream()
        .map(run -> run.offset() + "+" + run.length())
        .collect(Collectors.joining(", ", "[", "]"));
  }

  @Test
  void kernelBlocksOfBlockFirstLayoutsCutPagesUp() {
    Tensor tensor =
        new Tensor(slots("a", "b"), KVCacheLayout.BLNHC, KVSplit.BLOCKS, 2, 2, Tensor.PACKED);
    KVLayoutPlanner planner =
        planner(oneGroup(tensor, layer("a", 4, 1, 1, 1), layer("b", 4, 1, 3, 3)));
    assertEquals("a 32+4, a 48+4, b 36+12, b 52+12", runs(planner, 1, 0));
    KVRegion b = planner.layout().regions().get(1);
    assertEquals(12 + 6, b.shape().offset(Part.VALUE, 0, 2));
  }

  @Test
  void layersOfDifferentPagesHaveTheStrideOfTheLargest() {
    Tensor tensor = Tensor.packed(KVCacheLayout.LBHNC, KVSplit.FUSED, 2, List.of("a", "b"));
    KVLayoutPlanner planner =
        planner(oneGroup(tensor, layer("a", 2, 1, 2, 0), layer("b", 2, 1, 3, 2)));
    assertEquals("a 10+4, b 30+10", runs(planner, 1, 0));
  }

  @Test
  void groupsShareTheSlotsOfATensorUnderOtherBlockIds() {
    Tensor tensor =
        new Tensor(slots("a=w", "b"), KVCacheLayout.BLNHC, KVSplit.FUSED, 4, 1, Tensor.PACKED);
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(
                new Group(
                    List.of(layer("a", 2, 1, 2, 0), layer("b", 2, 1, 2, 0)), Transfer.ENABLED),
                new Group(List.of(layer("w", 4, 1, 2, 0)), Transfer.ENABLED)),
            List.of(tensor));
    KVLayoutPlanner planner = planner(config);
    assertEquals("a 12+4, b 20+4", runs(planner, 1, 0));
    assertEquals("w 24+8", runs(planner, 2, 1));
    assertEquals(2, planner.rowsPerBlock(0));
    assertEquals(48, KVLayoutPlanner.tensors(config, SINGLE).get(0).sizeBytes());
  }

  @Test
  void planesAreAsManyAsTheLayerOfASlotThatNeedsMost() {
    Tensor tensor = Tensor.packed(KVCacheLayout.LBNHC, KVSplit.PLANES, 3, List.of("a", "c", "b"));
    KVCacheConfig config =
        oneGroup(tensor, layer("a", 2, 1, 2, 0), layer("b", 2, 1, 2, 0), layer("c", 2, 1, 2, 2));
    assertEquals("a 4+4, c 16+4, c 28+4, b 40+4", runs(planner(config), 1, 0));
    assertEquals(48, KVLayoutPlanner.tensors(config, SINGLE).get(0).sizeBytes());
  }

  @Test
  void aStateIsOneRunBesideAttention() {
    Tensor byLayer =
        new Tensor(slots("a", "m"), KVCacheLayout.LBNHC, KVSplit.BLOCKS, 2, 2, Tensor.PACKED);
    KVLayoutPlanner planner = planner(oneGroup(byLayer, layer("a", 4, 1, 1, 1), state("m", 4, 11)));
    assertEquals("a 12+4, a 18+4, m 36+11", runs(planner, 1, 0));
    Tensor byBlock = Tensor.packed(KVCacheLayout.BLHNC, KVSplit.BLOCKS, 2, List.of("a", "m"));
    assertEquals(
        "a 19+8, m 27+11",
        runs(planner(oneGroup(byBlock, layer("a", 4, 1, 1, 1), state("m", 4, 11))), 1, 0));
  }

  @Test
  void aStateThatWouldBeCutUpIsRefused() {
    for (KVCacheLayout layout : List.of(KVCacheLayout.LHBNC, KVCacheLayout.BHLNC)) {
      assertRefused(
          "layer 'm': a state is one run of bytes; layout "
              + layout
              + " with split FUSED and 1 kernel blocks cuts a block up",
          oneGroup(Tensor.packed(layout, KVSplit.FUSED, 2, List.of("m")), state("m", 4, 8)));
    }
    assertRefused(
        "layer 'm': a state is one run of bytes; layout LBNHC with split PLANES and 1 kernel blocks"
            + " cuts a block up",
        oneGroup(
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.PLANES, 2, List.of("m")), state("m", 4, 8)));
    assertRefused(
        "layer 'm': a state is one run of bytes; layout BLNHC with split FUSED and 2 kernel blocks"
            + " cuts a block up",
        oneGroup(
            new Tensor(slots("m"), KVCacheLayout.BLNHC, KVSplit.FUSED, 2, 2, Tensor.PACKED),
            state("m", 4, 8)));
  }

  @Test
  void layersInsideOfHeadsNeedTheSameHeads() {
    Tensor tensor = Tensor.packed(KVCacheLayout.BHLNC, KVSplit.FUSED, 2, List.of("a", "b"));
    assertRefused(
        "layer 'b' has 4 heads, layer 'a' has 2; layers inside of heads must have the same",
        oneGroup(tensor, layer("a", 2, 2, 1, 1), layer("b", 2, 4, 1, 1)));
    assertEquals(
        "a 20+4, a 30+4, b 24+6, b 34+6",
        runs(planner(oneGroup(tensor, layer("a", 2, 2, 1, 1), layer("b", 2, 2, 2, 1))), 1, 0));
  }

  @Test
  void keysAndValuesOfTwoSizesMustBeFused() {
    assertRefused(
        "layer 'a': keys of 3 and values of 2 bytes have no common stride; declare them as two"
            + " layers, or as fused",
        oneGroup(
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 2, List.of("a")),
            layer("a", 2, 1, 3, 2)));
  }

  @Test
  void sizesBeyondALongAreRefused() {
    Layer huge = layer("a", 1 << 30, 1 << 16, 1 << 16, 0);
    assertRefused(
        "layer 'a': the tensor has more than 9223372036854775807 bytes",
        oneGroup(Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 1 << 20, List.of("a")), huge));
    assertRefused(
        "layer 'a': a page of 131072 runs, the limit is 65536",
        oneGroup(
            new Tensor(slots("a"), KVCacheLayout.LHBNC, KVSplit.FUSED, 8, 2, 64),
            layer("a", 2, 1 << 16, 1, 1)));
  }

  @Test
  void aRankHasItsShareOfTheHeads() {
    KVCacheConfig config =
        oneGroup(
            Tensor.packed(KVCacheLayout.LHBNC, KVSplit.FUSED, 2, List.of("a")),
            layer("a", 2, 8, 1, 1));
    for (int[] ranksAndHeads : new int[][] {{1, 8}, {2, 4}, {8, 1}, {16, 1}}) {
      RankTopology topology = RankTopology.tensorParallel(0, ranksAndHeads[0]);
      KVRegion region = KVLayoutPlanner.describe(config, topology).regions().get(0);
      assertEquals(ranksAndHeads[1], region.shape().heads());
      assertEquals(8, region.shape().totalHeads());
      assertEquals(4L * ranksAndHeads[1], region.blockBytes());
    }
    UMBPException e =
        assertThrows(
            UMBPException.class,
            () -> KVLayoutPlanner.describe(config, RankTopology.tensorParallel(0, 3)));
    assertEquals("layer 'a': tp size 3 and 8 KV heads: one must divide the other", e.getMessage());
  }

  private static void assertRefused(String message, KVCacheConfig config) {
    UMBPException e =
        assertThrows(UMBPException.class, () -> KVLayoutPlanner.tensors(config, SINGLE));
    assertEquals(message, e.getMessage());
  }
}
