package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe.Place;
import io.umbp.api.UMBPException;
import io.umbp.testkit.FakeKVCache.Layer;
import io.umbp.testkit.FakeKVCache.Strides;
import io.umbp.testkit.FakeKVCache.Tensor;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Strides of two layers with 3 heads, 4 tokens, 8 bytes a key or value, worked out by hand. */
class FakeKVCacheTest {
  private static final List<Layer> TWO =
      List.of(new Layer("a", 0, 3, 4, 8, 8), new Layer("b", 1, 3, 4, 8, 8));

  private final FakeGpu gpu = FakeGpu.stepped(1);
  private final FakeKVCache cache = new FakeKVCache(gpu);

  @AfterEach
  void close() {
    gpu.close();
  }

  private Strides last(String order, int kernelBlocks, long blockStride) {
    cache.place(1000, new Tensor(order, 5, kernelBlocks, blockStride, TWO));
    return cache.strides("b");
  }

  @Test
  void axesAreNestedInTheirOrder() {
    // base, block, kernel block, tokens in it, token, head, value
    assertEquals(new Strides(1960, 192, 192, 4, 48, 16, 8), last("LBNHC", 1, 0));
    assertEquals(new Strides(1960, 192, 192, 4, 8, 32, 96), last("LBKHNC", 1, 0));
    assertEquals(new Strides(1960, 96, 96, 4, 24, 8, 480), last("LKBNHC", 1, 0));
    assertEquals(new Strides(1960, 64, 64, 4, 16, 320, 8), last("LHBNC", 1, 0));
    assertEquals(new Strides(1960, 64, 64, 4, 8, 320, 32), last("LHBKNC", 1, 0));
    assertEquals(new Strides(1192, 384, 384, 4, 16, 64, 8), last("BLHNC", 1, 0));
    assertEquals(new Strides(1192, 384, 384, 4, 24, 8, 96), last("BLKNHC", 1, 0));
    assertEquals(new Strides(1096, 192, 192, 4, 24, 8, 960), last("KBLNHC", 1, 0));
    assertEquals(new Strides(1064, 384, 384, 4, 8, 128, 32), last("BHLKNC", 1, 0));
  }

  @Test
  void kernelBlocksAndPaddingWidenTheBlock() {
    assertEquals(new Strides(1960, 192, 96, 2, 24, 8, 48), last("LBKNHC", 2, 0));
    assertEquals(new Strides(2000, 200, 100, 2, 24, 8, 48), last("LBKNHC", 2, 200));
    assertEquals(
        1000 + 2 * 200 + 100 + 24 + 2 * 8 + 48 + 1000,
        cache.strides("b").address(new Place("b", 2, Part.VALUE, 2, 3)));
  }

  @Test
  void layersOfOneSlotShareItAndTheLargestMakesItsSize() {
    long size =
        cache.place(
            0,
            new Tensor(
                "BLKNHC",
                5,
                1,
                0,
                List.of(
                    new Layer("full", 0, 3, 4, 8, 8),
                    new Layer("state", 0, 1, 1, 500, 0),
                    new Layer("latent", 1, 1, 4, 20, 0))));
    assertEquals(5 * 580, size);
    assertEquals(new Strides(0, 580, 580, 4, 24, 8, 96), cache.strides("full"));
    assertEquals(0, cache.strides("state").base());
    assertEquals(new Strides(500, 580, 580, 4, 20, 20, 80), cache.strides("latent"));
  }

  @Test
  void valuesLieInTheMemoryOfTheGpu() {
    long base = cache.allocate(new Tensor("LBNHC", 5, 1, 0, TWO));
    byte[] value = {1, 2, 3, 4, 5, 6, 7, 8};
    Place place = new Place("b", 4, Part.VALUE, 2, 3);
    cache.write(place, value);
    assertArrayEquals(value, gpu.read(base + 2 * 960 - 8, 8));
    byte[] read = new byte[8];
    cache.read(place, read);
    assertArrayEquals(value, read);
  }

  @Test
  void axesThatAreNoneAreRefused() {
    for (String order : List.of("LBNH", "LBNNC", "LBNHXC", "BNHC", "CLBNH")) {
      assertThrows(UMBPException.class, () -> new Tensor(order, 5, 1, 0, TWO), order);
    }
    assertThrows(UMBPException.class, () -> cache.strides("c"));
  }
}
