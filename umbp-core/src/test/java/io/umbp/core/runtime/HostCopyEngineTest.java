package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

class HostCopyEngineTest {
  private static final Duration LONG = Duration.ofSeconds(60);

  /** Runs tasks only when told. */
  private static final class SteppedExecutor implements Executor {
    final Queue<Runnable> tasks = new ArrayDeque<>();

    @Override
    public void execute(Runnable task) {
      tasks.add(task);
    }

    void runAll() {
      while (!tasks.isEmpty()) {
        tasks.remove().run();
      }
    }
  }

  private static ByteBuffer random(int bytes, long seed) {
    byte[] content = new byte[bytes];
    new Random(seed).nextBytes(content);
    return ByteBuffer.allocateDirect(bytes).put(0, content);
  }

  private static byte[] bytes(ByteBuffer buffer, int from, int count) {
    byte[] copy = new byte[count];
    buffer.get(from, copy);
    return copy;
  }

  private static CopyBatch batch(TransferDirection direction, int keyCount) {
    CopyBatch batch = new CopyBatch();
    batch.reset(direction, KVCacheTensor.HOST, keyCount);
    return batch;
  }

  private static CopyTicket run(HostCopyEngine engine, CopyBatch batch) {
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    assertTrue(ticket.await(LONG));
    return ticket;
  }

  private static void copyOne(
      HostCopyEngine engine, TransferDirection direction, long device, long host, long length) {
    CopyBatch batch = batch(direction, 1);
    batch.add(device, host, length, 0);
    assertNull(run(engine, batch).failure(0));
  }

  private static UMBPException refused(Reason reason, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(reason, e.reason(), e.getMessage());
    return e;
  }

