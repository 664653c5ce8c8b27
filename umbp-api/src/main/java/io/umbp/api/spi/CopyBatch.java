package io.umbp.api.spi;

import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import java.util.Arrays;

/**
 * Many copies between one device and host slabs, as columns: row {@code i} copies {@code length[i]}
 * bytes between {@code device[i]} and {@code host[i]} for key {@code key[i]}. Single-writer.
 *
 * <p>Rows do not overlap and run in any order; nothing but fences orders one batch after another.
 * Mark {@code m} stands for all rows before {@code markEnd[m]}. The columns are borrowed by the
 * copy engine from submit until the ticket is final; until then nobody changes the batch. A batch
 * is reused after {@link #reset}, and grows without bound but never per row in the steady state.
 */
public final class CopyBatch {
  private TransferDirection direction = TransferDirection.STORE;
  private int deviceOrdinal;
  private int keyCount;
  private int count;
  private int markCount;
  private long[] device = new long[64];
  private long[] host = new long[64];
  private long[] length = new long[64];
  private int[] key = new int[64];
  private int[] markEnd = new int[8];

  /** Creates an empty batch. */
  public CopyBatch() {}

  /**
   * Empties the batch and sets what holds for all rows.
   *
   * @param direction load copies host to device, store device to host
   * @param deviceOrdinal the device, {@link io.umbp.api.KVCacheTensor#HOST} for host memory
   * @param keyCount number of keys; row keys lie in [0, keyCount)
   */
  public void reset(TransferDirection direction, int deviceOrdinal, int keyCount) {
    this.direction = direction;
    this.deviceOrdinal = deviceOrdinal;
    this.keyCount = keyCount;
    count = 0;
    markCount = 0;
  }

  /**
   * Makes room for more rows, so that the columns can be filled directly.
   *
   * @param rows rows to come
   */
  public void ensureRoom(int rows) {
    long needed = (long) count + rows;
    if (needed > device.length) {
      int capacity = (int) Math.min(Integer.MAX_VALUE - 8L, Math.max(needed, device.length * 2L));
      if (needed > capacity) {
        throw UMBPException.invalid("a batch of %d rows exceeds the limit of %d", needed, capacity);
      }
      device = Arrays.copyOf(device, capacity);
      host = Arrays.copyOf(host, capacity);
      length = Arrays.copyOf(length, capacity);
      key = Arrays.copyOf(key, capacity);
    }
  }

  /**
   * Appends a row.
   *
   * @param deviceAddress where in engine memory
   * @param hostAddress where in a slab
   * @param lengthBytes bytes, above 0
   * @param keyIndex which key the row serves
   */
  public void add(long deviceAddress, long hostAddress, long lengthBytes, int keyIndex) {
    ensureRoom(1);
    device[count] = deviceAddress;
    host[count] = hostAddress;
    length[count] = lengthBytes;
    key[count] = keyIndex;
    count++;
  }

  /**
   * Counts rows that were written directly into the columns behind {@link #count()}, after {@link
   * #ensureRoom} made room for them.
   *
   * @param rows rows written
   */
  public void commit(int rows) {
    if (rows < 0 || rows > device.length - count) {
      throw UMBPException.invalid(
          "%d rows were committed, there was room for %d", rows, device.length - count);
    }
    count += rows;
  }

  /** Ends a mark at the rows added so far. */
  public void endMark() {
    if (markCount == markEnd.length) {
      markEnd = Arrays.copyOf(markEnd, markCount * 2);
    }
    markEnd[markCount++] = count;
  }

  /**
   * Returns which way the bytes move.
   *
   * @return load or store
   */
  public TransferDirection direction() {
    return direction;
  }

  /**
   * Returns the device of all rows.
   *
   * @return ordinal, {@link io.umbp.api.KVCacheTensor#HOST} for host memory
   */
  public int deviceOrdinal() {
    return deviceOrdinal;
  }

  /**
   * Returns the number of keys.
   *
   * @return count
   */
  public int keyCount() {
    return keyCount;
  }

  /**
   * Returns the number of rows.
   *
   * @return count
   */
  public int count() {
    return count;
  }

  /**
   * Returns the number of marks.
   *
   * @return count
   */
  public int markCount() {
    return markCount;
  }

  /**
   * Returns the column of engine addresses.
   *
   * @return shared array, valid in [0, count)
   */
  public long[] device() {
    return device;
  }

  /**
   * Returns the column of slab addresses.
   *
   * @return shared array, valid in [0, count)
   */
  public long[] host() {
    return host;
  }

  /**
   * Returns the column of lengths in bytes.
   *
   * @return shared array, valid in [0, count)
   */
  public long[] length() {
    return length;
  }

  /**
   * Returns the column of keys.
   *
   * @return shared array, valid in [0, count)
   */
  public int[] key() {
    return key;
  }

  /**
   * Returns the column of mark ends.
   *
   * @return shared array, valid in [0, markCount)
   */
  public int[] markEnd() {
    return markEnd;
  }
}
