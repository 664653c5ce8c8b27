package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

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
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;

class KVLayoutPlannerProperties {
  private static final int[] GROUPS = {0, 3, 4};
  private static final RankTopology TOPOLOGY = RankTopology.single();

  /** A layout with tensors that fit it, and an independent idea of where each page byte lies. */
  record Cache(List<KVRegion> regions, Map<String, KVCacheTensor> tensors) {
    KVLayoutDescriptor layout() {
      return new KVLayoutDescriptor(regions, TOPOLOGY);
    }

    KVLayoutPlanner planner() {
      Map<String, LayerPlacement> placements = new HashMap<>();
      tensors.forEach((name, t) -> placements.put(name, LayerPlacement.of(t.address(), t)));
      return KVLayoutPlanner.place(layout(), placements);
    }

    long addressOf(KVRegion region, int block, long pageByte) {
      KVCacheTensor tensor = tensors.get(region.layerName());
      boolean isOneRun = region.pageSegments().isEmpty();
      long distance =
          isOneRun ? Math.max(tensor.blockStride(), region.blockBytes()) : region.blockStride();
      long start = tensor.address() + block * distance;
      long rest = pageByte;
      for (PageSegment segment : region.pageSegments()) {
        if (rest < segment.length()) {
          return start + segment.offset() + rest;
        }
        rest -= segment.length();
      }
      return start + rest;
    }
  }

  @Provide
  Arbitrary<Cache> caches() {
    return Arbitraries.randomValue(KVLayoutPlannerProperties::randomCache);
  }

  private static Cache randomCache(Random random) {
    List<KVRegion> regions = new ArrayList<>();
    Map<String, KVCacheTensor> tensors = new LinkedHashMap<>();
    int layers = 1 + random.nextInt(6);
    long address = 0x1000;
    long objectOffset = 0;
    for (int i = 0; i < layers; i++) {
      String name = "layer" + i;
      int group = GROUPS[random.nextInt(GROUPS.length)];
      int blocks = 1 + random.nextInt(8);
      long unit = 1L + random.nextInt(24);
      long padding = random.nextInt(3);
      long physical;
      KVRegion region;
      switch (random.nextInt(4)) {
        case 0 -> {
          physical = unit + padding;
          region = new KVRegion(name, group, physical, unit, objectOffset, 16);
        }
        case 1 -> {
          physical = unit;
          int parts = 2 + random.nextInt(3);
          blocks = blocks * parts + random.nextInt(parts);
          region = new KVRegion(name, group, unit * parts, unit * parts, objectOffset, 16);
        }
        case 2 -> {
          physical = unit + padding;
          int parts = 2 + random.nextInt(3);
          blocks = blocks * parts + random.nextInt(parts);
          List<PageSegment> segments = new ArrayList<>();
          for (int part = 0; part < parts; part++) {
            segments.add(new PageSegment(physical * part, unit));
          }
          region =
              new KVRegion(name, group, physical * parts, unit * parts, objectOffset, 16, segments);
        }
        default -> {
          physical = unit + padding;
          int heads = 1 + random.nextInt(4);
          List<PageSegment> segments = new ArrayList<>();
          for (int head = 0; head < heads; head++) {
            segments.add(new PageSegment(physical * blocks * head, unit));
          }
          Collections.shuffle(segments, random);
          region = new KVRegion(name, group, physical, unit * heads, objectOffset, 16, segments);
        }
      }
      long size = physical * blocks * Math.max(1, region.pageSegments().size());
      tensors.put(name, KVCacheTensor.device(address, size, 0).blocks(blocks, physical).build());
      regions.add(region);
      objectOffset += region.blockBytes();
      address += size + random.nextInt(2);
    }
    Collections.shuffle(regions, random);
    return new Cache(regions, tensors);
  }

  @Property(tries = 300)
  void rangesOfAllBlocksCoverExactlyThePages(@ForAll("caches") Cache cache) {
    KVLayoutPlanner.checkTensors(cache.layout(), cache.tensors());
    KVLayoutPlanner planner = cache.planner();
    Map<Long, String> owners = new HashMap<>();
    for (int group : planner.groupIds()) {
      for (int block = 0; block < planner.blockCount(group); block++) {
        long at = 0;
        Map<String, Long> pageBytes = new HashMap<>();
        for (KVRange range : planner.rangesForBlock(block, group)) {
          assertEquals(at, range.objectOffset());
          at += range.length();
          KVRegion region = cache.regions().get(planner.markOf(range.layerName()));
          for (long i = 0; i < range.length(); i++) {
            long pageByte = pageBytes.merge(range.layerName(), 1L, Long::sum) - 1;
            assertEquals(cache.addressOf(region, block, pageByte), range.address() + i);
            assertNull(owners.put(range.address() + i, range.layerName()));
          }
        }
        assertEquals(planner.objectBytes(group), at);
      }
    }
  }

