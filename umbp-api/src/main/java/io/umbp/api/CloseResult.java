package io.umbp.api;

/**
 * What a close left behind. Immutable.
 *
 * @param unfinishedJobs jobs whose copy still ran when the bound was reached
 * @param handedOverBytes bytes of host memory that such copies still use: the copy engine frees
 *     them when the copies end, or gives them up on purpose
 */
public record CloseResult(int unfinishedJobs, long handedOverBytes) {
  /** The result of a close that left nothing behind. */
  public static final CloseResult CLEAN = new CloseResult(0, 0);

  /**
   * Tells whether nothing was left behind.
   *
   * @return true when no job was unfinished and no memory handed over
   */
  public boolean isClean() {
    return unfinishedJobs == 0 && handedOverBytes == 0;
  }
}
