package io.umbp.api;

import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * The one unchecked root of every error that umbp throws. Immutable. A miss, a full pool and a
 * failed copy are no exceptions: they are outcomes of a job ({@link TransferJobState}).
 */
public class UMBPException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final Reason reason;

  /** Why the call was refused or failed. */
  public enum Reason {
    /** An argument breaks a stated rule; the message names value, limit and layer or key. */
    INVALID_ARGUMENT,
    /** The handle, runtime or engine was closed before or during the call. */
    CLOSED,
    /** The buffers that the call needs are not registered (or are being unregistered). */
    NOT_REGISTERED,
    /** The engine puts KV elsewhere than the registered layout says; the message tells where. */
    LAYOUT_MISMATCH,
    /** A copy that the call waits for failed, or did not end by the runtime's timeout. */
    COPY_FAILED,
    /** Device memory was named without a fence that orders the copy after its last user. */
    FENCE_REQUIRED,
    /** The stream is being captured into a graph, of which copies are never a part. */
    STREAM_CAPTURING,
    /** Host or device memory could not be had; the message names need and limit. */
    OUT_OF_MEMORY,
    /** This runtime or copy engine does not do what was asked. */
    UNSUPPORTED,
    /** A native driver call failed; the message has call, number and symbolic name. */
    DRIVER_FAILED
  }

  /**
   * Creates an error.
   *
   * @param reason why
   * @param message what, the value with its unit, the limit, the layer or key
   */
  public UMBPException(Reason reason, String message) {
    this(reason, message, null);
  }

  /**
   * Creates an error with a cause.
   *
   * @param reason why
   * @param message what, the value with its unit, the limit, the layer or key
   * @param cause the underlying failure, or null
   */
  public UMBPException(Reason reason, String message, @Nullable Throwable cause) {
    super(message, cause);
    this.reason = reason;
  }

  /**
   * Returns an {@link Reason#INVALID_ARGUMENT} error to throw.
   *
   * @param format message format as for {@link String#format}
   * @param arguments its arguments
   * @return the error, not yet thrown
   */
  public static UMBPException invalid(String format, @Nullable Object... arguments) {
    return new UMBPException(
        Reason.INVALID_ARGUMENT, String.format(Locale.ROOT, format, arguments));
  }

  /**
   * Returns a {@link Reason#CLOSED} error to throw.
   *
   * @param what the closed thing, e.g. "worker handle"
   * @return the error, not yet thrown
   */
  public static UMBPException closed(String what) {
    return new UMBPException(Reason.CLOSED, what + " is closed");
  }

  /**
   * Returns why the call failed.
   *
   * @return the reason code
   */
  public Reason reason() {
    return reason;
  }
}
