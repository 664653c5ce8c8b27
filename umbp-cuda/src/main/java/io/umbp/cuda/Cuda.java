package io.umbp.cuda;

import io.umbp.api.UMBPException;
import jcuda.driver.JCudaDriver;

/** Whether CUDA can be used here. Thread-safe. */
public final class Cuda {
  /**
   * The oldest driver that umbp supports, as {@code cuDriverGetVersion} counts: CUDA 11.0, the
   * first that takes the kernel's PTX 7.0. All functions that are called are as old.
   */
  static final int OLDEST_DRIVER = 11_000;

  private Cuda() {}

  /**
   * The answer to {@link #availability}. Immutable.
   *
   * @param isAvailable whether an engine can be opened
   * @param detail one line: driver and number of devices, or why there is none
   */
  public record Availability(boolean isAvailable, String detail) {}

  /**
   * Finds out whether CUDA can be used in this process. Loads JCuda's natives and initialises the
   * driver; nothing else in this package does so before an engine is opened. Throws nothing.
   *
   * @return the answer; what the natives said is remembered for the life of the JVM
   */
  public static Availability availability() {
    try {
      return new Availability(true, initialise());
    } catch (UMBPException e) {
      return new Availability(false, String.valueOf(e.getMessage()));
    }
  }

  /**
   * Loads the natives and initialises the driver.
   *
   * @return what was found
   * @throws UMBPException UNSUPPORTED with the reason
   */
  static String initialise() {
    String reason = CudaNatives.load();
    if (reason != null) {
      throw unsupported(reason);
    }
    int[] version = new int[1];
    require("cuDriverGetVersion", () -> JCudaDriver.cuDriverGetVersion(version));
    if (version[0] < OLDEST_DRIVER) {
      throw unsupported(
          String.format(
              "the CUDA driver is too old: it supports CUDA %s, umbp needs %s or newer",
              text(version[0]), text(OLDEST_DRIVER)));
    }
    int[] count = new int[1];
    require("cuInit", () -> JCudaDriver.cuInit(0));
    require("cuDeviceGetCount", () -> JCudaDriver.cuDeviceGetCount(count));
    if (count[0] == 0) {
      throw unsupported("no CUDA device: the driver sees none");
    }
    return "CUDA driver " + text(version[0]) + ", " + count[0] + " devices";
  }

  private static void require(String name, Driver.Call call) {
    int code = Driver.code(call);
    if (code == jcuda.driver.CUresult.CUDA_ERROR_NO_DEVICE) {
      throw unsupported("no CUDA device: " + Driver.describe(name, code));
    }
    if (code != Driver.SUCCESS) {
      throw unsupported("the CUDA driver can't be used: " + Driver.describe(name, code));
    }
  }

  private static String text(int version) {
    return version / 1000 + "." + version % 1000 / 10;
  }

  private static UMBPException unsupported(String reason) {
    return new UMBPException(UMBPException.Reason.UNSUPPORTED, reason);
  }
}
