package io.umbp.api.spi;

import io.umbp.api.DeviceFence;
import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * The progress of one submitted {@link CopyBatch}. Thread-safe. Final means that no row is read or
 * written any more, failed or not.
 */
public interface CopyTicket {
  /**
   * Looks whether the batch is final, without waiting.
   *
   * @return true when it is
   */
  boolean poll();

  /**
   * Waits until the batch is final or the time is up. Parks without holding a monitor. An interrupt
   * ends the wait and stays set.
   *
   * @param timeout longest time to wait, at least zero
   * @return true when it is final
   */
  boolean await(Duration timeout);

  /**
   * Tells whether all rows before a mark's end are over, failed or not.
   *
   * @param mark index of a mark of the batch
   * @return true when no row of the mark is copied any more
   */
  boolean isMarkDone(int mark);

  /**
   * Returns why a key's rows did not all arrive. Only asked once the ticket is final.
   *
   * @param key key index of the batch
   * @return the failure for people, or null when every row of the key arrived
   */
  @Nullable String failure(int key);

  /** A ticket whose marks a device stream can wait for, without the host. */
  interface SupportsStreamWait extends CopyTicket {
    /** Whether the wait was enqueued. */
    enum StreamWait {
      /** The stream waits for the mark on the device. */
      ENQUEUED,
      /** Not every copy of the batch is enqueued yet; nothing was done, try again. */
      NOT_YET_ENQUEUED
    }

    /**
     * Lets a stream wait on the device until a mark is done. The outcomes must still be read before
     * the bytes are trusted.
     *
     * @param mark index of a mark of the batch
     * @param stream the stream that waits
     * @return whether the wait was enqueued
     */
    StreamWait enqueueWait(int mark, DeviceFence.OnStream stream);
  }
}
