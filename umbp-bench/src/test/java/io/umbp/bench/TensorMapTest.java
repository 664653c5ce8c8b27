package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.bench.TensorMap.Page;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TensorPlan;
import io.umbp.core.layout.TensorPlan.PlannedLayer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Two views of the same memory, made apart from each other: the replay's and the planner's. */
class TensorMapTest {
  private static final ModelCatalogue CATALOGUE = ModelCatalogue.bundled();
  private static final int BLOCKS = 3;

  static List<String> names() {
    return CATALOGUE.names();
  }

  @ParameterizedTest
  @MethodSource("names")
  void thePlannerPutsEachPageWhereTheReplayLooks(String name) {
    CatalogueModel model = CATALOGUE.model(name);
    for (int ranks : new int[] {1, 4}) {
      for (KVCacheLayout layout : KVCacheLayout.values()) {
        for (KVSplit split : KVSplit.values()) {
          compare(EngineCache.of(model, ranks, layout, split, 8));
        }
      }
      int whole = EngineCache.defaultBlockSize(model, ranks);
      compare(EngineCache.of(model, ranks, KVCacheLayout.BLNHC, KVSplit.BLOCKS, whole));
    }
  }

  private static void compare(EngineCache cache) {
    String what = cache.model().name() + " " + cache.layout() + " " + cache.split();
    RankTopology topology = RankTopology.tensorParallel(0, cache.ranks());
    List<TensorPlan> plans = KVLayoutPlanner.tensors(cache.config(BLOCKS), topology);
    assertEquals(cache.tensors().size(), plans.size(), what);
    for (int i = 0; i < plans.size(); i++) {
      TensorSketch tensor = cache.tensors().get(i);
      TensorMap map = new TensorMap(tensor, cache.blockSize(), BLOCKS);
      assertEquals(plans.get(i).sizeBytes(), map.sizeBytes(), what);
      Map<String, PlannedLayer> planned = new HashMap<>();
      plans.get(i).layers().forEach(layer -> planned.put(layer.region().layerName(), layer));
      for (int slot = 0; slot < tensor.slots().size(); slot++) {
        for (Cache part : tensor.slots().get(slot)) {
          PlannedLayer layer = planned.remove(part.layerName());
          assertEquals(layer.region().blockStride(), map.blockStride(), what);
          assertEquals(runs(layer), runs(map.page(slot, part)), what + " " + part.layerName());
          assertEquals(layer.region().blockBytes(), cache.pageBytes(part), what);
        }
      }
      assertEquals(Map.of(), planned, what);
    }
  }

  private static List<PageSegment> runs(Page page) {
    List<PageSegment> runs = new ArrayList<>();
    for (int run = 0; run < page.runs(); run++) {
      runs.add(new PageSegment(page.offset(run), page.length(run)));
    }
    return runs;
  }

  /** The runs of block 0 from the tensor's start, by address, those that touch joined. */
  private static List<PageSegment> runs(PlannedLayer layer) {
    KVRegion region = layer.region();
    List<PageSegment> segments = new ArrayList<>(region.pageSegments());
    if (segments.isEmpty()) {
      segments.add(new PageSegment(0, region.blockBytes()));
    }
    segments.sort(Comparator.comparingLong(PageSegment::offset));
    List<PageSegment> runs = new ArrayList<>();
    for (PageSegment segment : segments) {
      long offset = layer.offset() + segment.offset();
      int last = runs.size() - 1;
      if (last >= 0 && runs.get(last).offset() + runs.get(last).length() == offset) {
        PageSegment before = runs.remove(last);
        runs.add(new PageSegment(before.offset(), before.length() + segment.length()));
      } else {
        runs.add(new PageSegment(offset, segment.length()));
      }
    }
    return runs;
  }

  /** 8 KV heads of 128 bf16 on 4 ranks: 2 heads, so a content of 256 bytes; 3 blocks of 16. */
  @ParameterizedTest
  @CsvSource({
    // order, split, runs of a page, length of the first, offset of the second
    "LBNHC, BLOCKS, 1, 16384, 0",
    "LBNHC, FUSED, 1, 16384, 0",
    "LBHNC, PLANES, 2, 8192, 24576",
    "LHBNC, BLOCKS, 2, 8192, 24576",
    "LHBNC, PLANES, 4, 4096, 12288",
    "BLNHC, PLANES, 2, 8192, 786432",
    "BHLNC, FUSED, 2, 8192, 262144",
    "BHLNC, PLANES, 4, 4096, 131072",
  })
  void aPageHasTheRunsOfItsOrder(
      KVCacheLayout layout, KVSplit split, int runs, int length, long secondOffset) {
    EngineCache cache = EngineCache.of(CATALOGUE.model("llama-3.1-8b"), 4, layout, split, 16);
    TensorSketch tensor = cache.tensors().get(0);
    Page page = new TensorMap(tensor, 16, BLOCKS).page(0, tensor.slots().get(0).get(0));
    assertEquals(16384, page.bytes());
    assertEquals(runs, page.runs());
    assertEquals(length, page.length(0));
    assertEquals(0, page.offset(0));
    if (runs > 1) {
      assertEquals(secondOffset, page.offset(1));
    }
  }
}
