package io.umbp.api;

/** How the transfer of one key ended. Every key of a job ends in exactly one of these. */
public enum KeyOutcome {
  /** Not ended yet. */
  PENDING,
  /** All bytes arrived. */
  COMPLETED,
  /** A load found no visible object; nothing was written. */
  MISS,
  /** The bytes did not arrive, or may not be used; see the {@link KeyReason}. */
  FAILED,
  /** Cancelled on request; a load's destination holds no usable bytes. */
  CANCELLED,
  /** The copy ended after the job's deadline, or had not begun by then. */
  TIMED_OUT,
  /** Not accepted: nothing was copied and nothing is held; see the {@link KeyReason}. */
  REJECTED
}
