package io.umbp.cuda;

import io.umbp.api.UMBPException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.locks.ReentrantLock;
import jcuda.driver.CUdevice_attribute;
import jcuda.driver.CUevent;
import jcuda.driver.CUevent_flags;
import jcuda.driver.CUfunction;
import jcuda.driver.CUmodule;
import jcuda.driver.CUstream;
import jcuda.driver.CUstream_flags;
import jcuda.driver.JCudaDriver;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One device of an engine: its context, one copy stream for each direction, the kernel, and the
 * batches that wait until fewer bytes are in flight. Thread-safe.
 *
 * <p>Streams, kernel, and a first stock of events and launch tables are made when the device is
 * opened, before serving: while an engine captures a graph nothing needs to be created.
 */
// The lock guards the fields below it. No driver call and no other lock is taken inside it. It is
// never taken while the context is current: a virtual thread that waits there goes on on another
// thread of the system, which has another context. So the stocks of events and tables have no lock.
// A staging buffer is one for all batches of its direction, in the order of their stream: between
// the call that fills it and the call that empties it no other batch's may come. So a batch that
// may use it is enqueued in a turn of its own, which is taken before the lock and the context.
final class CudaDevice {
  private static final Logger log = LoggerFactory.getLogger(CudaDevice.class);
  private static final int FIRST_EVENTS = 64;
  private static final int FIRST_TABLES = 4;

  private final CudaContext context;
  private final CudaCopySettings settings;
  private final CUstream loadStream = new CUstream();
  private final CUstream storeStream = new CUstream();
  private final CUmodule module = new CUmodule();
  private final CUfunction function = new CUfunction();
  private final List<Handles.Address> staging = new ArrayList<>();
  private final ReentrantLock loadTurn = new ReentrantLock();
  private final ReentrantLock storeTurn = new ReentrantLock();
  private int streams;
  private boolean hasKernel;
  private int multiprocessors;
  private long maxPitchBytes;

  /** Why the device is of no use any more. */
  private volatile @Nullable String loss;

  /** Whether the lost device has stopped, as its context's error tells. */
  private volatile boolean isDead;

  /** Whether memory for another launch table was refused. */
  private volatile boolean hasNoRoom;

  private final Deque<CUevent> events = new ConcurrentLinkedDeque<>();
  private final Deque<LaunchTable> tables = new ConcurrentLinkedDeque<>();
  private final ReentrantLock lock = new ReentrantLock();
  private final Deque<CudaCopyTicket> waitingLoads = new ArrayDeque<>();
  private final Deque<CudaCopyTicket> waitingStores = new ArrayDeque<>();
  private long inFlightBytes;

  private CudaDevice(CudaContext context, CudaCopySettings settings) {
    this.context = context;
    this.settings = settings;
  }

  /**
   * Makes all that copies need on a device.
   *
   * @throws UMBPException DRIVER_FAILED, UNSUPPORTED; nothing is left behind
   */
  static CudaDevice open(CudaContext context, CudaCopySettings settings) {
    CudaDevice device = new CudaDevice(context, settings);
    try {
      device.create();
      return device;
    } catch (RuntimeException | Error e) {
      device.close();
      throw e;
    }
  }

