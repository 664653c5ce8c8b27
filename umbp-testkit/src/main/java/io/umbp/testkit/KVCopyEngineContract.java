package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertAll;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/**
 * What every {@link KVCopyEngine} must do, as JUnit tests. Extend it, implement {@link #open}, and
 * inherit them; the number in a test's name is that of the rule in the runtime authors' guide.
 *
 * <p>Each test opens its own engine. Tests for what the fixture cannot do (hold copies, make one
 * fail, keep work pending on a device stream) are skipped and say so.
 */
@Timeout(60)
public abstract class KVCopyEngineContract {
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final Duration SHORT = Duration.ofMillis(50);
  private static final int PAGE = 4096;

  private Fixture fixture;
  private KVCopyEngine engine;

  /** For subclasses. */
  protected KVCopyEngineContract() {}

  /**
   * Opens an engine for one test.
   *
   * @return the engine and what the tests need around it; closed after the test
   * @throws Exception when it cannot be opened; the test fails
   */
  protected abstract Fixture open() throws Exception;

  /**
   * An opened engine, memory for it, and a hand on its copies. An engine over host memory that
   * copies inside submit is done with {@link #engine}; all else has defaults for it. Thread-safe.
   */
  @FunctionalInterface
  public interface Fixture extends AutoCloseable {
    /**
     * Returns the engine.
     *
     * @return the same engine at each call
     */
    KVCopyEngine engine();

    /**
     * Allocates memory that the engine can register. Not registered yet; lives until the fixture is
     * closed.
     *
     * @param sizeBytes size, at least 2
     * @return one tensor that is all of the allocation; by default host memory in two buffers
     */
    default KVCacheTensor allocate(int sizeBytes) {
      int first = sizeBytes / 3 + 1;
      return KVCacheTensor.host(
              ByteBuffer.allocateDirect(first), ByteBuffer.allocateDirect(sizeBytes - first))
          .blocks(1, sizeBytes)
          .build();
    }

    /**
     * Writes engine memory behind the engine's back; the default is for host memory.
     *
     * @param memory a tensor of {@link #allocate}
     * @param offset bytes from its start
     * @param bytes what
     */
    default void write(KVCacheTensor memory, int offset, byte[] bytes) {
      long sliceStart = -memory.address() - offset;
      for (KVCacheTensor.HostSlice slice : memory.slabs()) {
        int from = (int) Math.max(0, sliceStart);
        int end = (int) Math.min(bytes.length, sliceStart + slice.length());
        if (from < end) {
          int at = slice.start() + (int) (from - sliceStart);
          slice.buffer().put(at, bytes, from, end - from);
        }
        sliceStart += slice.length();
      }
    }

    /**
     * Reads engine memory behind the engine's back; the default is for host memory.
     *
     * @param memory a tensor of {@link #allocate}
     * @param offset bytes from its start
     * @param length number of bytes
     * @return a copy
     */
    default byte[] read(KVCacheTensor memory, int offset, int length) {
      byte[] bytes = new byte[length];
      long sliceStart = -memory.address() - offset;
      for (KVCacheTensor.HostSlice slice : memory.slabs()) {
        int from = (int) Math.max(0, sliceStart);
        int end = (int) Math.min(length, sliceStart + slice.length());
        if (from < end) {
          int at = slice.start() + (int) (from - sliceStart);
          slice.buffer().get(at, bytes, from, end - from);
        }
        sliceStart += slice.length();
      }
      return bytes;
    }

    /**
     * Returns a fence that waits for nothing.
     *
     * @return by default {@link DeviceFence#hostComplete}
     */
    default DeviceFence fence() {
      return DeviceFence.hostComplete();
    }

    /**
     * Tells whether copies run inside submit, so that none can be held.
     *
     * @return true by default
     */
    default boolean copiesInline() {
      return true;
    }

    /** Keeps copies that are submitted from now on from beginning. Only without inline copies. */
    default void holdCopies() {
      throw new UnsupportedOperationException("copies run inside submit");
    }

    /** Ends a hold; without effect when there is none. */
    default void releaseCopies() {}

    /**
     * Makes the rows of a key of the next batch fail.
     *
     * @param key the key's index
     * @return whether the engine can be made to fail; false by default
     */
    default boolean failNextBatch(int key) {
      return false;
    }

