package io.umbp.api;

import static io.umbp.api.Refusals.assertRefused;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.StoreEventResult.StoredObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;
import org.junit.jupiter.api.Test;

/** The rules of the small records, of plans and of batches. */
class RecordsTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankNamespace RANK_0 = new RankNamespace(0, 0, 0, 0);
  private static final RankNamespace RANK_1 = new RankNamespace(1, 0, 1, 0);
  private static final BlockHash HASH = BlockHash.fromHex("0a");

  private static KVRegion region(String layer, int group, long bytes) {
    return new KVRegion(layer, group, bytes, bytes, 0, 16);
  }

  private static BlockKeys keys(int... groupIds) {
    return BlockKeys.of(NAMESPACE, RANK_0, groupIds, BlockHashes.of(1, new byte[groupIds.length]));
  }

  private static BlockKey key(int groupId) {
    return new BlockKey(NAMESPACE, RANK_0, groupId, HASH);
  }

  @Test
  void tokensToLoadAreNeverNegative() {
    assertEquals(32, new LoadSpec(16, 48).tokensToLoad());
    assertEquals(0, new LoadSpec(48, 16).tokensToLoad());
    assertEquals(Integer.MAX_VALUE, new LoadSpec(0, Integer.MAX_VALUE).tokensToLoad());
    assertRefused(
        "token counts must be >= 0, but are local -1, external 5", () -> new LoadSpec(-1, 5));
    assertRefused(
        "token counts must be >= 0, but are local 5, external -1", () -> new LoadSpec(5, -1));
  }

  @Test
  void topologiesCountTensorParallelismInnermost() {
    assertEquals(
        new RankTopology(3, 4, 1, 2, 1, 2, 2, 3), RankTopology.ofGlobalRank(23, 4, 2, 2, 3));
    assertEquals(
        new RankTopology(2, 4, 1, 2, 0, 2, 1, 3), RankTopology.ofGlobalRank(14, 4, 2, 2, 3));
    assertEquals(RankTopology.single(), RankTopology.ofGlobalRank(0, 1, 1, 1, 1));
    assertEquals(RankTopology.tensorParallel(1, 2), RankTopology.ofGlobalRank(1, 2, 1, 1, 1));
    assertEquals(
        new RankNamespace(2, 1, 0, 1), RankTopology.ofGlobalRank(14, 4, 2, 2, 3).localNamespace());
    assertEquals(24, RankTopology.ofGlobalRank(14, 4, 2, 2, 3).rankCount());
  }

  @Test
  void namespacesOfATopologyStandStageOutermost() {
    assertEquals(
        List.of(
            new RankNamespace(0, 0, 0, 0),
            new RankNamespace(1, 0, 1, 0),
            new RankNamespace(0, 1, 0, 0),
            new RankNamespace(1, 1, 1, 0),
            new RankNamespace(0, 0, 0, 1),
            new RankNamespace(1, 0, 1, 1),
            new RankNamespace(0, 1, 0, 1),
            new RankNamespace(1, 1, 1, 1)),
        RankTopology.ofGlobalRank(0, 2, 2, 2, 2).allNamespaces());
    assertThrows(
        UnsupportedOperationException.class, () -> RankTopology.single().allNamespaces().remove(0));
  }

  @Property(tries = 200)
  void theGlobalRankIsThePlaceInAllNamespaces(
      @ForAll @IntRange(min = 1, max = 3) int dcp,
      @ForAll @IntRange(min = 1, max = 3) int tpPerDcp,
      @ForAll @IntRange(min = 1, max = 3) int pcp,
      @ForAll @IntRange(min = 1, max = 3) int pp) {
    int tp = dcp * tpPerDcp;
    List<RankNamespace> all = RankTopology.ofGlobalRank(0, tp, pcp, dcp, pp).allNamespaces();
    assertEquals(tp * pcp * pp, all.size());
    for (int rank = 0; rank < all.size(); rank++) {
      RankTopology topology = RankTopology.ofGlobalRank(rank, tp, pcp, dcp, pp);
      assertEquals(all.get(rank), topology.localNamespace());
      assertEquals(all.size(), topology.rankCount());
    }
  }

  @Test
  void topologiesAreChecked() {
    assertRefused("tp size 0 must be > 0", () -> new RankTopology(0, 0, 0, 1, 0, 1, 0, 1));
    assertRefused("pcp size -1 must be > 0", () -> new RankTopology(0, 1, 0, -1, 0, 1, 0, 1));
    assertRefused("dcp size 0 must be > 0", () -> new RankTopology(0, 1, 0, 1, 0, 0, 0, 1));
    assertRefused("pp size 0 must be > 0", () -> new RankTopology(0, 1, 0, 1, 0, 1, 0, 0));
    assertRefused("tp rank 2 is outside [0, 2)", () -> RankTopology.tensorParallel(2, 2));
    assertRefused("tp rank -1 is outside [0, 2)", () -> RankTopology.tensorParallel(-1, 2));
    assertRefused("pcp rank 1 is outside [0, 1)", () -> new RankTopology(0, 1, 1, 1, 0, 1, 0, 1));
    assertRefused("dcp rank 2 is outside [0, 2)", () -> new RankTopology(0, 2, 0, 1, 2, 2, 0, 1));
    assertRefused("pp rank 3 is outside [0, 3)", () -> new RankTopology(0, 1, 0, 1, 0, 1, 3, 3));
    assertRefused(
        "dcp size 3 must divide tp size 4", () -> new RankTopology(0, 4, 0, 1, 0, 3, 0, 1));
    assertRefused(
        "dcp rank 0 must be tp rank 3 mod dcp size 2",
        () -> new RankTopology(3, 4, 0, 1, 0, 2, 0, 1));
    assertRefused(
        "global rank 24 is outside [0, 24)", () -> RankTopology.ofGlobalRank(24, 4, 2, 2, 3));
    assertRefused(
        "global rank -1 is outside [0, 24)", () -> RankTopology.ofGlobalRank(-1, 4, 2, 2, 3));
    assertRefused(
        "dcp size 3 must divide tp size 4", () -> RankTopology.ofGlobalRank(0, 4, 1, 3, 1));
    for (int[] sizes : new int[][] {{0, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}}) {
      assertRefused(
          String.format(
              "parallel sizes must be > 0, but are tp %d, pcp %d, dcp %d, pp %d",
              sizes[0], sizes[1], sizes[2], sizes[3]),
          () -> RankTopology.ofGlobalRank(0, sizes[0], sizes[1], sizes[2], sizes[3]));
    }
  }

  @Test
  void ranksCanBeCounted() {
    int huge = Integer.MAX_VALUE;
    assertEquals(huge, RankTopology.tensorParallel(0, huge).rankCount());
    assertRefused(
        "parallel sizes tp 65536, pcp 65536, pp 1 make more than 2147483647 ranks",
        () -> new RankTopology(0, 65_536, 0, 65_536, 0, 1, 0, 1));
    assertRefused(
        "parallel sizes tp 65536, pcp 16384, pp 3 make more than 2147483647 ranks",
        () -> new RankTopology(0, 65_536, 0, 16_384, 0, 1, 0, 3));
    assertRefused(
        "parallel sizes tp 1073741824, pcp 1073741824, pp 16 make more than 2147483647 ranks",
        () -> new RankTopology(0, 1 << 30, 0, 1 << 30, 0, 1, 0, 16));
    assertRefused(
        "parallel sizes tp 2147483647, pcp 2147483647, pp 2147483647 make more than 2147483647"
            + " ranks",
        () -> RankTopology.ofGlobalRank(0, huge, huge, 1, huge));
  }

  @Test
  void case9StrideAndCopiedSizeAreTwoNumbers() {
    KVRegion padded = new KVRegion("l0", 0, 640, 576, 1_152, 16);
    assertEquals(640, padded.blockStride());
    assertEquals(576, padded.blockBytes());
    assertEquals(List.of(), padded.pageSegments());
    assertRefused(
        "layer 'l0': block bytes 640 exceed block stride 576",
        () -> new KVRegion("l0", 0, 576, 640, 0, 16));
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(
            List.of(
                new KVRegion("l0", 0, 640, 576, 0, 16),
                new KVRegion("l1", 0, 640, 576, 576, 16),
                new KVRegion("l2", 0, 640, 576, 1_152, 16)),
            RankTopology.single());
    assertEquals(1_728, layout.objectBytes(0));
  }

  @Test
  void regionsAreCheckedByLayer() {
    assertRefused("layer name of group 3 is empty", () -> region("", 3, 64));
    assertRefused("layer 'a': group id -1 must be >= 0", () -> region("a", -1, 64));
    assertRefused(
        "layer 'a': block stride 0 must be > 0", () -> new KVRegion("a", 0, 0, 64, 0, 16));
    assertRefused("layer 'a': block bytes 0 must be > 0", () -> new KVRegion("a", 0, 64, 0, 0, 16));
    assertRefused(
        "layer 'a': block size -16 must be > 0", () -> new KVRegion("a", 0, 64, 64, 0, -16));
    assertRefused(
        "layer 'a': object offset -1 must be >= 0", () -> new KVRegion("a", 0, 64, 64, -1, 16));
    long last = Long.MAX_VALUE - 64;
    assertEquals(last, new KVRegion("a", 0, 64, 64, last, 16).objectOffset());
    assertRefused(
        "layer 'a': object offset 9223372036854775744 with block bytes 64 ends behind byte"
            + " 9223372036854775807",
        () -> new KVRegion("a", 0, 64, 64, last + 1, 16));
    assertRefused(
        "layer 'a': object offset 9223372036854775744 with block bytes 64 ends behind byte"
            + " 9223372036854775807",
        () -> new KVRegion("a", 0, 32, 64, last + 1, 16, List.of(new PageSegment(128, 64))));
  }

  @Test
  void segmentsAddUpToThePage() {
    List<PageSegment> segments =
        new ArrayList<>(List.of(new PageSegment(256, 64), new PageSegment(0, 64)));
    KVRegion region = new KVRegion("a", 0, 64, 128, 0, 16, segments);
    segments.clear();
    assertEquals(List.of(new PageSegment(256, 64), new PageSegment(0, 64)), region.pageSegments());
    assertThrows(UnsupportedOperationException.class, () -> region.pageSegments().remove(0));
    assertRefused(
        "layer 'a': page segments add up to 128 bytes, block bytes are 127",
        () -> new KVRegion("a", 0, 64, 127, 0, 16, region.pageSegments()));
    long half = 1L << 62;
    assertRefused(
        "layer 'a': page segments add up to more than 9223372036854775807 bytes",
        () ->
            new KVRegion(
                "a",
                0,
                64,
                128,
                0,
                16,
                List.of(new PageSegment(0, half), new PageSegment(half - 1, half))));
  }

  @Test
  void segmentsAreRunsOfBytes() {
    assertEquals(Long.MAX_VALUE, new PageSegment(Long.MAX_VALUE - 64, 64).offset() + 64);
    String signs =
        "page segment has offset %d and length %d, needed are offset >= 0 and length > 0";
    assertRefused(signs.formatted(-1, 64), () -> new PageSegment(-1, 64));
    assertRefused(signs.formatted(0, 0), () -> new PageSegment(0, 0));
    assertRefused(signs.formatted(0, -1), () -> new PageSegment(0, -1));
    String end = "page segment with offset %d and length %d ends behind byte 9223372036854775807";
    assertRefused(
        end.formatted(Long.MAX_VALUE - 63, 64), () -> new PageSegment(Long.MAX_VALUE - 63, 64));
    assertRefused(end.formatted(1, Long.MAX_VALUE), () -> new PageSegment(1, Long.MAX_VALUE));
  }

  @Test
  void layoutsNameEveryLayerOnce() {
    RankTopology topology = RankTopology.single();
    List<KVRegion> regions =
        new ArrayList<>(List.of(region("a", 2, 64), region("b", 0, 32), region("c", 2, 16)));
    KVLayoutDescriptor layout = new KVLayoutDescriptor(regions, topology);
    regions.clear();
    assertEquals(3, layout.regions().size());
    assertThrows(UnsupportedOperationException.class, () -> layout.regions().clear());
    assertEquals("rank_local", layout.format());
    assertArrayEquals(new int[] {0, 2}, layout.groupIds());
    assertEquals(80, layout.objectBytes(2));
    assertEquals(32, layout.objectBytes(0));
    assertRefused("group 1 is not in the layout", () -> layout.objectBytes(1));
    assertRefused(
        "a layout needs at least one region", () -> new KVLayoutDescriptor(List.of(), topology));
    assertRefused(
        "the layout's format label is empty",
        () -> new KVLayoutDescriptor(List.of(region("a", 0, 64)), topology, Set.of(), ""));
    assertRefused(
        "layer 'a' occurs twice in the layout",
        () -> new KVLayoutDescriptor(List.of(region("a", 0, 64), region("a", 1, 64)), topology));
    KVLayoutDescriptor huge =
        new KVLayoutDescriptor(
            List.of(region("a", 0, Long.MAX_VALUE), region("b", 0, 1)), topology);
    assertRefused(
        "group 0: the pages up to layer 'b' add up to more than 9223372036854775807 bytes",
        () -> huge.objectBytes(0));
  }

  @Test
  void rangesAreCheckedByLayer() {
    KVRange range = new KVRange("a", 1, 7, 0x1000_1180L, 640, 576, 1_152);
    assertEquals(0x1000_1180L, range.address());
    String message =
        "layer 'a': range with group %d, block %d, stride %d, length %d, object offset %d;"
            + " stride and length must be > 0, the rest >= 0";
    for (long[] bad :
        new long[][] {
          {-1, 0, 64, 64, 0},
          {0, -1, 64, 64, 0},
          {0, 0, 0, 64, 0},
          {0, 0, 64, 0, 0},
          {0, 0, -64, 64, 0},
          {0, 0, 64, -64, 0},
          {0, 0, 64, 64, -1}
        }) {
      assertRefused(
          message.formatted(bad[0], bad[1], bad[2], bad[3], bad[4]),
          () -> new KVRange("a", (int) bad[0], (int) bad[1], 0, bad[2], bad[3], bad[4]));
    }
  }

  @Test
  void plansHoldRangesOfTheirOwnBlock() {
    KVRange range = new KVRange("a", 1, 7, 4_096, 64, 64, 0);
    List<KVRange> ranges = new ArrayList<>(List.of(range));
    BlockTransferPlan plan = new BlockTransferPlan(key(1), 7, ranges, "r");
    ranges.clear();
    assertEquals(List.of(range), plan.ranges());
    assertEquals(List.of(), new BlockTransferPlan(key(1), 7, "r").ranges());
    assertRefused(
        "layer 'a': range of block 7 in group 1 stands in the plan of block 8 in group 1",
        () -> new BlockTransferPlan(key(1), 8, List.of(range), "r"));
    assertRefused(
        "layer 'a': range of block 7 in group 1 stands in the plan of block 7 in group 0",
        () -> new BlockTransferPlan(key(0), 7, List.of(range), "r"));
    assertRefused(
        "block id -1 in group 1 must be >= 0", () -> new BlockTransferPlan(key(1), -1, "r"));
  }

  @Test
  void batchesAreColumnsOfPlans() {
    int[] blockIds = {4, 9, 4};
    BlockKeys keys = keys(0, 0, 2);
    BlockLoadBatch batch = BlockLoadBatch.of("r", keys, blockIds);
    blockIds[0] = 99;
    batch.blockIds()[1] = 99;
    assertEquals(3, batch.size());
    assertEquals("r", batch.requestId());
    assertSame(keys, batch.keys());
    assertArrayEquals(new int[] {4, 9, 4}, batch.blockIds());
    assertEquals(9, batch.blockId(1));
    assertEquals(new BlockTransferPlan(keys.key(2), 4, "r"), batch.get(2));
    assertEquals(List.of(batch.get(1), batch.get(2)), batch.subList(1, 3));
    assertThrows(IndexOutOfBoundsException.class, () -> batch.get(3));
    assertThrows(IndexOutOfBoundsException.class, () -> batch.get(-1));
    assertThrows(NoSuchElementException.class, batch.listIterator(3)::next);
    assertThrows(NoSuchElementException.class, batch.listIterator()::previous);
    assertTrue(BlockStoreBatch.of("", keys()).isEmpty());
  }

  @Test
  void batchColumnsMatch() {
    assertRefused("2 keys do not match 1 block ids", () -> BlockLoadBatch.of("r", keys(0, 0), 1));
    assertRefused("0 keys do not match 1 block ids", () -> BlockStoreBatch.of("r", keys(), 1));
    assertRefused(
        "block id -3 in group 5 must be >= 0", () -> BlockStoreBatch.of("r", keys(0, 5), 1, -3));
    assertRefused(
        "block id -1 in group 5 must be >= 0", () -> BlockLoadBatch.of("r", keys(5, 0), -1, 3));
    assertRefused(
        "a batch has the keys of one rank, but 2 ranks were given",
        () -> BlockLoadBatch.of("r", keys(0).onRanks(List.of(RANK_0, RANK_1)), 1, 1));
  }

  @Test
  void aWorkerTurnsABatchIntoItsOwn() {
    BlockLoadBatch load = BlockLoadBatch.of("r", keys(0, 3), 4, 9).onRank(RANK_1);
    BlockStoreBatch store = BlockStoreBatch.of("s", keys(0, 3), 4, 9).onRank(RANK_1);
    assertEquals("r", load.requestId());
    assertEquals("s", store.requestId());
    for (BlockTransferBatch batch : List.of(load, store)) {
      assertEquals(List.of(RANK_1), batch.keys().ranks());
      assertArrayEquals(new int[] {4, 9}, batch.blockIds());
      assertEquals(new BlockKey(NAMESPACE, RANK_1, 3, BlockHash.fromHex("00")), batch.get(1).key());
    }
  }

  @Test
  void storeResultsAddUp() {
    StoredObject one = new StoredObject(0, HASH);
    StoredObject two = new StoredObject(1, HASH);
    Set<StoredObject> failed = new HashSet<>(Set.of(one));
    StoreEventResult first = new StoreEventResult(1, failed);
    failed.clear();
    assertEquals(Set.of(one), first.failedObjects());
    assertEquals(
        new StoreEventResult(3, Set.of(one, two)),
        first.plus(new StoreEventResult(2, Set.of(two, one))));
    assertEquals(Set.of(one), first.failedObjects());
    assertEquals(
        Integer.MAX_VALUE,
        first.plus(new StoreEventResult(Integer.MAX_VALUE - 1, Set.of())).completedWorkers());
    assertThrows(UnsupportedOperationException.class, () -> first.failedObjects().clear());
    assertNotEquals(one, two);
    assertRefused("completed workers -1 must be >= 0", () -> new StoreEventResult(-1, Set.of()));
    assertRefused("group id -1 must be >= 0", () -> new StoredObject(-1, HASH));
    assertRefused(
        "1 and 2147483647 completed workers exceed the limit of 2147483647",
        () -> first.plus(new StoreEventResult(Integer.MAX_VALUE, Set.of())));
  }

  @Test
  void loadResultsAddUp() {
    GroupBlock one = new GroupBlock(0, 7);
    GroupBlock two = new GroupBlock(1, 7);
    LoadResult first = new LoadResult(1, Set.of(one), Set.of());
    LoadResult second = new LoadResult(2, Set.of(), Set.of(two, one));
    LoadResult sum = new LoadResult(3, Set.of(one), Set.of(one, two));
    assertEquals(sum, first.plus(second));
    assertEquals(sum, second.plus(first));
    assertEquals(Set.of(one, two), sum.lostBlocks());
    assertThrows(UnsupportedOperationException.class, () -> first.missingBlocks().clear());
    assertRefused(
        "completed workers -1 must be >= 0", () -> new LoadResult(-1, Set.of(), Set.of()));
    assertRefused("block -1 of group 0; both must be >= 0", () -> new GroupBlock(0, -1));
    assertRefused("block 1 of group -2; both must be >= 0", () -> new GroupBlock(-2, 1));
  }

  @Test
  void workerReportsAddUpLoadByLoadAndEventByEvent() {
    StoreEventResult one = new StoreEventResult(1, Set.of(new StoredObject(0, HASH)));
    StoreEventResult clean = new StoreEventResult(1, Set.of());
    LoadResult lost = new LoadResult(1, Set.of(new GroupBlock(0, 1)), Set.of());
    LoadResult whole = new LoadResult(1, Set.of(), Set.of());
    Map<Long, StoreEventResult> events = new HashMap<>(Map.of(4L, one, 5L, clean));
    Map<String, LoadResult> loads = new HashMap<>(Map.of("a", lost, "b", whole));
    UMBPConnectorWorkerMetadata first = new UMBPConnectorWorkerMetadata(loads, events);
    events.clear();
    loads.clear();
    UMBPConnectorWorkerMetadata second =
        new UMBPConnectorWorkerMetadata(Map.of("b", lost, "c", whole), Map.of(5L, one, 6L, clean));
    LoadResult both = new LoadResult(2, lost.missingBlocks(), Set.of());
    UMBPConnectorWorkerMetadata sum =
        new UMBPConnectorWorkerMetadata(
            Map.of("a", lost, "b", both, "c", whole),
            Map.of(4L, one, 5L, new StoreEventResult(2, one.failedObjects()), 6L, clean));
    assertEquals(sum, first.plus(second));
    assertEquals(sum, second.plus(first));
    assertEquals(Map.of(4L, one, 5L, clean), first.storeEvents());
    assertEquals(Map.of("a", lost, "b", whole), first.loads());
    assertEquals(first, first.plus(UMBPConnectorWorkerMetadata.NOTHING));
    assertEquals(first, UMBPConnectorWorkerMetadata.NOTHING.plus(first));
    assertTrue(UMBPConnectorWorkerMetadata.NOTHING.isEmpty());
    assertFalse(new UMBPConnectorWorkerMetadata(Map.of("b", whole), Map.of()).isEmpty());
    assertFalse(new UMBPConnectorWorkerMetadata(Map.of(), Map.of(6L, clean)).isEmpty());
    assertThrows(UnsupportedOperationException.class, () -> first.storeEvents().clear());
    assertThrows(UnsupportedOperationException.class, () -> first.loads().clear());
  }

  @Test
  void anEventComesExactlyWithStores() {
    Map<String, BlockStoreBatch> stores =
        new HashMap<>(Map.of("r", BlockStoreBatch.of("r", keys(0), 1)));
    Map<String, BlockLoadBatch> loads =
        new HashMap<>(Map.of("q", BlockLoadBatch.of("q", keys(0), 1)));
    Set<String> preempted = new HashSet<>(Set.of("p"));
    UMBPConnectorMetadata metadata = new UMBPConnectorMetadata(preempted, loads, stores, 0);
    stores.clear();
    loads.clear();
    preempted.clear();
    assertEquals(Set.of("p"), metadata.preempted());
    assertEquals(Set.of("r"), metadata.stores().keySet());
    assertEquals(Set.of("q"), metadata.loads().keySet());
    assertThrows(UnsupportedOperationException.class, () -> metadata.loads().clear());
    assertThrows(UnsupportedOperationException.class, () -> metadata.stores().clear());
    assertEquals(
        -1,
        new UMBPConnectorMetadata(Set.of(), Map.of(), Map.of(), UMBPConnectorMetadata.NO_EVENT)
            .storeEvent());
    String message =
        "store event %d with stores of %d requests; an event is >= 0 exactly when there are stores";
    assertRefused(
        message.formatted(3, 0), () -> new UMBPConnectorMetadata(Set.of(), Map.of(), Map.of(), 3));
    assertRefused(
        message.formatted(-1, 1),
        () -> new UMBPConnectorMetadata(Set.of(), Map.of(), metadata.stores(), -1));
    assertRefused(
        message.formatted(-2, 1),
        () -> new UMBPConnectorMetadata(Set.of(), Map.of(), metadata.stores(), -2));
  }

  @Test
  void aStepAndItsReportsKeepTheirOrder() {
    Map<String, BlockStoreBatch> stores = new LinkedHashMap<>();
    Map<String, BlockLoadBatch> loads = new LinkedHashMap<>();
    Map<String, LoadResult> results = new LinkedHashMap<>();
    Map<Long, StoreEventResult> events = new LinkedHashMap<>();
    for (int i = 9; i >= 0; i--) {
      stores.put("s" + i * 7919, BlockStoreBatch.of("s" + i * 7919, keys(0), 1));
      loads.put("l" + i * 7919, BlockLoadBatch.of("l" + i * 7919, keys(0), 1));
      results.put("l" + i * 7919, new LoadResult(1, Set.of(), Set.of()));
      events.put(i * 7919L, new StoreEventResult(1, Set.of()));
    }
    UMBPConnectorMetadata step = new UMBPConnectorMetadata(Set.of(), loads, stores, 0);
    assertEquals(List.copyOf(stores.keySet()), List.copyOf(step.stores().keySet()));
    assertEquals(List.copyOf(loads.keySet()), List.copyOf(step.loads().keySet()));
    UMBPConnectorWorkerMetadata report =
        new UMBPConnectorWorkerMetadata(Map.of(), Map.of())
            .plus(new UMBPConnectorWorkerMetadata(results, events));
    assertEquals(List.copyOf(results.keySet()), List.copyOf(report.loads().keySet()));
    assertEquals(List.copyOf(events.keySet()), List.copyOf(report.storeEvents().keySet()));
    loads.put("null", null);
    assertThrows(
        NullPointerException.class, () -> new UMBPConnectorMetadata(Set.of(), loads, stores, 0));
  }

  @Test
  void clearAndCloseTellWhatIsLeft() {
    assertTrue(new ClearResult(5, 0, 0).isComplete());
    assertFalse(new ClearResult(5, 1, 0).isComplete());
    assertFalse(new ClearResult(5, 0, 1).isComplete());
    assertTrue(CloseResult.CLEAN.isClean());
    assertFalse(new CloseResult(1, 0).isClean());
    assertFalse(new CloseResult(0, 1).isClean());
  }

  @Test
  void fencesNameTheirStream() {
    assertEquals(new DeviceFence.OnStream(2, 0x55L), DeviceFence.onStream(2, 0x55L));
    assertEquals(new DeviceFence.HostComplete(), DeviceFence.hostComplete());
    assertEquals(new DeviceFence.None(), DeviceFence.none());
    assertRefused("device ordinal -1 must be >= 0", () -> DeviceFence.onStream(-1, 0));
  }

  @Test
  void errorsKeepReasonAndCause() {
    IllegalStateException cause = new IllegalStateException("x");
    UMBPException e = new UMBPException(UMBPException.Reason.DRIVER_FAILED, "m", cause);
    assertEquals(UMBPException.Reason.DRIVER_FAILED, e.reason());
    assertSame(cause, e.getCause());
    assertEquals("worker handle is closed", UMBPException.closed("worker handle").getMessage());
    assertEquals(UMBPException.Reason.CLOSED, UMBPException.closed("x").reason());
  }

  @Test
  void messagesHaveTheSameDigitsInEveryLocale() {
    Locale before = Locale.getDefault();
    Locale.setDefault(Locale.forLanguageTag("hi-IN-u-nu-deva"));
    try {
      assertRefused("block hash has 0 bytes, allowed are 1 to 255", () -> BlockHash.fromHex(""));
      assertEquals(
          "KVCacheTensor[device 1 at 0x1000, 64 bytes, 2 blocks, stride 32, U8]",
          KVCacheTensor.device(4_096, 64, 1).blocks(2, 32).build().toString());
      assertEquals(
          "TransferJobState[job 12, LOAD, COMPLETED, 0 of 0 keys completed, 34 bytes]",
          new TransferJobState(
                  12,
                  TransferDirection.LOAD,
                  false,
                  BlockLoadBatch.of("r", keys()),
                  new KeyOutcome[0],
                  new KeyReason[0],
                  null,
                  34)
              .toString());
    } finally {
      Locale.setDefault(before);
    }
  }
}
