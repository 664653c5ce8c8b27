package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.UMBPRuntime;
import io.umbp.core.pool.PoolStats;
import io.umbp.testkit.ManualClock;
import io.umbp.testkit.RuntimeFixture;
import java.time.Duration;
import java.util.function.LongSupplier;

/** An {@link EmbeddedRuntime} in a contract test, whatever its copy engine. */
abstract class EmbeddedFixture implements RuntimeFixture {
  private static final long SLAB_BYTES = 256 << 10;

  final FaultyCopyEngine copies;
  final EmbeddedRuntime embedded;

  private final TickingClock clock = new TickingClock();

  private static final class TickingClock implements LongSupplier {
    private final ManualClock clock = new ManualClock();
    private volatile Tick tick = new Tick(Thread.currentThread(), Duration.ZERO);

    private record Tick(Thread reader, Duration step) {}

    @Override
    public long getAsLong() {
      Tick current = tick;
      if (current.reader == Thread.currentThread()) {
        clock.advance(current.step);
      }
      return clock.getAsLong();
    }
  }

  EmbeddedFixture(Setup setup, FaultyCopyEngine copies) {
    this(setup, copies, EmbeddedRuntime.builder());
  }

  EmbeddedFixture(Setup setup, FaultyCopyEngine copies, EmbeddedRuntime.Builder builder) {
    this.copies = copies;
    embedded =
        builder
            .capacityBytes(setup.capacityBytes())
            .slabBytes(SLAB_BYTES)
            .copyEngine(() -> copies)
            .transferTimeout(setup.transferTimeout())
            .nanoTime(clock)
            .build();
  }

  @Override
  public UMBPRuntime runtime() {
    return embedded;
  }

  @Override
  public Counts counts() {
    PoolStats stats = embedded.stats();
    return new Counts(
        stats.capacityBytes(),
        stats.usedBytes(),
        stats.freeBytes(),
        stats.unpublishedObjects(),
        stats.leases() + stats.doubleReleases(),
        copies.runningCopies());
  }

  @Override
  public long nanoTime() {
    return clock.getAsLong();
  }

  @Override
  public void advance(Duration time) {
    clock.clock.advance(time);
  }

  @Override
  public void tickOnRead(Duration step) {
    clock.tick = new TickingClock.Tick(Thread.currentThread(), step);
  }

  @Override
  public void failCopies(KVCacheTensor tensor, int blockId) {
    copies.failBlock(tensor, blockId);
  }

  @Override
  public void breakNextCopy() {
    copies.breakNext();
  }

  @Override
  public void healCopies() {
    copies.heal();
  }

  @Override
  public void close() {
    releaseCopies();
    embedded.close(Duration.ofSeconds(10));
  }
}