    /**
     * Puts a writer of engine memory on the fixture's device stream, held back until it is started.
     *
     * @param memory a tensor of {@link #allocate}
     * @param offset bytes from its start
     * @param bytes what it writes
     * @return the work, null by default: the engine has no streams
     */
    default @Nullable PendingWork pendingWrite(KVCacheTensor memory, int offset, byte[] bytes) {
      return null;
    }

    /**
     * Puts a reader of engine memory on the fixture's device stream, held back until it is started.
     *
     * @param memory a tensor of {@link #allocate}
     * @param offset bytes from its start
     * @param length number of bytes it reads
     * @return the work, null by default: the engine has no streams
     */
    default @Nullable PendingWork pendingRead(KVCacheTensor memory, int offset, int length) {
      return null;
    }

    /** Closes the engine without waiting, and frees the memory. */
    @Override
    default void close() {
      engine().close(Duration.ZERO);
    }
  }

  /** Work on a device stream that does not begin before it is started. */
  public interface PendingWork {
    /**
     * Returns a fence behind the work.
     *
     * @return a fence on the work's stream
     */
    DeviceFence fence();

    /** Lets the work begin. */
    void start();

    /**
     * Waits for the end of the work.
     *
     * @return the bytes that it wrote or read
     */
    byte[] await();
  }

  /** Registered engine memory beside a slab of the same size, and the bytes both should hold. */
  private final class Room {
    final KVCacheTensor memory;
    final long base;
    final HostSlab slab;
    final byte[] expectedMemory;
    final byte[] expectedSlab;

    Room(int sizeBytes, long seed) {
      memory = fixture.allocate(sizeBytes);
      base = engine.register(memory);
      slab = engine.allocateSlab(sizeBytes);
      expectedMemory = pattern(sizeBytes, seed);
      expectedSlab = pattern(sizeBytes, ~seed);
      fixture.write(memory, 0, expectedMemory);
      slab.buffer().put(0, expectedSlab);
    }

    CopyBatch batch(TransferDirection direction, int keyCount) {
      CopyBatch batch = new CopyBatch();
      batch.reset(direction, memory.deviceOrdinal(), keyCount);
      return batch;
    }

    void add(CopyBatch batch, int memoryOffset, int slabOffset, int length, int key) {
      batch.add(base + memoryOffset, slab.baseAddress() + slabOffset, length, key);
      batch.endMark();
    }

    /** Adds a row and expects its bytes to arrive. */
    void addGood(CopyBatch batch, int memoryOffset, int slabOffset, int length, int key) {
      add(batch, memoryOffset, slabOffset, length, key);
      if (batch.direction() == TransferDirection.STORE) {
        System.arraycopy(expectedMemory, memoryOffset, expectedSlab, slabOffset, length);
      } else {
        System.arraycopy(expectedSlab, slabOffset, expectedMemory, memoryOffset, length);
      }
    }

    /** Returns a batch of one key that copies everything. */
    CopyBatch whole(TransferDirection direction) {
      CopyBatch batch = batch(direction, 1);
      addGood(batch, 0, 0, expectedSlab.length, 0);
      return batch;
    }

    void check(String when) {
      assertAll(
          () -> assertSame(expectedMemory, memoryBytes(), when + ": engine memory"),
          () -> assertSame(expectedSlab, slabBytes(), when + ": slab"));
    }

    byte[] memoryBytes() {
      return fixture.read(memory, 0, expectedMemory.length);
    }

    byte[] slabBytes() {
      return bytes(slab);
    }
  }

  @BeforeEach
  final void openEngine() throws Exception {
    fixture = open();
    engine = fixture.engine();
  }

  @AfterEach
  final void closeEngine() throws Exception {
    try (Fixture closing = fixture) {
      closing.releaseCopies();
      engine.close(LONG);
    }
  }

  @Test
  @DisplayName(
      "rule 1: a ticket is not final, and none of its marks done, while its copies are held")
  final void heldCopyIsNotFinal() {
    assumeHolds();
    for (TransferDirection direction : TransferDirection.values()) {
      Room room = new Room(4 * PAGE, 1);
      byte[] slabBefore = room.slabBytes();
      CopyBatch batch = room.batch(direction, 2);
      fixture.holdCopies();
      room.addGood(batch, 0, PAGE, PAGE, 0);
      room.addGood(batch, 2 * PAGE, 3 * PAGE, PAGE, 1);
      CopyTicket ticket = submit(batch);
      assertFalse(ticket.await(SHORT), direction + " is final while held");
      assertFalse(ticket.poll(), direction + " is final while held");
      assertFalse(ticket.isMarkDone(0), direction + ": mark 0 is done while held");
      assertFalse(ticket.isMarkDone(1), direction + ": mark 1 is done while held");
      if (direction == TransferDirection.STORE) {
        assertSame(slabBefore, room.slabBytes(), "slab while held");
      }
      fixture.releaseCopies();
      finish(ticket);
      room.check(direction + " after the hold");
    }
  }

