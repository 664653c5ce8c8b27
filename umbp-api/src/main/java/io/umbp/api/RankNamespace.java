package io.umbp.api;

/**
 * The parallel coordinates of one rank as they stand in a key, in the order (tp, pcp, dcp, pp).
 * Immutable.
 *
 * <p>Objects that are the same on every tensor-parallel rank have one key for all of them, whose tp
 * is {@link #ALL_TP}.
 *
 * @param tp tensor-parallel rank, at least 0, or {@link #ALL_TP}
 * @param pcp prefill-context-parallel rank, at least 0
 * @param dcp decode-context-parallel rank, at least 0
 * @param pp pipeline-parallel rank, at least 0
 */
public record RankNamespace(int tp, int pcp, int dcp, int pp) {
  /** The tp of objects that all tensor-parallel ranks share; {@code *} in keys. */
  public static final int ALL_TP = Integer.MIN_VALUE;

  /** Checks that no rank is negative, and that shared objects are not split by context. */
  public RankNamespace {
    if (tp == ALL_TP && (pcp != 0 || dcp != 0)) {
      throw UMBPException.invalid(
          "objects of all tp ranks belong to pcp 0 and dcp 0, but are pcp %d, dcp %d", pcp, dcp);
    }
    if ((tp < 0 && tp != ALL_TP) || pcp < 0 || dcp < 0 || pp < 0) {
      throw UMBPException.invalid(
          "ranks must be >= 0, but are tp %d, pcp %d, dcp %d, pp %d", tp, pcp, dcp, pp);
    }
  }

  /**
   * Returns the coordinates of the objects that all tensor-parallel ranks of this pipeline stage
   * share.
   *
   * @return the same stage with tp {@link #ALL_TP}
   */
  public RankNamespace replicated() {
    return new RankNamespace(ALL_TP, 0, 0, pp);
  }

  /**
   * Tells whether these are the coordinates of objects that all tensor-parallel ranks share.
   *
   * @return true when tp is {@link #ALL_TP}
   */
  public boolean isReplicated() {
    return tp == ALL_TP;
  }

  /**
   * Returns the ranks as they stand in keys.
   *
   * @return text such as {@code tp1:pcp0:dcp1:pp0} or {@code tp*:pcp0:dcp0:pp1}
   */
  @Override
  public String toString() {
    return "tp"
        + (tp == ALL_TP ? "*" : Integer.toString(tp))
        + ":pcp"
        + pcp
        + ":dcp"
        + dcp
        + ":pp"
        + pp;
  }
}
