package io.umbp.cuda;

import io.umbp.api.UMBPException;
import java.util.HashMap;
import java.util.Map;
import jcuda.CudaException;
import jcuda.Pointer;
import jcuda.driver.CUDA_MEMCPY2D;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUevent;
import jcuda.driver.CUfunction;
import jcuda.driver.CUresult;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;

/**
 * The driver's results. JCuda returns a number or throws, as any code in the process last told it
 * with a switch of the whole JVM: here both become the number, and the switch is left alone.
 */
final class Driver {
  static final int SUCCESS = CUresult.CUDA_SUCCESS;
  static final int NOT_READY = CUresult.CUDA_ERROR_NOT_READY;

  private Driver() {}

  /** A call through JCuda. */
  @FunctionalInterface
  interface Call {
    int run();
  }

  private static final class Names {
    private static final int LAST_CODE = 999;
    static final Map<String, Integer> CODES = new HashMap<>();

    static {
      for (int code = 0; code <= LAST_CODE; code++) {
        CODES.put(CUresult.stringFor(code), code);
      }
    }
  }

  static int code(Call call) {
    try {
      return call.run();
    } catch (CudaException e) {
      return code(e);
    }
  }

  /** Returns the number of a result that JCuda threw; it keeps the symbolic name only. */
  private static int code(CudaException e) {
    Integer code = Names.CODES.get(e.getMessage());
    return code == null ? CUresult.CUDA_ERROR_UNKNOWN : code;
  }

  /**
   * Runs a call that must succeed.
   *
   * @throws UMBPException DRIVER_FAILED with the call, the number and its name
   */
  static void check(String name, Call call) {
    int code = code(call);
    if (code != SUCCESS) {
      throw failed(name, code);
    }
  }

  static UMBPException failed(String name, int code) {
    return new UMBPException(UMBPException.Reason.DRIVER_FAILED, describe(name, code));
  }

  static String describe(String name, int code) {
    return name + " returned " + code + " (" + CUresult.stringFor(code) + ")";
  }

  /** Tells whether a result means that the context is gone or of no use any more. */
  static boolean isSticky(int code) {
    return switch (code) {
      case CUresult.CUDA_ERROR_DEINITIALIZED,
          CUresult.CUDA_ERROR_ECC_UNCORRECTABLE,
          CUresult.CUDA_ERROR_NVLINK_UNCORRECTABLE,
          CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
          CUresult.CUDA_ERROR_LAUNCH_TIMEOUT,
          CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
          CUresult.CUDA_ERROR_ASSERT,
          CUresult.CUDA_ERROR_HARDWARE_STACK_ERROR,
          CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION,
          CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
          CUresult.CUDA_ERROR_INVALID_ADDRESS_SPACE,
          CUresult.CUDA_ERROR_INVALID_PC,
          CUresult.CUDA_ERROR_LAUNCH_FAILED,
          CUresult.CUDA_ERROR_EXTERNAL_DEVICE,
          CUresult.CUDA_ERROR_UNKNOWN ->
          true;
      default -> false;
    };
  }

  // The calls of the hot path, without an object for the call.

  static int memcpyAsync(CUdeviceptr to, CUdeviceptr from, long bytes, CUstream stream) {
    try {
      return JCudaDriver.cuMemcpyAsync(to, from, bytes, stream);
    } catch (CudaException e) {
      return code(e);
    }
  }

  static int memcpy2DAsync(CUDA_MEMCPY2D copy, CUstream stream) {
    try {
      return JCudaDriver.cuMemcpy2DAsync(copy, stream);
    } catch (CudaException e) {
      return code(e);
    }
  }

  static int launchKernel(
      CUfunction function, int gridX, int gridY, int threads, CUstream stream, Pointer parameters) {
    try {
      return JCudaDriver.cuLaunchKernel(
          function, gridX, gridY, 1, threads, 1, 1, 0, stream, parameters, null);
    } catch (CudaException e) {
      return code(e);
    }
  }

  static int eventRecord(CUevent event, CUstream stream) {
    try {
      return JCudaDriver.cuEventRecord(event, stream);
    } catch (CudaException e) {
      return code(e);
    }
  }

  static int eventQuery(CUevent event) {
    try {
      return JCudaDriver.cuEventQuery(event);
    } catch (CudaException e) {
      return code(e);
    }
  }

  static int streamWaitEvent(CUstream stream, CUevent event) {
    try {
      return JCudaDriver.cuStreamWaitEvent(stream, event, 0);
    } catch (CudaException e) {
      return code(e);
    }
  }
}
