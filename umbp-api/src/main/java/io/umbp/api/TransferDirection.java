package io.umbp.api;

/** Which way KV bytes move. */
public enum TransferDirection {
  /** From the store into the engine's blocks. */
  LOAD,
  /** From the engine's blocks into the store. */
  STORE
}
