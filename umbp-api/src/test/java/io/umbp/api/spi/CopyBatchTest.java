package io.umbp.api.spi;

import static io.umbp.api.Refusals.assertRefused;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;

/** The columns that a copy engine is given, and the slots of slower tiers. */
class CopyBatchTest {
  private final CopyBatch batch = new CopyBatch();

  @Test
  void aNewBatchIsEmpty() {
    assertEquals(0, batch.count());
    assertEquals(0, batch.markCount());
    assertEquals(0, batch.keyCount());
    assertEquals(TransferDirection.STORE, batch.direction());
  }

  @Test
  void columnsKeepEveryRowWhileTheyGrow() {
    batch.reset(TransferDirection.LOAD, 3, 500);
    for (int i = 0; i < 1_000; i++) {
      batch.add(i, 10_000L + i, 20_000L + i, i / 2);
      if (i % 10 == 9) {
        batch.endMark();
      }
    }
    assertEquals(TransferDirection.LOAD, batch.direction());
    assertEquals(3, batch.deviceOrdinal());
    assertEquals(500, batch.keyCount());
    assertEquals(1_000, batch.count());
    assertEquals(100, batch.markCount());
    for (int i = 0; i < 1_000; i++) {
      assertEquals(i, batch.device()[i]);
      assertEquals(10_000L + i, batch.host()[i]);
      assertEquals(20_000L + i, batch.length()[i]);
      assertEquals(i / 2, batch.key()[i]);
    }
    for (int m = 0; m < 100; m++) {
      assertEquals(10 * m + 10, batch.markEnd()[m]);
    }
  }

  @Test
  void columnsDoNotGrowRowByRow() {
    long[] column = batch.device();
    int grown = 0;
    for (int i = 0; i < 1_000; i++) {
      batch.add(i, i, 1, 0);
      if (batch.device() != column) {
        column = batch.device();
        grown++;
      }
    }
    assertEquals(4, grown);
  }

  @Test
  void aMarkMayStandForNoMoreRows() {
    batch.endMark();
    batch.add(1, 2, 3, 0);
    batch.endMark();
    batch.endMark();
    assertEquals(3, batch.markCount());
    assertEquals(0, batch.markEnd()[0]);
    assertEquals(1, batch.markEnd()[1]);
    assertEquals(1, batch.markEnd()[2]);
  }

  @Test
  void aReusedBatchIsEmptyAndKeepsItsColumns() {
    batch.ensureRoom(1_000);
    batch.add(1, 2, 3, 0);
    batch.endMark();
    long[] device = batch.device();
    batch.reset(TransferDirection.STORE, KVCacheTensor.HOST, 7);
    assertEquals(0, batch.count());
    assertEquals(0, batch.markCount());
    assertEquals(7, batch.keyCount());
    assertEquals(KVCacheTensor.HOST, batch.deviceOrdinal());
    assertEquals(TransferDirection.STORE, batch.direction());
    batch.ensureRoom(1_000);
    assertSame(device, batch.device());
  }

  @Test
  void rowsWrittenDirectlyCountOnceCommitted() {
    batch.add(1, 2, 3, 0);
    batch.ensureRoom(200);
    batch.device()[1] = 11;
    batch.commit(200);
    assertEquals(201, batch.count());
    assertEquals(11, batch.device()[1]);
    assertEquals(1, batch.device()[0]);
    int room = batch.device().length - 201;
    assertRefused(
        (room + 1) + " rows were committed, there was room for " + room,
        () -> batch.commit(room + 1));
    assertRefused("-1 rows were committed, there was room for " + room, () -> batch.commit(-1));
    assertEquals(201, batch.count());
    batch.commit(room);
    assertEquals(batch.device().length, batch.count());
  }

  @Test
  void moreRowsThanAnArrayHoldsAreRefused() {
    batch.add(1, 2, 3, 0);
    assertRefused(
        "a batch of 2147483647 rows exceeds the limit of 2147483639",
        () -> batch.ensureRoom(Integer.MAX_VALUE - 1));
    assertRefused(
        "a batch of 2147483648 rows exceeds the limit of 2147483639",
        () -> batch.ensureRoom(Integer.MAX_VALUE));
    assertEquals(1, batch.device()[0]);
  }

  @Test
  void slotsLieInTheirSlab() {
    HostSlab slab = new HostSlab(ByteBuffer.allocateDirect(8), 4_096, 8);
    assertEquals(2, new BlockTier.Slot(slab, 6, 2).length());
    String message = "object at offset %d with %d bytes is outside a slab of 8 bytes";
    assertRefused(message.formatted(6, 3), () -> new BlockTier.Slot(slab, 6, 3));
    assertRefused(message.formatted(-1, 2), () -> new BlockTier.Slot(slab, -1, 2));
    assertRefused(message.formatted(0, 0), () -> new BlockTier.Slot(slab, 0, 0));
    assertRefused(message.formatted(0, 9), () -> new BlockTier.Slot(slab, 0, 9));
    assertRefused(
        message.formatted(Long.MAX_VALUE, 2), () -> new BlockTier.Slot(slab, Long.MAX_VALUE, 2));
    assertRefused(
        message.formatted(1, Long.MAX_VALUE), () -> new BlockTier.Slot(slab, 1, Long.MAX_VALUE));
  }

  @Test
  void aSlabEqualsOnlyItself() {
    ByteBuffer buffer = ByteBuffer.allocateDirect(8);
    HostSlab slab = new HostSlab(buffer, 0, 8);
    assertEquals(slab, slab);
    assertNotEquals(slab, new HostSlab(buffer, 0, 8));
    int hashCode = slab.hashCode();
    buffer.put(0, (byte) 1);
    assertEquals(hashCode, slab.hashCode());
  }
}
