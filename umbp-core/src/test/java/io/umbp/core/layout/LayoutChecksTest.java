package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class LayoutChecksTest {
  private static final long BASE = 0x7000_0000_0000L;

  private final List<KVRegion> regions = new ArrayList<>();
  private final Map<String, KVCacheTensor> tensors = new HashMap<>();

  private void region(String layer, int group, long stride, long bytes, PageSegment... segments) {
    regions.add(new KVRegion(layer, group, stride, bytes, 0, 16, List.of(segments)));
  }

  private void device(String layer, long offset, long sizeBytes, int blocks, long stride) {
    tensors.put(
        layer, KVCacheTensor.device(BASE + offset, sizeBytes, 0).blocks(blocks, stride).build());
  }

  private void host(String layer, long offset, int blocks, long stride, ByteBuffer... slabs) {
    tensors.put(layer, KVCacheTensor.host(offset, List.of(slabs)).blocks(blocks, stride).build());
  }

  private void check() {
    KVLayoutPlanner.checkTensors(new KVLayoutDescriptor(regions, RankTopology.single()), tensors);
  }

  private void assertRefused(String message) {
    UMBPException e = assertThrows(UMBPException.class, this::check);
    assertEquals(message, e.getMessage());
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
  }

  @Test
  void missingAndUnknownLayersAreNamedInOrder() {
    region("b", 0, 64, 64);
    region("c", 0, 64, 64);
    region("a", 0, 64, 64);
    device("c", 0, 64, 1, 64);
    device("z", 64, 64, 1, 64);
    assertRefused("layers [a, b] of the layout are missing");
    device("a", 128, 64, 1, 64);
    device("b", 192, 64, 1, 64);
    device("y", 256, 64, 1, 64);
    assertRefused("layers [y, z] are not in the layout");
    tensors.remove("y");
    tensors.remove("z");
    check();
  }

  @Test
  void stridesMustFit() {
    region("a", 0, 64, 64);
    device("a", 0, 1024, 8, 128);
    assertRefused(
        "layer 'a': KV block stride mismatch: physical stride 128 must divide the declared stride 64");
    device("a", 0, 1024, 8, 48);
    assertRefused(
        "layer 'a': KV block stride mismatch: physical stride 48 must divide the declared stride 64");
    device("a", 0, 1024, 8, 32);
    check();
    regions.clear();
    region("a", 0, 64, 48);
    assertRefused(
        "layer 'a': KV block stride mismatch: block bytes 48 are no multiple of the physical stride"
            + " 32");
  }

  @Test
  void aSmallPageInASmallerStrideIsAmbiguous() {
    region("a", 0, 64, 32);
    device("a", 0, 1024, 32, 32);
    assertRefused(
        "layer 'a': KV block stride mismatch: the page of 32 bytes fits into the physical stride 32,"
            + " but the declared stride is 64; declare the physical stride, or the page's kernel"
            + " blocks");
    device("a", 0, 1024, 16, 64);
    check();
  }

  @Test
  void aPageOfKernelBlocksSaysHowManyThereAre() {
    kernelBlocks("a", 64, 64);
    device("a", 0, 1024, 16, 64);
    check();
    device("a", 0, 1024, 32, 32);
    check();
    device("a", 0, 1024, 64, 16);
    assertRefused(
        "layer 'a': KV block stride mismatch: physical stride 16 is neither the declared stride 64"
            + " nor that of one of its 2 kernel blocks");
    regions.clear();
    kernelBlocks("a", 64, 32);
    device("a", 0, 1024, 32, 32);
    check();
    device("a", 0, 1024, 1, 32);
    assertRefused("layer 'a': one block needs 2 kernel blocks of 32 bytes, the tensor has 1");
  }

  /** A page of two kernel blocks in one run: one head, 4 tokens. */
  private void kernelBlocks(String layer, long stride, long bytes) {
    KVPageShape shape =
        new KVPageShape(
            List.of(Axis.KERNEL_BLOCK, Axis.TOKEN, Axis.HEAD), 1, 1, 4, 2, bytes / 4, 0);
    regions.add(new KVRegion(layer, 0, stride, bytes, 0, 4, List.of(), shape));
  }

  @Test
  void segmentsCountFromTheDeclaredBlock() {
    region("a", 0, 64, 48, new PageSegment(0, 24), new PageSegment(32, 24));
    device("a", 0, 7 * 32 + 24, 8, 32);
    check();
    device("a", 0, 7 * 32 + 23, 8, 32);
    assertRefused("layer 'a': tensor has 247 bytes, but its 4 blocks of stride 64 need 248");
    device("a", 0, 1024, 1, 32);
    assertRefused("layer 'a': one block needs 2 kernel blocks of 32 bytes, the tensor has 1");
    region("b", 0, 64, 8, new PageSegment(0, 8));
    device("a", 0, 7 * 32 + 24, 8, 32);
    device("b", 24, 1024, 8, 32);
    check();
    device("b", 23, 1024, 8, 32);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (24 bytes at 0x700000000000 with block stride 64, 8"
            + " bytes at 0x700000000017 with block stride 64)");
  }

  @Test
  void aBlockOfCountlessKernelBlocksIsRefused() {
    region("a", 0, 1 << 20, 1 << 20);
    device("a", 0, 1 << 24, 1 << 24, 1);
    assertRefused("layer 'a': one block is 1048576 kernel blocks of 1 bytes, the limit is 65536");
  }

  @Test
  void manyBlocksOfTwoStridesAreComparedAtOnce() {
    int blocks = Integer.MAX_VALUE;
    region("a", 0, 6, 2);
    region("b", 0, 9, 1);
    device("a", 0, 1L << 40, blocks, 6);
    device("b", 2, 1L << 40, blocks, 9);
    check();
    device("b", 1, 1L << 40, blocks, 9);
    assertThrows(UMBPException.class, this::check);
  }

  @Test
  void theTensorMustCoverItsLastBlock() {
    region("a", 0, 64, 48);
    device("a", 0, 7 * 64 + 48, 8, 64);
    check();
    device("a", 0, 7 * 64 + 47, 8, 64);
    assertRefused("layer 'a': tensor has 495 bytes, but its 8 blocks of stride 64 need 496");
  }

  @Test
  void theTensorMustCoverItsFurthestSegment() {
    region("a", 0, 64, 128, new PageSegment(256, 64), new PageSegment(0, 64));
    device("a", 0, 512, 4, 64);
    check();
    device("a", 0, 511, 4, 64);
    assertRefused("layer 'a': tensor has 511 bytes, but its 4 blocks of stride 64 need 512");
    regions.clear();
    region("a", 0, 64, 64, new PageSegment(Long.MAX_VALUE - 64, 64));
    assertRefused(
        "layer 'a': tensor has 511 bytes, but its 4 blocks of stride 64 need 9223372036854775807");
  }

  @Test
  void allTensorsAreInOnePlace() {
    region("a", 0, 64, 64);
    region("b", 0, 64, 64);
    device("a", 0, 64, 1, 64);
    host("b", 0, 1, 64, ByteBuffer.allocateDirect(64));
    assertRefused(
        "layer 'a' is on device 0, layer 'b' is in host memory; all must be on one device or all in"
            + " host memory");
    tensors.put("b", KVCacheTensor.device(BASE, 64, 1).blocks(1, 64).build());
    assertRefused(
        "layer 'a' is on device 0, layer 'b' is on device 1; all must be on one device or all in host"
            + " memory");
  }

  @Test
  void interleavedLayersMayNotTouch() {
    region("a", 0, 64, 40);
    region("b", 0, 64, 24);
    device("a", 0, 488, 8, 64);
    device("b", 40, 472, 8, 64);
    check();
    device("b", 39, 473, 8, 64);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (40 bytes at 0x700000000000 with block stride 64, 24"
            + " bytes at 0x700000000027 with block stride 64)");
    device("b", 41 + 7 * 64, 472, 8, 64);
    check();
    device("b", 39 + 7 * 64, 473, 8, 64);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (40 bytes at 0x700000000000 with block stride 64, 24"
            + " bytes at 0x7000000001e7 with block stride 64)");
  }

  @Test
  void layersOfDifferentGroupsMayShareMemory() {
    region("a", 0, 64, 64);
    region("b", 1, 64, 64);
    device("a", 0, 512, 8, 64);
    device("b", 0, 512, 8, 64);
    check();
  }

  @Test
  void layersOfDifferentStridesAreCompared() {
    region("a", 0, 64, 16);
    region("b", 0, 48, 16);
    device("a", 0, 7 * 64 + 16, 8, 64);
    device("b", 16, 3 * 48 + 16, 4, 48);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (16 bytes at 0x700000000000 with block stride 64, 16"
            + " bytes at 0x700000000010 with block stride 48)");
    device("b", 16, 16, 1, 48);
    check();
    device("b", 16, 48 + 16, 2, 48);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (16 bytes at 0x700000000000 with block stride 64, 16"
            + " bytes at 0x700000000010 with block stride 48)");
  }

  @Test
  void segmentsOfAPageMayNotOverlap() {
    region("a", 0, 64, 64, new PageSegment(0, 32), new PageSegment(31, 32));
    device("a", 0, 512, 8, 64);
    assertRefused(
        "layer 'a' of group 0: pages of its blocks overlap (32 bytes at 0x700000000000, 32 bytes at"
            + " 0x70000000001f, block stride 64)");
  }

  @Test
  void segmentsOutsideTheStrideMayNotReachAnotherBlock() {
    region("a", 0, 64, 128, new PageSegment(0, 64), new PageSegment(8 * 64, 64));
    device("a", 0, 1024, 8, 64);
    check();
    regions.clear();
    region("a", 0, 64, 128, new PageSegment(0, 64), new PageSegment(7 * 64, 64));
    assertRefused(
        "layer 'a' of group 0: pages of its blocks overlap (64 bytes at 0x700000000000, 64 bytes at"
            + " 0x7000000001c0, block stride 64)");
    regions.clear();
    region("a", 0, 64, 65, new PageSegment(0, 65));
    assertRefused(
        "layer 'a' of group 0: pages of its blocks overlap (65 bytes at 0x700000000000, 65 bytes at"
            + " 0x700000000000, block stride 64)");
  }

  @Test
  void hostLayersShareMemoryWhenTheyShareABuffer() {
    region("a", 0, 64, 64);
    region("b", 0, 64, 64);
    ByteBuffer one = ByteBuffer.allocateDirect(1024);
    ByteBuffer other = ByteBuffer.allocateDirect(1024);
    host("a", 0, 8, 64, one);
    host("b", 0, 8, 64, other);
    check();
    host("b", 512, 8, 64, one);
    check();
    host("b", 448, 8, 64, one);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (64 bytes at 0x0 with block stride 64, 64 bytes at"
            + " 0x1c0 with block stride 64)");
  }

  @Test
  void hostLayersAreComparedInTheBuffersNotInTheirOffsets() {
    region("a", 0, 64, 64);
    region("b", 0, 64, 64);
    ByteBuffer first = ByteBuffer.allocateDirect(480);
    ByteBuffer second = ByteBuffer.allocateDirect(1024);
    host("a", 0, 8, 64, first, second);
    host("b", 32, 8, 64, second);
    check();
    host("b", 31, 8, 64, second);
    assertRefused(
        "layers 'a' and 'b' of group 0 overlap (32 bytes at 0x0 with block stride 64, 64 bytes at 0x1f"
            + " with block stride 64)");
    second.position(32);
    host("b", 0, 8, 64, second);
    check();
    second.position(31);
    host("b", 0, 8, 64, second);
    assertThrows(UMBPException.class, this::check);
  }

  @Test
  void oneBufferNamedTwiceIsOneMemory() {
    region("a", 0, 64, 64);
    ByteBuffer buffer = ByteBuffer.allocateDirect(256);
    host("a", 0, 8, 64, buffer, buffer);
    assertRefused(
        "layer 'a' of group 0: pages of its blocks overlap (64 bytes at 0x0, 64 bytes at 0x0, block"
            + " stride 64)");
  }
}
