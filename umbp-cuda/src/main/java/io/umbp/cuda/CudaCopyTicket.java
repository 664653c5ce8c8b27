package io.umbp.cuda;

import io.umbp.api.DeviceFence;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import jcuda.driver.CUevent;
import org.jspecify.annotations.Nullable;

/**
 * One batch of {@link CudaCopyEngine} while it waits, is copied, and after. Thread-safe.
 *
 * <p>One thread takes it from its device's queue and enqueues its copies; then {@code isEnqueued}
 * is set and nothing of it changes but by its end. Whoever sees its last event done, or its device
 * lost, ends it: memory goes back first, the ticket becomes final last.
 */
final class CudaCopyTicket implements CopyTicket.SupportsStreamWait {
  private static final int SPINS = 64;
  private static final long LONGEST_PARK_NANOS = 200_000;

  private final CudaCopyEngine engine;
  private final CudaDevice device;
  private final CopyBatch batch;
  private final boolean isLoad;
  private final int keyCount;
  private final long bytes;
  private @Nullable RecordedFence fence;
  private final List<Slab> slabs;
  private final List<LaunchTable> tables = new ArrayList<>(1);
  private final List<CUevent> events;
  private final CUevent[] markDone;
  private @Nullable CUevent allDone;

  /** The checked rows, until they are enqueued. */
  private @Nullable CopyIssuer rows;

  private volatile boolean isEnqueued;
  private volatile boolean isFinal;
  private final AtomicBoolean hasEnded = new AtomicBoolean();

  /** The events' users: one for the ticket until its end, one for each thread that looks. */
  private final AtomicInteger eventUsers = new AtomicInteger(1);

  /** First failure of each key; written by the enqueuing thread, then by whoever ends the batch. */
  private @Nullable String @Nullable [] failures;

  /** An event that a fence recorded, and the device whose stock it came from. */
  record RecordedFence(CudaDevice device, CUevent event) {}

  /**
   * Takes a checked batch.
   *
   * @param rows the rows with where they lie; transferred
   * @param fence what the copies wait for, if anything
   */
  CudaCopyTicket(
      CudaCopyEngine engine,
      CudaDevice device,
      CopyBatch batch,
      CopyIssuer rows,
      @Nullable RecordedFence fence) {
    this.engine = engine;
    this.device = device;
    this.batch = batch;
    this.rows = rows;
    this.fence = fence;
    isLoad = batch.direction() == TransferDirection.LOAD;
    keyCount = batch.keyCount();
    bytes = rows.bytes();
    slabs = rows.usedSlabs();
    markDone = new CUevent[batch.markCount()];
    events = new ArrayList<>(markDone.length + 1);
  }

  CudaDevice device() {
    return device;
  }

  boolean isLoad() {
    return isLoad;
  }

  CopyBatch batch() {
    return batch;
  }

  long bytes() {
    return bytes;
  }

  List<Slab> slabs() {
    return slabs;
  }

  boolean isEnqueued() {
    return isEnqueued;
  }

  /** Enqueues the copies. Called once, by the thread that took the batch from the queue. */
  void enqueue() {
    CopyIssuer issuer = Objects.requireNonNull(rows);
    rows = null;
    device.beginTurn(isLoad);
    try {
      if (device.loss() == null) {
        issue(issuer);
      }
    } catch (Throwable e) {
      // Some rows may be on their way, and nothing tells when they end.
      engine.lose(device, "the copies of a batch could not be enqueued: " + e, false, e);
    } finally {
      device.endTurn(isLoad);
    }
    dropFence();
    engine.giveBack(issuer);
    isEnqueued = true;
    if (device.loss() != null || allDone == null) {
      endIfDone();
    }
  }

  private void issue(CopyIssuer issuer) {
    int[] mode = device.context().enter();
    try {
      if (takeEvents()) {
        issuer.issue(this);
      }
    } finally {
      device.context().exit(mode);
    }
  }

  /** Takes the events of all ends, or fails the batch before anything of it is enqueued. */
  private boolean takeEvents() {
    try {
      for (int i = 0; i <= markDone.length; i++) {
        events.add(device.takeEvent());
      }
      return true;
    } catch (UMBPException e) {
      failAll("no copy was enqueued: " + e.getMessage());
      return false;
    }
  }

  /** Lets the copy stream wait for the fence; the context is current. */
  int awaitFence() {
    RecordedFence recorded = fence;
    return recorded == null
        ? Driver.SUCCESS
        : Driver.streamWaitEvent(device.stream(isLoad), recorded.event());
  }

  /** Gives the fence's event back: a wait that is enqueued is for what was recorded before. */
  private void dropFence() {
    RecordedFence recorded = fence;
    fence = null;
    if (recorded != null) {
      recorded.device().giveBack(recorded.event());
    }
  }

  /** Records the end of a mark, or of the whole batch for a mark behind the last. */
  void recordEnd(int mark) {
    CUevent event = events.get(mark);
    if (mark < markDone.length) {
      markDone[mark] = event;
    }
    allDone = event;
    int code = Driver.eventRecord(event, device.stream(isLoad));
    if (code != Driver.SUCCESS) {
      throw Driver.failed("cuEventRecord", code);
    }
  }

