package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.api.UMBPException;
import io.umbp.core.Golden;
import io.umbp.core.layout.TPShardMapping.HeadSlice;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class TPShardMappingTest {
  private static final int HEAD_BYTES = 65_536;

  static Stream<Arguments> vectors() {
    return Golden.section("tp_shard_mappings");
  }

  @ParameterizedTest(name = "golden mapping {0}")
  @MethodSource("vectors")
  void goldenMapping(int index, JsonNode vector) {
    List<HeadSlice> slices = new ArrayList<>();
    for (JsonNode each : vector.get("slices")) {
      slices.add(
          new HeadSlice(
              each.get("producer_rank").intValue(),
              each.get("source_head").intValue(),
              each.get("destination_head").intValue(),
              each.get("num_heads").intValue()));
    }
    TPShardMapping mapping =
        TPShardMapping.of(
            vector.get("num_kv_heads").intValue(),
            vector.get("producer_tp").intValue(),
            vector.get("consumer_tp").intValue(),
            vector.get("consumer_rank").intValue());
    assertEquals(slices, mapping.slices());
  }

  @Test
  @DisplayName("case 15: 2 heads on TP 4 belong to the ranks [0, 0, 1, 1]")
  void case15ReplicasAreGrouped() {
    List<Integer> owners = new ArrayList<>();
    for (int rank = 0; rank < 4; rank++) {
      TPShardMapping mapping = TPShardMapping.of(2, 2, 4, rank);
      assertEquals(1, mapping.consumerHeads());
      assertEquals(1, mapping.slices().size());
      owners.add(mapping.slices().get(0).producerRank());
    }
    assertEquals(List.of(0, 0, 1, 1), owners);
    assertRefused(
        "HeadSlice[producerRank=1, sourceHead=0, destinationHead=0, numHeads=1] is head 1 of the"
            + " model, the consumer's rank 1 needs head 0 there",
        () -> new TPShardMapping(2, 2, 4, 1, List.of(new HeadSlice(1, 0, 0, 1))));
  }

  @Test
  @DisplayName("case 15: 4 heads from TP 8 to TP 1 cover 262,144 bytes, and no less is accepted")
  void case15EveryHeadIsCovered() {
    TPShardMapping mapping = TPShardMapping.of(4, 8, 1, 0);
    assertEquals(
        List.of(
            new HeadSlice(0, 0, 0, 1),
            new HeadSlice(2, 0, 1, 1),
            new HeadSlice(4, 0, 2, 1),
            new HeadSlice(6, 0, 3, 1)),
        mapping.slices());
    int heads = mapping.slices().stream().mapToInt(HeadSlice::numHeads).sum();
    assertEquals(262_144, heads * HEAD_BYTES);
    int uncovered = 196_608 / HEAD_BYTES;
    assertRefused(
        "slices cover 1 of the 4 heads of consumer rank 0, " + uncovered + " are uncovered",
        () -> new TPShardMapping(4, 8, 1, 0, List.of(new HeadSlice(0, 0, 0, 1))));
  }

  @Test
  void betweenEqualSizesEachRankReadsItself() {
    for (int heads : new int[] {1, 2, 4, 8, 16}) {
      List<Integer> producers =
          IntStream.range(0, 8)
              .mapToObj(rank -> TPShardMapping.of(heads, 8, 8, rank).slices())
              .map(slices -> slices.get(0).producerRank())
              .toList();
      assertEquals(List.of(0, 1, 2, 3, 4, 5, 6, 7), producers);
    }
  }

  @Test
  void readersOfAReplicatedHeadSpreadOverItsHolders() {
    List<Integer> producers =
        IntStream.range(0, 4)
            .mapToObj(rank -> TPShardMapping.of(2, 8, 4, rank).slices().get(0).producerRank())
            .toList();
    assertEquals(List.of(0, 2, 4, 6), producers);
  }

  @Test
  void impossibleSizesAreRefused() {
    assertRefused("0 KV heads are outside [1, 65536]", () -> TPShardMapping.of(0, 1, 1, 0));
    assertRefused(
        "65537 KV heads are outside [1, 65536]", () -> TPShardMapping.of(65_537, 1, 1, 0));
    assertRefused("producer tp size 0 must be >= 1", () -> TPShardMapping.of(8, 0, 1, 0));
    assertRefused("consumer tp size -2 must be >= 1", () -> TPShardMapping.of(8, 1, -2, 0));
    assertRefused(
        "producer tp size 3 and 8 KV heads: one must divide the other",
        () -> TPShardMapping.of(8, 3, 1, 0));
    assertRefused(
        "consumer tp size 12 and 8 KV heads: one must divide the other",
        () -> TPShardMapping.of(8, 1, 12, 0));
    assertRefused("consumer rank 2 is outside [0, 2)", () -> TPShardMapping.of(8, 1, 2, 2));
    assertRefused("consumer rank -1 is outside [0, 2)", () -> TPShardMapping.of(8, 1, 2, -1));
  }

  @Test
  void wrongSlicesAreRefused() {
    assertSlicesRefused(
        "producer rank of HeadSlice[producerRank=2, sourceHead=0, destinationHead=0, numHeads=4]"
            + " is outside [0, 2)",
        new HeadSlice(2, 0, 0, 4));
    assertSlicesRefused(
        "HeadSlice[producerRank=0, sourceHead=1, destinationHead=0, numHeads=4] leaves the"
            + " producer's 4 heads",
        new HeadSlice(0, 1, 0, 4));
    assertSlicesRefused(
        "HeadSlice[producerRank=0, sourceHead=0, destinationHead=0, numHeads=0] leaves the"
            + " producer's 4 heads",
        new HeadSlice(0, 0, 0, 0));
    assertSlicesRefused(
        "HeadSlice[producerRank=1, sourceHead=0, destinationHead=5, numHeads=3] does not continue"
            + " at head 4 of the consumer's 8",
        new HeadSlice(0, 0, 0, 4),
        new HeadSlice(1, 0, 5, 3));
    assertSlicesRefused(
        "HeadSlice[producerRank=1, sourceHead=0, destinationHead=8, numHeads=1] does not continue"
            + " at head 8 of the consumer's 8",
        new HeadSlice(0, 0, 0, 4),
        new HeadSlice(1, 0, 4, 4),
        new HeadSlice(1, 0, 8, 1));
    assertSlicesRefused("slices cover 0 of the 8 heads of consumer rank 0, 8 are uncovered");
  }

  private static void assertSlicesRefused(String message, HeadSlice... slices) {
    assertRefused(message, () -> new TPShardMapping(8, 2, 1, 0, List.of(slices)));
  }

  private static void assertRefused(String message, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
