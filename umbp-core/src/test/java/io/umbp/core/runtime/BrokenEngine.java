package io.umbp.core.runtime;

import io.umbp.api.DeviceFence;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.KVCopyEngine;
import java.time.Duration;

/** A copy engine that lets the runtime above it break rule 1, 2, 4 or 9. */
final class BrokenEngine extends FaultyCopyEngine {
  private final Defect defect;

  BrokenEngine(Defect defect, KVCopyEngine target) {
    super(target);
    this.defect = defect;
  }

  @Override
  public synchronized CopyTicket submit(CopyBatch batch, DeviceFence fence) {
    boolean isStore = batch.direction() == TransferDirection.STORE;
    return switch (defect) {
      case COPY_LOOKS_FINAL_AT_ONCE -> new EarlyTicket(super.submit(copyOf(batch), fence));
      case PIN_ENDS_BEFORE_THE_COPY ->
          isStore
              ? super.submit(batch, fence)
              : new EarlyTicket(super.submit(copyOf(batch), fence));
      case STORE_IGNORES_ITS_FENCE ->
          super.submit(batch, isStore ? DeviceFence.hostComplete() : fence);
      case LOAD_IGNORES_ITS_FENCE ->
          super.submit(batch, isStore ? fence : DeviceFence.hostComplete());
      default -> super.submit(batch, fence);
    };
  }

  /** The runtime reuses the batch of a ticket that looks final. */
  private static CopyBatch copyOf(CopyBatch batch) {
    CopyBatch copy = new CopyBatch();
    copy.reset(batch.direction(), batch.deviceOrdinal(), batch.keyCount());
    int mark = 0;
    for (int row = 0; row < batch.count(); row++) {
      copy.add(batch.device()[row], batch.host()[row], batch.length()[row], batch.key()[row]);
      while (mark < batch.markCount() && batch.markEnd()[mark] == row + 1) {
        copy.endMark();
        mark++;
      }
    }
    return copy;
  }

  private record EarlyTicket(CopyTicket target) implements CopyTicket {
    @Override
    public boolean poll() {
      return true;
    }

    @Override
    public boolean await(Duration timeout) {
      return true;
    }

    @Override
    public boolean isMarkDone(int mark) {
      return true;
    }

    @Override
    public String failure(int key) {
      return null;
    }
  }
}
