package io.umbp.api;

/**
 * The parallel coordinates of one rank as they stand in a key, in the order (tp, pcp, dcp, pp).
 * Immutable.
 *
 * @param tp tensor-parallel rank, at least 0
 * @param pcp prefill-context-parallel rank, at least 0
 * @param dcp decode-context-parallel rank, at least 0
 * @param pp pipeline-parallel rank, at least 0
 */
public record RankNamespace(int tp, int pcp, int dcp, int pp) {
  /** Checks that no rank is negative. */
  public RankNamespace {
    if (tp < 0 || pcp < 0 || dcp < 0 || pp < 0) {
      throw UMBPException.invalid(
          "ranks must be >= 0, but are tp %d, pcp %d, dcp %d, pp %d", tp, pcp, dcp, pp);
    }
  }

  /**
   * Returns the ranks as they stand in keys.
   *
   * @return text such as {@code tp1:pcp0:dcp1:pp0}
   */
  @Override
  public String toString() {
    return "tp" + tp + ":pcp" + pcp + ":dcp" + dcp + ":pp" + pp;
  }
}
