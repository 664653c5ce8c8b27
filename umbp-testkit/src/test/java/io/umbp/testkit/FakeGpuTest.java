package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

@Timeout(60)
class FakeGpuTest {
  private static final int CHUNK = 1 << 18;

  private final FakeGpu gpu = FakeGpu.asynchronous(2);
  private final FakeGpu stepped = FakeGpu.stepped(2);

  @AfterEach
  void close() {
    gpu.close();
    stepped.close();
  }

  @Test
  void addressesLookLikeADevicesAndAreNeverIssuedTwice() {
    Set<Long> seen = new HashSet<>();
    long previousEnd = 0;
    for (int i = 0; i < 200; i++) {
      long size = 1 + i * 100_000L;
      long address = gpu.malloc(i % 2, size);
      assertEquals(0x7F, address >>> 40);
      assertEquals(0, address % 512);
      assertTrue(address >= previousEnd + 512, "no gap before allocation " + i);
      assertTrue(seen.add(address));
      previousEnd = address + size;
      gpu.free(address);
    }
    assertEquals(0, gpu.liveAllocationCount());
  }

  @Test
  void freshMemoryIsPoison() {
    long address = gpu.malloc(0, 2 * CHUNK);
    gpu.write(address + CHUNK - 1, new byte[] {1});
    byte[] bytes = gpu.read(address + CHUNK - 2, 4);
    assertArrayEquals(new byte[] {(byte) 0xA5, 1, (byte) 0xA5, (byte) 0xA5}, bytes);
  }

  @Test
  void freedMemoryIsRefusedAndCounted() {
    long address = gpu.malloc(0, 100);
    gpu.free(address);
    List<Executable> uses =
        List.of(
            () -> gpu.read(address, 1),
            () -> gpu.write(address + 99, new byte[1]),
            () -> gpu.write(address, ByteBuffer.allocate(7)),
            () -> gpu.fill(address, 100, (byte) 0),
            () -> gpu.mismatch(address, new byte[3], 0, 3),
            () -> gpu.read(address, new byte[3], 1, 2));
    for (Executable use : uses) {
      String message = invalid(use);
      assertTrue(message.contains(Long.toHexString(address)), message);
      assertTrue(message.contains("freed allocation"), message);
    }
    assertEquals(uses.size(), gpu.useAfterFreeCount());
  }

  @Test
  void accessesThatRaceWithAFreeMeetPoison() {
    DeviceAllocation allocation = new DeviceAllocation(0, 2L * CHUNK, 0);
    allocation.fill(0, CHUNK, (byte) 7);
    assertTrue(allocation.free());
    assertFalse(allocation.free());
    byte[] bytes = new byte[2 * CHUNK];
    allocation.read(0, bytes, 0, bytes.length);
    for (byte b : bytes) {
      assertEquals(FakeGpu.FREED_POISON, b);
    }
  }

  @Test
  void accessOutsideNamesAddressLengthAndNeighbour() {
    long address = gpu.malloc(1, 1000);
    for (long bad : new long[] {address - 1, address + 1000, address + 999}) {
      String message = invalid(() -> gpu.read(bad, 2));
      assertTrue(message.contains("2 bytes at 0x" + Long.toHexString(bad)), message);
      assertTrue(
          message.contains("0x" + Long.toHexString(address) + " with 1000 bytes on device 1"),
          message);
    }
    invalid(() -> gpu.read(0, 1));
    invalid(() -> gpu.read(Long.MIN_VALUE, 1));
    invalid(() -> gpu.fill(address, Long.MAX_VALUE, (byte) 0));
    invalid(() -> gpu.fill(address, -1, (byte) 0));
    assertEquals(0, gpu.useAfterFreeCount());
  }

