package io.umbp.cuda;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.List;
import jcuda.Pointer;

/**
 * The pinned rows of one kernel launch, with the launch's parameters. Belongs to one batch until
 * that is final, because the device reads it when the kernel runs.
 */
final class LaunchTable {
  private final PinnedBuffer pinned;
  private final LongBuffer rows;
  private final ByteBuffer values;
  private final Pointer parameters;

  LaunchTable(List<CudaContext> contexts, int capacity) {
    pinned = PinnedBuffer.allocate(contexts, (long) capacity * CopyKernel.ROW_BYTES);
    rows = pinned.memory().asLongBuffer();
    values = ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder());
    values.putLong(0, pinned.address());
    parameters = Pointer.to(Pointer.to(values), Pointer.to(values).withByteOffset(8));
  }

  LongBuffer rows() {
    return rows;
  }

  /** Returns the kernel's parameters for a number of rows; valid until the next call. */
  Pointer parameters(int rowCount) {
    values.putInt(8, rowCount);
    return parameters;
  }

  PinnedBuffer pinned() {
    return pinned;
  }
}
