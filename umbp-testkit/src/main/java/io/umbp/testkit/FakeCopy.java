package io.umbp.testkit;

import io.umbp.api.DeviceFence;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/**
 * One batch on its way through a {@link FakeGpuCopyEngine}: work on a copy stream, and the ticket
 * for it. The stream runs it mark by mark; the engine may park it before its first row.
 */
final class FakeCopy implements FakeStream.Task, CopyTicket.SupportsStreamWait {
  /** What a failing row leaves in the first half of its target. */
  static final byte GARBAGE = 0x5C;

  private static final byte[] GARBAGE_BYTES = new byte[1 << 12];

  static {
    Arrays.fill(GARBAGE_BYTES, GARBAGE);
  }

  private record MarkWait(int mark, CountDownLatch reached) {}

  private final FakeGpuCopyEngine engine;
  private final FakeGpu gpu;
  private final CopyBatch batch;
  private final FakeStream stream;
  private final RowFaults faults;
  private final List<FakeGpuCopyEngine.Slab> slabs;
  private final int keyCount;
  private final int[] markEnd;
  private final AtomicInteger rowsOver = new AtomicInteger();
  private final CountDownLatch over = new CountDownLatch(1);
  private final Queue<MarkWait> markWaits = new ConcurrentLinkedQueue<>();
  private @Nullable String @Nullable [] failures;
  private int nextMark;

  /** Which rows fail, decided when the batch is submitted. Thread-confined after that. */
  interface RowFaults {
    /** No row fails. */
    RowFaults NONE =
        new RowFaults() {
          @Override
          public boolean fails(int row, int key) {
            return false;
          }

          @Override
          public @Nullable Error thrownBefore(int row) {
            return null;
          }
        };

    /** Tells whether a row fails. */
    boolean fails(int row, int key);

    /** Returns what is thrown before a row, once; null for nothing. */
    @Nullable Error thrownBefore(int row);
  }

  FakeCopy(
      FakeGpuCopyEngine engine,
      FakeGpu gpu,
      CopyBatch batch,
      FakeStream stream,
      RowFaults faults,
      List<FakeGpuCopyEngine.Slab> slabs) {
    this.engine = engine;
    this.gpu = gpu;
    this.batch = batch;
    this.stream = stream;
    this.faults = faults;
    this.slabs = slabs;
    keyCount = batch.keyCount();
    markEnd = Arrays.copyOf(batch.markEnd(), batch.markCount());
  }

  /** Returns a final ticket for a batch without rows, which never is on a stream. */
  static FakeCopy empty(FakeGpuCopyEngine engine, FakeGpu gpu, CopyBatch batch, FakeStream stream) {
    FakeCopy copy = new FakeCopy(engine, gpu, batch, stream, RowFaults.NONE, List.of());
    copy.over.countDown();
    return copy;
  }

  FakeStream stream() {
    return stream;
  }

  List<FakeGpuCopyEngine.Slab> slabs() {
    return slabs;
  }

  @Override
  public boolean advance() {
    int row = rowsOver.get();
    if (row == 0 && engine.parks(this)) {
      return true;
    }
    while (nextMark < markEnd.length && markEnd[nextMark] <= row) {
      nextMark++;
    }
    int end = nextMark < markEnd.length ? markEnd[nextMark] : batch.count();
    try {
      copyRows(row, end);
    } catch (Throwable thrown) {
      failRows(rowsOver.get(), batch.count(), "the copy thread threw " + thrown);
      end = batch.count();
    }
    rowsOver.set(end);
    if (end == batch.count()) {
      finish();
      return true;
    }
    openMarks();
    return false;
  }

  @Override
  public void abandon() {
    failRows(rowsOver.get(), batch.count(), "the fake GPU was closed");
    rowsOver.set(batch.count());
    finish();
  }

  private void finish() {
    engine.ended(this);
    openMarks();
  }

  /** Called by the engine at the end of a copy, under its lock. */
  void becomeFinal() {
    over.countDown();
  }

