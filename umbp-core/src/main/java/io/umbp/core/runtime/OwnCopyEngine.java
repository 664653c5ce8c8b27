package io.umbp.core.runtime;

import io.umbp.api.CloseResult;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.KVCopyEngine;
import java.time.Duration;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The copy engine of a runtime, opened by whoever needs it first: a process that only schedules
 * never opens a device. Thread-safe; the engine is opened under its monitor, so that it is opened
 * once.
 */
final class OwnCopyEngine {
  private final Supplier<? extends KVCopyEngine> opener;
  private @Nullable KVCopyEngine engine;
  private boolean isClosed;

  OwnCopyEngine(Supplier<? extends KVCopyEngine> opener) {
    this.opener = opener;
  }

  /**
   * Returns the engine.
   *
   * @throws UMBPException CLOSED when it was never needed before the runtime was closed; what the
   *     opener throws, and then the next call tries again
   */
  synchronized KVCopyEngine get() {
    KVCopyEngine known = engine;
    if (known == null) {
      if (isClosed) {
        throw UMBPException.closed("runtime");
      }
      known = opener.get();
      engine = known;
    }
    return known;
  }

  CloseResult close(Duration bound) {
    KVCopyEngine known;
    synchronized (this) {
      isClosed = true;
      known = engine;
    }
    return known == null ? CloseResult.CLEAN : known.close(bound);
  }
}
