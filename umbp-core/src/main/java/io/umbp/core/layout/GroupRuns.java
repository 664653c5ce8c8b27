package io.umbp.core.layout;

import io.umbp.api.KVRegion;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;

/** The runs that the blocks of one group have in all its layers, in region order. Single-writer. */
final class GroupRuns {
  final int groupId;

  /** Blocks that all layers have. */
  int blockCount = Integer.MAX_VALUE;

  /** Each run of each page. */
  final RunColumns runs = new RunColumns();

  /** The same bytes with adjacent runs of one allocation in one. */
  final RunColumns rows = new RunColumns();

  /** The allocation of the layer that was added last. */
  private long allocationAddress;

  GroupRuns(int groupId) {
    this.groupId = groupId;
  }

  /** Appends a layer's page. */
  void add(KVRegion region, LayerPlacement placement) {
    long stride = placement.physicalStride();
    int parts = LayoutChecks.physicalBlocksPerBlock(region, stride, placement.blockCount());
    try {
      if (region.pageSegments().isEmpty()) {
        long bytes = region.blockBytes();
        for (long at = 0; at < bytes; at += stride) {
          addRun(placement, parts, at, Math.min(stride, bytes - at));
        }
      } else {
        for (KVRegion.PageSegment segment : region.pageSegments()) {
          addRun(placement, parts, segment.offset(), segment.length());
        }
      }
    } catch (ArithmeticException e) {
      throw new UMBPException(
          UMBPException.Reason.INVALID_ARGUMENT,
          String.format(
              "layer '%s': %d blocks of stride %d at 0x%x leave the 64-bit address space",
              region.layerName(), placement.blockCount(), stride, placement.baseAddress()),
          e);
    }
    blockCount = Math.min(blockCount, placement.blockCount() / parts);
  }

  private void addRun(LayerPlacement placement, int parts, long offset, long length) {
    long advance = Math.multiplyExact(placement.physicalStride(), (long) parts);
    long base = Math.addExact(placement.baseAddress(), offset);
    long lastBlock = placement.blockCount() / parts - 1L;
    Math.addExact(Math.addExact(base, Math.multiplyExact(lastBlock, advance)), length);
    runs.add(base, advance, length);
    boolean isInOneAllocation = allocationAddress == placement.allocationAddress();
    if (!isInOneAllocation || !rows.extend(base, advance, length)) {
      rows.add(base, advance, length);
    }
    allocationAddress = placement.allocationAddress();
  }

  void trim() {
    runs.trim();
    rows.trim();
  }
}
