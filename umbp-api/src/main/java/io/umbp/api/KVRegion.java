package io.umbp.api;

import java.util.List;

/**
 * The place of one layer's page inside a rank-local KV object, and the page's shape in the engine's
 * buffer. Immutable.
 *
 * <p>Block {@code b} of the layer starts at {@code base + b * blockStride} bytes. Without page
 * segments its page is the {@code blockBytes} bytes from there; with them it is the runs at {@code
 * blockStart + offset}, which need not lie inside the stride (layouts that put the head outside the
 * block), joined in list order.
 *
 * @param layerName unique name of the layer (K and V may be two names), not empty
 * @param groupId KV cache group, at least 0
 * @param blockStride bytes from one block's start to the next, above 0. The registered tensor may
 *     have a smaller stride that divides it: then one block is that many of the tensor's (kernel)
 *     blocks in a row
 * @param blockBytes bytes of one block that are really copied, above 0; at most blockStride when
 *     there are no page segments
 * @param objectOffset bytes before this page when the pages of all groups are laid one after
 *     another, at least 0: a running sum of blockBytes over the whole layout. It places the ranges
 *     of a block planned without a group; an object of one group counts from its own first page
 * @param blockSize tokens in one block, above 0
 * @param pageSegments runs of one page, their lengths adding up to blockBytes; empty when the page
 *     is one run; copied
 * @param shape where K and V of each head and token lie in the page's bytes as an object has them
 */
public record KVRegion(
    String layerName,
    int groupId,
    long blockStride,
    long blockBytes,
    long objectOffset,
    int blockSize,
    List<PageSegment> pageSegments,
    KVPageShape shape) {

  /**
   * One contiguous run of a page.
   *
   * @param offset bytes from the block's start, at least 0
   * @param length bytes, above 0
   */
  public record PageSegment(long offset, long length) {
    /** Checks the signs, and that the end is a number. */
    public PageSegment {
      if (offset < 0 || length <= 0) {
        throw UMBPException.invalid(
            "page segment has offset %d and length %d, needed are offset >= 0 and length > 0",
            offset, length);
      }
      if (length > Long.MAX_VALUE - offset) {
        throw UMBPException.invalid(
            "page segment with offset %d and length %d ends behind byte %d",
            offset, length, Long.MAX_VALUE);
      }
    }
  }

  /** Checks every bound, naming the layer. */
  public KVRegion {
    if (layerName.isEmpty()) {
      throw UMBPException.invalid("layer name of group %d is empty", groupId);
    }
    pageSegments = List.copyOf(pageSegments);
    if (groupId < 0) {
      throw UMBPException.invalid("layer '%s': group id %d must be >= 0", layerName, groupId);
    }
    checkPositive(layerName, "block stride", blockStride);
    checkPositive(layerName, "block bytes", blockBytes);
    checkPositive(layerName, "block size", blockSize);
    if (objectOffset < 0) {
      throw UMBPException.invalid(
          "layer '%s': object offset %d must be >= 0", layerName, objectOffset);
    }
    if (blockBytes > Long.MAX_VALUE - objectOffset) {
      throw UMBPException.invalid(
          "layer '%s': object offset %d with block bytes %d ends behind byte %d",
          layerName, objectOffset, blockBytes, Long.MAX_VALUE);
    }
    if (pageSegments.isEmpty()) {
      if (blockBytes > blockStride) {
        throw UMBPException.invalid(
            "layer '%s': block bytes %d exceed block stride %d",
            layerName, blockBytes, blockStride);
      }
    } else {
      long sum = 0;
      for (PageSegment segment : pageSegments) {
        if (segment.length() > Long.MAX_VALUE - sum) {
          throw UMBPException.invalid(
              "layer '%s': page segments add up to more than %d bytes", layerName, Long.MAX_VALUE);
        }
        sum += segment.length();
      }
      if (sum != blockBytes) {
        throw UMBPException.invalid(
            "layer '%s': page segments add up to %d bytes, block bytes are %d",
            layerName, sum, blockBytes);
      }
    }
    if (shape.pageBytes() != blockBytes) {
      throw UMBPException.invalid(
          "layer '%s': a page of shape %s has %d bytes, block bytes are %d",
          layerName, shape, shape.pageBytes(), blockBytes);
    }
  }

  /**
   * Creates a region whose page has no known inner order.
   *
   * @param layerName unique name of the layer
   * @param groupId KV cache group, at least 0
   * @param blockStride bytes from one block's start to the next
   * @param blockBytes bytes of one block that are really copied, above 0
   * @param objectOffset bytes before this page in an object of all groups
   * @param blockSize tokens in one block
   * @param pageSegments runs of one page; empty when the page is one run
   */
  public KVRegion(
      String layerName,
      int groupId,
      long blockStride,
      long blockBytes,
      long objectOffset,
      int blockSize,
      List<PageSegment> pageSegments) {
    this(
        layerName,
        groupId,
        blockStride,
        blockBytes,
        objectOffset,
        blockSize,
        pageSegments,
        KVPageShape.opaque(layerName, blockBytes));
  }

  /**
   * Creates a region whose page is one run with no known inner order.
   *
   * @param layerName unique name of the layer
   * @param groupId KV cache group, at least 0
   * @param blockStride bytes from one block's start to the next
   * @param blockBytes bytes of one block that are really copied
   * @param objectOffset bytes before this page in an object of all groups
   * @param blockSize tokens in one block
   */
  public KVRegion(
      String layerName,
      int groupId,
      long blockStride,
      long blockBytes,
      long objectOffset,
      int blockSize) {
    this(layerName, groupId, blockStride, blockBytes, objectOffset, blockSize, List.of());
  }

  private static void checkPositive(String layerName, String what, long value) {
    if (value <= 0) {
      throw UMBPException.invalid("layer '%s': %s %d must be > 0", layerName, what, value);
    }
  }
}
