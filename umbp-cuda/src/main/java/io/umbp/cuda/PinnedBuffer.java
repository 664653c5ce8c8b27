package io.umbp.cuda;

import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import jcuda.Pointer;
import jcuda.driver.CUresult;
import jcuda.driver.JCudaDriver;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Direct memory of the JVM that is registered with the driver: pinned and mapped for every context
 * of the engine. The memory stays Java's, so a view of it is safe for as long as someone holds it,
 * also after it was unregistered or the context was destroyed. Thread-safe.
 */
final class PinnedBuffer {
  private static final Logger log = LoggerFactory.getLogger(PinnedBuffer.class);
  private static final int PAGE = 4096;

  /** Memory that a device may still touch, or that would not be unregistered: kept for good. */
  private static final Queue<PinnedBuffer> GIVEN_UP = new ConcurrentLinkedQueue<>();

  private final ByteBuffer memory;
  private final long address;

  private PinnedBuffer(ByteBuffer memory, long address) {
    this.memory = memory;
    this.address = address;
  }

  /**
   * Allocates page-aligned memory and registers it.
   *
   * @throws UMBPException OUT_OF_MEMORY naming the need, the limit and whose it is
   */
  static PinnedBuffer allocate(List<CudaContext> contexts, long sizeBytes) {
    int whole = Math.toIntExact((sizeBytes + PAGE - 1) / PAGE * PAGE);
    ByteBuffer aligned;
    try {
      aligned = ByteBuffer.allocateDirect(whole + PAGE - 1).alignedSlice(PAGE);
    } catch (OutOfMemoryError e) {
      throw new UMBPException(
          UMBPException.Reason.OUT_OF_MEMORY,
          String.format(
              "no room for a slab of %d bytes of direct memory; the limit is -XX:MaxDirectMemorySize,"
                  + " or else the greatest heap (%d bytes): %s",
              sizeBytes, Runtime.getRuntime().maxMemory(), e.getMessage()),
          e);
    }
    return register(contexts, aligned.limit(Math.toIntExact(sizeBytes)).slice());
  }

  /**
   * Registers the bytes between a direct buffer's position and limit, which stay as they are.
   *
   * @throws UMBPException INVALID_ARGUMENT for memory that can't be, OUT_OF_MEMORY, DRIVER_FAILED
   */
  static PinnedBuffer register(List<CudaContext> contexts, ByteBuffer buffer) {
    if (!buffer.isDirect()) {
      throw UMBPException.invalid(
          "a heap buffer can't be copied asynchronously: the JVM moves it; use direct memory");
    }
    if (buffer.isReadOnly()) {
      throw UMBPException.invalid("a read-only buffer can't be a slab: stores write into it");
    }
    if (!buffer.hasRemaining()) {
      throw UMBPException.invalid("the buffer has no bytes between position and limit");
    }
    ByteBuffer memory = buffer.slice().order(ByteOrder.nativeOrder());
    long sizeBytes = memory.capacity();
    int[] mode = contexts.get(0).enter();
    try {
      int flags =
          JCudaDriver.CU_MEMHOSTREGISTER_PORTABLE | JCudaDriver.CU_MEMHOSTREGISTER_DEVICEMAP;
      int code =
          Driver.code(() -> JCudaDriver.cuMemHostRegister(Pointer.to(memory), sizeBytes, flags));
      if (code == CUresult.CUDA_ERROR_OUT_OF_MEMORY) {
        throw new UMBPException(
            UMBPException.Reason.OUT_OF_MEMORY,
            String.format(
                "the driver can't pin %d bytes: %s; the limit is the machine's memory, that of the"
                    + " container, or of locked memory (ulimit -l)",
                sizeBytes, Driver.describe("cuMemHostRegister", code)));
      }
      if (code != Driver.SUCCESS) {
        throw Driver.failed("cuMemHostRegister of " + sizeBytes + " bytes", code);
      }
    } finally {
      contexts.get(0).exit(mode);
    }
    try {
      return new PinnedBuffer(memory, deviceAddress(contexts, memory));
    } catch (RuntimeException | Error e) {
      unregister(contexts.get(0), memory);
      throw e;
    }
  }

  /** Returns the address by which every device reaches the memory. */
  private static long deviceAddress(List<CudaContext> contexts, ByteBuffer memory) {
    long common = 0;
    for (CudaContext context : contexts) {
      Handles.Address mapped = new Handles.Address();
      int[] mode = context.enter();
      try {
        Driver.check(
            "cuMemHostGetDevicePointer",
            () -> JCudaDriver.cuMemHostGetDevicePointer(mapped, Pointer.to(memory), 0));
      } finally {
        context.exit(mode);
      }
      if (common != 0 && mapped.value() != common) {
        throw new UMBPException(
            UMBPException.Reason.UNSUPPORTED,
            String.format(
                "devices see pinned memory at different addresses (0x%x, device %d 0x%x); open an"
                    + " engine for each",
                common, context.ordinal(), mapped.value()));
      }
      common = mapped.value();
    }
    return common;
  }

  private static int unregister(CudaContext context, ByteBuffer memory) {
    try {
      int[] mode = context.enter();
      try {
        return Driver.code(() -> JCudaDriver.cuMemHostUnregister(Pointer.to(memory)));
      } finally {
        context.exit(mode);
      }
    } catch (UMBPException e) {
      log.debug("Unregistering in a context that is gone", e);
      return CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
  }

  ByteBuffer memory() {
    return memory;
  }

  long address() {
    return address;
  }

  /** Unregisters the memory, which no device uses any more; it is Java's alone from then on. */
  void release(CudaContext context) {
    int code = unregister(context, memory);
    if (code != Driver.SUCCESS) {
      log.warn(
          "{} bytes stay pinned until the process ends: {}",
          memory.capacity(),
          Driver.describe("cuMemHostUnregister", code));
      giveUp();
    }
  }

  /** Keeps the memory for good, because a device may still touch it. */
  void giveUp() {
    GIVEN_UP.add(this);
  }
}