  @Test
  @DisplayName("case 56: position 1,024 and slice 512 of a 4,096 byte buffer give base + 1,024")
  void copiesFromPositionAndSlice() {
    ByteBuffer whole = random(4096, 56);
    ByteBuffer positioned = whole.duplicate().position(1024).limit(1536);
    ByteBuffer slice = whole.slice(1024, 512);
    HostCopyEngine engine = new HostCopyEngine();
    HostSlab slab = engine.allocateSlab(4096);
    for (ByteBuffer view : List.of(positioned, slice)) {
      long base = engine.register(KVCacheTensor.host(view).blocks(1, 512).build());
      copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 512);
      assertArrayEquals(bytes(whole, 1024, 512), bytes(slab.buffer(), 0, 512));
      refused(
          Reason.INVALID_ARGUMENT,
          () -> copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 513));
    }
    assertEquals(1024, positioned.position());
    assertEquals(1536, positioned.limit());
  }

  @Test
  @DisplayName(
      "case 56: the caller may move position and limit of a buffer once its tensor is built")
  void ignoresLaterPositions() {
    ByteBuffer buffer = random(4096, 1);
    HostCopyEngine engine = new HostCopyEngine();
    KVCacheTensor tensor = KVCacheTensor.host(buffer).blocks(1, 4096).build();
    buffer.limit(2048);
    long base = engine.register(tensor);
    HostSlab slab = engine.allocateSlab(4096);
    buffer.limit(4001).position(4000);
    copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 4096);
    assertArrayEquals(bytes(buffer.duplicate().clear(), 0, 4096), bytes(slab.buffer(), 0, 4096));
    assertEquals(4000, buffer.position());
    assertEquals(4001, buffer.limit());
  }

  @Test
  @DisplayName("case 56: a header 0x01020304 written to a slab in native order keeps its bytes")
  void keepsByteOrder() {
    HostCopyEngine engine = new HostCopyEngine();
    HostSlab slab = engine.allocateSlab(4096);
    ByteBuffer target = ByteBuffer.allocateDirect(4096);
    long base = engine.register(KVCacheTensor.host(target).blocks(1, 4096).build());
    slab.buffer().duplicate().order(ByteOrder.LITTLE_ENDIAN).putInt(8, 0x01020304);
    copyOne(engine, TransferDirection.LOAD, base, slab.baseAddress() + 8, 4);
    assertArrayEquals(new byte[] {4, 3, 2, 1}, bytes(target, 0, 4));
    assertEquals(ByteOrder.nativeOrder(), slab.buffer().order());
  }

  @Test
  void copiesRowsAcrossTensorSlabs() {
    ByteBuffer first = random(1000, 1);
    ByteBuffer second = random(10, 2);
    ByteBuffer third = random(1000, 3);
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(KVCacheTensor.host(first, second, third).blocks(1, 2010).build());
    HostSlab slab = engine.allocateSlab(2010);
    copyOne(engine, TransferDirection.STORE, base + 900, slab.baseAddress() + 7, 300);
    assertArrayEquals(bytes(first, 900, 100), bytes(slab.buffer(), 7, 100));
    assertArrayEquals(bytes(second, 0, 10), bytes(slab.buffer(), 107, 10));
    assertArrayEquals(bytes(third, 0, 190), bytes(slab.buffer(), 117, 190));

    slab.buffer().put(0, bytes(random(2010, 4), 0, 2010));
    copyOne(engine, TransferDirection.LOAD, base, slab.baseAddress(), 2010);
    assertArrayEquals(bytes(slab.buffer(), 0, 1000), bytes(first, 0, 1000));
    assertArrayEquals(bytes(slab.buffer(), 1000, 10), bytes(second, 0, 10));
    assertArrayEquals(bytes(slab.buffer(), 1010, 1000), bytes(third, 0, 1000));
  }

  @Test
  @DisplayName("case 58: block 242,708 of 8,848 bytes, which crosses 2^31, round-trips")
  void copiesAcrossTwoGiB(@TempDir Path directory) throws Exception {
    long poolBytes = 3_221_225_472L;
    int blockId = 242_708;
    long start = blockId * 8848L;
    assertEquals(2_147_480_384L, start);
    try (FileChannel file =
        FileChannel.open(
            directory.resolve("pool"),
            StandardOpenOption.CREATE,
            StandardOpenOption.READ,
            StandardOpenOption.WRITE,
            StandardOpenOption.SPARSE)) {
      ByteBuffer[] slabs = new ByteBuffer[3];
      for (int i = 0; i < 3; i++) {
        slabs[i] = file.map(FileChannel.MapMode.READ_WRITE, (long) i << 30, 1 << 30);
      }
      KVCacheTensor tensor =
          KVCacheTensor.host(slabs).blocks((int) (poolBytes / 8848), 8848).build();
      HostCopyEngine engine = new HostCopyEngine();
      long base = engine.register(tensor);
      HostSlab slab = engine.allocateSlab(2 * 8848);
      slab.buffer().put(0, bytes(random(8848, 58), 0, 8848));
      copyOne(engine, TransferDirection.LOAD, base + start, slab.baseAddress(), 8848);
      copyOne(engine, TransferDirection.STORE, base + start, slab.baseAddress() + 8848, 8848);
      byte[] expected = bytes(slab.buffer(), 0, 8848);
      assertArrayEquals(expected, bytes(slab.buffer(), 8848, 8848));
      assertEquals(expected[8848 - 5584 - 1], slabs[1].get((1 << 30) - 1));
      assertEquals(expected[8848 - 5584], slabs[2].get(0));
    }
  }

  @Test
  void givesTensorsOfOneAllocationTheirTrueDistance() {
    List<ByteBuffer> slabs = List.of(random(4096, 1), random(4096, 2));
    KVCacheTensor k = KVCacheTensor.host(0, slabs).blocks(4, 2048).build();
    KVCacheTensor v = KVCacheTensor.host(1024, slabs).blocks(4, 2048).build();
    KVCacheTensor other = KVCacheTensor.host(random(4096, 3)).blocks(1, 4096).build();
    HostCopyEngine engine = new HostCopyEngine();
    long kBase = engine.register(k);
    long otherBase = engine.register(other);
    assertEquals(1024, engine.register(v) - kBase);

    HostSlab slab = engine.allocateSlab(4096);
    engine.unregister(k);
    copyOne(engine, TransferDirection.STORE, kBase + 4096 + 1024, slab.baseAddress(), 1024);
    assertArrayEquals(bytes(slabs.get(1), 1024, 1024), bytes(slab.buffer(), 0, 1024));
    copyOne(engine, TransferDirection.STORE, otherBase, slab.baseAddress(), 1024);
    engine.unregister(v);
    engine.unregister(v);
    refused(
        Reason.INVALID_ARGUMENT,
        () -> copyOne(engine, TransferDirection.STORE, kBase, slab.baseAddress(), 1));
  }

  @Test
  void keepsATensorUntilItsLastRegistrationIsTakenBack() {
    HostCopyEngine engine = new HostCopyEngine();
    HostSlab slab = engine.allocateSlab(16);
    KVCacheTensor tensor = KVCacheTensor.host(random(16, 1)).blocks(1, 16).build();
    long base = engine.register(tensor);
    assertEquals(base, engine.register(tensor));
    engine.unregister(tensor);
    copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 16);
    engine.unregister(tensor);
    refused(
        Reason.INVALID_ARGUMENT,
        () -> copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 16));
  }

  @Test
  void keepsTwoPartsOfOneBufferApart() {
    ByteBuffer buffer = random(64, 1);
    HostCopyEngine engine = new HostCopyEngine();
    HostSlab slab = engine.allocateSlab(16);
    engine.register(KVCacheTensor.host(buffer.limit(16)).blocks(1, 16).build());
    buffer.limit(48).position(32);
    long base = engine.register(KVCacheTensor.host(buffer).blocks(1, 16).build());
    copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 16);
    assertArrayEquals(bytes(buffer, 32, 16), bytes(slab.buffer(), 0, 16));
  }

  @Test
  @DisplayName("rule 5: a batch that is changed while it is copied fails the changed keys")
  void failsRowsThatWereChanged() {
    SteppedExecutor executor = new SteppedExecutor();
    HostCopyEngine engine = HostCopyEngine.on(executor);
    long base = engine.register(KVCacheTensor.host(random(64, 1)).blocks(1, 64).build());
    HostSlab slab = engine.allocateSlab(64);
    CopyBatch batch = batch(TransferDirection.STORE, 3);
    for (int row = 0; row < 3; row++) {
      batch.add(base, slab.baseAddress() + row * 8L, 8, row);
    }
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    batch.length()[0] = 65;
    batch.device()[1] = -1;
    executor.runAll();
    assertTrue(ticket.poll());
    assertTrue(String.valueOf(ticket.failure(0)).contains("IndexOutOfBounds"));
    assertTrue(String.valueOf(ticket.failure(1)).contains("was changed"));
    assertNull(ticket.failure(2));
  }

  @Test
  @DisplayName("rule 7: a row outside registered memory or a live slab is refused before any copy")
  void refusesRowsOutsideMemory() {
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(KVCacheTensor.host(random(4096, 1)).blocks(1, 4096).build());
    HostSlab slab = engine.allocateSlab(4096);
    HostSlab gone = engine.allocateSlab(4096);
    engine.releaseSlab(gone);
    engine.releaseSlab(gone);
    long host = slab.baseAddress();
    byte[] before = bytes(slab.buffer(), 0, 4096);
    long[][] rows = {
      {base + 1, host, 4096},
      {base, host + 1, 4096},
      {base - 1, host, 1},
      {base, host, 0},
      {base, host, -1},
      {base, host, Long.MAX_VALUE},
      {0, host, 1},
      {base, 0, 1},
      {base, base, 1},
      {host, host, 1},
      {base, gone.baseAddress(), 1},
      {-1, host, 1},
      {Long.MIN_VALUE, host, 1},
    };
    for (long[] row : rows) {
      CopyBatch batch = batch(TransferDirection.STORE, 2);
      batch.add(base, host, 4096, 0);
      batch.add(row[0], row[1], row[2], 1);
      UMBPException e =
          refused(Reason.INVALID_ARGUMENT, () -> engine.submit(batch, DeviceFence.none()));
      assertTrue(e.getMessage().startsWith("row 1 of key 1"), e.getMessage());
    }
    CopyBatch batch = batch(TransferDirection.STORE, 1);
    batch.add(base, host, 4096, 1);
    refused(Reason.INVALID_ARGUMENT, () -> engine.submit(batch, DeviceFence.none()));
    assertArrayEquals(before, bytes(slab.buffer(), 0, 4096));

    CopyBatch tooLong = batch(TransferDirection.STORE, 1);
    tooLong.add(base + 4000, host, 97, 0);
    assertEquals(
        String.format(
            "row 0 of key 0, 97 bytes at address 0x%x (offset 4000), ends behind the limit of 4096"
                + " bytes there",
            base + 4000),
        refused(Reason.INVALID_ARGUMENT, () -> engine.submit(tooLong, DeviceFence.none()))
            .getMessage());
  }

  @Test
  void refusesDevices() {
    HostCopyEngine engine = new HostCopyEngine();
    refused(
        Reason.UNSUPPORTED,
        () -> engine.register(KVCacheTensor.device(0x7f00, 4096, 0).blocks(1, 4096).build()));
    refused(
        Reason.UNSUPPORTED,
        () -> engine.submit(batch(TransferDirection.LOAD, 1), DeviceFence.onStream(0, 1)));
    CopyBatch onDevice = new CopyBatch();
    onDevice.reset(TransferDirection.LOAD, 0, 1);
    refused(Reason.INVALID_ARGUMENT, () -> engine.submit(onDevice, DeviceFence.none()));
    CopyTicket ticket = engine.submit(batch(TransferDirection.LOAD, 1), DeviceFence.hostComplete());
    assertTrue(ticket.poll());
  }

  @Test
  void tellsMarksAsTheirRowsEnd() {
    SteppedExecutor executor = new SteppedExecutor();
    HostCopyEngine engine = HostCopyEngine.on(executor);
    int half = 16 << 20;
    ByteBuffer memory = ByteBuffer.allocateDirect(2 * half);
    long base = engine.register(KVCacheTensor.host(memory).blocks(1, 2L * half).build());
    HostSlab slab = engine.allocateSlab(2L * half);
    CopyBatch batch = batch(TransferDirection.STORE, 1);
    batch.endMark();
    for (int row = 0; row < 32; row++) {
      batch.add(base + ((long) row << 20), slab.baseAddress() + ((long) row << 20), 1 << 20, 0);
      if (row % 16 == 15) {
        batch.endMark();
      }
    }
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    assertEquals(4, executor.tasks.size());
    assertFalse(ticket.await(Duration.ZERO));
    assertTrue(ticket.isMarkDone(0));
    assertFalse(ticket.isMarkDone(1));
    executor.tasks.remove().run();
    assertFalse(ticket.isMarkDone(1));
    executor.tasks.remove().run();
    assertTrue(ticket.isMarkDone(1));
    assertFalse(ticket.isMarkDone(2));
    assertFalse(ticket.poll());
    executor.runAll();
    assertTrue(ticket.poll());
    assertTrue(ticket.isMarkDone(2));
    refused(Reason.INVALID_ARGUMENT, () -> ticket.isMarkDone(3));
    refused(Reason.INVALID_ARGUMENT, () -> ticket.failure(1));
  }

  @Test
  @DisplayName(
      "case 24: an Error while copying fails its key, the ticket ends, the next copy works")
  void failsOnlyTheKeyOfAnError(@TempDir Path directory) throws Exception {
    try (FileChannel file =
        FileChannel.open(
            directory.resolve("layer"),
            StandardOpenOption.CREATE,
            StandardOpenOption.READ,
            StandardOpenOption.WRITE)) {
      MappedByteBuffer mapped = file.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
      HostCopyEngine engine = new HostCopyEngine();
      long lost = engine.register(KVCacheTensor.host(mapped).blocks(16, 1 << 16).build());
      ByteBuffer memory = random(1 << 16, 24);
      long base = engine.register(KVCacheTensor.host(memory).blocks(1, 1 << 16).build());
      HostSlab slab = engine.allocateSlab(3 << 16);
      file.truncate(0);

      CopyBatch batch = batch(TransferDirection.STORE, 3);
      batch.add(base, slab.baseAddress() + (2 << 16), 1 << 16, 0);
      batch.add(lost, slab.baseAddress(), 1 << 16, 1);
      batch.add(base, slab.baseAddress() + (1 << 16), 1 << 16, 2);
      batch.endMark();
      CopyTicket ticket = run(engine, batch);
      String failure = ticket.failure(1);
      assertNotNull(failure);
      assertTrue(failure.startsWith("row 1 of key 1, 65536 bytes at 0x"), failure);
      assertTrue(failure.contains("InternalError"), failure);
      assertNull(ticket.failure(0));
      assertNull(ticket.failure(2));
      assertTrue(ticket.isMarkDone(0));
      assertArrayEquals(bytes(memory, 0, 1 << 16), bytes(slab.buffer(), 1 << 16, 1 << 16));
      copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 1 << 16);
      assertEquals(CloseResult.CLEAN, engine.close(Duration.ZERO));
    }
  }

  @Test
  @DisplayName("case 24: an executor that refuses the copy, or throws an Error, fails all keys")
  void failsWhatTheExecutorRefuses() {
    for (Throwable refusal : List.of(new RejectedExecutionException("full"), new Error("dead"))) {
      HostCopyEngine engine =
          HostCopyEngine.on(
              task -> {
                HostCopyEngineTest.<RuntimeException>sneak(refusal);
              });
      long base = engine.register(KVCacheTensor.host(random(64, 1)).blocks(1, 64).build());
      HostSlab slab = engine.allocateSlab(64);
      CopyBatch batch = batch(TransferDirection.STORE, 1);
      batch.add(base, slab.baseAddress(), 64, 0);
      CopyTicket ticket = engine.submit(batch, DeviceFence.none());
      assertTrue(ticket.poll());
      assertTrue(String.valueOf(ticket.failure(0)).contains(refusal.toString()));
      assertEquals(CloseResult.CLEAN, engine.close(Duration.ZERO));
    }
  }

  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void sneak(Throwable thrown) throws T {
    throw (T) thrown;
  }

  @Test
  void refusesMemoryOfAnotherThreadAndFailsItsKeysOnAnExecutor() throws Exception {
    ByteBuffer confined = arenaBuffer("ofConfined", new AutoCloseable[1]);
    KVCacheTensor tensor = KVCacheTensor.host(confined).blocks(1, 4096).build();
    UMBPException[] thrown = new UMBPException[1];
    Thread other =
        new Thread(
            () ->
                thrown[0] =
                    refused(Reason.INVALID_ARGUMENT, () -> new HostCopyEngine().register(tensor)));
    other.start();
    other.join();
    assertTrue(thrown[0].getMessage().contains("WrongThreadException"));

    HostCopyEngine engine =
        HostCopyEngine.on(
            task -> {
              Thread thread = new Thread(task);
              thread.start();
            });
    long base = engine.register(tensor);
    HostSlab slab = engine.allocateSlab(4096);
    CopyBatch batch = batch(TransferDirection.STORE, 1);
    batch.add(base, slab.baseAddress(), 4096, 0);
    assertTrue(String.valueOf(run(engine, batch).failure(0)).contains("WrongThreadException"));
  }

  @Test
  void failsTheKeysOfAClosedArena() throws Exception {
    AutoCloseable[] arena = new AutoCloseable[1];
    ByteBuffer shared = arenaBuffer("ofShared", arena);
    HostCopyEngine engine = new HostCopyEngine();
    long gone = engine.register(KVCacheTensor.host(shared).blocks(1, 4096).build());
    ByteBuffer memory = random(4096, 3);
    long base = engine.register(KVCacheTensor.host(memory).blocks(1, 4096).build());
    HostSlab slab = engine.allocateSlab(8192);
    arena[0].close();
    CopyBatch batch = batch(TransferDirection.STORE, 2);
    batch.add(gone, slab.baseAddress(), 4096, 0);
    batch.add(base, slab.baseAddress() + 4096, 4096, 1);
    CopyTicket ticket = run(engine, batch);
    assertTrue(String.valueOf(ticket.failure(0)).contains("IllegalStateException"));
    assertNull(ticket.failure(1));
    assertArrayEquals(bytes(memory, 0, 4096), bytes(slab.buffer(), 4096, 4096));
  }

  /** Returns 4,096 bytes of an arena of java.lang.foreign, which Java 17 does not have. */
  private static ByteBuffer arenaBuffer(String kind, AutoCloseable[] arenaOut) throws Exception {
    assumeTrue(Runtime.version().feature() >= 22, "java.lang.foreign is final from 22 on");
    Class<?> arenaType = Class.forName("java.lang.foreign.Arena");
    Object arena = arenaType.getMethod(kind).invoke(null);
    Method allocate = arenaType.getMethod("allocate", long.class, long.class);
    Object segment = allocate.invoke(arena, 4096L, 8L);
    arenaOut[0] = (AutoCloseable) arena;
    Class<?> segmentType = Class.forName("java.lang.foreign.MemorySegment");
    return (ByteBuffer) segmentType.getMethod("asByteBuffer").invoke(segment);
  }

  @Test
  @DisplayName(
      "rule 8: a slab given back while a batch uses it is not recycled before the batch ends")
  void recyclesASlabOnlyWhenItsCopyEnds() {
    SteppedExecutor executor = new SteppedExecutor();
    HostCopyEngine engine = HostCopyEngine.on(executor);
    int size = 12_289;
    ByteBuffer memory = random(size, 8);
    long base = engine.register(KVCacheTensor.host(memory).blocks(1, size).build());
    HostSlab slab = engine.allocateSlab(size);
    CopyBatch first = batch(TransferDirection.STORE, 1);
    first.add(base, slab.baseAddress(), size - 1, 0);
    CopyBatch second = batch(TransferDirection.STORE, 1);
    second.add(base + size - 1, slab.baseAddress() + size - 1, 1, 0);
    CopyTicket ticket = engine.submit(first, DeviceFence.none());
    engine.submit(second, DeviceFence.none());
    engine.releaseSlab(slab);
    engine.releaseSlab(slab);
    slab.buffer().put(0, (byte) 1);

    HostSlab fresh = engine.allocateSlab(size);
    fresh.buffer().put(0, (byte) 2);
    assertEquals(1, slab.buffer().get(0), "the held slab was handed out again");
    executor.runAll();
    assertNull(ticket.failure(0));
    assertArrayEquals(bytes(memory, 0, size), bytes(slab.buffer(), 0, size));

    slab.buffer().put(0, (byte) 3);
    HostSlab next = engine.allocateSlab(size);
    HostSlab afterNext = engine.allocateSlab(size);
    next.buffer().put(0, (byte) 4);
    afterNext.buffer().put(0, (byte) 5);
    assertEquals(4, slab.buffer().get(0), "the slab was recycled once, to the next request");
    assertEquals(2, fresh.buffer().get(0));
  }

  @Test
  @DisplayName("rule 8: close hands over the slab of a copy that still runs, which then ends well")
  void closesAgainstARunningCopy() {
    HostCopyEngine engine = HostCopyEngine.on(task -> new Thread(task).start());
    int rows = 4_000_000;
    ByteBuffer memory = random(rows, 8);
    long base = engine.register(KVCacheTensor.host(memory).blocks(1, rows).build());
    HostSlab slab = engine.allocateSlab(rows);
    CopyBatch batch = batch(TransferDirection.STORE, 1);
    for (int row = 0; row < rows; row++) {
      batch.add(base + row, slab.baseAddress() + row, 1, 0);
      if (row == 0) {
        batch.endMark();
      }
    }
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());
    while (!ticket.isMarkDone(0)) {
      Thread.onSpinWait();
    }
    CloseResult result = engine.close(Duration.ZERO);
    assumeTrue(!ticket.poll(), "the copy ended before close returned");
    assertEquals(new CloseResult(1, rows), result);
    assertTrue(ticket.await(LONG));
    assertNull(ticket.failure(0));
    assertEquals(new CloseResult(1, rows), engine.close(LONG));
  }

  @Test
  @DisplayName("rule 8: close gives up copies that have not begun")
  void closesAgainstAWaitingCopy() {
    SteppedExecutor executor = new SteppedExecutor();
    HostCopyEngine engine = HostCopyEngine.on(executor);
    long base = engine.register(KVCacheTensor.host(random(8192, 8)).blocks(1, 8192).build());
    HostSlab slab = engine.allocateSlab(8192);
    HostSlab idle = engine.allocateSlab(64);
    CopyBatch batch = batch(TransferDirection.STORE, 1);
    batch.add(base, slab.baseAddress(), 8192, 0);
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());

    assertEquals(CloseResult.CLEAN, engine.close(Duration.ZERO));
    assertTrue(ticket.poll(), "a copy that had not begun is given up");
    assertEquals("the copy engine was closed before the copy began", ticket.failure(0));
    slab.buffer().put(0, (byte) ~slab.buffer().get(0));
    byte[] before = bytes(slab.buffer(), 0, 8192);
    executor.runAll();
    assertArrayEquals(before, bytes(slab.buffer(), 0, 8192), "it does not run later either");

    assertEquals(CloseResult.CLEAN, engine.close(LONG));
    engine.releaseSlab(idle);
    engine.unregister(KVCacheTensor.host(random(8, 1)).blocks(1, 8).build());
    refused(Reason.CLOSED, () -> engine.submit(batch, DeviceFence.none()));
    refused(Reason.CLOSED, () -> engine.allocateSlab(64));
    refused(
        Reason.CLOSED,
        () -> engine.register(KVCacheTensor.host(random(8, 1)).blocks(1, 8).build()));
  }

  @Test
  void refusesImpossibleSlabs() {
    HostCopyEngine engine = new HostCopyEngine();
    refused(Reason.INVALID_ARGUMENT, () -> engine.allocateSlab(0));
    refused(Reason.INVALID_ARGUMENT, () -> engine.allocateSlab((1L << 30) + 1));
  }

  @Test
  @DisplayName("a stale address is refused for long, and its second release frees no other slab")
  void doesNotReuseAddressesSoon() {
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(KVCacheTensor.host(random(64, 1)).blocks(1, 64).build());
    HostSlab stale = engine.allocateSlab(64);
    engine.releaseSlab(stale);
    HostSlab slab = engine.allocateSlab(64);
    int rounds = 0;
    while (slab.baseAddress() != stale.baseAddress()) {
      refused(
          Reason.INVALID_ARGUMENT,
          () -> copyOne(engine, TransferDirection.STORE, base, stale.baseAddress(), 64));
      engine.releaseSlab(slab);
      slab = engine.allocateSlab(64);
      rounds++;
    }
    assertTrue(rounds > 100, "reused after " + rounds);
    engine.releaseSlab(stale);
    copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 64);
  }

  @Test
  void holdsThousandsOfSlabs() {
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(KVCacheTensor.host(random(64, 1)).blocks(1, 64).build());
    Set<Long> addresses = new HashSet<>();
    for (int i = 0; i < 2000; i++) {
      HostSlab slab = engine.allocateSlab(64);
      assertTrue(addresses.add(slab.baseAddress()));
      copyOne(engine, TransferDirection.STORE, base, slab.baseAddress(), 64);
    }
    assertEquals(CloseResult.CLEAN, engine.close(Duration.ZERO));
  }
}