  @Test
  @DisplayName("rule 1: after a ticket is final neither side is touched again")
  final void finalTicketTouchesNothing() {
    for (TransferDirection direction : TransferDirection.values()) {
      Room room = new Room(PAGE, 2);
      CopyTicket ticket = finish(submit(room.whole(direction)));
      byte[] laterMemory = pattern(PAGE, 20);
      byte[] laterSlab = pattern(PAGE, 21);
      fixture.write(room.memory, 0, laterMemory);
      room.slab.buffer().put(0, laterSlab);
      Room other = new Room(PAGE, 22);
      finish(submit(other.whole(direction)));
      assertTrue(ticket.poll(), "a final ticket stays final");
      assertSame(laterMemory, room.memoryBytes(), direction + ": engine memory");
      assertSame(laterSlab, room.slabBytes(), direction + ": slab");
    }
  }

  @Test
  @DisplayName("rule 1: a mark is done only when every row before its end is over")
  final void marksFollowTheirRows() {
    int rows = 256;
    for (TransferDirection direction : TransferDirection.values()) {
      Room room = new Room(rows * PAGE, 3);
      CopyBatch batch = room.batch(direction, 1);
      for (int row = 0; row < rows; row++) {
        room.addGood(batch, row * PAGE, (rows - 1 - row) * PAGE, PAGE, 0);
      }
      CopyTicket ticket = submit(batch);
      for (int mark = 0; mark < rows; mark++) {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (!ticket.isMarkDone(mark)) {
          assertTrue(System.nanoTime() < deadline, "mark " + mark + " is never done");
          ticket.await(Duration.ofNanos(1));
        }
        checkMark(room, direction, mark, rows);
        assertTrue(ticket.isMarkDone(mark / 2), "a mark is done, an earlier one not: " + mark);
      }
      finish(ticket);
      room.check(direction.toString());
    }
  }

  private void checkMark(Room room, TransferDirection direction, int row, int rows) {
    int memoryOffset = row * PAGE;
    int slabOffset = (rows - 1 - row) * PAGE;
    byte[] target = new byte[PAGE];
    if (direction == TransferDirection.LOAD) {
      target = fixture.read(room.memory, memoryOffset, PAGE);
    } else {
      room.slab.buffer().get(slabOffset, target);
    }
    byte[] source = Arrays.copyOfRange(room.expectedMemory, memoryOffset, memoryOffset + PAGE);
    assertSame(source, target, direction + ": row of done mark " + row);
  }

  @Test
  @DisplayName("rule 1: a batch without rows is final at once")
  final void emptyBatchIsFinal() {
    Room room = new Room(PAGE, 4);
    for (TransferDirection direction : TransferDirection.values()) {
      CopyBatch batch = room.batch(direction, 2);
      batch.endMark();
      CopyTicket ticket = submit(batch);
      assertTrue(ticket.poll(), direction + " without rows");
      assertTrue(ticket.await(Duration.ZERO), direction + " without rows");
      assertTrue(ticket.await(Duration.ofSeconds(Long.MAX_VALUE)), direction + " without rows");
      assertTrue(ticket.isMarkDone(0), direction + ": mark without rows");
      assertNull(ticket.failure(0));
      assertNull(ticket.failure(1));
    }
    room.check("after empty batches");
  }

  @Test
  @DisplayName("rule 2: a store reads nothing before the producer on its fence's stream is done")
  final void storeWaitsForProducer() {
    Room room = new Room(2 * PAGE, 5);
    byte[] produced = pattern(PAGE, 50);
    PendingWork producer = assumeStreams(fixture.pendingWrite(room.memory, PAGE, produced));
    System.arraycopy(produced, 0, room.expectedMemory, PAGE, PAGE);
    CopyBatch batch = room.batch(TransferDirection.STORE, 1);
    room.addGood(batch, PAGE, 0, PAGE, 0);
    CopyTicket ticket = engine.submit(batch, producer.fence());
    boolean early = ticket.await(SHORT);
    producer.start();
    producer.await();
    finish(ticket);
    room.check("store behind its producer");
    assertFalse(early, "the store was final before its producer began");
  }

