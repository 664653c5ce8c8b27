package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Which groups have one object for all tensor-parallel ranks. */
class ReplicatedGroupsOfConfigTest {
  private static final List<String> LATENTS = List.of("latent", "indexer");
  private static final List<String> MIXED = List.of("other", "heads");

  private static Layer layer(String name, TPSharding sharding) {
    return new Layer(
        name, new KVCacheSpec.Attention("Spec", 16, ElementType.U8, 8, 4, 0, sharding, 0));
  }

  /** Groups of shared layers, of shared and of sharded ones, and of shared ones that stay. */
  private static KVCacheConfig config() {
    return new KVCacheConfig(
        List.of(
            new Group(
                LATENTS.stream().map(name -> layer(name, TPSharding.REPLICATED)).toList(),
                Transfer.ENABLED),
            new Group(
                List.of(
                    layer(MIXED.get(0), TPSharding.REPLICATED),
                    layer(MIXED.get(1), TPSharding.SHARDED)),
                Transfer.ENABLED),
            new Group(List.of(layer("kept", TPSharding.REPLICATED)), Transfer.DISABLED)),
        List.of(
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, LATENTS),
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, MIXED),
            Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 4, List.of("kept"))));
  }

  @Test
  void aGroupIsReplicatedWhenAllItsLayersAre() {
    RankTopology rank = RankTopology.ofGlobalRank(5, 4, 1, 1, 2);
    assertEquals(Set.of(0), config().replicatedGroups(rank));
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config(), rank);
    assertEquals(Set.of(0), layout.replicatedGroups());
    assertEquals("tp*:pcp0:dcp0:pp1", layout.rankOf(0).toString());
    assertEquals("tp1:pcp0:dcp0:pp1", layout.rankOf(1).toString());
    assertEquals(2 * 16 * 8 * 4, layout.objectBytes(0), "all heads on each rank");
    assertEquals(16 * 8 * 4 + 16 * 2 * 4, layout.objectBytes(1));
  }

  @ParameterizedTest
  @CsvSource({"1, 1, 1", "2, 2, 1", "2, 1, 2", "8, 2, 4"})
  void oneRankOrContextParallelismReplicatesNothing(int tp, int pcp, int dcp) {
    RankTopology rank = RankTopology.ofGlobalRank(0, tp, pcp, dcp, 2);
    assertEquals(Set.of(), config().replicatedGroups(rank));
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config(), rank);
    assertEquals("tp0:pcp0:dcp0:pp0", layout.rankOf(0).toString());
  }
}
