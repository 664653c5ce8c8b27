package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.layout.LayoutOracle.PageByte;
import io.umbp.core.layout.TensorPlan.PlannedLayer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;

/** Holds planned layouts against an oracle that walks through memory byte by byte. */
class KVLayoutOracleProperties {
  private static final long FIRST_BASE = 0x7000_0000_0000L;
  private static final long TENSOR_DISTANCE = 1 << 24;

  /** A planned cache and, for each layer, where the oracle has the bytes of its blocks. */
  record Cache(KVCacheConfig config, RankTopology topology) {
    List<TensorPlan> plans() {
      return KVLayoutPlanner.tensors(config, topology);
    }

    KVLayoutDescriptor layout() {
      return KVLayoutPlanner.describe(config, topology);
    }

    LayoutOracle oracle(int tensor) {
      return new LayoutOracle(config.groups(), config.tensors().get(tensor), topology.tpSize());
    }

    static long base(int tensor) {
      return FIRST_BASE + tensor * TENSOR_DISTANCE;
    }

    Map<String, KVCacheTensor> tensors() {
      Set<String> moved = new HashSet<>();
      layout().regions().forEach(region -> moved.add(region.layerName()));
      Map<String, KVCacheTensor> tensors = new HashMap<>();
      List<TensorPlan> plans = plans();
      for (int i = 0; i < plans.size(); i++) {
        tensors.putAll(plans.get(i).onDevice(base(i), 0));
      }
      tensors.keySet().retainAll(moved);
      return tensors;
    }

    KVLayoutPlanner planner() {
      Map<String, LayerPlacement> placements = new HashMap<>();
      tensors().forEach((name, t) -> placements.put(name, LayerPlacement.of(t.address(), t)));
      return KVLayoutPlanner.place(layout(), placements);
    }

    /** The absolute addresses of a group's object, byte for byte, by the oracle. */
    List<Long> object(Map<String, List<List<Long>>> pages, int groupId, int block) {
      List<Long> object = new ArrayList<>();
      for (KVRegion region : layout().regions()) {
        if (region.groupId() == groupId) {
          object.addAll(pages.get(region.layerName()).get(block));
        }
      }
      return object;
    }

    /** The absolute addresses of each layer's pages. */
    Map<String, List<List<Long>>> pages() {
      Map<String, List<List<Long>>> pages = new HashMap<>();
      for (int i = 0; i < config.tensors().size(); i++) {
        long base = base(i);
        LayoutOracle oracle = oracle(i);
        for (KVCacheConfig.Slot slot : config.tensors().get(i).slots()) {
          for (String layer : slot.layers()) {
            pages.put(
                layer,
                IntStream.range(0, config.tensors().get(i).blockCount())
                    .mapToObj(
                        block ->
                            oracle.page(layer, block).stream()
                                .map(b -> base + b.address())
                                .toList())
                    .toList());
          }
        }
      }
      return pages;
    }
  }

  @Provide
  Arbitrary<Cache> caches() {
    return Arbitraries.randomValue(
        random -> {
          int tpSize = 1 + random.nextInt(2);
          KVCacheConfig config = RandomCaches.next(random, tpSize, 1 + random.nextInt(5));
          return new Cache(config, RankTopology.tensorParallel(tpSize - 1, tpSize));
        });
  }

  @Property(tries = 500)
  void everyByteLiesWhereTheOrderPutsIt(@ForAll("caches") Cache cache) {
    List<TensorPlan> plans = cache.plans();
    for (int i = 0; i < plans.size(); i++) {
      LayoutOracle oracle = cache.oracle(i);
      assertEquals(oracle.sizeBytes(), plans.get(i).sizeBytes());
      for (PlannedLayer layer : plans.get(i).layers()) {
        KVRegion region = layer.region();
        for (int block = 0; block < plans.get(i).blockCount(); block++) {
          List<PageByte> page = oracle.page(region.layerName(), block);
          long start = layer.offset() + block * region.blockStride();
          assertEquals(
              page.stream().map(PageByte::address).toList(),
              addresses(region, start),
              region::toString);
          assertShape(region, page);
        }
      }
    }
  }

  private static List<Long> addresses(KVRegion region, long start) {
    List<PageSegment> runs = region.pageSegments();
    List<Long> addresses = new ArrayList<>();
    for (PageSegment run :
        runs.isEmpty() ? List.of(new PageSegment(0, region.blockBytes())) : runs) {
      for (long i = 0; i < run.length(); i++) {
        addresses.add(start + run.offset() + i);
      }
    }
    return addresses;
  }

  private static void assertShape(KVRegion region, List<PageByte> page) {
    for (int i = 0; i < page.size(); i++) {
      PageByte at = page.get(i);
      boolean isState = region.shape().tokens() == 1;
      int token = isState ? 0 : at.token();
      assertEquals(
          i, region.shape().offset(at.part(), at.head(), token) + at.content(), region::toString);
    }
  }

