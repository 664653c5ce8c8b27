package io.umbp.api.spi;

import io.umbp.api.BlockKeys;
import io.umbp.api.ClearResult;
import io.umbp.api.CloseResult;
import io.umbp.api.KeyOutcome;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A slower place for objects below host memory: a disk, a remote store. Thread-safe. Objects come
 * from and go to slots of slabs, so that bytes are copied once for each hop.
 *
 * <p>Implementers keep these rules (numbers as in the runtime authors' guide): a ticket becomes
 * final last, when no slot is touched any more (rule 1); an object is found only once it is whole
 * (rule 3); a failed, late or damaged read never looks like a hit (rule 5); {@link #clear} tells
 * the truth (rule 6); {@link #close} returns by its bound (rule 8). No call waits for the place
 * itself: what takes long is reported by the ticket, and {@link #contains} answers within the
 * tier's own bound, a dead tier with misses.
 */
public interface BlockTier {
  /**
   * Where an object lies in host memory.
   *
   * @param slab the slab; borrowed until the ticket is final
   * @param offset bytes from the slab's start, at least 0
   * @param length bytes of the object, above 0
   */
  record Slot(HostSlab slab, long offset, long length) {
    /** Checks that the object lies in the slab. */
    public Slot {
      if (offset < 0 || length <= 0 || offset > slab.sizeBytes() - length) {
        throw UMBPException.invalid(
            "object at offset %d with %d bytes is outside a slab of %d bytes",
            offset, length, slab.sizeBytes());
      }
    }
  }

  /** The progress of a batch of writes or reads. Thread-safe. */
  interface Ticket {
    /**
     * Looks whether the batch is final, without waiting.
     *
     * @return true when no slot of it is read or written any more
     */
    boolean poll();

    /**
     * Waits until the batch is final or the time is up. An interrupt ends the wait and stays set.
     *
     * @param timeout longest time to wait, at least zero
     * @return true when it is final
     */
    boolean await(Duration timeout);

    /**
     * Returns how one object ended. Only asked once the ticket is final.
     *
     * @param key index of its key in the batch
     * @return COMPLETED, MISS (reads only), FAILED, or REJECTED when there was no room
     */
    KeyOutcome outcome(int key);

    /**
     * Returns why one object did not complete. Only asked once the ticket is final.
     *
     * @param key index of its key in the batch
     * @return the failure for people, null when there is none
     */
    @Nullable String failure(int key);
  }

  /**
   * Tells for each key whether a read issued now would find the object. Has no side effect.
   *
   * @param keys the keys
   * @return one answer a key, in order
   * @throws UMBPException CLOSED
   */
  boolean[] contains(BlockKeys keys);

  /**
   * Starts writing objects. One that is already there is left as it is.
   *
   * @param keys the keys
   * @param slots where each object lies; leased by the caller until the ticket is final
   * @return the progress
   * @throws UMBPException INVALID_ARGUMENT, CLOSED; nothing was written
   */
  Ticket write(BlockKeys keys, List<Slot> slots);

  /**
   * Starts reading objects. An object of another length than its slot's fails.
   *
   * @param keys the keys
   * @param slots where each object goes; nobody else uses them until the ticket is final
   * @return the progress
   * @throws UMBPException INVALID_ARGUMENT, CLOSED; nothing was read
   */
  Ticket read(BlockKeys keys, List<Slot> slots);

  /**
   * Removes every object of a namespace; writes begun before it don't become visible.
   *
   * @param namespace the namespace
   * @return what was removed and what still takes room
   * @throws UMBPException CLOSED
   */
  ClearResult clear(UMBPNamespace namespace);

  /**
   * Closes the tier. Waits for running work until the bound and returns by it. Calling it again
   * returns the first result.
   *
   * @param bound longest time to wait, at least zero
   * @return batches still running and the slot bytes they use
   */
  CloseResult close(Duration bound);
}
