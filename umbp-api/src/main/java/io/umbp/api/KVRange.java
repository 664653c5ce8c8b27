package io.umbp.api;

/**
 * One contiguous run of a block transfer: where it lies in the engine's buffer and where in the
 * object. Immutable.
 *
 * @param layerName the layer
 * @param groupId the layer's KV cache group
 * @param blockId the block as the engine numbers it, at least 0
 * @param address absolute address of the run's first byte, as the copy engine issued or confirmed
 *     it
 * @param stride bytes from this run to the same run of the next (kernel) block
 * @param length bytes, above 0
 * @param objectOffset bytes before the run in the object, at least 0
 */
public record KVRange(
    String layerName,
    int groupId,
    int blockId,
    long address,
    long stride,
    long length,
    long objectOffset) {

  /** Checks the signs, naming the layer. */
  public KVRange {
    if (groupId < 0 || blockId < 0 || length <= 0 || stride <= 0 || objectOffset < 0) {
      throw UMBPException.invalid(
          "layer '%s': range with group %d, block %d, stride %d, length %d, object offset %d;"
              + " stride and length must be > 0, the rest >= 0",
          layerName, groupId, blockId, stride, length, objectOffset);
    }
  }
}