  @Test
  @DisplayName("rule 2: work enqueued after a store was submitted is not waited for")
  final void laterWorkIsNotWaitedFor() {
    Room room = new Room(PAGE, 6);
    PendingWork before = assumeStreams(fixture.pendingWrite(room.memory, 0, new byte[] {1}));
    before.start();
    room.expectedMemory[0] = 1;
    CopyTicket ticket = engine.submit(room.whole(TransferDirection.STORE), before.fence());
    PendingWork later = assumeStreams(fixture.pendingWrite(room.memory, 1, new byte[] {2}));
    finish(ticket);
    room.check("store before later work");
    later.start();
    later.await();
  }

  @Test
  @DisplayName("rule 2: a store from device memory without a fence is refused")
  final void storeNeedsFence() {
    fenceIsRequired(TransferDirection.STORE);
  }

  @Test
  @DisplayName("rule 9: a load writes nothing before the last user on its fence's stream is done")
  final void loadWaitsForLastUser() {
    Room room = new Room(2 * PAGE, 7);
    byte[] old = Arrays.copyOfRange(room.expectedMemory, PAGE, 2 * PAGE);
    PendingWork lastUser = assumeStreams(fixture.pendingRead(room.memory, PAGE, PAGE));
    CopyBatch batch = room.batch(TransferDirection.LOAD, 1);
    room.addGood(batch, PAGE, 0, PAGE, 0);
    CopyTicket ticket = engine.submit(batch, lastUser.fence());
    boolean early = ticket.await(SHORT);
    lastUser.start();
    assertSame(old, lastUser.await(), "what the last user read");
    finish(ticket);
    room.check("load behind the last user");
    assertFalse(early, "the load was final before the last user began");
  }

  @Test
  @DisplayName("rule 9: a load into device memory without a fence is refused")
  final void loadNeedsFence() {
    fenceIsRequired(TransferDirection.LOAD);
  }

  private void fenceIsRequired(TransferDirection direction) {
    Room room = new Room(PAGE, 8);
    assumeTrue(room.memory.isDevice(), "host memory needs no fence");
    CopyBatch batch = room.batch(direction, 1);
    room.add(batch, 0, 0, PAGE, 0);
    UMBPException refusal =
        assertThrows(UMBPException.class, () -> engine.submit(batch, DeviceFence.none()));
    assertEquals(UMBPException.Reason.FENCE_REQUIRED, refusal.reason());
    room.check("refused " + direction);
  }

  @Test
  @DisplayName("rule 4: giving a slab back twice is harmless")
  final void doubleReleaseIsHarmless() {
    HostSlab gone = engine.allocateSlab(PAGE);
    engine.releaseSlab(gone);
    engine.releaseSlab(gone);
    HostSlab first = engine.allocateSlab(PAGE);
    HostSlab second = engine.allocateSlab(PAGE);
    first.buffer().put(0, pattern(PAGE, 1));
    second.buffer().put(0, pattern(PAGE, 2));
    assertSame(pattern(PAGE, 1), bytes(first), "first slab");
    assertSame(pattern(PAGE, 2), bytes(second), "second slab");
    assertTrue(
        Math.abs(first.baseAddress() - second.baseAddress()) >= PAGE,
        () -> first + " and " + second + " overlap");
  }

  @Test
  @DisplayName("rule 5: rows of any size and alignment arrive whole and no other byte changes")
  final void bytesArriveExactly() {
    for (int round = 0; round < 12; round++) {
      long seed = 0xB10CL + round;
      Random random = new Random(seed);
      Room room = new Room(3 * PAGE + 1 + random.nextInt(64 * PAGE), seed);
      for (TransferDirection direction : TransferDirection.values()) {
        CopyBatch batch = randomBatch(room, direction, random);
        CopyTicket ticket = finish(submit(batch));
        for (int key = 0; key < batch.keyCount(); key++) {
          assertNull(ticket.failure(key), "seed " + seed);
        }
        room.check(direction + ", seed " + seed);
      }
    }
  }

