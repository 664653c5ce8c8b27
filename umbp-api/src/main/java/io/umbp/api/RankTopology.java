package io.umbp.api;

import java.util.ArrayList;
import java.util.List;

/**
 * The model-parallel ranks that participate in one KV object: this rank's place and the size of
 * each parallel dimension. Immutable.
 *
 * <p>A worker's global rank counts tensor parallelism (TP) innermost, then prefill context
 * parallelism (PCP), then pipeline parallelism (PP). Decode context parallelism (DCP) partitions
 * the TP workers and is no dimension of its own: {@code dcpRank = tpRank mod dcpSize}.
 *
 * @param tpRank tensor-parallel rank in [0, tpSize)
 * @param tpSize number of tensor-parallel ranks, at least 1
 * @param pcpRank prefill-context-parallel rank in [0, pcpSize)
 * @param pcpSize number of prefill-context-parallel ranks, at least 1
 * @param dcpRank decode-context-parallel rank, always {@code tpRank mod dcpSize}
 * @param dcpSize number of decode-context-parallel ranks, at least 1; divides tpSize
 * @param ppRank pipeline-parallel rank in [0, ppSize)
 * @param ppSize number of pipeline stages, at least 1
 */
public record RankTopology(
    int tpRank,
    int tpSize,
    int pcpRank,
    int pcpSize,
    int dcpRank,
    int dcpSize,
    int ppRank,
    int ppSize) {

  /** Checks sizes, ranges, the DCP rules and that the ranks can be counted. */
  public RankTopology {
    checkDimension("tp", tpRank, tpSize);
    checkDimension("pcp", pcpRank, pcpSize);
    checkDimension("dcp", dcpRank, dcpSize);
    checkDimension("pp", ppRank, ppSize);
    if (tpSize % dcpSize != 0) {
      throw UMBPException.invalid("dcp size %d must divide tp size %d", dcpSize, tpSize);
    }
    if (dcpRank != tpRank % dcpSize) {
      throw UMBPException.invalid(
          "dcp rank %d must be tp rank %d mod dcp size %d", dcpRank, tpRank, dcpSize);
    }
    rankCount(tpSize, pcpSize, ppSize);
  }

  private static int rankCount(int tpSize, int pcpSize, int ppSize) {
    long count = (long) tpSize * pcpSize;
    if (count > Integer.MAX_VALUE || count * ppSize > Integer.MAX_VALUE) {
      throw UMBPException.invalid(
          "parallel sizes tp %d, pcp %d, pp %d make more than %d ranks",
          tpSize, pcpSize, ppSize, Integer.MAX_VALUE);
    }
    return (int) count * ppSize;
  }

  private static void checkDimension(String name, int rank, int size) {
    if (size <= 0) {
      throw UMBPException.invalid("%s size %d must be > 0", name, size);
    }
    if (rank < 0 || rank >= size) {
      throw UMBPException.invalid("%s rank %d is outside [0, %d)", name, rank, size);
    }
  }

  /**
   * Returns the topology of an engine with one rank.
   *
   * @return all ranks 0, all sizes 1
   */
  public static RankTopology single() {
    return tensorParallel(0, 1);
  }

  /**
   * Returns one rank of a purely tensor-parallel engine.
   *
   * @param tpRank rank in [0, tpSize)
   * @param tpSize number of ranks, at least 1
   * @return the topology
   */
  public static RankTopology tensorParallel(int tpRank, int tpSize) {
    return new RankTopology(tpRank, tpSize, 0, 1, 0, 1, 0, 1);
  }

  /**
   * Returns the place of a worker by its global rank.
   *
   * @param globalRank rank in [0, tpSize * pcpSize * ppSize)
   * @param tpSize tensor-parallel size
   * @param pcpSize prefill-context-parallel size
   * @param dcpSize decode-context-parallel size; divides tpSize
   * @param ppSize pipeline-parallel size
   * @return the topology
   */
  public static RankTopology ofGlobalRank(
      int globalRank, int tpSize, int pcpSize, int dcpSize, int ppSize) {
    if (tpSize <= 0 || pcpSize <= 0 || dcpSize <= 0 || ppSize <= 0) {
      throw UMBPException.invalid(
          "parallel sizes must be > 0, but are tp %d, pcp %d, dcp %d, pp %d",
          tpSize, pcpSize, dcpSize, ppSize);
    }
    int world = rankCount(tpSize, pcpSize, ppSize);
    if (globalRank < 0 || globalRank >= world) {
      throw UMBPException.invalid("global rank %d is outside [0, %d)", globalRank, world);
    }
    int tpRank = globalRank % tpSize;
    int pcpRank = globalRank / tpSize % pcpSize;
    int ppRank = globalRank / tpSize / pcpSize;
    return new RankTopology(
        tpRank, tpSize, pcpRank, pcpSize, tpRank % dcpSize, dcpSize, ppRank, ppSize);
  }

  /**
   * Returns this rank's coordinates as they stand in its keys.
   *
   * @return the local rank namespace
   */
  public RankNamespace localNamespace() {
    return new RankNamespace(tpRank, pcpRank, dcpRank, ppRank);
  }

  /**
   * Returns the coordinates of every rank of the engine: pipeline stage outermost, then PCP, then
   * TP. A logical block is present only when the objects of all of them are.
   *
   * @return {@link #rankCount()} rank namespaces, unmodifiable
   */
  public List<RankNamespace> allNamespaces() {
    List<RankNamespace> all = new ArrayList<>(rankCount());
    for (int pp = 0; pp < ppSize; pp++) {
      for (int pcp = 0; pcp < pcpSize; pcp++) {
        for (int tp = 0; tp < tpSize; tp++) {
          all.add(new RankNamespace(tp, pcp, tp % dcpSize, pp));
        }
      }
    }
    return List.copyOf(all);
  }

  /**
   * Returns how many ranks hold a part of each logical block.
   *
   * @return tpSize * pcpSize * ppSize
   */
  public int rankCount() {
    return rankCount(tpSize, pcpSize, ppSize);
  }
}
