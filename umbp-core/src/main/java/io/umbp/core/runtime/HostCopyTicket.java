package io.umbp.core.runtime;

import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/**
 * One batch of {@link HostCopyEngine} while it is copied and after. Thread-safe.
 *
 * <p>The rows are cut into chunks, each copied by one thread in row order. A chunk has one owner:
 * the thread that claims it first, to copy it or to give it up. The last chunk to end hands the
 * batch back to the engine and then makes the ticket final.
 */
final class HostCopyTicket implements CopyTicket {
  /** Batches below this size are one chunk, larger ones have chunks of at least half of it. */
  private static final long SPLIT_BYTES = 16L << 20;

  private static final int MAX_CHUNKS = 4;

  /** Volatile, so that no compiler sees through {@link #awaitMemoryFault()}. */
  private static volatile int zero;

  @SuppressWarnings("unused")
  private static volatile byte[][] sink = {};

  /** The slabs that the rows use. */
  final HostRegion[] slabs;

  private final HostCopyEngine engine;
  private final @Nullable HostRegion[] regions;
  private final boolean store;
  private final int keyCount;
  private final int markCount;
  private final long[] device;
  private final long[] host;
  private final long[] length;
  private final int[] key;
  private final int[] markEnd;
  private final Chunk[] chunks;
  private final AtomicInteger openChunks;
  private final CountDownLatch done = new CountDownLatch(1);

  /** First failure of each key; written under this ticket's monitor, null while nothing failed. */
  private volatile @Nullable String @Nullable [] failures;

  /** Whether a failure could not be noted; then every key counts as failed. */
  private volatile boolean broken;

  /** A run of rows that one thread copies. */
  final class Chunk implements Runnable {
    private final int from;
    private final int to;

    /** The first row that is not known to be over; moves at marks and at the end. */
    private final AtomicInteger reached;

    private final AtomicInteger claims = new AtomicInteger();

    private Chunk(int from, int to) {
      this.from = from;
      this.to = to;
      reached = new AtomicInteger(from);
    }

    @Override
    public void run() {
      if (claims.getAndIncrement() == 0) {
        try {
          copyRows(this);
        } catch (Throwable t) {
          broken = true;
        } finally {
          end(this);
        }
      }
    }

    /** Fails the chunk's rows unless a thread has begun to copy them. */
    void giveUp(String message) {
      if (claims.getAndIncrement() == 0) {
        try {
          for (int row = from; row < to; row++) {
            fail(key[row], message);
          }
        } catch (Throwable t) {
          broken = true;
        } finally {
          end(this);
        }
      }
    }
  }

  /**
   * Takes a checked batch.
   *
   * @param engine whom to tell the end
   * @param batch the rows, borrowed until the ticket is final
   * @param regions what the rows were checked against
   * @param slabs the slabs among them
   * @param totalBytes sum of the rows' lengths
   * @param splitting whether several threads may copy
   */
  HostCopyTicket(
      HostCopyEngine engine,
      CopyBatch batch,
      @Nullable HostRegion[] regions,
      HostRegion[] slabs,
      long totalBytes,
      boolean splitting) {
    this.engine = engine;
    this.regions = regions;
    this.slabs = slabs;
    store = batch.direction() == TransferDirection.STORE;
    keyCount = batch.keyCount();
    markCount = batch.markCount();
    device = batch.device();
    host = batch.host();
    length = batch.length();
    key = batch.key();
    markEnd = batch.markEnd();
    int wanted = splitting ? (int) Math.min(MAX_CHUNKS, totalBytes / (SPLIT_BYTES / 2)) : 1;
    chunks = cut(batch.count(), totalBytes, Math.max(1, wanted));
    openChunks = new AtomicInteger(chunks.length);
  }

  private Chunk[] cut(int rows, long totalBytes, int wanted) {
    if (wanted == 1) {
      return new Chunk[] {new Chunk(0, rows)};
    }
    Chunk[] cut = new Chunk[wanted];
    int from = 0;
    long bytes = 0;
    int row = 0;
    for (int i = 0; i < wanted; i++) {
      long goal = i == wanted - 1 ? Long.MAX_VALUE : totalBytes / wanted * (i + 1);
      while (row < rows && bytes < goal) {
        bytes += length[row++];
      }
      cut[i] = new Chunk(from, row);
      from = row;
    }
    return cut;
  }

  Chunk[] chunks() {
    return chunks;
  }