  @Test
  void onlyTheStartOfALiveAllocationCanBeFreed() {
    long address = gpu.malloc(0, 100);
    invalid(() -> gpu.free(address + 1));
    invalid(() -> gpu.free(0));
    gpu.free(address);
    invalid(() -> gpu.free(address));
    invalid(() -> gpu.malloc(0, 0));
    invalid(() -> gpu.malloc(2, 1));
    invalid(() -> gpu.malloc(-1, 1));
    invalid(() -> FakeGpu.stepped(0));
  }

  @Test
  void holdsAllocationsOfManyGiBThatAreHardlyTouched() {
    long size = 6L << 30;
    long first = gpu.malloc(0, size);
    long second = gpu.malloc(1, size);
    gpu.write(first + size - 3, new byte[] {1, 2, 3});
    gpu.write(second + (4L << 30) - 1, new byte[] {4, 5});
    assertArrayEquals(new byte[] {1, 2, 3}, gpu.read(first + size - 3, 3));
    assertArrayEquals(new byte[] {4, 5}, gpu.read(second + (4L << 30) - 1, 2));
    assertEquals(FakeGpu.FRESH_POISON, gpu.read(second + size - 1, 1)[0]);
  }

  @Test
  void movesBytesAcrossItsChunks() {
    long address = gpu.malloc(0, 3 * CHUNK);
    byte[] bytes = new byte[CHUNK + 10];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) (i * 31 + 7);
    }
    long at = address + CHUNK - 5;
    gpu.write(at, bytes);
    assertEquals(-1, gpu.mismatch(at, bytes, 0, bytes.length));
    assertArrayEquals(bytes, gpu.read(at, bytes.length));
    gpu.write(at + CHUNK + 7, new byte[] {(byte) ~bytes[CHUNK + 7]});
    assertEquals(CHUNK + 7, gpu.mismatch(at, bytes, 0, bytes.length));
    assertEquals(CHUNK + 2, gpu.mismatch(at + 5, bytes, 5, CHUNK + 5));
    gpu.fill(at + 1, CHUNK + 8L, (byte) 9);
    byte[] back = new byte[bytes.length + 2];
    gpu.read(at, back, 1, bytes.length);
    assertEquals(0, back[0]);
    assertEquals(bytes[0], back[1]);
    assertEquals(9, back[2]);
    assertEquals(9, back[CHUNK + 9]);
    assertEquals(bytes[CHUNK + 9], back[CHUNK + 10]);
  }

  @Test
  void writesABufferWithoutMovingIt() {
    long address = gpu.malloc(0, 8);
    ByteBuffer buffer = ByteBuffer.allocateDirect(8).put(3, (byte) 33).put(4, (byte) 44);
    buffer.position(3).limit(5);
    gpu.write(address + 1, buffer);
    assertArrayEquals(new byte[] {(byte) 0xA5, 33, 44, (byte) 0xA5}, gpu.read(address, 4));
    assertEquals(3, buffer.position());
    assertEquals(5, buffer.limit());
  }

  @Test
  void aStreamRunsInOrderAndStreamsRunSideBySide() {
    List<Integer> ran = new ArrayList<>();
    FakeStream blocked = gpu.stream(0);
    FakeStream free = gpu.stream(0);
    blocked.hold();
    blocked.enqueue(() -> ran.add(-1));
    for (int i = 0; i < 100; i++) {
      int number = i;
      free.enqueue(() -> ran.add(number));
    }
    free.synchronize();
    assertEquals(100, ran.size());
    for (int i = 0; i < 100; i++) {
      assertEquals(i, ran.get(i));
    }
    blocked.release();
    blocked.release();
    blocked.synchronize();
    assertEquals(-1, ran.get(100));
    assertTrue(blocked.handle() != 0 && blocked.handle() != free.handle());
  }

  @Test
  void aFailedKernelIsReportedOnceAndTheStreamGoesOn() {
    for (FakeStream stream : List.of(gpu.stream(0), stepped.stream(1))) {
      long address = (stream.ordinal() == 0 ? gpu : stepped).malloc(0, 4);
      AssertionError thrown = new AssertionError("kernel");
      stream.enqueue(
          () -> {
            throw thrown;
          });
      stream.write(address, new byte[] {1, 2, 3, 4});
      IllegalStateException reported =
          assertThrows(IllegalStateException.class, stream::synchronize);
      assertSame(thrown, reported.getCause());
      stream.synchronize();
      FakeGpu owner = stream.ordinal() == 0 ? gpu : stepped;
      assertArrayEquals(new byte[] {1, 2, 3, 4}, owner.read(address, 4));
    }
  }

  @Test
  void aWriteCopiesItsBytesWhenItIsEnqueued() {
    long address = stepped.malloc(0, 2);
    byte[] bytes = {1, 2};
    stepped.stream(0).write(address, bytes);
    bytes[0] = 9;
    stepped.runAll();
    assertArrayEquals(new byte[] {1, 2}, stepped.read(address, 2));
  }

  @Test
  void steppedStreamsMoveOnlyWhenSteppedAndInTurn() {
    List<String> ran = new ArrayList<>();
    FakeStream a = stepped.stream(0);
    FakeStream b = stepped.stream(1);
    for (int i = 0; i < 3; i++) {
      String number = Integer.toString(i);
      a.enqueue(() -> ran.add("a" + number + Thread.currentThread().getId()));
      b.enqueue(() -> ran.add("b" + number + Thread.currentThread().getId()));
    }
    assertEquals(List.of(), ran);
    assertTrue(stepped.step());
    assertTrue(b.step());
    assertTrue(b.step());
    assertEquals(3, stepped.runAll());
    assertFalse(stepped.step());
    assertFalse(b.step());
    String here = Long.toString(Thread.currentThread().getId());
    assertEquals(
        List.of("a0", "b0", "b1", "b2", "a1", "a2"),
        ran.stream().map(name -> name.substring(0, name.length() - here.length())).toList());
    assertTrue(ran.stream().allMatch(name -> name.endsWith(here)));
  }

  @Test
  void aSteppedStreamThatCannotMoveSaysSo() {
    FakeStream stream = stepped.stream(0);
    stream.hold();
    assertThrows(IllegalStateException.class, stream::hold);
    assertThrows(IllegalStateException.class, stream::synchronize);
    stream.release();
    stream.synchronize();
    assertThrows(IllegalStateException.class, gpu::step);
  }

  @Test
  void closeEndsAllThreadsAndWaiters() throws InterruptedException {
    FakeStream stuck = gpu.stream(0);
    CountDownLatch never = new CountDownLatch(1);
    CountDownLatch begun = new CountDownLatch(1);
    Thread[] worker = new Thread[1];
    stuck.enqueue(
        () -> {
          worker[0] = Thread.currentThread();
          begun.countDown();
          try {
            never.await();
          } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
          }
        });
    assertTrue(begun.await(20, TimeUnit.SECONDS));
    FakeStream held = gpu.stream(1);
    held.hold();
    Throwable[] thrown = new Throwable[1];
    Thread waiter =
        new Thread(() -> thrown[0] = assertThrows(UMBPException.class, held::synchronize));
    waiter.start();
    while (waiter.getState() != Thread.State.WAITING) {
      Thread.onSpinWait();
    }
    gpu.close();
    gpu.close();
    waiter.join(20_000);
    assertEquals(UMBPException.Reason.CLOSED, ((UMBPException) thrown[0]).reason());
    assertTrue(worker[0].isDaemon());
    assertFalse(worker[0].isAlive());
    assertThrows(UMBPException.class, () -> gpu.malloc(0, 1));
    assertThrows(UMBPException.class, () -> gpu.stream(0));
    assertThrows(UMBPException.class, () -> held.enqueue(() -> {}));
  }

  private static String invalid(Executable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
    return refusal.getMessage();
  }
}
