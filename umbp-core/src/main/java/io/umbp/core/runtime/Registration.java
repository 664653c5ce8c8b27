package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVOrigin;
import io.umbp.api.ShardedSource;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.TPShardLowering;
import java.util.ArrayDeque;
import java.util.List;
import java.util.stream.Stream;

/** One worker's registered buffers and how many jobs still touch them. */
final class Registration {
  private static final int MAX_SPARE_ROWS = 16;
  private static final int MAX_LOWERINGS = 8;

  private final EmbeddedWorkerHandle owner;
  private final KVLayoutPlanner planner;
  private final List<KVCacheTensor> tensors;
  private final int deviceOrdinal;
  private final KVOrigin origin;

  /** Jobs that have not stopped touching the buffers. Guarded by the runtime's lock. */
  int activeJobs;

  /** Set when no new job may begin. Guarded by the runtime's lock. */
  boolean isRetiring;

  /** Set when the last job that ends takes it back. Guarded by the runtime's lock. */
  boolean isAbandoned;

  private final ArrayDeque<CopyBatch> spareRows = new ArrayDeque<>();

  /** The lowerings of the sources last seen, newest first; replaced as a whole. */
  private volatile List<TPShardLowering> lowerings = List.of();

  Registration(
      EmbeddedWorkerHandle owner,
      KVLayoutPlanner planner,
      List<KVCacheTensor> tensors,
      KVOrigin origin) {
    this.owner = owner;
    this.origin = origin;
    this.planner = planner;
    this.tensors = tensors;
    this.deviceOrdinal = tensors.get(0).deviceOrdinal();
  }

  EmbeddedWorkerHandle owner() {
    return owner;
  }

  KVLayoutPlanner planner() {
    return planner;
  }

  List<KVCacheTensor> tensors() {
    return tensors;
  }

  KVOrigin origin() {
    return origin;
  }

  int deviceOrdinal() {
    return deviceOrdinal;
  }

  /** Returns rows for a job to fill. Called under the runtime's lock. */
  CopyBatch rows() {
    CopyBatch spare = spareRows.pollLast();
    return spare == null ? new CopyBatch() : spare;
  }

  /** Keeps rows whose copy has ended for the next job. Called under the runtime's lock. */
  void recycle(CopyBatch rows) {
    if (spareRows.size() < MAX_SPARE_ROWS) {
      spareRows.addLast(rows);
    }
  }

  /**
   * Returns how loads from a source are lowered: made once for each of the last few sources. Calls
   * that race make it twice, to no harm. Called without the lock.
   */
  TPShardLowering lowering(ShardedSource source) {
    List<TPShardLowering> known = lowerings;
    for (TPShardLowering lowering : known) {
      if (lowering.source().equals(source)) {
        return lowering;
      }
    }
    TPShardLowering added = TPShardLowering.of(planner, source);
    lowerings = Stream.concat(Stream.of(added), known.stream()).limit(MAX_LOWERINGS).toList();
    return added;
  }

  boolean isDevice() {
    return deviceOrdinal != KVCacheTensor.HOST;
  }
}