  private void copyRows(Chunk chunk) {
    int mark = 0;
    int row = chunk.from;
    while (row < chunk.to) {
      while (mark < markCount && markEnd[mark] <= row) {
        mark++;
      }
      int end = mark < markCount ? Math.min(markEnd[mark], chunk.to) : chunk.to;
      copyRows(row, end);
      row = end;
      chunk.reached.lazySet(row);
    }
  }

  private void copyRows(int from, int to) {
    boolean careful = false;
    int row = from;
    while (row < to) {
      try {
        for (; row < to; row++) {
          if (!isFailed(key[row])) {
            copyRow(row);
            if (careful) {
              awaitMemoryFault();
            }
          }
        }
        if (!careful) {
          awaitMemoryFault();
        }
      } catch (InternalError e) {
        if (careful) {
          failRow(row, e);
          row++;
        } else {
          // Any row since the last look may be the one: copy them again, looking after each.
          careful = true;
          row = from;
        }
      } catch (Throwable t) {
        failRow(Math.min(row, to - 1), t);
        row++;
      }
    }
  }

  /**
   * Lets HotSpot throw the InternalError of a mapped page that could not be read or written (file
   * cut short, disk full). Java 17 does not throw it where it happens but when compiled code next
   * calls into the virtual machine, which may be far from here; the creation of an array of arrays
   * of unknown length is such a call in the interpreter and in both compilers.
   */
  private static void awaitMemoryFault() {
    sink = new byte[zero][zero];
  }

  private void copyRow(int row) {
    HostRegion engineMemory = region(device[row]);
    HostRegion slab = region(host[row]);
    long engineOffset = device[row] & HostAddressSpace.OFFSET_MASK;
    long slabOffset = host[row] & HostAddressSpace.OFFSET_MASK;
    if (store) {
      HostRegion.copy(engineMemory, engineOffset, slab, slabOffset, length[row]);
    } else {
      HostRegion.copy(slab, slabOffset, engineMemory, engineOffset, length[row]);
    }
  }

  private HostRegion region(long address) {
    HostRegion region = HostAddressSpace.find(regions, address);
    if (region == null) {
      throw new IllegalStateException("the batch was changed while it was being copied");
    }
    return region;
  }

  private boolean isFailed(int keyIndex) {
    @Nullable String[] known = failures;
    return known != null && known[keyIndex] != null;
  }

  private void failRow(int row, Throwable cause) {
    int keyIndex = key[row];
    String message;
    try {
      message =
          String.format(
              "row %d of key %d, %d bytes at 0x%x: %s",
              row, keyIndex, length[row], device[row], cause);
      if (failures == null) {
        HostCopyEngine.LOG.warn("First failed copy of a batch: {}", message, cause);
      }
    } catch (Throwable alsoFailing) {
      message = "the copy failed, and so did the message about it";
    }
    fail(keyIndex, message);
  }

  private synchronized void fail(int keyIndex, String message) {
    @Nullable String[] known = failures;
    if (known == null) {
      known = new @Nullable String[keyCount];
      failures = known;
    }
    if (known[keyIndex] == null) {
      known[keyIndex] = message;
    }
  }

  private void end(Chunk chunk) {
    chunk.reached.lazySet(chunk.to);
    if (openChunks.decrementAndGet() == 0) {
      try {
        engine.finished(this);
      } finally {
        done.countDown();
      }
    }
  }

  @Override
  public boolean poll() {
    return done.getCount() == 0;
  }

  @Override
  public boolean await(Duration timeout) {
    long nanos = HostCopyEngine.nanos(timeout);
    try {
      return done.await(nanos, TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      return poll();
    }
  }

  @Override
  public boolean isMarkDone(int mark) {
    if (mark < 0 || mark >= markCount) {
      throw UMBPException.invalid("mark %d is outside the batch's [0, %d)", mark, markCount);
    }
    if (poll()) {
      return true;
    }
    int end = markEnd[mark];
    for (Chunk chunk : chunks) {
      if (chunk.reached.get() < Math.min(end, chunk.to)) {
        return false;
      }
    }
    return true;
  }

  @Override
  public @Nullable String failure(int keyIndex) {
    if (keyIndex < 0 || keyIndex >= keyCount) {
      throw UMBPException.invalid("key %d is outside the batch's [0, %d)", keyIndex, keyCount);
    }
    @Nullable String[] known = failures;
    if (known != null && known[keyIndex] != null) {
      return known[keyIndex];
    }
    return broken ? "a row failed and there was no memory to note which" : null;
  }
}
