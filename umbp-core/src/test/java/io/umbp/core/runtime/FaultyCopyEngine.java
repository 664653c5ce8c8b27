package io.umbp.core.runtime;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A copy engine that passes everything on to another, counts the copies that run, and lets rows
 * fail that touch chosen blocks. Thread-safe.
 */
class FaultyCopyEngine implements KVCopyEngine {
  private record Block(KVCacheTensor tensor, int blockId) {}

  private final KVCopyEngine target;
  private final Map<KVCacheTensor, Long> bases = new HashMap<>();
  private final Set<Block> failingBlocks = new HashSet<>();
  private final List<CopyTicket> tickets = new ArrayList<>();
  private boolean isNextBroken;

  FaultyCopyEngine(KVCopyEngine target) {
    this.target = target;
  }

  synchronized void failBlock(KVCacheTensor tensor, int blockId) {
    failingBlocks.add(new Block(tensor, blockId));
  }

  synchronized void breakNext() {
    isNextBroken = true;
  }

  synchronized void heal() {
    failingBlocks.clear();
    isNextBroken = false;
  }

  synchronized int runningCopies() {
    tickets.removeIf(CopyTicket::poll);
    return tickets.size();
  }

  @Override
  public long register(KVCacheTensor tensor) {
    long base = target.register(tensor);
    synchronized (this) {
      bases.put(tensor, base);
    }
    return base;
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    target.unregister(tensor);
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    return target.allocateSlab(sizeBytes);
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    target.releaseSlab(slab);
  }

  @Override
  public synchronized CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    boolean[] failing = failingRows(batch);
    CopyTicket ticket;
    if (isNextBroken) {
      isNextBroken = false;
      ticket = submitBroken(batch, fence, new OutOfMemoryError("planted by the test"));
    } else if (failing.length > 0) {
      ticket = submitFailing(batch, fence, failing);
    } else {
      ticket = target.submit(batch, fence);
    }
    if (tickets.size() > 64) {
      tickets.removeIf(CopyTicket::poll);
    }
    tickets.add(ticket);
    return ticket;
  }

  /** Returns which rows touch a failing block; empty when none does. */
  private boolean[] failingRows(CopyBatch batch) {
    boolean[] failing = new boolean[batch.count()];
    boolean isAny = false;
    for (Block block : failingBlocks) {
      Long base = bases.get(block.tensor());
      if (base == null) {
        continue;
      }
      long from = base + block.blockId() * block.tensor().blockStride();
      for (int row = 0; row < failing.length; row++) {
        long offset = batch.device()[row] - from;
        if (offset >= 0 && offset < block.tensor().blockStride()) {
          failing[row] = true;
          isAny = true;
        }
      }
    }
    return isAny ? failing : new boolean[0];
  }

  /** Submits a batch that dies of an error. */
  CopyTicket submitBroken(CopyBatch batch, DeviceFence fence, Error error) {
    throw error;
  }

  /** Submits a batch of which some rows fail: here, those are not copied at all. */
  CopyTicket submitFailing(CopyBatch batch, DeviceFence fence, boolean[] failing) {
    CopyBatch rest = new CopyBatch();
    rest.reset(batch.direction(), batch.deviceOrdinal(), batch.keyCount());
    String[] failures = new String[batch.keyCount()];
    int mark = 0;
    for (int row = 0; row < batch.count(); row++) {
      int key = batch.key()[row];
      if (failing[row]) {
        failures[key] = "row " + row + " fails by the test's will";
      } else {
        rest.add(batch.device()[row], batch.host()[row], batch.length()[row], key);
      }
      while (mark < batch.markCount() && batch.markEnd()[mark] == row + 1) {
        rest.endMark();
        mark++;
      }
    }
    return new PartialTicket(target.submit(rest, fence), failures);
  }

  @Override
  public CloseResult close(Duration bound) {
    return target.close(bound);
  }

  private static final class PartialTicket implements CopyTicket {
    private final CopyTicket target;
    private final String[] failures;

    private PartialTicket(CopyTicket target, String[] failures) {
      this.target = target;
      this.failures = failures;
    }

    @Override
    public boolean poll() {
      return target.poll();
    }

    @Override
    public boolean await(Duration timeout) {
      return target.await(timeout);
    }

    @Override
    public boolean isMarkDone(int mark) {
      return target.isMarkDone(mark);
    }

    @Override
    public String failure(int key) {
      if (key < 0 || key >= failures.length) {
        throw UMBPException.invalid("key %d is outside [0, %d)", key, failures.length);
      }
      return failures[key] != null ? failures[key] : target.failure(key);
    }
  }
}
