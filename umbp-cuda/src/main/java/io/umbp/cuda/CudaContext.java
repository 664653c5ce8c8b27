package io.umbp.cuda;

import io.umbp.api.UMBPException;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.JCudaDriver;

/**
 * A device's context: its primary one, or the serving engine's own. Thread-safe. Every driver call
 * of the copy engine lies between {@link #enter} and {@link #exit}, which leave the calling thread
 * as it was.
 */
final class CudaContext {
  private static final int CAPTURE_MODE_RELAXED = 2;

  private final int ordinal;
  private final CUcontext handle;
  private final boolean isRetained;

  private CudaContext(int ordinal, CUcontext handle, boolean isRetained) {
    this.ordinal = ordinal;
    this.handle = handle;
    this.isRetained = isRetained;
  }

  static CudaContext primary(int ordinal) {
    CUcontext handle = new CUcontext();
    CUdevice device = device(ordinal);
    Driver.check(
        "cuDevicePrimaryCtxRetain", () -> JCudaDriver.cuDevicePrimaryCtxRetain(handle, device));
    return new CudaContext(ordinal, handle, true);
  }

  static CudaContext of(long rawHandle) {
    if (rawHandle == 0) {
      throw UMBPException.invalid("context handle is 0 (null)");
    }
    CUcontext handle = Handles.context(rawHandle);
    CUdevice device = new CUdevice();
    int[] ordinal = {-1};
    Driver.check("cuCtxPushCurrent", () -> JCudaDriver.cuCtxPushCurrent(handle));
    try {
      Driver.check("cuCtxGetDevice", () -> JCudaDriver.cuCtxGetDevice(device));
      int[] count = new int[1];
      Driver.check("cuDeviceGetCount", () -> JCudaDriver.cuDeviceGetCount(count));
      for (int i = 0; i < count[0]; i++) {
        if (device(i).equals(device)) {
          ordinal[0] = i;
        }
      }
    } finally {
      Driver.code(() -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
    }
    return new CudaContext(ordinal[0], handle, false);
  }

  private static CUdevice device(int ordinal) {
    CUdevice device = new CUdevice();
    Driver.check("cuDeviceGet(" + ordinal + ")", () -> JCudaDriver.cuDeviceGet(device, ordinal));
    return device;
  }

  int ordinal() {
    return ordinal;
  }

  CUdevice device() {
    return device(ordinal);
  }

  /**
   * Makes the context current and lifts the calling thread's ban on calls that another thread's
   * stream capture may forbid: copies are never part of a capture.
   *
   * @return what {@link #exit} needs
   * @throws UMBPException DRIVER_FAILED when the context is gone; nothing was changed
   */
  int[] enter() {
    int[] mode = {CAPTURE_MODE_RELAXED};
    Driver.check("cuCtxPushCurrent", () -> JCudaDriver.cuCtxPushCurrent(handle));
    int code = Driver.code(() -> JCudaDriver.cuThreadExchangeStreamCaptureMode(mode));
    if (code != Driver.SUCCESS) {
      Driver.code(() -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
      throw Driver.failed("cuThreadExchangeStreamCaptureMode", code);
    }
    return mode;
  }

  /** Gives the calling thread its context and capture mode back. */
  void exit(int[] mode) {
    Driver.code(() -> JCudaDriver.cuThreadExchangeStreamCaptureMode(mode));
    Driver.code(() -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
  }

  /** Gives a primary context back; the serving engine's own stays as it is. */
  void release() {
    if (isRetained) {
      Driver.code(() -> JCudaDriver.cuDevicePrimaryCtxRelease(device()));
    }
  }
}
