package io.umbp.api;

import static io.umbp.api.Refusals.assertRefused;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.KVCacheTensor.HostSlice;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What an engine may register, and what is refused at the door. */
class TensorTest {
  private static final long BASE = 0x7F12_3456_7000L;
  private static final long GIB = 1L << 30;

  private static KVCacheTensor.Builder device() {
    return KVCacheTensor.device(BASE, 4_096, 0);
  }

  /** A direct buffer of which no page is ever touched. */
  private static ByteBuffer untouched(Path directory, long sizeBytes) throws IOException {
    try (RandomAccessFile file = new RandomAccessFile(directory.resolve("slab").toFile(), "rw");
        FileChannel channel = file.getChannel()) {
      return channel.map(FileChannel.MapMode.READ_WRITE, 0, sizeBytes);
    }
  }

  @Test
  void case57DeviceAddressesAreRawAndLong() {
    KVCacheTensor tensor =
        KVCacheTensor.device(BASE + 5 * GIB, 4_096, 2)
            .inAllocation(BASE, 6 * GIB)
            .blocks(4, 1_024)
            .elementType(ElementType.BF16)
            .build();
    assertEquals(0x7F13_7456_7000L, tensor.address());
    assertEquals(4_096, tensor.sizeBytes());
    assertEquals(BASE, tensor.allocationBase());
    assertEquals(6_442_450_944L, tensor.allocationBytes());
    assertEquals(2, tensor.deviceOrdinal());
    assertTrue(tensor.isDevice());
    assertEquals(List.of(), tensor.slabs());
    assertEquals(4, tensor.blockCount());
    assertEquals(1_024, tensor.blockStride());
    assertEquals(ElementType.BF16, tensor.elementType());
    assertEquals(
        "KVCacheTensor[device 2 at 0x7f1374567000, 4096 bytes, 4 blocks, stride 1024, BF16]",
        tensor.toString());
  }

  @Test
  void case57NullAddressesAndEmptyTensorsAreRefused() {
    assertRefused("device address is 0 (null)", () -> KVCacheTensor.device(0, 4_096, 0));
    assertRefused("tensor size 0 must be > 0", () -> KVCacheTensor.device(BASE, 0, 0));
    assertRefused("tensor size -1 must be > 0", () -> KVCacheTensor.device(BASE, -1, 0));
    assertRefused("device ordinal -1 must be >= 0", () -> KVCacheTensor.device(BASE, 4_096, -1));
  }

  @Test
  void deviceMemoryEndsBelowTwoToThe63() {
    KVCacheTensor.device(Long.MAX_VALUE - 64, 64, 0).blocks(1, 64).build();
    assertRefused(
        "tensor at 0x7fffffffffffffc0 with 64 bytes does not lie between address 0 and 2^63",
        () -> KVCacheTensor.device(Long.MAX_VALUE - 63, 64, 0));
    assertRefused(
        "tensor at 0xffffffffffffffff with 64 bytes does not lie between address 0 and 2^63",
        () -> KVCacheTensor.device(-1, 64, 0));
  }

  @Test
  void aDeviceTensorIsItsOwnAllocationUnlessToldOtherwise() {
    KVCacheTensor tensor = device().blocks(1, 4_096).build();
    assertEquals(BASE, tensor.allocationBase());
    assertEquals(4_096, tensor.allocationBytes());
    assertEquals(ElementType.U8, tensor.elementType());
  }

  @Test
  void blocksAreRequired() {
    assertRefused("the tensor's blocks(count, strideBytes) are not set", () -> device().build());
    assertRefused(
        "tensor has 0 blocks of stride 64, both must be > 0", () -> device().blocks(0, 64).build());
    assertRefused(
        "tensor has -1 blocks of stride 64, both must be > 0",
        () -> device().blocks(-1, 64).build());
    assertRefused(
        "tensor has 4 blocks of stride 0, both must be > 0", () -> device().blocks(4, 0).build());
    assertRefused(
        "tensor has 4 blocks of stride -8, both must be > 0", () -> device().blocks(4, -8).build());
  }

  @Test
  void theLastBlockStartsInsideTheTensor() {
    device().blocks(4, 1_365).build();
    device().blocks(64, 64).build();
    device().blocks(1, Long.MAX_VALUE).build();
    KVCacheTensor.device(1, Long.MAX_VALUE - 1, 0).blocks(2, Long.MAX_VALUE - 2).build();
    assertRefused(
        "block 4 of stride 1024 starts behind the tensor's 4096 bytes",
        () -> device().blocks(5, 1_024).build());
    assertRefused(
        "block 2 of stride 4611686018427387904 starts behind the tensor's 4096 bytes",
        () -> device().blocks(3, 1L << 62).build());
    assertRefused(
        "block 4 of stride 4611686018427387904 starts behind the tensor's 4096 bytes",
        () -> device().blocks(5, 1L << 62).build());
    assertRefused(
        "block 2147483646 of stride 9223372036854775807 starts behind the tensor's 4096 bytes",
        () -> device().blocks(Integer.MAX_VALUE, Long.MAX_VALUE).build());
  }