  /** Returns rows that do not overlap, some adjacent, their order mixed on the host side. */
  private static CopyBatch randomBatch(Room room, TransferDirection direction, Random random) {
    int keys = 1 + random.nextInt(5);
    int size = room.expectedSlab.length;
    CopyBatch batch = room.batch(direction, keys);
    int half = size / 2;
    boolean crossed = random.nextBoolean();
    for (int at = random.nextInt(9); at < size; ) {
      int limit = crossed && at < half ? half - at : size - at;
      int length = Math.min(limit, 1 + random.nextInt(random.nextBoolean() ? 17 : 3 * PAGE));
      int target = at;
      if (crossed) {
        target = at < half ? at + size - half : at - half;
      }
      if (target + length <= size) {
        room.addGood(batch, at, target, length, random.nextInt(keys));
      }
      at += length + (random.nextBoolean() ? 0 : random.nextInt(33));
    }
    return batch;
  }

  @Test
  @DisplayName("rule 5: a failed row fails its key and no other")
  final void failureStaysWithItsKey() {
    for (TransferDirection direction : TransferDirection.values()) {
      Room room = new Room(8 * PAGE, 9);
      CopyBatch batch = room.batch(direction, 4);
      for (int row = 0; row < 8; row++) {
        if (row % 4 == 2) {
          room.add(batch, row * PAGE, row * PAGE, PAGE, 2);
        } else {
          room.addGood(batch, row * PAGE, row * PAGE, PAGE, row % 4);
        }
      }
      assumeTrue(fixture.failNextBatch(2), "the engine cannot be made to fail");
      CopyTicket ticket = finish(submit(batch));
      assertNull(ticket.failure(0));
      assertNull(ticket.failure(1));
      String why = ticket.failure(2);
      assertNotNull(why, "key 2 failed");
      assertFalse(why.isBlank(), "a failure says why");
      assertNull(ticket.failure(3));
      for (int row = 2; row < 8; row += 4) {
        int at = row * PAGE;
        if (direction == TransferDirection.LOAD) {
          System.arraycopy(room.memoryBytes(), at, room.expectedMemory, at, PAGE);
        } else {
          System.arraycopy(room.slabBytes(), at, room.expectedSlab, at, PAGE);
        }
      }
      room.check(direction + " with a failed key");
      assertNull(finish(submit(room.whole(direction))).failure(0), "the batch after a failure");
      room.check(direction + " after the failure");
    }
  }

  @Test
  @DisplayName("rule 5: tensors in one allocation keep their true distance")
  final void sharedAllocationKeepsDistance() {
    Room room = new Room(4 * PAGE, 10);
    KVCacheTensor second = part(room.memory, PAGE + 64, 2 * PAGE);
    long base = engine.register(second);
    assertEquals(PAGE + 64, base - room.base, "distance of two tensors in one allocation");
    CopyBatch batch = room.batch(TransferDirection.STORE, 1);
    batch.add(base + 7, room.slab.baseAddress(), PAGE, 0);
    System.arraycopy(room.expectedMemory, PAGE + 64 + 7, room.expectedSlab, 0, PAGE);
    finish(submit(batch));
    room.check("store through the second tensor");
    engine.unregister(room.memory);
    CopyBatch load = room.batch(TransferDirection.LOAD, 1);
    load.add(base, room.slab.baseAddress() + PAGE, PAGE, 0);
    System.arraycopy(room.expectedSlab, PAGE, room.expectedMemory, PAGE + 64, PAGE);
    finish(submit(load));
    room.check("load through the second tensor after the first is gone");
  }

  @Test
  @DisplayName("rule 5: a row may run through neighbouring tensors of one allocation")
  final void rowsRunThroughNeighbouringTensors() {
    Room room = new Room(4 * PAGE, 11);
    long first = engine.register(part(room.memory, 0, PAGE));
    long second = engine.register(part(room.memory, PAGE, PAGE));
    assertEquals(PAGE, second - first, "distance of two neighbours");
    engine.unregister(room.memory);
    int half = PAGE / 2;
    CopyBatch batch = room.batch(TransferDirection.STORE, 1);
    batch.add(first + half, room.slab.baseAddress(), PAGE, 0);
    System.arraycopy(room.expectedMemory, half, room.expectedSlab, 0, PAGE);
    finish(submit(batch));
    room.check("store of a row through two tensors");
  }

