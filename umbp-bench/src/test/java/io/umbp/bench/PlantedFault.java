package io.umbp.bench;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.FakeGpuCopyEngine;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A copy engine with one planted fault in front of a good one. It shows in the first load behind
 * work of the GPU, not before, when the layout is tried out.
 */
final class PlantedFault implements KVCopyEngine {
  /** What goes wrong. */
  enum Fault {
    /** A stored byte changes before it is loaded. */
    FLIPPED_BYTE,
    /** A load says that it is done and has copied nothing. */
    SKIPPED_LOAD,
    /** The copy of a load's second key fails, and says so. */
    FAILED_KEY,
    /** A load puts the first row where the second belongs and the other way round. */
    SWAPPED_ROWS,
    /** No copy waits for the GPU's work. */
    NO_FENCES
  }

  private final KVCopyEngine good;
  private final Fault fault;
  private final List<HostSlab> slabs = new ArrayList<>();
  private boolean isDone;

  PlantedFault(KVCopyEngine good, Fault fault) {
    this.good = good;
    this.fault = fault;
  }

  @Override
  public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    if (fault == Fault.NO_FENCES) {
      return good.submit(batch, DeviceFence.hostComplete());
    }
    if (isDone
        || batch.direction() != TransferDirection.LOAD
        || !(fence instanceof DeviceFence.OnStream)) {
      return good.submit(batch, fence);
    }
    isDone = true;
    switch (fault) {
      case FLIPPED_BYTE -> flip(batch.host()[0]);
      case SKIPPED_LOAD -> {
        CopyBatch nothing = new CopyBatch();
        nothing.reset(TransferDirection.LOAD, batch.deviceOrdinal(), batch.keyCount());
        return good.submit(nothing, fence);
      }
      case FAILED_KEY -> ((FakeGpuCopyEngine) good).failNext((row, key) -> key == 1);
      case SWAPPED_ROWS -> {
        long first = batch.host()[0];
        batch.host()[0] = batch.host()[1];
        batch.host()[1] = first;
      }
      case NO_FENCES -> throw new AssertionError(fault);
    }
    return good.submit(batch, fence);
  }

  private void flip(long address) {
    for (HostSlab slab : slabs) {
      long index = address - slab.baseAddress();
      if (index >= 0 && index < slab.sizeBytes()) {
        slab.buffer().put((int) index, (byte) ~slab.buffer().get((int) index));
        return;
      }
    }
    throw new AssertionError("no slab has the address " + address);
  }

  @Override
  public HostSlab allocateSlab(long sizeBytes) {
    HostSlab slab = good.allocateSlab(sizeBytes);
    slabs.add(slab);
    return slab;
  }

  @Override
  public long register(KVCacheTensor tensor) {
    return good.register(tensor);
  }

  @Override
  public void unregister(KVCacheTensor tensor) {
    good.unregister(tensor);
  }

  @Override
  public void releaseSlab(HostSlab slab) {
    good.releaseSlab(slab);
  }

  @Override
  public CloseResult close(Duration bound) {
    return good.close(bound);
  }
}