  @Test
  void aTensorLiesInItsAllocation() {
    device().inAllocation(BASE - 64, 4_160).blocks(1, 64).build();
    device().inAllocation(BASE, 4_096).blocks(1, 64).build();
    String message =
        "tensor at 0x7f1234567000 with 4096 bytes is outside its allocation at 0x%x with %d bytes";
    assertRefused(
        message.formatted(BASE + 1, 8_192),
        () -> device().inAllocation(BASE + 1, 8_192).blocks(1, 64).build());
    assertRefused(
        message.formatted(BASE - 64, 4_159),
        () -> device().inAllocation(BASE - 64, 4_159).blocks(1, 64).build());
    assertRefused(
        message.formatted(BASE, 4_095),
        () -> device().inAllocation(BASE, 4_095).blocks(1, 64).build());
    assertRefused(
        message.formatted(BASE, -1), () -> device().inAllocation(BASE, -1).blocks(1, 64).build());
    assertRefused(
        message.formatted(BASE, Long.MIN_VALUE),
        () -> device().inAllocation(BASE, Long.MIN_VALUE).blocks(1, 64).build());
  }

  @Test
  void allocationsMayNotWrapAround() {
    String message = "allocation at 0x%x with %d bytes does not lie between address 0 and 2^63";
    assertRefused(message.formatted(-64L, 1L << 48), () -> device().inAllocation(-64, 1L << 48));
    assertRefused(
        message.formatted(-1L, Long.MIN_VALUE), () -> device().inAllocation(-1, Long.MIN_VALUE));
    assertRefused(
        message.formatted(BASE, Long.MAX_VALUE), () -> device().inAllocation(BASE, Long.MAX_VALUE));
  }

  @Test
  void case56AHostTensorIsWhatLiesBetweenPositionAndLimit() {
    ByteBuffer buffer = ByteBuffer.allocateDirect(4_096);
    buffer.position(1_024).limit(1_536);
    KVCacheTensor tensor = KVCacheTensor.host(buffer).blocks(4, 128).build();
    HostSlice slice = tensor.slabs().get(0);
    assertSame(buffer, slice.buffer());
    assertEquals(1_024, slice.start());
    assertEquals(512, slice.length());
    assertEquals(512, tensor.sizeBytes());
    assertEquals(1_024, buffer.position());
    assertEquals(1_536, buffer.limit());
    buffer.clear();
    assertEquals(1_024, tensor.slabs().get(0).start());
    assertEquals(512, tensor.slabs().get(0).length());
  }

  @Test
  void case56ViewsAreTakenAsTheyAre() {
    ByteBuffer buffer = ByteBuffer.allocateDirect(4_096);
    KVCacheTensor slice = KVCacheTensor.host(buffer.slice(1_024, 512)).blocks(1, 512).build();
    assertEquals(0, slice.slabs().get(0).start());
    assertEquals(512, slice.slabs().get(0).length());
    ByteBuffer duplicate = buffer.duplicate().position(96);
    assertEquals(4_000, KVCacheTensor.host(duplicate).blocks(1, 1).build().sizeBytes());
    assertRefused(
        "slab 1 is read-only; loads write into it",
        () -> KVCacheTensor.host(buffer, buffer.asReadOnlyBuffer()));
  }

  @Test
  void hostMemoryIsDescribedInItsOwnTerms() {
    ByteBuffer first = ByteBuffer.allocateDirect(100);
    ByteBuffer second = ByteBuffer.allocateDirect(200);
    KVCacheTensor tensor = KVCacheTensor.host(20, List.of(first, second)).blocks(7, 40).build();
    assertFalse(tensor.isDevice());
    assertEquals(KVCacheTensor.HOST, tensor.deviceOrdinal());
    assertEquals(20, tensor.address());
    assertEquals(280, tensor.sizeBytes());
    assertEquals(0, tensor.allocationBase());
    assertEquals(300, tensor.allocationBytes());
    assertEquals(2, tensor.slabs().size());
    assertEquals(
        "KVCacheTensor[host at offset 20 of 2 slabs, 280 bytes, 7 blocks, stride 40, U8]",
        tensor.toString());
    assertRefused(
        "block 7 of stride 40 starts behind the tensor's 280 bytes",
        () -> KVCacheTensor.host(20, List.of(first, second)).blocks(8, 40).build());
    assertRefused(
        "the allocation of a host tensor is its slabs",
        () -> KVCacheTensor.host(first).inAllocation(0, 100));
  }

