package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * A whole-block batch to lower: blocks in random order, layers whose keys and values lie in planes
 * of their own, so that each page is two runs that never merge.
 */
final class LoweringCase {
  static final int GROUP = 0;

  static final int RUNS = 2;
  private static final int POOL_BLOCKS = 10_000;
  private static final long RUN_BYTES = 16_384;
  private static final long PLANE_BYTES = POOL_BLOCKS * RUN_BYTES;

  final KVLayoutPlanner planner;
  final BlockTransferBatch batch;

  /** Where each block's object lies in a slab. */
  final long[] objectAddresses;

  private final Map<String, LayerPlacement> placements = new HashMap<>();

  LoweringCase(int layers, int blocks) {
    List<PageSegment> keysThenValues =
        List.of(new PageSegment(0, RUN_BYTES), new PageSegment(PLANE_BYTES, RUN_BYTES));
    List<KVRegion> regions = new ArrayList<>();
    for (int layer = 0; layer < layers; layer++) {
      String name = "layer" + layer;
      long pageBytes = RUNS * RUN_BYTES;
      regions.add(
          new KVRegion(name, GROUP, RUN_BYTES, pageBytes, layer * pageBytes, 16, keysThenValues));
      long base = 0x7000_0000_0000L + PLANE_BYTES * RUNS * layer;
      placements.put(name, new LayerPlacement(base, RUN_BYTES, POOL_BLOCKS));
    }
    RankTopology topology = RankTopology.single();
    planner = KVLayoutPlanner.place(new KVLayoutDescriptor(regions, topology), placements);

    SplittableRandom random = new SplittableRandom(1);
    byte[] hashes = new byte[blocks * 32];
    random.nextBytes(hashes);
    BlockKeys keys =
        BlockKeys.of(
            new UMBPNamespace("bench"),
            topology.localNamespace(),
            GROUP,
            BlockHashes.of(32, hashes));
    batch = BlockStoreBatch.of("r", keys, random.ints(blocks, 0, POOL_BLOCKS).toArray());
    objectAddresses = new long[blocks];
    for (int i = 0; i < blocks; i++) {
      objectAddresses[i] = 0x1_0000_0000L + i * planner.objectBytes(GROUP);
    }
  }

  LayerPlacement placement(KVRegion region) {
    LayerPlacement placement = placements.get(region.layerName());
    if (placement == null) {
      throw new IllegalArgumentException(region.layerName());
    }
    return placement;
  }

  int ranges() {
    return planner.layout().regions().size() * RUNS * batch.size();
  }
}
