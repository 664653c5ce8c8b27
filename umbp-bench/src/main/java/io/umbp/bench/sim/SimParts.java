package io.umbp.bench.sim;

import io.umbp.api.DeviceFence;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.core.connector.BlockPins;

/** Where the parts of a simulated engine meet; a test puts a faulty part in by changing one. */
class SimParts {
  KVCopyEngine copies(KVCopyEngine engine) {
    return engine;
  }

  UMBPRuntime runtime(UMBPRuntime runtime) {
    return runtime;
  }

  UMBPSchedulerHandle schedulerHandle(UMBPSchedulerHandle handle) {
    return handle;
  }

  BlockPins pins(BlockPins pins) {
    return pins;
  }

  /** The fence of loads; {@code computed} stands for all work on the rank's stream so far. */
  DeviceFence loadFence(DeviceFence computed) {
    return computed;
  }

  DeviceFence storeFence(DeviceFence computed) {
    return computed;
  }

  /** What a rank hears of a step. */
  UMBPConnectorMetadata toWorker(int rank, UMBPConnectorMetadata step) {
    return step;
  }

  /** What the scheduler hears of a rank. */
  UMBPConnectorWorkerMetadata fromWorker(int rank, UMBPConnectorWorkerMetadata report) {
    return report;
  }
}