  @Property(tries = 300)
  void rangesAreThePayloadAndNothingTwice(@ForAll("caches") Cache cache) {
    KVLayoutPlanner.checkTensors(cache.layout(), cache.tensors());
    KVLayoutPlanner planner = cache.planner();
    Map<String, List<List<Long>>> pages = cache.pages();
    Map<Long, Integer> blockOfByte = new HashMap<>();
    for (int group : planner.groupIds()) {
      Set<Long> ofGroup = new HashSet<>();
      for (int block = 0; block < planner.blockCount(group); block++) {
        List<Long> bytes = new ArrayList<>();
        for (KVRange range : planner.rangesForBlock(block, group)) {
          assertEquals(bytes.size(), range.objectOffset());
          for (long i = 0; i < range.length(); i++) {
            bytes.add(range.address() + i);
          }
        }
        assertEquals(cache.object(pages, group, block), bytes);
        assertEquals(planner.objectBytes(group), bytes.size());
        for (long address : bytes) {
          assertTrue(ofGroup.add(address), "two pages of a group share a byte");
          Integer other = blockOfByte.putIfAbsent(address, block);
          assertTrue(other == null || other == block, "two blocks share a byte");
        }
      }
    }
  }

  @Property(tries = 300)
  void rowsAreTheFewestCopiesOfTheSameBytes(@ForAll("caches") Cache cache, @ForAll Random random) {
    KVLayoutPlanner planner = cache.planner();
    Map<String, List<List<Long>>> pages = cache.pages();
    int[] groupIds = planner.groupIds();
    int keys = 1 + random.nextInt(6);
    int[] groups = new int[keys];
    int[] blocks = new int[keys];
    long[] objects = new long[keys];
    Map<Long, Long> expected = new HashMap<>();
    int rows = 0;
    for (int i = 0; i < keys; i++) {
      groups[i] = groupIds[random.nextInt(groupIds.length)];
      blocks[i] = random.nextInt(planner.blockCount(groups[i]));
      objects[i] = 1_000_000L * i;
      if (i > 0) {
        List<Long> object = cache.object(pages, groups[i], blocks[i]);
        for (int at = 0; at < object.size(); at++) {
          expected.put(objects[i] + at, object.get(at));
        }
        rows += planner.rowsPerBlock(groups[i]);
      }
    }
    BlockTransferBatch batch = batch(cache.topology(), groups, blocks);
    CopyBatch out = new CopyBatch();
    out.reset(TransferDirection.STORE, 0, keys);
    planner.lower(batch, objects, out);
    assertEquals(rows, out.count());
    assertEquals(expected, bytes(out));
    out.reset(TransferDirection.LOAD, 0, keys);
    planner.lowerLayerMajor(batch, objects, out);
    assertEquals(rows, out.count());
    assertEquals(expected, bytes(out));
    assertMarks(planner, pages, out);
    for (int group : groupIds) {
      if (planner.blockCount(group) > 1) {
        assertEquals(fewestRows(cache, pages, group), planner.rowsPerBlock(group));
      }
    }
  }

  /** Counts the places in an object where memory does not go on in the first two blocks alike. */
  private static int fewestRows(Cache cache, Map<String, List<List<Long>>> pages, int group) {
    List<Long> zero = cache.object(pages, group, 0);
    List<Long> one = cache.object(pages, group, 1);
    int rows = 1;
    for (int i = 1; i < zero.size(); i++) {
      if (zero.get(i) - zero.get(i - 1) != 1 || one.get(i) - one.get(i - 1) != 1) {
        rows++;
      }
    }
    return rows;
  }

  private static Map<Long, Long> bytes(CopyBatch batch) {
    Map<Long, Long> bytes = new HashMap<>();
    for (int row = 0; row < batch.count(); row++) {
      long object = 1_000_000L * batch.key()[row];
      assertTrue(batch.host()[row] >= object && batch.host()[row] < object + 1_000_000);
      for (long i = 0; i < batch.length()[row]; i++) {
        assertNull(bytes.put(batch.host()[row] + i, batch.device()[row] + i));
      }
    }
    return bytes;
  }

  /** Each byte of a layer's pages is in a row before the end of the layer's mark. */
  private static void assertMarks(
      KVLayoutPlanner planner, Map<String, List<List<Long>>> pages, CopyBatch batch) {
    List<KVRegion> regions = planner.layout().regions();
    assertEquals(regions.size(), batch.markCount());
    Map<Long, String> layerOf = new HashMap<>();
    for (KVRegion region : regions) {
      pages
          .get(region.layerName())
          .forEach(
              page -> page.forEach(b -> layerOf.put(b * 8 + region.groupId(), region.layerName())));
    }
    int from = 0;
    for (int mark = 0; mark < batch.markCount(); mark++) {
      int groupId = regions.get(mark).groupId();
      for (int row = from; row < batch.markEnd()[mark]; row++) {
        for (long i = 0; i < batch.length()[row]; i++) {
          String layer = layerOf.get((batch.device()[row] + i) * 8 + groupId);
          int first = planner.markOf(layer);
          assertTrue(i == 0 ? first == mark : first >= mark, "row " + row + " of mark " + mark);
        }
      }
      from = batch.markEnd()[mark];
    }
    assertEquals(batch.count(), from);
  }

  private static BlockTransferBatch batch(RankTopology topology, int[] groups, int[] blocks) {
    List<BlockHash> hashes =
        IntStream.range(0, blocks.length)
            .mapToObj(i -> BlockHash.of(new byte[] {(byte) i}))
            .toList();
    return BlockStoreBatch.of(
        "r",
        BlockKeys.of(
            new UMBPNamespace("m"), topology.localNamespace(), groups, BlockHashes.of(hashes)),
        blocks);
  }
}
