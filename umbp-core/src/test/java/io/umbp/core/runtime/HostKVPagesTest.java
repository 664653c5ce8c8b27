package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.core.layout.KVLayoutPlanner;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class HostKVPagesTest {
  private static KVLayoutDescriptor layout(long stride, long pageBytes, String... names) {
    List<KVRegion> regions = new ArrayList<>();
    for (String name : names) {
      regions.add(new KVRegion(name, 0, stride, pageBytes, regions.size() * pageBytes, 16));
    }
    return new KVLayoutDescriptor(regions, RankTopology.single());
  }

  private static UMBPException refused(Reason reason, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(reason, e.reason(), e.getMessage());
    return e;
  }

  private static float[] randomFloats(int count, long seed) {
    Random random = new Random(seed);
    float[] numbers = new float[count];
    for (int i = 0; i < count; i++) {
      numbers[i] = random.nextFloat();
    }
    return numbers;
  }

  @Test
  @DisplayName("case 58: 5 blocks of 4,096 bytes over segments of at most 10,000 all round-trip")
  void splitsPoolsBetweenBlocks() {
    HostKVPages pages = HostKVPages.create(layout(4096, 4096, "layer0.k"), 5, 10_000);
    KVCacheTensor tensor = pages.tensors().get("layer0.k");
    assertEquals(
        List.of(8192, 8192, 4096),
        tensor.slabs().stream().map(KVCacheTensor.HostSlice::length).toList());
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(tensor);
    HostSlab slab = engine.allocateSlab(5 * 4096);
    HostKVPages.Layer layer = pages.layer("layer0.k");
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.STORE, KVCacheTensor.HOST, 5);
    for (int block = 0; block < 5; block++) {
      layer.put(block, 0, randomFloats(1024, block), 0, 1024);
      batch.add(base + block * 4096L, slab.baseAddress() + (4 - block) * 4096L, 4096, block);
    }
    run(engine, batch);

    batch.reset(TransferDirection.LOAD, KVCacheTensor.HOST, 5);
    for (int block = 0; block < 5; block++) {
      layer.put(block, 0, new float[1024], 0, 1024);
      batch.add(base + block * 4096L, slab.baseAddress() + (4 - block) * 4096L, 4096, block);
    }
    run(engine, batch);
    for (int block = 0; block < 5; block++) {
      float[] back = new float[1024];
      layer.take(block, 0, back, 0, 1024);
      assertArrayEquals(randomFloats(1024, block), back);
    }
  }

  private static void run(HostCopyEngine engine, CopyBatch batch) {
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    for (int key = 0; key < batch.keyCount(); key++) {
      assertNull(ticket.failure(key));
    }
  }

  @Test
  void keepsEveryLayerOfEveryBlockApart() {
    String[] names = {"layer0.k", "layer0.v", "layer1.k", "layer1.v"};
    for (long stride : new long[] {64, 130, 256, 300}) {
      KVLayoutDescriptor layout = layout(stride, 64, names);
      HostKVPages pages = HostKVPages.create(layout, 7, 3 * 300);
      KVLayoutPlanner.checkTensors(layout, pages.tensors());
      byte[] page = new byte[64];
      for (int l = 0; l < names.length; l++) {
        for (int block = 0; block < 7; block++) {
          new Random(l * 100 + block).nextBytes(page);
          pages.layer(names[l]).put(block, 0, page, 0, 64);
        }
      }
      byte[] back = new byte[64];
      for (int l = 0; l < names.length; l++) {
        for (int block = 0; block < 7; block++) {
          new Random(l * 100 + block).nextBytes(page);
          pages.layer(names[l]).take(block, 0, back, 0, 64);
          assertArrayEquals(page, back, names[l] + " block " + block + " stride " + stride);
          back[0] = 0;
          pages.layer(names[l]).page(block).get(back);
          assertArrayEquals(page, back);
        }
      }
    }
  }

  @Test
  void interleavesLayersWhoseStrideHasRoomForAll() {
    HostKVPages pages = HostKVPages.create(layout(256, 64, "a", "b", "c", "d"), 10);
    KVCacheTensor a = pages.tensors().get("a");
    KVCacheTensor d = pages.tensors().get("d");
    assertSame(a.slabs().get(0).buffer(), d.slabs().get(0).buffer());
    assertEquals(2560, a.allocationBytes());
    HostCopyEngine engine = new HostCopyEngine();
    assertEquals(192, -engine.register(a) + engine.register(d));
  }

  @Test
  void handsOutEachBlockOnce() {
    HostKVPages pages = HostKVPages.create(layout(16, 16, "a"), 3);
    assertEquals(3, pages.freeBlocks());
    Set<Integer> ids = new HashSet<>();
    for (int i = 0; i < 3; i++) {
      ids.add(pages.acquire().orElseThrow());
    }
    assertEquals(Set.of(0, 1, 2), ids);
    assertEquals(OptionalInt.empty(), pages.acquire());
    assertEquals(0, pages.freeBlocks());
    pages.release(1);
    assertTrue(
        refused(Reason.INVALID_ARGUMENT, () -> pages.release(1)).getMessage().contains("block 1"));
    refused(Reason.INVALID_ARGUMENT, () -> pages.release(3));
    refused(Reason.INVALID_ARGUMENT, () -> pages.release(-1));
    assertEquals(1, pages.freeBlocks());
    assertEquals(OptionalInt.of(1), pages.acquire());
  }

  @Test
  void copiesPartsOfPagesAndArrays() {
    HostKVPages pages = HostKVPages.create(layout(64, 64, "a"), 2);
    HostKVPages.Layer layer = pages.layer("a");
    layer.put(1, 0, new byte[64], 0, 64);
    layer.put(1, 8, new float[] {0, 1.5f, 2.5f, 0}, 1, 2);
    assertEquals(1.5f, layer.page(1).getFloat(8));
    assertEquals(2.5f, layer.page(1).getFloat(12));
    float[] target = {9, 9, 9, 9};
    layer.take(1, 12, target, 2, 2);
    assertArrayEquals(new float[] {9, 9, 2.5f, 0}, target);
    layer.put(1, 63, new byte[] {1, 2, 3}, 1, 1);
    byte[] end = new byte[3];
    layer.take(1, 62, end, 1, 2);
    assertArrayEquals(new byte[] {0, 0, 2}, end);
  }

  @Test
  @DisplayName(
      "case 56: page views are in native byte order, and the tensors' views leave pages alone")
  void keepsByteOrder() {
    HostKVPages pages = HostKVPages.create(layout(64, 64, "a"), 2);
    ByteBuffer page = pages.layer("a").page(1);
    assertEquals(ByteOrder.nativeOrder(), page.order());
    assertEquals(64, page.remaining());
    pages.tensors().get("a").slabs().get(0).buffer().position(1).limit(2);
    pages.layer("a").put(1, 0, new float[] {1}, 0, 1);
    assertEquals(1f, page.getFloat(0));
  }

  @Test
  @DisplayName("rule 7: accesses outside page, array or pool are refused, naming the layer")
  void refusesAccessesOutside() {
    HostKVPages pages = HostKVPages.create(layout(64, 48, "a", "b"), 2);
    HostKVPages.Layer layer = pages.layer("a");
    float[] floats = new float[20];
    byte[] bytes = new byte[60];
    List<Executable> calls =
        List.of(
            () -> layer.put(2, 0, floats, 0, 1),
            () -> layer.put(-1, 0, floats, 0, 1),
            () -> layer.put(0, 0, floats, 0, 13),
            () -> layer.put(0, 48, floats, 0, 1),
            () -> layer.put(0, -4, floats, 0, 1),
            () -> layer.put(0, 2, floats, 0, 1),
            () -> layer.take(0, 0, floats, 20, 1),
            () -> layer.take(0, 0, floats, -1, 1),
            () -> layer.take(0, 0, floats, 0, -1),
            () -> layer.put(0, 0, bytes, 0, 49),
            () -> layer.put(0, Long.MAX_VALUE, bytes, 0, 1),
            () -> layer.take(0, 40, bytes, 0, 9),
            () -> layer.take(0, 0, bytes, 59, 2),
            () -> layer.page(2),
            () -> layer.page(-1));
    for (Executable call : calls) {
      assertTrue(
          refused(Reason.INVALID_ARGUMENT, call).getMessage().startsWith("layer 'a'"), "no layer");
    }
    refused(Reason.INVALID_ARGUMENT, () -> pages.layer("c"));
    HostKVPages odd = HostKVPages.create(layout(30, 30, "a"), 2);
    refused(Reason.INVALID_ARGUMENT, () -> odd.layer("a").put(1, 0, floats, 0, 1));
  }

  @Test
  void refusesLayoutsItCannotHold() {
    refused(Reason.INVALID_ARGUMENT, () -> HostKVPages.create(layout(64, 64, "a"), 0));
    refused(Reason.INVALID_ARGUMENT, () -> HostKVPages.create(layout(1L << 31, 64, "a"), 1));
    KVRegion segmented =
        new KVRegion("a", 0, 64, 8, 0, 16, List.of(new KVRegion.PageSegment(0, 8)));
    refused(
        Reason.UNSUPPORTED,
        () ->
            HostKVPages.create(
                new KVLayoutDescriptor(List.of(segmented), RankTopology.single()), 1));
  }
}
