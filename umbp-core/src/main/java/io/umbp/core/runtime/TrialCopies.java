package io.umbp.core.runtime;

import io.umbp.api.DeviceFence;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * The slabs that a trial takes and the copies that it waits for. Thread-confined; called without
 * the runtime's lock.
 */
final class TrialCopies {
  private static final Duration PATIENCE = Duration.ofNanos(200_000);

  private final EmbeddedRuntime runtime;
  private final List<HostSlab> slabs = new ArrayList<>();
  private @Nullable CopyTicket unfinished;
  private long unfinishedBytes;

  TrialCopies(EmbeddedRuntime runtime) {
    this.runtime = runtime;
  }

  /** Takes a slab, which is given back by {@link #releaseSlabs}. */
  HostSlab allocate(long sizeBytes) {
    HostSlab slab = runtime.engine.get().allocateSlab(sizeBytes);
    slabs.add(slab);
    return slab;
  }

  /** Gives all slabs back. The copy engine keeps one that a copy still uses until that ends. */
  void releaseSlabs() {
    slabs.forEach(runtime.engine.get()::releaseSlab);
    slabs.clear();
  }

  /** Returns the copy that was given up while it ran, or null. */
  @Nullable CopyTicket unfinished() {
    return unfinished;
  }

  /** Returns how many bytes that copy moves. */
  long unfinishedBytes() {
    return unfinishedBytes;
  }

  /**
   * Runs a batch to its end.
   *
   * @param rows the batch; when this throws COPY_FAILED it may still be borrowed
   * @param what the copy, for the message
   * @throws UMBPException COPY_FAILED
   */
  void run(CopyBatch rows, String what) {
    CopyTicket ticket = runtime.engine.get().submit(rows, DeviceFence.hostComplete());
    unfinished = ticket;
    unfinishedBytes = Arrays.stream(rows.length(), 0, rows.count()).sum();
    String giveUp;
    try {
      giveUp = await(ticket);
    } catch (RuntimeException e) {
      throw failed(what, "the copy engine can't tell whether it has ended", e);
    }
    if (giveUp != null) {
      throw failed(
          what, giveUp + "; it may still use the buffers, unregisterBuffers waits for that", null);
    }
    unfinished = null;
    for (int key = 0; key < rows.keyCount(); key++) {
      String failure = ticket.failure(key);
      if (failure != null) {
        throw failed(what, failure, null);
      }
    }
  }

  /** Returns why the wait was given up, null when the copy has ended. */
  private @Nullable String await(CopyTicket ticket) {
    long start = runtime.clock.getAsLong();
    long wallStart = System.nanoTime();
    while (!ticket.poll()) {
      if (Thread.currentThread().isInterrupted()) {
        return "the wait for it was interrupted";
      }
      long spent = Math.max(runtime.clock.getAsLong() - start, System.nanoTime() - wallStart);
      if (spent >= runtime.timeoutNanos) {
        return "it has not ended after " + Duration.ofNanos(runtime.timeoutNanos);
      }
      boolean unused = ticket.await(PATIENCE);
    }
    return null;
  }

  private static UMBPException failed(String what, String why, @Nullable Throwable cause) {
    return new UMBPException(
        UMBPException.Reason.COPY_FAILED,
        String.format(Locale.ROOT, "trial of the layout: %s: %s", what, why),
        cause);
  }
}