  @Test
  void hostMemoryIsDirectWritableAndNotEmpty() {
    ByteBuffer direct = ByteBuffer.allocateDirect(64);
    assertRefused(
        "slab 1 is heap memory; register direct buffers, or copy through HostKVPages",
        () -> KVCacheTensor.host(direct, ByteBuffer.allocate(64)));
    assertRefused(
        "slab 0 has 0 bytes, allowed are 1 to 1073741824",
        () -> KVCacheTensor.host(direct.duplicate().position(64)));
    assertRefused("a host tensor needs at least one slab", () -> KVCacheTensor.host());
    assertRefused(
        "offset 64 is outside the slabs' 64 bytes", () -> KVCacheTensor.host(64, List.of(direct)));
    assertRefused(
        "offset -1 is outside the slabs' 64 bytes", () -> KVCacheTensor.host(-1, List.of(direct)));
    assertEquals(1, KVCacheTensor.host(63, List.of(direct)).blocks(1, 1).build().sizeBytes());
  }

  @Test
  void slabsAreTheTensorsOwnList() {
    List<ByteBuffer> slabs = new ArrayList<>(List.of(ByteBuffer.allocateDirect(64)));
    KVCacheTensor tensor = KVCacheTensor.host(0, slabs).blocks(1, 64).build();
    slabs.add(ByteBuffer.allocateDirect(64));
    assertEquals(1, tensor.slabs().size());
    assertThrows(UnsupportedOperationException.class, () -> tensor.slabs().clear());
  }

  @Test
  void aBuiltTensorDoesNotFollowItsBuilder() {
    KVCacheTensor.Builder builder = device().blocks(4, 1_024);
    KVCacheTensor tensor = builder.build();
    builder.blocks(2, 2_048).elementType(ElementType.F32).build();
    assertEquals(4, tensor.blockCount());
    assertEquals(1_024, tensor.blockStride());
    assertEquals(ElementType.U8, tensor.elementType());
  }

  @Test
  void case58SlabsOfAGibibyteMakeTensorsAboveTwo(@TempDir Path directory) throws IOException {
    ByteBuffer slab = untouched(directory, GIB + 1);
    assertRefused(
        "slab 0 has 1073741825 bytes, allowed are 1 to 1073741824",
        () -> KVCacheTensor.host(slab.duplicate()));
    slab.limit((int) GIB);
    List<ByteBuffer> pool = List.of(slab, slab.duplicate(), slab.duplicate());
    KVCacheTensor whole = KVCacheTensor.host(0, pool).blocks(364_063, 8_848).build();
    assertEquals(3_221_225_472L, whole.sizeBytes());
    assertEquals(2_147_480_384L, 242_708 * whole.blockStride());
    assertRefused(
        "block 364064 of stride 8848 starts behind the tensor's 3221225472 bytes",
        () -> KVCacheTensor.host(0, pool).blocks(364_065, 8_848).build());
    KVCacheTensor block = KVCacheTensor.host(2_147_480_384L, pool).blocks(1, 8_848).build();
    assertEquals(2_147_480_384L, block.address());
    assertEquals(1_073_745_088L, block.sizeBytes());
    assertRefused(
        "offset 3221225472 is outside the slabs' 3221225472 bytes",
        () -> KVCacheTensor.host(3 * GIB, pool));
  }

  @Test
  void case58DeviceBlocksBeyondTwoToThe31() {
    KVCacheTensor tensor =
        KVCacheTensor.device(BASE, 3_221_225_472L, 0).blocks(364_063, 8_848).build();
    assertEquals(BASE + 2_147_480_384L, tensor.address() + 242_708 * tensor.blockStride());
    assertRefused(
        "block 364064 of stride 8848 starts behind the tensor's 3221225472 bytes",
        () -> KVCacheTensor.device(BASE, 3_221_225_472L, 0).blocks(364_065, 8_848).build());
  }

  @Test
  void elementsHaveSizes() {
    assertEquals(4, ElementType.F32.sizeBytes());
    for (ElementType two : List.of(ElementType.F16, ElementType.BF16)) {
      assertEquals(2, two.sizeBytes());
    }
    for (ElementType one :
        List.of(ElementType.F8_E4M3, ElementType.F8_E5M2, ElementType.I8, ElementType.U8)) {
      assertEquals(1, one.sizeBytes());
    }
  }
}