  @Test
  @DisplayName("rule 5: batches of several threads do not mix")
  final void threadsDoNotMix() throws Exception {
    int threads = 4;
    List<Callable<Void>> tasks = new ArrayList<>();
    for (int thread = 0; thread < threads; thread++) {
      Room room = new Room(32 * PAGE, 100 + thread);
      Random random = new Random(thread);
      tasks.add(
          () -> {
            for (int round = 0; round < 10; round++) {
              for (TransferDirection direction : TransferDirection.values()) {
                finish(submit(randomBatch(room, direction, random)));
                room.check(direction + " in round " + round);
              }
            }
            return null;
          });
    }
    inParallel(tasks);
  }

  @Test
  @DisplayName("rule 7: a row outside memory is refused by number before any row is copied")
  final void badRowsAreRefused() {
    int size = 4 * PAGE;
    Room room = new Room(size, 11);
    long device = room.base;
    long host = room.slab.baseAddress();
    for (TransferDirection direction : TransferDirection.values()) {
      List<Executable> checks = new ArrayList<>();
      checks.add(refused(room, direction, device + size - 8, host, 9, 0));
      checks.add(refused(room, direction, device - 1, host, 8, 0));
      checks.add(refused(room, direction, device + size, host, 1, 0));
      checks.add(refused(room, direction, device + size + 1, host, 1, 0));
      checks.add(refused(room, direction, device, host + size - 8, 9, 0));
      checks.add(refused(room, direction, device, host - 1, 8, 0));
      checks.add(refused(room, direction, device, host + size, 1, 0));
      checks.add(refused(room, direction, device, host, 0, 0));
      checks.add(refused(room, direction, device, host, -1, 0));
      checks.add(refused(room, direction, device + 8, host + 8, Long.MIN_VALUE, 0));
      checks.add(refused(room, direction, device + 8, host + 8, Long.MAX_VALUE, 0));
      checks.add(refused(room, direction, 0, host, 8, 0));
      checks.add(refused(room, direction, device, 0, 8, 0));
      checks.add(refused(room, direction, Long.MAX_VALUE, host, 8, 0));
      checks.add(refused(room, direction, device, Long.MIN_VALUE, 8, 0));
      checks.add(refused(room, direction, host, device, 8, 0));
      checks.add(refused(room, direction, device, host, 8, 1));
      checks.add(refused(room, direction, device, host, 8, -1));
      assertAll(checks);
      finish(submit(room.whole(direction)));
      room.check(direction + " after refusals");
    }
  }