  private void create() {
    int[] mode = context.enter();
    try {
      requireUnifiedAddresses();
      multiprocessors = attribute(CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
      maxPitchBytes = attribute(CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH);
      int[] least = new int[1];
      int[] greatest = new int[1];
      Driver.check(
          "cuCtxGetStreamPriorityRange",
          () -> JCudaDriver.cuCtxGetStreamPriorityRange(least, greatest));
      createStream(loadStream, greatest[0]);
      createStream(storeStream, least[0]);
      hasKernel = loadKernel();
      for (int i = 0; i < 2 && settings.stagingBytes() > 0; i++) {
        Handles.Address buffer = new Handles.Address();
        Driver.check(
            "cuMemAlloc of a staging buffer of " + settings.stagingBytes() + " bytes",
            () -> JCudaDriver.cuMemAlloc(buffer, settings.stagingBytes()));
        staging.add(buffer);
      }
      for (int i = 0; i < FIRST_EVENTS; i++) {
        events.add(createEvent());
      }
      for (int i = 0; i < FIRST_TABLES && hasKernel; i++) {
        tables.add(new LaunchTable(List.of(context), settings.tableRanges()));
      }
    } finally {
      context.exit(mode);
    }
  }

  private void requireUnifiedAddresses() {
    if (attribute(CUdevice_attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 0
        || attribute(CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "device " + ordinal() + " has no unified addressing, or can't map host memory");
    }
  }

  private int attribute(int attribute) {
    int[] value = new int[1];
    Driver.check(
        "cuDeviceGetAttribute(" + attribute + ")",
        () -> JCudaDriver.cuDeviceGetAttribute(value, attribute, context.device()));
    return value[0];
  }

  private void createStream(CUstream stream, int priority) {
    Driver.check(
        "cuStreamCreateWithPriority",
        () ->
            JCudaDriver.cuStreamCreateWithPriority(
                stream, CUstream_flags.CU_STREAM_NON_BLOCKING, priority));
    streams++;
  }

  private boolean loadKernel() {
    String ptx = CopyKernel.ptx();
    int code = Driver.code(() -> JCudaDriver.cuModuleLoadData(module, ptx));
    if (code != Driver.SUCCESS) {
      log.warn(
          "Device {} copies small ranges one by one, which is slow: {}",
          ordinal(),
          Driver.describe("cuModuleLoadData", code));
      return false;
    }
    code = Driver.code(() -> JCudaDriver.cuModuleGetFunction(function, module, CopyKernel.ENTRY));
    if (code != Driver.SUCCESS) {
      Driver.code(() -> JCudaDriver.cuModuleUnload(module));
      throw Driver.failed("cuModuleGetFunction", code);
    }
    return true;
  }

  private static CUevent createEvent() {
    CUevent event = new CUevent();
    Driver.check(
        "cuEventCreate",
        () -> JCudaDriver.cuEventCreate(event, CUevent_flags.CU_EVENT_DISABLE_TIMING));
    return event;
  }

  int ordinal() {
    return context.ordinal();
  }

  CudaContext context() {
    return context;
  }

  CudaCopySettings settings() {
    return settings;
  }

  CUstream stream(boolean isLoad) {
    return isLoad ? loadStream : storeStream;
  }

  /** Returns the staging buffer of a direction, 0 when there is none. */
  long staging(boolean isLoad) {
    return staging.isEmpty() ? 0 : staging.get(isLoad ? 0 : 1).value();
  }

  /** Waits until no other thread enqueues a batch of the direction that may use its staging. */
  void beginTurn(boolean isLoad) {
    if (!staging.isEmpty()) {
      (isLoad ? loadTurn : storeTurn).lock();
    }
  }

  void endTurn(boolean isLoad) {
    if (!staging.isEmpty()) {
      (isLoad ? loadTurn : storeTurn).unlock();
    }
  }

  boolean hasKernel() {
    return hasKernel;
  }

  CUfunction function() {
    return function;
  }

  int multiprocessors() {
    return multiprocessors;
  }

  long maxPitchBytes() {
    return maxPitchBytes;
  }

  /** Takes an event from the stock, or makes one; the context is current. */
  CUevent takeEvent() {
    CUevent event = events.poll();
    return event == null ? createEvent() : event;
  }

  void giveBack(CUevent event) {
    events.push(event);
  }

  /**
   * Takes a launch table from the stock, or makes one; the context is current.
   *
   * @return null when there is none, and no memory for more: that was tried once
   */
  @Nullable LaunchTable takeTable() {
    LaunchTable table = tables.poll();
    if (table != null || hasNoRoom) {
      return table;
    }
    try {
      return new LaunchTable(List.of(context), settings.tableRanges());
    } catch (UMBPException e) {
      hasNoRoom = true;
      log.warn(
          "Device {} copies small ranges one by one while its launch tables are in use:"
              + " there is no room for more",
          ordinal(),
          e);
      return null;
    }
  }

  void giveBack(LaunchTable table) {
    tables.push(table);
  }

  /** Puts a batch in the queue of its direction. */
  void addWaiting(CudaCopyTicket ticket) {
    lock.lock();
    try {
      (ticket.isLoad() ? waitingLoads : waitingStores).add(ticket);
    } finally {
      lock.unlock();
    }
  }

  /** Enqueues the waiting batches whose bytes may be in flight, loads first. */
  void pump() {
    for (CudaCopyTicket ticket = next(); ticket != null; ticket = next()) {
      ticket.enqueue();
    }
  }

  private @Nullable CudaCopyTicket next() {
    lock.lock();
    try {
      Deque<CudaCopyTicket> queue = waitingLoads.isEmpty() ? waitingStores : waitingLoads;
      CudaCopyTicket head = queue.peek();
      if (head == null
          || (inFlightBytes > 0 && inFlightBytes + head.bytes() > settings.inFlightBytes())) {
        return null;
      }
      inFlightBytes += head.bytes();
      return queue.poll();
    } finally {
      lock.unlock();
    }
  }

  /** Counts the bytes of an enqueued batch out. */
  void landed(long bytes) {
    lock.lock();
    try {
      inFlightBytes -= bytes;
    } finally {
      lock.unlock();
    }
  }

  /** Takes all batches that were not enqueued out of the queues. */
  List<CudaCopyTicket> takeWaiting() {
    lock.lock();
    try {
      List<CudaCopyTicket> all = new ArrayList<>(waitingLoads);
      all.addAll(waitingStores);
      waitingLoads.clear();
      waitingStores.clear();
      return all;
    } finally {
      lock.unlock();
    }
  }

  void stop() {
    isDead = true;
  }

  /** Tells whether nothing runs any more on a stream of a lost device. */
  boolean hasStopped(boolean isLoad) {
    if (isDead) {
      return true;
    }
    try {
      int[] mode = context.enter();
      try {
        return Driver.code(() -> JCudaDriver.cuStreamQuery(stream(isLoad))) != Driver.NOT_READY;
      } finally {
        context.exit(mode);
      }
    } catch (UMBPException e) {
      log.debug("Device {} is gone with its streams", ordinal(), e);
      return true;
    }
  }

  void lose(String why) {
    loss = why;
  }

  @Nullable String loss() {
    return loss;
  }

  /** Frees all that was made, as far as the context still lets it. No batch is running. */
  void close() {
    tables.forEach(
        table -> {
          if (loss == null) {
            table.pinned().release(context);
          } else {
            table.pinned().giveUp();
          }
        });
    int[] mode;
    try {
      mode = context.enter();
    } catch (UMBPException e) {
      log.debug("Device {} is gone with all that was made on it", ordinal(), e);
      context.release();
      return;
    }
    try {
      events.forEach(event -> Driver.code(() -> JCudaDriver.cuEventDestroy(event)));
      staging.forEach(buffer -> Driver.code(() -> JCudaDriver.cuMemFree(buffer)));
      if (hasKernel) {
        Driver.code(() -> JCudaDriver.cuModuleUnload(module));
      }
      if (streams > 0) {
        Driver.code(() -> JCudaDriver.cuStreamDestroy(loadStream));
      }
      if (streams > 1) {
        Driver.code(() -> JCudaDriver.cuStreamDestroy(storeStream));
      }
    } finally {
      context.exit(mode);
      context.release();
    }
  }
}
