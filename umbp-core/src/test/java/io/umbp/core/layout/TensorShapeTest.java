package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.ElementType;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import java.util.List;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class TensorShapeTest {
  private static final RankTopology TWO_RANKS = RankTopology.tensorParallel(1, 2);
  private static final String HOW =
      "name each axis, outermost first, such as \"BNHC\" (L layer, B block, K key and value, H head,"
          + " N token, C content)";

  private static Layer layer(String name, int heads, int key, int value) {
    return new Layer(
        name,
        new KVCacheSpec.Attention(
            "FullAttentionSpec", 16, ElementType.BF16, heads, key, value, TPSharding.SHARDED, 0));
  }

  @Test
  @DisplayName("case 13: an unlabelled shape is refused, asking for the axis names")
  void case13AnUnlabelledShapeIsRefused() {
    Layer layer = layer("a", 4, 128, 128);
    assertRefused(
        "layer 'a': shape [10, 16, 2, 256] \"\": has no axis names; " + HOW,
        List.of(layer),
        "",
        10,
        16,
        2,
        256);
    List<Slot> slots = List.of(new Slot(List.of("a")));
    assertEquals(
        new Tensor(slots, KVCacheLayout.LBNHC, KVSplit.FUSED, 10, 1, Tensor.PACKED),
        Tensor.ofShape(List.of(layer), TWO_RANKS, "BNHC", 10, 16, 2, 256));
    assertEquals(
        new Tensor(slots, KVCacheLayout.LBNHC, KVSplit.FUSED, 10, 1, Tensor.PACKED),
        Tensor.ofShape(List.of(layer("a", 2, 256, 256)), TWO_RANKS, "BNKC", 10, 16, 2, 256));
    assertRefused(
        "layer 'a': shape [10, 16, 2, 256] \"BNKC\": axis H is 1, expected are 2 heads on the rank",
        List.of(layer("a", 4, 256, 256)),
        "BNKC",
        10,
        16,
        2,
        256);
  }

  @ParameterizedTest
  @CsvSource({
    "LBHNC, LBHNC, FUSED, '2, 12, 3, 16, 8'",
    "LBNHC, LBNHC, FUSED, '2, 12, 16, 3, 8'",
    "LHBNC, LHBNC, FUSED, '2, 3, 12, 16, 8'",
    "BLHNC, BLHNC, FUSED, '12, 2, 3, 16, 8'",
    "BLNHC, BLNHC, FUSED, '12, 2, 16, 3, 8'",
    "BHLNC, BHLNC, FUSED, '12, 3, 2, 16, 8'",
    "LBNHKC, LBNHC, FUSED, '2, 12, 16, 3, 2, 4'",
    "LKBNHC, LBNHC, PLANES, '2, 2, 12, 16, 3, 4'",
    "LBKNHC, LBNHC, BLOCKS, '2, 12, 2, 16, 3, 4'",
    "LHBKNC, LHBNC, BLOCKS, '2, 3, 12, 2, 16, 4'",
    "KBLHNC, BLHNC, PLANES, '2, 12, 2, 3, 16, 4'",
    "BHLKNC, BHLNC, BLOCKS, '12, 3, 2, 2, 16, 4'",
  })
  void namedAxesGiveOrderAndSplit(String axes, KVCacheLayout layout, KVSplit split, String sizes) {
    List<Layer> layers = List.of(layer("a", 6, 4, 4), layer("b", 6, 4, 4));
    int[] shape = List.of(sizes.split(", ", -1)).stream().mapToInt(Integer::parseInt).toArray();
    assertEquals(
        Tensor.packed(layout, split, 12, List.of("a", "b")),
        Tensor.ofShape(layers, TWO_RANKS, axes, shape));
  }

  @Test
  void axesOfOneMayBeLeftOut() {
    List<Slot> slots = List.of(new Slot(List.of("a")));
    assertEquals(
        new Tensor(slots, KVCacheLayout.LBNHC, KVSplit.PLANES, 3, 4, Tensor.PACKED),
        Tensor.ofShape(List.of(layer("a", 2, 4, 4)), TWO_RANKS, "KBNC", 2, 12, 4, 4));
    assertEquals(
        new Tensor(slots, KVCacheLayout.LBNHC, KVSplit.FUSED, 12, 1, Tensor.PACKED),
        Tensor.ofShape(List.of(layer("a", 1, 576, 0)), TWO_RANKS, "BNC", 12, 16, 576));
  }

  @Test
  void shapesThatAreNotWhatTheLayersKeepAreRefused() {
    List<Layer> one = List.of(layer("a", 4, 4, 4));
    assertRefused(
        "layer 'a': shape [4, 16] \"BNC\": 3 axis names for 2 axes; " + HOW, one, "BNC", 4, 16);
    assertRefused(
        "layer 'a': shape [4, 16, 2, 8] \"BNxC\": 'x' is no axis or named twice; " + HOW,
        one,
        "BNxC",
        4,
        16,
        2,
        8);
    assertRefused(
        "layer 'a': shape [4, 16, 2, 8] \"BNNC\": 'N' is no axis or named twice; " + HOW,
        one,
        "BNNC",
        4,
        16,
        2,
        8);
    assertRefused(
        "layer 'a': shape [4, 16, 2] \"BNH\": axis C is missing; " + HOW, one, "BNH", 4, 16, 2);
    assertRefused(
        "layer 'a': shape [4, 16, 0, 8] \"BNHC\": all sizes must be > 0", one, "BNHC", 4, 16, 0, 8);
    assertRefused(
        "layer 'a': shape [4, 5, 2, 8] \"BNHC\": axis N is 5, layer 'a' has blocks of 16 tokens",
        one,
        "BNHC",
        4,
        5,
        2,
        8);
    assertRefused(
        "layer 'a': shape [5, 8, 2, 8] \"BNHC\": a block is 2 kernel blocks, but there are 5",
        one,
        "BNHC",
        5,
        8,
        2,
        8);
    assertRefused(
        "layer 'a': shape [4, 16, 2, 4] \"BNHC\": axis C is 4, expected are 8 elements",
        one,
        "BNHC",
        4,
        16,
        2,
        4);
    assertRefused(
        "layer 'a': shape [3, 4, 16, 2, 4] \"KBNHC\": axis K is 3, expected are 2 contents, key and"
            + " value",
        one,
        "KBNHC",
        3,
        4,
        16,
        2,
        4);
    assertRefused(
        "layer 'a': shape [4, 16, 2, 2, 4] \"BNKHC\": no layout and split have the axes in this"
            + " order",
        one,
        "BNKHC",
        4,
        16,
        2,
        2,
        4);
    assertRefused(
        "layer 'a': shape [2, 4, 16, 2, 8] \"LBNHC\": axis L is 2, expected are 1 layers",
        one,
        "LBNHC",
        2,
        4,
        16,
        2,
        8);
    assertRefused(
        "layer 'a': shape [4, 2, 16, 2, 4] \"BKNHC\": keys of 4 and values of 2 elements can't be"
            + " one axis K",
        List.of(layer("a", 4, 4, 2)),
        "BKNHC",
        4,
        2,
        16,
        2,
        4);
    KVCacheSpec state =
        new KVCacheSpec.State("MambaSpec", 16, ElementType.U8, 64, TPSharding.SHARDED);
    assertRefused(
        "layer 'm': shape [4, 16, 4] \"BNC\": layer 'm' is a state, which has no such axes",
        List.of(new Layer("m", state)),
        "BNC",
        4,
        16,
        4);
  }

  private static void assertRefused(String message, List<Layer> layers, String axes, int... sizes) {
    UMBPException e =
        assertThrows(UMBPException.class, () -> Tensor.ofShape(layers, TWO_RANKS, axes, sizes));
    assertEquals(message, e.getMessage());
  }
}
