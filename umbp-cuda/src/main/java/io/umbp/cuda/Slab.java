package io.umbp.cuda;

import io.umbp.api.spi.HostSlab;
import org.jspecify.annotations.Nullable;

/** One slab and who uses it. All but the memory is guarded by the engine's lock. */
final class Slab {
  private final PinnedBuffer memory;

  /** What the owner holds; null while the slab waits for one. */
  @Nullable HostSlab lent;

  /** Batches that are not final. */
  int users;

  /** Whether a batch of a lost device used it: a copy may never have been stopped. */
  boolean isLost;

  Slab(PinnedBuffer memory) {
    this.memory = memory;
  }

  PinnedBuffer memory() {
    return memory;
  }

  long address() {
    return memory.address();
  }

  long sizeBytes() {
    return memory.memory().capacity();
  }
}
