package io.umbp.testkit;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * A CUDA driver in host memory, {@code libcuda.so.1} in C, under the real JNI library of JCuda: no
 * GPU is needed. One for the whole process. Thread-safe.
 *
 * <p>{@link #install} must come before JCuda is touched; then JCuda's natives find this driver and
 * none of the machine's. It keeps CUDA's rules about order, lifetime, contexts and errors, and is
 * stricter: an asynchronous copy of pageable memory is refused, and each use of memory that is not,
 * or no longer, there is counted as a {@link #violations violation} besides being an error. Device
 * addresses are not readable by the host; fresh device memory up to 64 MiB holds 0xCD. Addresses
 * and handles are not given out twice, so that a stale one is known. It knows one kernel, umbp's,
 * by its entry's name: it proves nothing about PTX, speed, or real overlap. What a capture records
 * is forgotten; that other streams join one through events is refused.
 */
public final class FakeCudaDriver {
  private static final String RESOURCE = "linux-x86_64/libcuda.so.1";
  private static final int DEVICES = 0;
  private static final int VERSION = 1;
  private static final int DEVICE_MEMORY = 2;
  private static final int PINNED_MEMORY = 3;
  private static final int NOOP = 4;
  private static final int COPY_NANOS = 5;
  private static final int FAULTS = 0;
  private static final int STICKY_ERRORS = 1;
  private static final int HOLDS = 2;
  private static final int VIOLATIONS = 3;

  /** Most devices that there can be. */
  public static final int MAX_DEVICES = 8;

  private static @Nullable FakeCudaDriver installed;

  private FakeCudaDriver() {}

  /**
   * What programs have made and not given back, over all devices. Immutable.
   *
   * @param deviceAllocations of {@code cuMemAlloc}
   * @param hostAllocations of {@code cuMemHostAlloc}
   * @param registrations of {@code cuMemHostRegister}
   * @param streams streams
   * @param events events
   * @param modules modules
   * @param primaryRetains retains of primary contexts
   * @param contexts of {@code cuCtxCreate}
   */
  public record Live(
      long deviceAllocations,
      long hostAllocations,
      long registrations,
      long streams,
      long events,
      long modules,
      long primaryRetains,
      long contexts) {
    /** Nothing at all. */
    public static final Live NOTHING = new Live(0, 0, 0, 0, 0, 0, 0, 0);
  }

  /** A read of device memory by work on a stream. */
  public static final class PendingRead {
    private long handle;

    private PendingRead(long handle) {
      this.handle = handle;
    }

    /**
     * Waits until the work has run.
     *
     * @return what it read; the same call may not be made twice
     * @throws IllegalStateException when the work could not run, or was awaited before
     */
    public synchronized byte[] await() {
      long own = handle;
      handle = 0;
      byte[] bytes = own == 0 ? null : awaitRead0(own);
      if (bytes == null) {
        throw new IllegalStateException("the read did not run, or was awaited before");
      }
      return bytes;
    }
  }

  /**
   * Tells why the fake can't be installed here.
   *
   * @return the reason in one line, empty when it can be, or is
   */
  public static Optional<String> unavailableReason() {
    String platform = System.getProperty("os.name") + "/" + System.getProperty("os.arch");
    if (!platform.equals("Linux/amd64")) {
      return Optional.of("the fake CUDA driver is for Linux/amd64, this is " + platform);
    }
    if (FakeCudaDriver.class.getResource(RESOURCE) == null) {
      return Optional.of("umbp-testkit was built without gcc, so without the fake CUDA driver");
    }
    return Optional.empty();
  }

  /**
   * Puts the fake in the place of the machine's CUDA driver, for the life of this process.
   *
   * @return the driver, the same at each call
   * @throws IllegalStateException with the {@link #unavailableReason}, or when it can't be loaded
   */
  public static synchronized FakeCudaDriver install() {
    FakeCudaDriver known = installed;
    if (known == null) {
      unavailableReason()
          .ifPresent(
              reason -> {
                throw new IllegalStateException(reason);
              });
      load();
      known = new FakeCudaDriver();
      installed = known;
    }
    return known;
  }

  private static void load() {
    try {
      // Under its own name: the loader takes a library that is there by that for any that wants it.
      Path folder = Files.createTempDirectory("umbp-fake-cuda");
      Path file = folder.resolve("libcuda.so.1");
      try (InputStream in = FakeCudaDriver.class.getResourceAsStream(RESOURCE)) {
        if (in == null) {
          throw new IllegalStateException(RESOURCE + " is gone");
        }
        Files.copy(in, file);
      }
      System.load(file.toString());
      Files.delete(file);
      Files.delete(folder);
    } catch (IOException | UnsatisfiedLinkError e) {
      throw new IllegalStateException("the fake CUDA driver can't be loaded: " + e, e);
    }
  }

  /**
   * Clears faults, sticky errors, all holds and captures, counts and violations; settings as at
   * first.
   */
  public void reset() {
    clearFaults();
    clearStickyErrors();
    clear0(HOLDS);
    resetCalls();
    clear0(VIOLATIONS);
    deviceCount(1);
    driverVersion(12_060);
    deviceMemoryLimit(Long.MAX_VALUE);
    pinnedMemoryLimit(Long.MAX_VALUE);
    noop(false);
    copyDelay(Duration.ZERO);
  }

  /**
   * Sets how many devices there are; 1 at first.
   *
   * @param count 0 to 8
   */
  public void deviceCount(int count) {
    if (count < 0 || count > MAX_DEVICES) {
      throw new IllegalArgumentException(count + " devices, allowed are 0 to " + MAX_DEVICES);
    }
    set0(DEVICES, count);
  }

  /**
   * Sets the version that the driver says it supports; 12060 at first.
   *
   * @param version 1000 times major plus 10 times minor
   */
  public void driverVersion(int version) {
    set0(VERSION, version);
  }

  /**
   * Limits the memory of each device.
   *
   * @param bytes what may be allocated at most
   */
  public void deviceMemoryLimit(long bytes) {
    set0(DEVICE_MEMORY, bytes);
  }

  /**
   * Limits pinned and registered memory in all.
   *
   * @param bytes what may be pinned at most
   */
  public void pinnedMemoryLimit(long bytes) {
    set0(PINNED_MEMORY, bytes);
  }

  /**
   * Lets copies, launches, and records and waits of events return at once without doing or checking
   * anything, and every event be done: what is left is the cost of the calls.
   *
   * @param doNothing whether to
   */
  public void noop(boolean doNothing) {
    set0(NOOP, doNothing ? 1 : 0);
  }

  /**
   * Lets each copy and kernel take a time.
   *
   * @param delay added to each
   */
  public void copyDelay(Duration delay) {
    set0(COPY_NANOS, delay.toNanos());
  }

  /**
   * Counts the calls of a function since the last {@link #resetCalls}.
   *
   * @param function its name, with or without {@code _v2}
   * @return count
   * @throws IllegalArgumentException when there is no such function
   */
  public long calls(String function) {
    requireFunction(function);
    return calls0(function);
  }

  private static void requireFunction(String function) {
    if (!isFunction0(function)) {
      throw new IllegalArgumentException("the CUDA driver has no function " + function);
    }
  }

  /** Sets all counts of calls to 0. */
  public void resetCalls() {
    resetCalls0();
  }

  /**
   * Counts what programs have made and not given back.
   *
   * @return a snapshot
   */
  public Live live() {
    long[] live = new long[8];
    live0(live);
    return new Live(live[0], live[1], live[2], live[3], live[4], live[5], live[6], live[7]);
  }

  /**
   * Counts what a correct program does not do, whatever became of it: use of memory that was not,
   * or no longer, there or not for that use; copies between ranges that overlap; memory, a module
   * or a context given back while work that needs it was enqueued.
   *
   * @return count since the last {@link #reset}
   */
  public long violations() {
    return violations0();
  }

  /**
   * Describes the violations.
   *
   * @return a line for each of the first hundred
   */
  public List<String> violationReports() {
    List<String> reports = new ArrayList<>();
    for (long i = 0; ; i++) {
      String report = violation0(i);
      if (report == null) {
        return reports;
      }
      reports.add(report);
    }
  }

  /**
   * Keeps copies and kernels of all streams that are enqueued from now on from beginning; without
   * effect when they are held already.
   */
  public void holdCopies() {
    holdCopies0(true);
  }

  /** Ends the hold of copies; without effect when there is none. */
  public void releaseCopies() {
    holdCopies0(false);
  }

  /**
   * Lets one held copy or kernel begin: of those not yet let, the one that was enqueued first.
   *
   * @return false when there is none
   */
  public boolean releaseOneCopy() {
    return releaseOneCopy0();
  }

  /**
   * Keeps work of a stream that is enqueued from now on from beginning; without effect when it is
   * held already.
   *
   * @param stream handle of a live stream
   */
  public void holdStream(long stream) {
    require(holdStream0(stream, true), stream);
  }

  /**
   * Ends the hold of a stream; without effect when there is none.
   *
   * @param stream handle of a live stream
   */
  public void releaseStream(long stream) {
    require(holdStream0(stream, false), stream);
  }

  private static void require(boolean isKnown, long stream) {
    if (!isKnown) {
      throw new IllegalArgumentException(String.format("there is no stream 0x%x", stream));
    }
  }

  /**
   * Makes calls of a function fail; nothing else is done by them.
   *
   * @param function its name, with or without {@code _v2}
   * @param code the result
   * @param after calls that succeed first
   * @param times calls that fail then
   * @throws IllegalArgumentException when there is no such function
   * @throws IllegalStateException when there are 64 such faults that are not used up
   */
  public void failCall(String function, int code, long after, long times) {
    requireFunction(function);
    requireRoom(failCall0(function, code, after, times, false));
  }

  private static void requireRoom(boolean isAdded) {
    if (!isAdded) {
      throw new IllegalStateException("there are too many faults that are not used up");
    }
  }

  /**
   * Makes work fail when it runs, for functions that enqueue work: an error that stays with the
   * context.
   *
   * @param function its name, with or without {@code _v2}
   * @param code the error
   * @param after calls whose work succeeds first
   * @param times calls whose work fails then
   * @throws IllegalArgumentException when there is no such function
   * @throws IllegalStateException when there are 64 such faults that are not used up
   */
  public void failCompletion(String function, int code, long after, long times) {
    requireFunction(function);
    requireRoom(failCall0(function, code, after, times, true));
  }

  /**
   * Makes calls fail that name an address: in a copy's range, a row of a strided copy, or a row of
   * a kernel's table. Nothing else is done by them.
   *
   * @param address a device or host address
   * @param code the result
   * @param times calls that fail
   * @throws IllegalStateException when there are 1024 such faults that are not used up
   */
  public void failAddress(long address, int code, long times) {
    requireRoom(failAddress0(address, code, times));
  }

  /** Takes all faults back that were not used up. */
  public void clearFaults() {
    clear0(FAULTS);
  }

  /** Heals contexts that an error has made useless, as no real driver does. */
  public void clearStickyErrors() {
    clear0(STICKY_ERRORS);
  }

  /**
   * Enqueues a write of device memory as a kernel of the program would do it; holding copies does
   * not hold it.
   *
   * @param stream handle of a live stream
   * @param address device address
   * @param bytes what to write
   */
  public void enqueueWrite(long stream, long address, byte[] bytes) {
    if (!enqueueWrite0(stream, address, bytes)) {
      throw unknown(stream, address, bytes.length);
    }
  }

  /**
   * Enqueues a read of device memory as a kernel of the program would do it; holding copies does
   * not hold it.
   *
   * @param stream handle of a live stream
   * @param address device address
   * @param length bytes
   * @return the read
   */
  public PendingRead enqueueRead(long stream, long address, int length) {
    long handle = enqueueRead0(stream, address, length);
    if (handle == 0) {
      throw unknown(stream, address, length);
    }
    return new PendingRead(handle);
  }

  private static IllegalArgumentException unknown(long stream, long address, int length) {
    return new IllegalArgumentException(
        String.format(
            "no live stream 0x%x, or no allocation that holds %d bytes at 0x%x",
            stream, length, address));
  }

  /**
   * Reads memory of the driver at once, whatever streams do.
   *
   * @param address device, pinned or registered address
   * @param length bytes
   * @return a copy
   */
  public byte[] peek(long address, int length) {
    byte[] bytes = new byte[length];
    if (!peek0(address, bytes)) {
      throw unknown(0, address, length);
    }
    return bytes;
  }

  /**
   * Writes memory of the driver at once, whatever streams do.
   *
   * @param address device, pinned or registered address
   * @param bytes what to write
   */
  public void poke(long address, byte[] bytes) {
    if (!poke0(address, bytes)) {
      throw unknown(0, address, bytes.length);
    }
  }

  private static native void set0(int setting, long value);

  private static native boolean isFunction0(String function);

  private static native long calls0(String function);

  private static native void resetCalls0();

  private static native void live0(long[] into);

  private static native long violations0();

  private static native @Nullable String violation0(long index);

  private static native void clear0(int what);

  private static native void holdCopies0(boolean hold);

  private static native boolean releaseOneCopy0();

  private static native boolean holdStream0(long stream, boolean hold);

  private static native boolean failCall0(
      String function, int code, long after, long times, boolean atCompletion);

  private static native boolean failAddress0(long address, int code, long times);

  private static native boolean enqueueWrite0(long stream, long address, byte[] bytes);

  private static native long enqueueRead0(long stream, long address, int length);

  private static native byte @Nullable [] awaitRead0(long handle);

  private static native boolean peek0(long address, byte[] into);

  private static native boolean poke0(long address, byte[] from);
}
