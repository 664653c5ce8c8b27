package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class TPShardLoweringTest {
  private static final RankTopology TOPOLOGY = RankTopology.single();
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("stored");

  /** Three layers: two kernel blocks a block; another group; two runs a page. */
  private static final KVLayoutPlanner PLANNER =
      KVLayoutPlanner.place(
          new KVLayoutDescriptor(
              List.of(
                  new KVRegion("a", 0, 32, 32, 0, 4),
                  new KVRegion("b", 2, 40, 16, 32, 4),
                  new KVRegion(
                      "c",
                      0,
                      8,
                      16,
                      48,
                      4,
                      List.of(new PageSegment(0, 8), new PageSegment(800, 8)))),
              TOPOLOGY),
          Map.of(
              "a", new LayerPlacement(10_000, 16, 20),
              "b", new LayerPlacement(20_000, 40, 10),
              "c", new LayerPlacement(30_000, 8, 10)));

  private static final ShardedSource.Group GROUP_0 =
      new ShardedSource.Group(
          0,
          List.of(new RankNamespace(0, 0, 0, 0), new RankNamespace(1, 0, 0, 0)),
          100,
          List.of(new Slice(0, 4, 0, 24), new Slice(1, 0, 24, 12), new Slice(0, 60, 36, 12)));

  private static final ShardedSource.Group GROUP_2 =
      new ShardedSource.Group(
          2, List.of(new RankNamespace(3, 0, 0, 0)), 16, List.of(new Slice(0, 0, 0, 16)));

  private static ShardedSource source(ShardedSource.Group... groups) {
    return new ShardedSource(NAMESPACE, List.of(groups));
  }

  private static BlockTransferBatch batch(int[] groupIds, int... blockIds) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int i = 0; i < blockIds.length; i++) {
      hashes.add(BlockHash.of(new byte[] {(byte) i}));
    }
    return BlockLoadBatch.of(
        "r",
        BlockKeys.of(NAMESPACE, TOPOLOGY.localNamespace(), groupIds, BlockHashes.of(hashes)),
        blockIds);
  }

  private static List<String> rows(CopyBatch batch) {
    List<String> rows = new ArrayList<>();
    for (int i = 0; i < batch.count(); i++) {
      rows.add(
          batch.device()[i]
              + " "
              + batch.host()[i]
              + " "
              + batch.length()[i]
              + " "
              + batch.key()[i]);
    }
    return rows;
  }

  @Test
  void rowsAreWhereARunOfThePageMeetsAPiece() {
    TPShardLowering lowering = TPShardLowering.of(PLANNER, source(GROUP_2, GROUP_0));
    CopyBatch out = new CopyBatch();
    out.reset(TransferDirection.LOAD, 0, 4);
    long[] objects = {1000, 2000, 3000, 0, 0, 4000, 5000, 6000};
    lowering.lowerLayerMajor(batch(new int[] {0, 2, 0, 0}, 3, 3, 4, 9), objects, out);
    assertEquals(
        List.of(
            // The two kernel blocks of a page are next to each other: the first piece is one row.
            "10096 1004 24 0",
            "10120 2000 8 0",
            "10288 5004 24 3",
            "10312 6000 8 3",
            "20120 3000 16 1",
            "30024 2008 4 0",
            "30028 1060 4 0",
            "30824 1064 8 0",
            "30072 6008 4 3",
            "30076 5060 4 3",
            "30872 5064 8 3"),
        rows(out));
    assertEquals(
        List.of(4, 5, 11), Arrays.stream(out.markEnd(), 0, out.markCount()).boxed().toList());
  }

  @Test
  void aSourceOfOneGroupStillEndsAMarkForEachLayer() {
    TPShardLowering lowering = TPShardLowering.of(PLANNER, source(GROUP_2));
    CopyBatch out = new CopyBatch();
    out.reset(TransferDirection.LOAD, 0, 1);
    lowering.lowerLayerMajor(batch(new int[] {2}, 0), new long[] {1000}, out);
    assertEquals(List.of("20000 1000 16 0"), rows(out));
    assertEquals(
        List.of(0, 1, 1), Arrays.stream(out.markEnd(), 0, out.markCount()).boxed().toList());
  }

  @Test
  void whatDoesNotFitTheSourceIsRefused() {
    TPShardLowering lowering = TPShardLowering.of(PLANNER, source(GROUP_0));
    CopyBatch out = new CopyBatch();
    assertRefused(
        "3 object addresses do not match 2 keys with 2 objects",
        () -> lowering.lowerLayerMajor(batch(new int[] {0, 0}, 1, 2), new long[3], out));
    assertRefused(
        "group 2 is not in the source, its groups are [0]",
        () -> lowering.lowerLayerMajor(batch(new int[] {2}, 1), new long[2], out));
    ShardedSource.Group tooLong =
        new ShardedSource.Group(2, GROUP_2.producers(), 17, List.of(new Slice(0, 0, 0, 17)));
    assertRefused(
        "group 2: the pieces are 17 bytes, an object of this layout has 16",
        () -> TPShardLowering.of(PLANNER, source(tooLong)));
    assertEquals(0, out.count());
  }

  private static void assertRefused(String message, Runnable call) {
    UMBPException e = assertThrows(UMBPException.class, call::run);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
