package io.umbp.core.runtime;

import io.umbp.api.KVCacheTensor.HostSlice;
import io.umbp.api.spi.HostSlab;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * One run of host bytes behind an issued address: a slab, or the slabs of a tensor in order.
 * Thread-safe; {@link #users}, {@link #registrations} and {@link #released} belong to the engine's
 * lock.
 */
final class HostRegion {
  final int number;
  final long sizeBytes;

  /** For slabs only: the memory to recycle, and what its owner holds. */
  final @Nullable ByteBuffer root;

  final @Nullable HostSlab slab;

  /** The owner's buffer objects and the part of each that counts. */
  private final List<HostSlice> slices;

  /** Batches that are copying to or from this slab. */
  int users;

  /** How often tensors over this memory are registered. */
  int registrations;

  /** Whether the owner gave the slab back. */
  boolean released;

  private final ByteBuffer[] pieces;
  private final int[] pieceStart;

  /** Where each piece begins in the run, and at the end the run's size. */
  private final long[] runStart;

  private HostRegion(int number, List<HostSlice> slices, @Nullable ByteBuffer root) {
    this.number = number;
    this.root = root;
    this.slices = slices;
    pieces = new ByteBuffer[slices.size()];
    pieceStart = new int[pieces.length];
    runStart = new long[pieces.length + 1];
    for (int i = 0; i < pieces.length; i++) {
      HostSlice slice = slices.get(i);
      // A duplicate of its own: the owner may move position and limit while copies run.
      pieces[i] = slice.buffer().duplicate().clear();
      pieceStart[i] = slice.start();
      runStart[i + 1] = runStart[i] + slice.length();
    }
    sizeBytes = runStart[pieces.length];
    slab =
        root == null
            ? null
            : new HostSlab(
                root.duplicate().order(ByteOrder.nativeOrder()),
                (long) number << HostAddressSpace.OFFSET_BITS,
                sizeBytes);
  }

  static HostRegion ofSlab(int number, ByteBuffer root) {
    return new HostRegion(number, List.of(new HostSlice(root, 0, root.capacity())), root);
  }

  static HostRegion ofTensor(int number, List<HostSlice> slices) {
    return new HostRegion(number, slices, null);
  }

  boolean isSlab() {
    return root != null;
  }

  /** Tells whether a tensor lies in the same bytes of the same buffer objects. */
  @SuppressWarnings("ReferenceEquality") // Buffers compare by content; here the memory counts.
  boolean holds(List<HostSlice> others) {
    if (isSlab() || slices.size() != others.size()) {
      return false;
    }
    for (int i = 0; i < others.size(); i++) {
      HostSlice mine = slices.get(i);
      HostSlice other = others.get(i);
      if (mine.buffer() != other.buffer()
          || mine.start() != other.start()
          || mine.length() != other.length()) {
        return false;
      }
    }
    return true;
  }

  /** Reads the first byte of each piece, so that memory this thread may not use shows at once. */
  void probe() {
    for (int i = 0; i < pieces.length; i++) {
      pieces[i].get(pieceStart[i]);
    }
  }

  /** Copies bytes that lie inside both regions. */
  static void copy(HostRegion from, long fromOffset, HostRegion to, long toOffset, long length) {
    if (from.pieces.length == 1 && to.pieces.length == 1) {
      to.pieces[0].put(
          to.pieceStart[0] + (int) toOffset,
          from.pieces[0],
          from.pieceStart[0] + (int) fromOffset,
          (int) length);
    } else {
      copyPieces(from, fromOffset, to, toOffset, length);
    }
  }

  private static void copyPieces(
      HostRegion from, long fromOffset, HostRegion to, long toOffset, long length) {
    int fromPiece = from.pieceAt(fromOffset);
    int toPiece = to.pieceAt(toOffset);
    long copied = 0;
    while (copied < length) {
      long fromRest = from.runStart[fromPiece + 1] - (fromOffset + copied);
      long toRest = to.runStart[toPiece + 1] - (toOffset + copied);
      int step = (int) Math.min(length - copied, Math.min(fromRest, toRest));
      to.pieces[toPiece].put(
          to.pieceStart[toPiece] + (int) (toOffset + copied - to.runStart[toPiece]),
          from.pieces[fromPiece],
          from.pieceStart[fromPiece] + (int) (fromOffset + copied - from.runStart[fromPiece]),
          step);
      copied += step;
      if (step == fromRest) {
        fromPiece++;
      }
      if (step == toRest) {
        toPiece++;
      }
    }
  }

  private int pieceAt(long offset) {
    int low = 0;
    int high = pieces.length - 1;
    while (low < high) {
      int middle = (low + high + 1) >>> 1;
      if (runStart[middle] <= offset) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
}
