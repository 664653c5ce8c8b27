package io.umbp.testkit;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import java.time.Duration;

/** An engine that passes all calls on; subclasses change one thing. */
abstract class ForwardingEngine implements KVCopyEngine {
  final KVCopyEngine next;

  ForwardingEngine(KVCopyEngine next) {
    this.next = next;
  }

  @Override
  public long register(KVCacheTensor tensor) {
    return next.register(tensor);
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    next.unregister(tensor);
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    return next.allocateSlab(sizeBytes);
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    next.releaseSlab(slab);
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    return next.submit(batch, fence);
  }

  @Override
  public CloseResult close(Duration bound) {
    return next.close(bound);
  }

  /** A ticket that passes all calls on. */
  abstract static class ForwardingTicket implements CopyTicket {
    final CopyTicket next;

    ForwardingTicket(CopyTicket next) {
      this.next = next;
    }

    @Override
    public boolean poll() {
      return next.poll();
    }

    @Override
    public boolean await(Duration timeout) {
      return next.await(timeout);
    }

    @Override
    public boolean isMarkDone(int mark) {
      return next.isMarkDone(mark);
    }

    @Override
    public String failure(int key) {
      return next.failure(key);
    }
  }
}
