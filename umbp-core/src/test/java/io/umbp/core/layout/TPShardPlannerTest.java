package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

class TPShardPlannerTest {
  private static final UMBPNamespace STORED = new UMBPNamespace("stored");

  /** One layer a name, 4 tokens a block, keys and values of 2 bytes. */
  private static KVLayoutDescriptor heads(
      KVCacheLayout layout, KVSplit split, int heads, int rank, int size, String... names) {
    KVCacheSpec spec =
        new KVCacheSpec.Attention("full", 4, ElementType.U8, heads, 2, 2, TPSharding.SHARDED, 0);
    List<Layer> layers = new ArrayList<>();
    for (String name : names) {
      layers.add(new Layer(name, spec));
    }
    return KVLayoutPlanner.describe(
        new KVCacheConfig(
            List.of(new Group(layers, Transfer.ENABLED)),
            List.of(Tensor.packed(layout, split, 8, List.of(names)))),
        RankTopology.tensorParallel(rank, size));
  }

  private static List<RankNamespace> ranks(int... tps) {
    return IntStream.of(tps).mapToObj(tp -> new RankNamespace(tp, 0, 0, 0)).toList();
  }

  @Test
  void headsOutsideOfTokensAreOnePieceForKeysAndOneForValues() {
    ShardedSource source =
        TPShardPlanner.plan(
            STORED,
            heads(KVCacheLayout.LBHNC, KVSplit.BLOCKS, 8, 1, 2, "a"),
            heads(KVCacheLayout.LBHNC, KVSplit.BLOCKS, 8, 3, 4, "a"));
    // A head is 4 tokens of 2 bytes. The producer has 4 of them twice, rank 3 the last 2.
    assertEquals(
        new ShardedSource(
            STORED,
            List.of(
                new ShardedSource.Group(
                    0, ranks(1), 64, List.of(new Slice(0, 16, 0, 16), new Slice(0, 48, 16, 16))))),
        source);
  }

  @Test
  void headsInsideOfTokensAreOnePieceATokenAndProducer() {
    ShardedSource source =
        TPShardPlanner.plan(
            STORED,
            heads(KVCacheLayout.LBNHC, KVSplit.FUSED, 8, 0, 2, "a"),
            heads(KVCacheLayout.LBNHC, KVSplit.FUSED, 8, 0, 1, "a"));
    List<Slice> slices = new ArrayList<>();
    for (int token = 0; token < 4; token++) {
      slices.add(new Slice(0, token * 16L, token * 32L, 16));
      slices.add(new Slice(1, token * 16L, token * 32L + 16, 16));
    }
    assertEquals(List.of(new ShardedSource.Group(0, ranks(0, 1), 64, slices)), source.groups());
  }

  @Test
  void anObjectThatIsWholeIsOnePieceWhateverItsOrder() {
    for (KVCacheLayout layout : KVCacheLayout.values()) {
      ShardedSource source =
          TPShardPlanner.plan(
              STORED,
              heads(layout, KVSplit.BLOCKS, 8, 0, 4, "a", "b"),
              heads(layout, KVSplit.BLOCKS, 8, 2, 4, "a", "b"));
      assertEquals(
          List.of(new ShardedSource.Group(0, ranks(2), 64, List.of(new Slice(0, 0, 0, 64)))),
          source.groups());
    }
  }

