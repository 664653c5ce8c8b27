package io.umbp.api.spi;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import java.time.Duration;

/**
 * Moves bytes between engine memory and host slabs. Thread-safe. One serves a whole runtime and
 * drives every device it was opened with; the runtime owns and closes it.
 *
 * <p>Implementers keep these rules (numbers as in the runtime authors' guide): the ticket becomes
 * final last, when no row is touched any more (rule 1); no row of a store reads, and none of a load
 * writes, before the batch's fence (rules 2 and 9); a failed row fails its key and no other, and
 * never looks like success (rule 5); a row outside registered memory or a live slab is refused
 * before anything is copied (rule 7); {@link #close} returns by its bound and frees nothing that a
 * copy still uses (rule 8). An engine has no deadlines; the runtime owns those.
 */
public interface KVCopyEngine {
  /** Greatest size of one slab in bytes (1 GiB). */
  long MAX_SLAB_BYTES = KVCacheTensor.MAX_SLAB_BYTES;

  /**
   * Registers an engine buffer. Allocations that several tensors share are registered once.
   *
   * @param tensor the buffer; its memory is shared until {@link #unregister}
   * @return address of block 0 for use in batches: a real one where addresses are real, else
   *     issued. Tensors in one allocation get addresses at their true distance, and a row may run
   *     from one into the next
   * @throws io.umbp.api.UMBPException INVALID_ARGUMENT, UNSUPPORTED, CLOSED
   */
  long register(KVCacheTensor tensor);

  /**
   * Takes a registration back. The caller has made sure that no copy uses the tensor.
   *
   * @param tensor a tensor passed to {@link #register}; ignored when not registered
   */
  void unregister(KVCacheTensor tensor);

  /**
   * Allocates host memory that the engine can copy to and from at full speed.
   *
   * @param sizeBytes size, 1 to {@link #MAX_SLAB_BYTES}
   * @return the slab, owned by the caller until {@link #releaseSlab}; its content is undefined
   * @throws io.umbp.api.UMBPException OUT_OF_MEMORY naming need and limit; CLOSED
   */
  HostSlab allocateSlab(long sizeBytes);

  /**
   * Gives a slab back. Transfers ownership to the engine, which frees it once no copy uses it.
   *
   * @param slab a slab of {@link #allocateSlab}; giving it back twice is harmless
   */
  void releaseSlab(HostSlab slab);

  /**
   * Starts the copies of a batch. Returns without waiting for the fence, but an engine without
   * asynchronous copies may run them inside this call.
   *
   * @param batch the rows; its columns are borrowed until the ticket is final
   * @param fence what the first row must come after
   * @return the progress
   * @throws io.umbp.api.UMBPException INVALID_ARGUMENT naming the row, FENCE_REQUIRED, CLOSED;
   *     nothing was copied
   */
  CopyTicket submit(CopyBatch batch, DeviceFence fence);

  /**
   * Closes the engine: refuses new work, waits for running copies until the bound, frees what no
   * copy uses. What one still uses is freed when it ends, or given up on purpose, and logged.
   * Calling it again returns the first result.
   *
   * @param bound longest time to wait, at least zero
   * @return batches still running and the slab bytes they use
   */
  CloseResult close(Duration bound);
}