  private void copyRows(int from, int end) {
    boolean load = batch.direction() == TransferDirection.LOAD;
    long[] device = batch.device();
    long[] host = batch.host();
    long[] length = batch.length();
    int[] key = batch.key();
    long copied = 0;
    for (int row = from; row < end; row++) {
      Error error = faults.thrownBefore(row);
      if (error != null) {
        throw error;
      }
      DeviceAllocation allocation = gpu.allocationAt(device[row]);
      FakeGpuCopyEngine.Slab slab = engine.slabAt(host[row]);
      if (allocation == null || slab == null) {
        throw new IllegalStateException("row " + row + " was changed after it was submitted");
      }
      long offset = device[row] - allocation.base();
      int index = (int) (host[row] - slab.base());
      int size = (int) length[row];
      boolean wasFreed = allocation.isFreed();
      if (wasFreed) {
        failUsedAfterFree(row, allocation);
      } else if (faults.fails(row, key[row])) {
        spoil(load, allocation, offset, slab, index, size);
        failRow(row, "a fault was injected");
      } else if (load) {
        allocation.write(offset, slab.view(), index, size);
        copied += size;
      } else {
        allocation.read(offset, slab.view(), index, size);
        copied += size;
      }
      if (!wasFreed && allocation.isFreed()) {
        failUsedAfterFree(row, allocation);
      }
      rowsOver.lazySet(row + 1);
    }
    engine.count(end - from, copied);
  }

  private static void spoil(
      boolean load,
      DeviceAllocation allocation,
      long offset,
      FakeGpuCopyEngine.Slab slab,
      int index,
      int size) {
    int half = (size + 1) / 2;
    if (load) {
      allocation.fill(offset, half, GARBAGE);
    } else {
      for (int done = 0; done < half; done += GARBAGE_BYTES.length) {
        int part = Math.min(half - done, GARBAGE_BYTES.length);
        slab.view().put(index + done, GARBAGE_BYTES, 0, part);
      }
    }
  }

  private void failUsedAfterFree(int row, DeviceAllocation allocation) {
    gpu.countUseAfterFree();
    failRow(row, "use after free of " + allocation);
  }

  private void failRows(int from, int end, String why) {
    for (int row = from; row < end; row++) {
      failRow(row, why);
    }
  }

  private void failRow(int row, String why) {
    @Nullable String[] all = failures;
    if (all == null) {
      all = new @Nullable String[keyCount];
      failures = all;
    }
    int key = batch.key()[row];
    if (all[key] == null) {
      all[key] =
          String.format(
              "row %d, %d bytes between 0x%x and 0x%x: %s",
              row, batch.length()[row], batch.device()[row], batch.host()[row], why);
    }
  }

  private void openMarks() {
    if (!markWaits.isEmpty()) {
      markWaits.removeIf(
          wait -> {
            if (isMarkDone(wait.mark)) {
              wait.reached.countDown();
            }
            return isMarkDone(wait.mark);
          });
    }
  }

  @Override
  public boolean poll() {
    return over.getCount() == 0;
  }

  @Override
  public boolean await(Duration timeout) {
    try {
      return over.await(TimeUnit.NANOSECONDS.convert(timeout), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return poll();
    }
  }

  @Override
  public boolean isMarkDone(int mark) {
    return rowsOver.get() >= markEnd[mark] || poll();
  }

  @Override
  public @Nullable String failure(int key) {
    Objects.checkIndex(key, keyCount);
    if (!poll()) {
      throw new IllegalStateException("the failure of key " + key + " is not known yet");
    }
    return failures == null ? null : failures[key];
  }

  @Override
  public StreamWait enqueueWait(int mark, DeviceFence.OnStream on) {
    Objects.checkIndex(mark, markEnd.length);
    FakeStream waiting = gpu.streamOf(on.deviceOrdinal(), on.streamHandle());
    if (waiting == null) {
      throw UMBPException.invalid("%s names no stream of this GPU", on);
    }
    if (engine.isHeld(this)) {
      return StreamWait.NOT_YET_ENQUEUED;
    }
    CountDownLatch reached = new CountDownLatch(1);
    markWaits.add(new MarkWait(mark, reached));
    openMarks();
    waiting.enqueue(reached, () -> true);
    return StreamWait.ENQUEUED;
  }
}
