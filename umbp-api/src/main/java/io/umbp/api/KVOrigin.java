package io.umbp.api;

/** Who may have written the KV in an engine's buffers. */
public enum KVOrigin {
  /** The engine's own cache writer, or umbp with what such a writer stored. */
  OWN_WRITER,
  /**
   * Perhaps something else: a second connector beside umbp, say, or an import. Stores are refused
   * unless the namespace is one {@linkplain UMBPNamespace#foreign() for such engines}.
   */
  MAY_BE_FOREIGN
}
