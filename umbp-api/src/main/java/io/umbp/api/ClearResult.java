package io.umbp.api;

/**
 * What a clear did. After it no object of the namespace is visible; the remaining ones only still
 * hold memory. Immutable.
 *
 * @param removed objects whose memory was freed
 * @param loading objects that running loads still read; freed when those end
 * @param storing objects that running stores still write; freed when those end, never published
 */
public record ClearResult(long removed, long loading, long storing) {
  /** The clear of a namespace in which there was nothing. */
  public static final ClearResult NOTHING = new ClearResult(0, 0, 0);

  /**
   * Tells whether no object of the namespace holds memory any more.
   *
   * @return false when some remain
   */
  public boolean isComplete() {
    return loading == 0 && storing == 0;
  }
}
