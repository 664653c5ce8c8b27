package io.umbp.cuda;

import io.umbp.api.DeviceFence;
import io.umbp.api.UMBPException;
import jcuda.driver.CUstream;

/**
 * Fences on CUDA streams. A fence only names the stream: the copy engine records an event on it
 * inside the call that takes the fence, on the caller's thread, and the copies wait for the event
 * on the device. Work that is enqueued later is not waited for.
 */
public final class CudaFence {
  private CudaFence() {}

  /**
   * Returns a fence after all work so far on a stream.
   *
   * @param deviceOrdinal the stream's device
   * @param stream a raw {@code CUstream} or {@code cudaStream_t}; 0 and 1 are the legacy default
   *     stream, 2 the calling thread's own
   * @return the fence
   */
  public static DeviceFence.OnStream onStream(int deviceOrdinal, long stream) {
    return new DeviceFence.OnStream(deviceOrdinal, stream);
  }

  /**
   * Returns a fence after all work so far on a stream of JCuda.
   *
   * @param deviceOrdinal the stream's device
   * @param stream a live stream; a {@code cudaStream_t} as {@code new CUstream(it)}
   * @return the fence
   * @throws UMBPException UNSUPPORTED when JCuda's handles can't be read (module path without
   *     {@code --add-opens})
   */
  public static DeviceFence.OnStream onStream(int deviceOrdinal, CUstream stream) {
    return onStream(deviceOrdinal, Handles.of(stream));
  }
}