  void keep(LaunchTable table) {
    tables.add(table);
  }

  /** Fails a key unless it has failed before. */
  void fail(int key, String why) {
    @Nullable String[] known = failures;
    if (known == null) {
      known = new @Nullable String[keyCount];
      failures = known;
    }
    if (known[key] == null) {
      known[key] = why;
    }
  }

  void failAll(String why) {
    for (int key = 0; key < keyCount; key++) {
      fail(key, why);
    }
  }

  /**
   * Ends the batch, once.
   *
   * @param why the failure of all keys that have not failed, null when the copies have ended
   */
  void end(@Nullable String why) {
    if (!hasEnded.compareAndSet(false, true)) {
      return;
    }
    if (why != null) {
      failAll(why);
    }
    boolean isLost = device.loss() != null && isEnqueued;
    CopyIssuer unused = rows;
    if (unused != null) {
      engine.giveBack(unused);
      dropFence();
    }
    for (LaunchTable table : tables) {
      if (isLost) {
        table.pinned().giveUp();
      } else {
        device.giveBack(table);
      }
    }
    engine.finished(this, isLost);
    isFinal = true;
    dropEvents();
  }

  private boolean useEvents() {
    int users;
    do {
      users = eventUsers.get();
      if (users == 0) {
        return false;
      }
    } while (!eventUsers.compareAndSet(users, users + 1));
    return true;
  }

  private void dropEvents() {
    if (eventUsers.decrementAndGet() == 0 && device.loss() == null) {
      events.forEach(device::giveBack);
    }
  }

  @Override
  public boolean poll() {
    if (isFinal || !engine.enter()) {
      return isFinal;
    }
    try {
      drive();
      endIfDone();
    } finally {
      engine.exit();
    }
    return isFinal;
  }

  /**
   * Enqueues what may be: for this batch to have its turn, others have to be seen to have ended.
   */
  private void drive() {
    device.pump();
    if (!isEnqueued) {
      engine.endAllDone(device);
      device.pump();
    }
  }

  /** Ends the batch if its copies have ended. The calling thread is inside the engine. */
  void endIfDone() {
    if (!isEnqueued || isFinal) {
      return;
    }
    String loss = device.loss();
    if (loss != null) {
      if (device.hasStopped(isLoad)) {
        end(loss);
      }
    } else if (allDone == null || isDone(allDone)) {
      end(null);
      device.pump();
    }
  }

  /** Tells whether an event is reached; with a lost device it may never have been recorded. */
  private boolean isDone(@Nullable CUevent event) {
    if (event == null || device.loss() != null || !useEvents()) {
      return false;
    }
    int code;
    try {
      int[] mode = device.context().enter();
      try {
        code = Driver.eventQuery(event);
      } finally {
        device.context().exit(mode);
      }
    } catch (UMBPException e) {
      engine.lose(device, String.valueOf(e.getMessage()), false, e);
      return false;
    } finally {
      dropEvents();
    }
    if (code != Driver.SUCCESS && code != Driver.NOT_READY) {
      engine.lose(device, Driver.describe("cuEventQuery", code), Driver.isSticky(code), null);
    }
    return code == Driver.SUCCESS;
  }

  @Override
  public boolean await(Duration timeout) {
    long left = CudaCopyEngine.nanos(timeout);
    long deadline = System.nanoTime() + left;
    long pause = 1_000;
    for (int round = 0; !poll(); round++) {
      left = deadline - System.nanoTime();
      if (left <= 0 || Thread.currentThread().isInterrupted()) {
        return isFinal;
      }
      if (round < SPINS) {
        Thread.onSpinWait();
      } else {
        LockSupport.parkNanos(this, Math.min(left, pause));
        pause = Math.min(pause * 2, LONGEST_PARK_NANOS);
      }
    }
    return true;
  }

  @Override
  public boolean isMarkDone(int mark) {
    checkMark(mark);
    if (isFinal || !engine.enter()) {
      return isFinal;
    }
    try {
      drive();
      return (isEnqueued && isDone(markDone[mark])) || isFinal;
    } finally {
      engine.exit();
    }
  }

  private void checkMark(int mark) {
    if (mark < 0 || mark >= markDone.length) {
      throw UMBPException.invalid("mark %d is outside the batch's [0, %d)", mark, markDone.length);
    }
  }

  @Override
  public @Nullable String failure(int key) {
    if (key < 0 || key >= keyCount) {
      throw UMBPException.invalid("key %d is outside the batch's [0, %d)", key, keyCount);
    }
    @Nullable String[] known = failures;
    return known == null ? null : known[key];
  }

  @Override
  public StreamWait enqueueWait(int mark, DeviceFence.OnStream stream) {
    checkMark(mark);
    if (isFinal || !engine.enter()) {
      return StreamWait.ENQUEUED;
    }
    try {
      drive();
      if (!isEnqueued || device.loss() != null) {
        return isFinal ? StreamWait.ENQUEUED : StreamWait.NOT_YET_ENQUEUED;
      }
      CUevent event = markDone[mark];
      if (event != null && useEvents()) {
        try {
          engine.letStreamWait(stream, event);
        } finally {
          dropEvents();
        }
      }
      return StreamWait.ENQUEUED;
    } finally {
      engine.exit();
    }
  }
}
