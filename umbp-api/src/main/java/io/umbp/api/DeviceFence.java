package io.umbp.api;

/**
 * A point that a copy must come after: all work that was enqueued on a stream before the call that
 * takes the fence. A store waits for the producer of its blocks, a load for the last user of its
 * destination. Immutable.
 */
public sealed interface DeviceFence {
  /**
   * All work enqueued so far on a device stream. It is recorded on the caller's thread inside the
   * call that takes the fence; the host does not wait for it.
   *
   * @param deviceOrdinal the stream's device, at least 0
   * @param streamHandle the raw stream handle
   */
  record OnStream(int deviceOrdinal, long streamHandle) implements DeviceFence {
    /** Checks the ordinal. */
    public OnStream {
      if (deviceOrdinal < 0) {
        throw UMBPException.invalid("device ordinal %d must be >= 0", deviceOrdinal);
      }
    }
  }

  /** The caller has already waited: nothing on any device still uses the blocks. */
  record HostComplete() implements DeviceFence {}

  /** No ordering at all; legal for host memory only, where it means the same as HostComplete. */
  record None() implements DeviceFence {}

  /**
   * Returns a fence after all work so far on a stream.
   *
   * @param deviceOrdinal the stream's device, at least 0
   * @param streamHandle the raw stream handle
   * @return the fence
   */
  static DeviceFence onStream(int deviceOrdinal, long streamHandle) {
    return new OnStream(deviceOrdinal, streamHandle);
  }

  /**
   * Returns the statement that the caller has already waited.
   *
   * @return the fence
   */
  static DeviceFence hostComplete() {
    return new HostComplete();
  }

  /**
   * Returns no fence; refused for device memory.
   *
   * @return the fence
   */
  static DeviceFence none() {
    return new None();
  }
}