  @Test
  void headsThatFollowEachOtherInOneProducerAndInTheBlockAreOnePiece() {
    // The head is the outermost axis of the page, which is all that the object has.
    ShardedSource source =
        TPShardPlanner.plan(
            STORED,
            heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 2, "a"),
            heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "a"));
    assertEquals(
        List.of(new Slice(0, 0, 0, 64), new Slice(1, 0, 64, 64)), source.groups().get(0).slices());
  }

  @Test
  void layersAreFoundByNameWhateverTheirOrder() {
    ShardedSource source =
        TPShardPlanner.plan(
            STORED,
            heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "b", "a"),
            heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "a", "b"));
    assertEquals(
        List.of(new Slice(0, 128, 0, 128), new Slice(0, 0, 128, 128)),
        source.groups().get(0).slices());
  }

  /** 4 heads of 65,536 bytes: 64 tokens, keys and values of 512 bytes. */
  private static KVLayoutDescriptor case15(int rank, int size) {
    int heads = Math.max(1, 4 / size);
    long bytes = heads * 65_536L;
    return new KVLayoutDescriptor(
        List.of(
            new KVRegion(
                "layer",
                0,
                bytes,
                bytes,
                0,
                64,
                List.of(),
                new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), 4, heads, 64, 1, 512, 512))),
        RankTopology.tensorParallel(rank, size));
  }

  @Test
  @DisplayName("case 15: 4 heads from TP 8 to TP 1 are 262,144 bytes; a plan of 65,536 is refused")
  void case15EveryByteIsCovered() {
    KVLayoutDescriptor consumer = case15(0, 1);
    ShardedSource source = TPShardPlanner.plan(STORED, case15(5, 8), consumer);
    ShardedSource.Group group = source.groups().get(0);
    assertEquals(262_144, group.objectBytes());
    assertEquals(65_536, group.producerObjectBytes());
    assertEquals(ranks(0, 2, 4, 6), group.producers());
    TPShardPlanner.check(source, consumer);

    ShardedSource first =
        new ShardedSource(
            STORED,
            List.of(
                new ShardedSource.Group(0, ranks(0), 65_536, List.of(new Slice(0, 0, 0, 65_536)))));
    assertRefused(
        "group 0: the pieces cover 65536 of the 262144 bytes of an object, 196608 are uncovered",
        () -> TPShardPlanner.check(first, consumer));
    assertRefused(
        "group 0: the pieces are 262144 bytes, an object of this layout has 65536",
        () -> TPShardPlanner.check(source, case15(0, 8)));
  }

  private static KVLayoutDescriptor state(int rank, int size, Set<Integer> replicated) {
    return new KVLayoutDescriptor(
        List.of(new KVRegion("state", 0, 100, 100, 0, 16)),
        RankTopology.tensorParallel(rank, size),
        replicated,
        KVLayoutDescriptor.RANK_LOCAL);
  }

  @Test
  void pagesOfUnknownOrderAreNotSplit() {
    List<Slice> whole = List.of(new Slice(0, 0, 0, 100));
    assertEquals(
        List.of(new ShardedSource.Group(0, ranks(1), 100, whole)),
        TPShardPlanner.plan(STORED, state(0, 2, Set.of()), state(1, 2, Set.of())).groups());
    assertEquals(
        List.of(new ShardedSource.Group(0, ranks(0), 100, whole)),
        TPShardPlanner.plan(STORED, state(0, 1, Set.of()), state(1, 2, Set.of(0))).groups());
    assertEquals(
        List.of(new ShardedSource.Group(0, ranks(RankNamespace.ALL_TP), 100, whole)),
        TPShardPlanner.plan(STORED, state(0, 4, Set.of(0)), state(1, 2, Set.of(0))).groups());
    assertRefused(
        "layer 'state': a page of unknown inner order can't be read across tp sizes 2 and 4",
        () -> TPShardPlanner.plan(STORED, state(0, 2, Set.of()), state(0, 4, Set.of())));
    // One engine shares the state between its ranks, the other has one a rank.
    assertRefused(
        "layer 'state': a page of unknown inner order can't be read across tp sizes 2 and 2",
        () -> TPShardPlanner.plan(STORED, state(0, 2, Set.of(0)), state(0, 2, Set.of())));
    assertRefused(
        "layer 'state': a page of unknown inner order can't be read across tp sizes 2 and 1",
        () -> TPShardPlanner.plan(STORED, state(0, 2, Set.of()), state(0, 1, Set.of())));
  }

  private static KVLayoutDescriptor shaped(RankTopology topology, int group, KVPageShape shape) {
    long bytes = shape.pageBytes();
    return new KVLayoutDescriptor(
        List.of(new KVRegion("x", group, bytes, bytes, 0, shape.tokens(), List.of(), shape)),
        topology);
  }

  private static KVPageShape shape(int total, int heads, int tokens) {
    return new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), total, heads, tokens, 1, 4, 4);
  }

  @Test
  void layoutsThatDifferInMoreThanTheTPSizeAreRefused() {
    RankTopology two = RankTopology.tensorParallel(0, 2);
    KVLayoutDescriptor right = shaped(two, 0, shape(8, 4, 16));
    KVLayoutDescriptor named = heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "a", "b");
    assertPlanRefused(
        "layer 'b' is not in the producer's layout",
        heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "a"),
        named);
    assertPlanRefused(
        "layer 'b' of the producer is not in this layout",
        named,
        heads(KVCacheLayout.LBHNC, KVSplit.FUSED, 8, 0, 1, "a"));
    assertPlanRefused(
        "layer 'x': group is 1 where it was stored, 0 here",
        shaped(two, 1, shape(8, 4, 16)),
        right);
    assertPlanRefused(
        "layer 'x': block size is 32 where it was stored, 16 here",
        shaped(two, 0, shape(8, 4, 32)),
        right);
    assertPlanRefused(
        "layer 'x': order of page axes is [TOKEN, HEAD] where it was stored, [HEAD, TOKEN] here",
        shaped(two, 0, new KVPageShape(List.of(Axis.TOKEN, Axis.HEAD), 8, 4, 16, 1, 4, 4)),
        right);
    assertPlanRefused(
        "layer 'x': key bytes is 2 where it was stored, 4 here",
        shaped(two, 0, new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), 8, 4, 16, 1, 2, 4)),
        right);
    assertPlanRefused(
        "layer 'x': value bytes is 0 where it was stored, 4 here",
        shaped(two, 0, new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), 8, 4, 16, 1, 4, 0)),
        right);
    assertPlanRefused(
        "layer 'x': number of KV heads is 16 where it was stored, 8 here",
        shaped(two, 0, shape(16, 8, 16)),
        right);
    assertPlanRefused(
        "layer 'x': 2 of 8 KV heads in a sharded page with tp size 2",
        shaped(two, 0, shape(8, 2, 16)),
        right);
    List<Axis> kernelAxes = List.of(Axis.KERNEL_BLOCK, Axis.HEAD, Axis.TOKEN);
    assertPlanRefused(
        "layer 'x': kernel blocks is 2 where it was stored, 4 here",
        shaped(two, 0, new KVPageShape(kernelAxes, 8, 4, 16, 2, 4, 4)),
        shaped(two, 0, new KVPageShape(kernelAxes, 8, 4, 16, 4, 4, 4)));
    assertPlanRefused(
        "layer 'x': tokens in a page is 1 where it was stored, 16 here",
        new KVLayoutDescriptor(List.of(new KVRegion("x", 0, 512, 512, 0, 16)), two),
        right);
    assertPlanRefused(
        "the layouts: format is other where it was stored, rank_local here",
        new KVLayoutDescriptor(right.regions(), two, Set.of(), "other"),
        right);
    assertPlanRefused(
        "the engines: pp size is 2 where it was stored, 1 here",
        shaped(new RankTopology(0, 2, 0, 1, 0, 1, 0, 2), 0, shape(8, 4, 16)),
        right);
    assertPlanRefused(
        "the engines: pp rank is 1 where it was stored, 0 here",
        shaped(new RankTopology(0, 2, 0, 1, 0, 1, 1, 2), 0, shape(8, 4, 16)),
        shaped(new RankTopology(0, 2, 0, 1, 0, 1, 0, 2), 0, shape(8, 4, 16)));
    assertPlanRefused(
        "objects of pcp size 2 and dcp size 1 can't be read across tp sizes, both must be 1",
        shaped(new RankTopology(0, 2, 0, 2, 0, 1, 0, 1), 0, shape(8, 4, 16)),
        right);
    assertPlanRefused(
        "objects of pcp size 1 and dcp size 2 can't be read across tp sizes, both must be 1",
        right,
        shaped(new RankTopology(0, 2, 0, 1, 0, 2, 0, 1), 0, shape(8, 4, 16)));
  }

  @Test
  void pagesOfTooManyPiecesAreRefused() {
    List<Axis> tokenMajor = List.of(Axis.TOKEN, Axis.HEAD);
    KVPageShape four = new KVPageShape(tokenMajor, 8, 4, 1 << 20, 1, 4, 4);
    KVPageShape eight = new KVPageShape(tokenMajor, 8, 8, 1 << 20, 1, 4, 4);
    assertPlanRefused(
        "layer 'x': the page is 1048576 times 2 pieces, the limit is 65536",
        shaped(RankTopology.tensorParallel(0, 2), 0, four),
        shaped(RankTopology.single(), 0, eight));
  }

  @Test
  void theStageStaysInTheKeys() {
    RankTopology stored = new RankTopology(1, 2, 0, 1, 0, 1, 1, 2);
    RankTopology loading = new RankTopology(0, 1, 0, 1, 0, 1, 1, 2);
    ShardedSource source =
        TPShardPlanner.plan(
            STORED, shaped(stored, 0, shape(8, 4, 16)), shaped(loading, 0, shape(8, 8, 16)));
    assertEquals(
        List.of(new RankNamespace(0, 0, 0, 1), new RankNamespace(1, 0, 0, 1)),
        source.groups().get(0).producers());
  }

  private static void assertPlanRefused(
      String message, KVLayoutDescriptor producer, KVLayoutDescriptor consumer) {
    assertRefused(message, () -> TPShardPlanner.plan(STORED, producer, consumer));
  }

  private static void assertRefused(String message, Runnable call) {
    UMBPException e = assertThrows(UMBPException.class, call::run);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
