package io.umbp.bench.sim;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** A copy engine that knows which device memory its running copies use. Thread-confined. */
class WatchedCopies implements KVCopyEngine {
  private final KVCopyEngine engine;
  private final List<Running> running = new ArrayList<>();

  private record Running(CopyBatch batch, CopyTicket ticket) {}

  WatchedCopies(KVCopyEngine engine) {
    this.engine = engine;
  }

  /** Tells whether a running copy uses some of the bytes. */
  boolean uses(int ordinal, long address, long bytes) {
    running.removeIf(copy -> copy.ticket.poll());
    for (Running copy : running) {
      CopyBatch batch = copy.batch;
      for (int row = 0; row < batch.count() && batch.deviceOrdinal() == ordinal; row++) {
        long start = batch.device()[row];
        if (start < address + bytes && address < start + batch.length()[row]) {
          return true;
        }
      }
    }
    return false;
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    CopyTicket ticket = engine.submit(batch, fence);
    running.removeIf(copy -> copy.ticket.poll());
    running.add(new Running(batch, ticket));
    return ticket;
  }

  @Override
  public long register(KVCacheTensor tensor) {
    return engine.register(tensor);
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    engine.unregister(tensor);
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    return engine.allocateSlab(sizeBytes);
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    engine.releaseSlab(slab);
  }

  @Override
  public CloseResult close(Duration bound) {
    return engine.close(bound);
  }
}
