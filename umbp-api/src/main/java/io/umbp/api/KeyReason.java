package io.umbp.api;

/** Why a key failed or was rejected, or completed and did not become visible. */
public enum KeyReason {
  /** No reason: the outcome says it all. */
  NONE,
  /** The copy engine reported a failure for this key's rows. */
  COPY_FAILED,
  /** The stored object has another size than this layout's; nothing was written. */
  SIZE_MISMATCH,
  /** No room: every object that could be evicted is in use. */
  POOL_BUSY,
  /** Another job was storing the same key and failed. */
  WRITER_FAILED,
  /** Another job was storing the same key and passed its deadline. */
  WRITER_OVERDUE,
  /**
   * All bytes of a store arrived, so that the key completed, but the job gave the object up before
   * it was published: it was cancelled, or its deadline passed.
   */
  NOT_PUBLISHED,
  /** The namespace was cleared while the object was being stored. */
  CLEARED,
  /**
   * The buffers may hold KV that the engine's own cache writer did not make, and the namespace is
   * shared with engines where that is not so; {@link UMBPNamespace#foreign()} is for them.
   */
  FOREIGN_KV,
  /** The runtime or handle was closed. */
  CLOSED
}
