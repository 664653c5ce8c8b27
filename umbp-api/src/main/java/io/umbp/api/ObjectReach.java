package io.umbp.api;

/** Which ranks of an engine can reach the objects that one of them stores. */
public enum ObjectReach {
  /** All of them: of objects that are the same on every tensor-parallel rank, one copy will do. */
  EVERY_RANK,
  /** Only the rank itself, whose process has a private pool: every rank keeps its own copy. */
  OWN_RANK
}