  @Property(tries = 300)
  void rangesOfAllGroupsAreThoseOfEachGroupAtTheRegionsOffsets(@ForAll("caches") Cache cache) {
    KVLayoutPlanner planner = cache.planner();
    List<String> expected = new ArrayList<>();
    for (KVRegion region : cache.regions()) {
      long at = region.objectOffset();
      for (KVRange range : planner.rangesForBlock(0, region.groupId())) {
        if (range.layerName().equals(region.layerName())) {
          expected.add(range.layerName() + " " + range.address() + " " + range.length() + " " + at);
          at += range.length();
        }
      }
      assertEquals(region.objectOffset() + region.blockBytes(), at);
    }
    assertEquals(
        expected,
        planner.rangesForBlock(0).stream()
            .map(r -> r.layerName() + " " + r.address() + " " + r.length() + " " + r.objectOffset())
            .toList());
  }

  @Property(tries = 300)
  void bothLoweringsAreTheRangesOfTheBlocksWithAdjacentOnesInOne(
      @ForAll("caches") Cache cache, @ForAll Random random) {
    KVLayoutPlanner planner = cache.planner();
    int[] groupIds = planner.groupIds();
    int keys = random.nextInt(12);
    int[] groups = new int[keys];
    int[] blocks = new int[keys];
    long[] objects = new long[keys];
    for (int i = 0; i < keys; i++) {
      groups[i] = groupIds[random.nextInt(groupIds.length)];
      blocks[i] = random.nextInt(planner.blockCount(groups[i]));
      objects[i] = random.nextInt(4) == 0 ? 0 : 1 + random.nextInt(1_000_000);
    }
    BlockTransferBatch batch = batch(groups, blocks);
    planner.checkBlocks(batch);

    List<List<String>> blockMajor = new ArrayList<>();
    List<List<String>> layerMajor = new ArrayList<>();
    cache.regions().forEach(region -> layerMajor.add(new ArrayList<>()));
    for (int i = 0; i < keys; i++) {
      if (objects[i] != 0) {
        List<String> rows = new ArrayList<>();
        for (KVRange range : merged(planner.rangesForBlock(blocks[i], groups[i]))) {
          String row = row(range.address(), objects[i] + range.objectOffset(), range.length(), i);
          rows.add(row);
          layerMajor.get(planner.markOf(range.layerName())).add(row);
        }
        blockMajor.add(rows);
      }
    }

    CopyBatch out = new CopyBatch();
    out.reset(TransferDirection.STORE, 0, keys);
    planner.lower(batch, objects, out);
    assertEquals(flatten(blockMajor), rows(out, 0, out.count()));
    assertEquals(0, out.markCount());

    out.reset(TransferDirection.LOAD, 0, keys);
    planner.lowerLayerMajor(batch, objects, out);
    assertEquals(flatten(layerMajor), rows(out, 0, out.count()));
    assertEquals(cache.regions().size(), out.markCount());
    int from = 0;
    for (int mark = 0; mark < out.markCount(); mark++) {
      assertEquals(layerMajor.get(mark), rows(out, from, out.markEnd()[mark]));
      from = out.markEnd()[mark];
    }
    assertEquals(out.count(), from);
  }

  /** Each tensor is an allocation of its own here, so nothing is merged across layers. */
  private static List<KVRange> merged(List<KVRange> ranges) {
    List<KVRange> merged = new ArrayList<>();
    for (KVRange range : ranges) {
      int last = merged.size() - 1;
      KVRange before = last < 0 ? null : merged.get(last);
      if (before != null
          && before.layerName().equals(range.layerName())
          && before.address() + before.length() == range.address()) {
        merged.set(
            last,
            new KVRange(
                before.layerName(),
                before.groupId(),
                before.blockId(),
                before.address(),
                before.stride(),
                before.length() + range.length(),
                before.objectOffset()));
      } else {
        merged.add(range);
      }
    }
    return merged;
  }

  private static BlockTransferBatch batch(int[] groups, int[] blocks) {
    List<BlockHash> hashes =
        IntStream.range(0, blocks.length)
            .mapToObj(i -> BlockHash.of(new byte[] {(byte) i}))
            .toList();
    return BlockStoreBatch.of(
        "r",
        BlockKeys.of(
            new UMBPNamespace("m"), TOPOLOGY.localNamespace(), groups, BlockHashes.of(hashes)),
        blocks);
  }

  private static List<String> flatten(List<List<String>> lists) {
    return lists.stream().flatMap(List::stream).toList();
  }

  private static String row(long device, long host, long length, int key) {
    return device + " " + host + " " + length + " " + key;
  }

  private static List<String> rows(CopyBatch batch, int from, int to) {
    return IntStream.range(from, to)
        .mapToObj(i -> row(batch.device()[i], batch.host()[i], batch.length()[i], batch.key()[i]))
        .toList();
  }
}