  /** Checks that a batch of two good rows and a bad one is refused and leaves nothing touched. */
  private Executable refused(
      Room room, TransferDirection direction, long device, long host, long length, int key) {
    return () -> {
      CopyBatch batch = room.batch(direction, 1);
      room.add(batch, 0, PAGE, PAGE, 0);
      room.add(batch, PAGE, 2 * PAGE, PAGE, 0);
      batch.add(device, host, length, key);
      String row = String.format("%s 0x%x 0x%x %d key %d", direction, device, host, length, key);
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> submit(batch), () -> "not refused: " + row);
      assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason(), row);
      String message = String.valueOf(refusal.getMessage());
      assertTrue(message.contains("row 2"), () -> "no row in: " + message);
      if (key == 0 && length > 0 && length < PAGE) {
        assertTrue(message.contains(length + " bytes"), () -> "no length in: " + message);
        assertTrue(
            message.contains(Long.toHexString(device)) || message.contains(Long.toHexString(host)),
            () -> "no address in: " + message);
      }
      room.check("refused " + row);
    };
  }

  @Test
  @DisplayName("rule 7: rows on memory that is not, or no longer, registered are refused")
  final void unregisteredMemoryIsRefused() {
    Room room = new Room(PAGE, 12);
    Room other = new Room(PAGE, 13);
    engine.unregister(room.memory);
    engine.unregister(fixture.allocate(PAGE));
    CopyBatch batch = room.batch(TransferDirection.LOAD, 1);
    room.add(batch, 0, 0, 8, 0);
    assertInvalid(() -> submit(batch));
    room.check("unregistered");
    finish(submit(other.whole(TransferDirection.LOAD)));
    other.check("still registered");
  }

  @Test
  @DisplayName("rule 7: rows on a slab that was given back are refused")
  final void releasedSlabIsRefused() {
    Room room = new Room(PAGE, 14);
    engine.releaseSlab(room.slab);
    for (TransferDirection direction : TransferDirection.values()) {
      CopyBatch batch = room.batch(direction, 1);
      room.add(batch, 0, 0, 8, 0);
      assertInvalid(() -> submit(batch));
    }
    assertSame(room.expectedMemory, room.memoryBytes(), "engine memory");
  }

  @Test
  @DisplayName("rule 7: a device that does not exist is refused")
  final void unknownDeviceIsRefused() {
    Room room = new Room(PAGE, 15);
    CopyBatch batch = new CopyBatch();
    batch.reset(TransferDirection.LOAD, 97, 1);
    room.add(batch, 0, 0, 8, 0);
    assertInvalid(() -> submit(batch));
    room.check("unknown device");
  }

  @Test
  @DisplayName("rule 7: slab sizes outside 1 byte to 1 GiB are refused")
  final void slabSizesAreChecked() {
    for (long size : new long[] {0, -1, (1L << 30) + 1, Long.MAX_VALUE, Long.MIN_VALUE}) {
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> engine.allocateSlab(size), "size " + size);
      assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
      String message = String.valueOf(refusal.getMessage());
      assertTrue(message.contains(Long.toString(size)), () -> "no size in: " + message);
      assertTrue(message.contains("1073741824"), () -> "no limit in: " + message);
    }
    for (int size : new int[] {1, 7, PAGE + 1}) {
      HostSlab slab = engine.allocateSlab(size);
      assertTrue(slab.buffer().isDirect());
      assertEquals(size, slab.sizeBytes());
      assertEquals(size, slab.buffer().capacity());
    }
  }

  @Test
  @DisplayName("rule 8: a slab given back during a copy lives until the copy ends")
  final void releasedSlabOutlivesItsCopy() {
    assumeHolds();
    Room room = new Room(PAGE, 16);
    CopyBatch batch = room.whole(TransferDirection.LOAD);
    fixture.holdCopies();
    CopyTicket ticket = submit(batch);
    engine.releaseSlab(room.slab);
    HostSlab next = engine.allocateSlab(PAGE);
    byte[] nextBytes = pattern(PAGE, 160);
    next.buffer().put(0, nextBytes);
    fixture.releaseCopies();
    finish(ticket);
    assertNull(ticket.failure(0));
    assertSame(room.expectedMemory, room.memoryBytes(), "loaded from the slab given back");
    assertSame(nextBytes, bytes(next), "slab allocated meanwhile");
  }

  @Test
  @DisplayName("rule 8: close lets running copies end")
  final void closeWaitsForCopies() {
    Room room = new Room(256 * PAGE, 17);
    CopyBatch batch = room.batch(TransferDirection.LOAD, 1);
    for (int row = 0; row < 256; row++) {
      room.addGood(batch, row * PAGE, row * PAGE, PAGE, 0);
    }
    CopyTicket ticket = submit(batch);
    assertEquals(CloseResult.CLEAN, engine.close(LONG));
    assertTrue(ticket.poll(), "final after a clean close");
    assertNull(ticket.failure(0));
    assertSame(room.expectedMemory, room.memoryBytes(), "loaded while closing");
  }

  @Test
  @DisplayName("rule 8: close returns by its bound and frees nothing that a held copy uses")
  final void closeIsBounded() {
    assumeHolds();
    Room room = new Room(PAGE, 18);
    byte[] memoryBefore = room.expectedMemory.clone();
    CopyBatch batch = room.whole(TransferDirection.LOAD);
    fixture.holdCopies();
    CopyTicket ticket = submit(batch);
    CloseResult result = engine.close(SHORT);
    if (result.isClean()) {
      assertTrue(ticket.poll(), "a clean close ended the copy");
      assertNotNull(ticket.failure(0), "a copy that never ran looks like success");
      assertSame(memoryBefore, room.memoryBytes(), "target of a copy that never ran");
      return;
    }
    assertEquals(new CloseResult(1, PAGE), result);
    assertEquals(result, engine.close(LONG), "second close");
    fixture.releaseCopies();
    finish(ticket);
    if (ticket.failure(0) == null) {
      assertSame(room.expectedMemory, room.memoryBytes(), "loaded after close");
    }
  }

  @Test
  @DisplayName("rule 8: close is idempotent and later work is refused as closed")
  final void closedEngineRefusesWork() {
    Room room = new Room(PAGE, 19);
    CloseResult first = engine.close(LONG);
    assertEquals(CloseResult.CLEAN, first);
    assertEquals(first, engine.close(Duration.ZERO));
    CopyBatch batch = room.batch(TransferDirection.LOAD, 1);
    room.add(batch, 0, 0, 8, 0);
    assertClosed(() -> submit(batch));
    assertClosed(() -> engine.allocateSlab(PAGE));
    assertClosed(() -> engine.register(fixture.allocate(PAGE)));
    assertDoesNotThrow(() -> engine.releaseSlab(room.slab));
    assertDoesNotThrow(() -> engine.unregister(room.memory));
    assertSame(room.expectedMemory, room.memoryBytes(), "engine memory after close");
  }

  @Test
  @DisplayName("rule 8: threads that copy while the engine closes end with bytes or a refusal")
  final void closeAgainstRunningWork() throws Exception {
    List<Callable<Void>> tasks = new ArrayList<>();
    for (int thread = 0; thread < 4; thread++) {
      Room room = new Room(16 * PAGE, 200 + thread);
      boolean closer = thread % 2 == 1;
      tasks.add(
          () -> {
            copyUntilClosed(room, closer ? 2 : 500);
            assertEquals(CloseResult.CLEAN, engine.close(LONG));
            return null;
          });
    }
    inParallel(tasks);
  }

  private void copyUntilClosed(Room room, int rounds) {
    for (int round = 0; round < rounds; round++) {
      CopyTicket ticket;
      try {
        ticket = submit(room.whole(TransferDirection.LOAD));
      } catch (UMBPException refusal) {
        assertEquals(UMBPException.Reason.CLOSED, refusal.reason());
        return;
      }
      finish(ticket);
      if (ticket.failure(0) == null) {
        assertSame(room.expectedMemory, room.memoryBytes(), "loaded in round " + round);
      }
    }
  }

  private CopyTicket submit(CopyBatch batch) {
    return engine.submit(batch, fixture.fence());
  }

  private static CopyTicket finish(CopyTicket ticket) {
    assertTrue(ticket.await(LONG), "the ticket is not final after " + LONG);
    return ticket;
  }

  private void assumeHolds() {
    assumeFalse(fixture.copiesInline(), "copies run inside submit and cannot be held");
  }

  private static PendingWork assumeStreams(@Nullable PendingWork work) {
    assumeTrue(work != null, "the engine has no device streams");
    return Objects.requireNonNull(work);
  }

  private static void assertInvalid(Executable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
  }

  private static void assertClosed(Executable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.CLOSED, refusal.reason());
  }

  private static void assertSame(byte[] expected, byte[] actual, String what) {
    int at = Arrays.mismatch(expected, actual);
    assertTrue(
        at < 0,
        () ->
            String.format(
                "%s: byte %d of %d is 0x%02x, expected 0x%02x",
                what, at, expected.length, actual[at], expected[at]));
  }

  /** Returns a tensor that is a part of another one's allocation. */
  private static KVCacheTensor part(KVCacheTensor whole, long offset, long sizeBytes) {
    if (whole.isDevice()) {
      return KVCacheTensor.device(whole.address() + offset, sizeBytes, whole.deviceOrdinal())
          .inAllocation(whole.allocationBase(), whole.allocationBytes())
          .blocks(1, sizeBytes)
          .build();
    }
    List<ByteBuffer> slabs = new ArrayList<>();
    whole.slabs().forEach(slice -> slabs.add(slice.buffer()));
    return KVCacheTensor.host(whole.address() + offset, slabs).blocks(1, sizeBytes).build();
  }

  private static byte[] bytes(HostSlab slab) {
    byte[] bytes = new byte[(int) slab.sizeBytes()];
    slab.buffer().get(0, bytes);
    return bytes;
  }

  private static byte[] pattern(int length, long seed) {
    byte[] bytes = new byte[length];
    new Random(seed).nextBytes(bytes);
    return bytes;
  }

  private static void inParallel(List<Callable<Void>> tasks) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(tasks.size());
    try {
      List<Future<Void>> results = new ArrayList<>();
      tasks.forEach(task -> results.add(threads.submit(task)));
      for (Future<Void> result : results) {
        result.get(LONG.toSeconds(), TimeUnit.SECONDS);
      }
    } finally {
      threads.shutdownNow();
    }
  }
}
