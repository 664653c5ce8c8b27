package io.umbp.core.runtime;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe;
import io.umbp.api.KVRange;
import io.umbp.api.RegistrationOptions.Trial;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.HostSlab;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.runtime.TrialPlaces.Page;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.jspecify.annotations.Nullable;

/**
 * Finds out with two lent blocks whether the engine keeps KV where the layout says, group by group:
 * layers of different groups may share bytes. Thread-confined.
 *
 * <p>First the engine's probe writes every place of both blocks, and both are gathered as a store
 * would; each place of the objects is compared. Only when all are right, so that the runs of the
 * blocks are known to be theirs, the first block's object is scattered into the second block as a
 * load would, and compared through the probe; and the bytes around the second block's runs must be
 * what they were.
 */
final class LayoutTrial {
  /** Lets each trial put other values, so that none takes what another one left for its own. */
  private static final AtomicLong TRIALS = new AtomicLong();

  private final KVLayoutPlanner planner;
  private final int groupId;
  private final int deviceOrdinal;
  private final List<TrialCanaries.Span> registered;
  private final Trial trial;
  private final UMBPNamespace namespace;
  private final TrialCopies copies;

  private final TrialPlaces places;
  private final CopyBatch rows = new CopyBatch();
  private final HostSlab[] objects = new HostSlab[2];
  private final Map<Integer, byte[]> expectedBySize = new HashMap<>();
  private final Map<Integer, byte[]> actualBySize = new HashMap<>();
  private long mismatches;
  private @Nullable String firstMismatch;

  private LayoutTrial(
      KVLayoutPlanner planner,
      int groupId,
      int deviceOrdinal,
      List<TrialCanaries.Span> registered,
      Trial trial,
      UMBPNamespace namespace,
      TrialCopies copies) {
    this.planner = planner;
    this.groupId = groupId;
    this.deviceOrdinal = deviceOrdinal;
    this.registered = registered;
    this.trial = trial;
    this.namespace = namespace;
    this.copies = copies;
    places = new TrialPlaces(planner.layout(), groupId, TRIALS.incrementAndGet());
    long objectBytes = planner.objectBytes(groupId);
    objects[0] = copies.allocate(objectBytes);
    objects[1] = copies.allocate(objectBytes);
  }

  /**
   * Tries all groups out.
   *
   * @param planner the layout with its layers' places
   * @param deviceOrdinal the device of all buffers
   * @param registered the memory of all buffers
   * @param trial the probe and its blocks
   * @param namespace whose keys the batches get
   * @param copies takes slabs and copies; its slabs are given back here
   * @return how many places were tried
   * @throws UMBPException LAYOUT_MISMATCH; INVALID_ARGUMENT when a block is outside the layout or
   *     the probe throws; COPY_FAILED; OUT_OF_MEMORY
   */
  static long run(
      KVLayoutPlanner planner,
      int deviceOrdinal,
      List<TrialCanaries.Span> registered,
      Trial trial,
      UMBPNamespace namespace,
      TrialCopies copies) {
    for (int groupId : planner.groupIds()) {
      int blocks = planner.blockCount(groupId);
      if (Math.max(trial.firstBlock(), trial.secondBlock()) >= blocks) {
        throw UMBPException.invalid(
            "blocks %d and %d were lent for a trial, but group %d has blocks 0 to %d",
            trial.firstBlock(), trial.secondBlock(), groupId, blocks - 1);
      }
    }
    long places = 0;
    for (int groupId : planner.groupIds()) {
      try {
        LayoutTrial ofGroup =
            new LayoutTrial(planner, groupId, deviceOrdinal, registered, trial, namespace, copies);
        ofGroup.run();
        places += 2 * ofGroup.places.count();
      } finally {
        copies.releaseSlabs();
      }
    }
    return places;
  }

  private void run() {
    int rounds = places.rounds();
    for (int round = 0; round < rounds; round++) {
      write(round);
      gather();
      compareObjects(round);
    }
    TrialCanaries canaries =
        new TrialCanaries(planner.rangesForBlock(trial.secondBlock(), groupId), registered);
    long canaryBytes = Math.max(1, canaries.sizeBytes());
    HostSlab before = copies.allocate(canaryBytes);
    HostSlab after = copies.allocate(canaryBytes);
    for (int round = rounds - 1; round >= 0; round--) {
      if (round < rounds - 1) {
        write(round);
        gather();
      }
      snapshot(canaries, before);
      scatter();
      compareReadBack(round);
      snapshot(canaries, after);
      String difference = canaries.difference(before, after);
      if (difference != null) {
        throw mismatch(
            "loading block %d of group %d changed the byte at %s, which is no part of the block",
            trial.secondBlock(), groupId, difference);
      }
    }
  }

  private int block(int side) {
    return side == 0 ? trial.firstBlock() : trial.secondBlock();
  }

  private void write(int round) {
    places.forEach(
        (page, part, head, token, id) -> {
          for (int side = 0; side < 2; side++) {
            byte[] value = buffer(expectedBySize, page.sizeBytes(part));
            places.fill(value, id, side == 1, round);
            KVProbe.Place place =
                new KVProbe.Place(page.layerName(), block(side), part, head, token);
            try {
              trial.probe().write(place, value);
            } catch (RuntimeException e) {
              throw probeFailed("write", place, e);
            }
          }
        });
  }

  private static byte[] buffer(Map<Integer, byte[]> bySize, int size) {
    return bySize.computeIfAbsent(size, byte[]::new);
  }

  private void gather() {
    BlockStoreBatch both =
        BlockStoreBatch.of("", keys("00", "01"), trial.firstBlock(), trial.secondBlock());
    rows.reset(TransferDirection.STORE, deviceOrdinal, 2);
    planner.lower(both, new long[] {objects[0].baseAddress(), objects[1].baseAddress()}, rows);
    copies.run(
        rows, "storing blocks " + trial.firstBlock() + " and " + trial.secondBlock() + ofGroup());
  }

  private void scatter() {
    BlockLoadBatch second = BlockLoadBatch.of("", keys("00"), trial.secondBlock());
    rows.reset(TransferDirection.LOAD, deviceOrdinal, 1);
    planner.lowerLayerMajor(second, new long[] {objects[0].baseAddress()}, rows);
    copies.run(rows, "loading block " + trial.secondBlock() + ofGroup());
  }

  private void snapshot(TrialCanaries canaries, HostSlab target) {
    canaries.lower(rows, deviceOrdinal, target.baseAddress());
    copies.run(rows, "reading what lies around block " + trial.secondBlock() + ofGroup());
  }

  private String ofGroup() {
    return " of group " + groupId;
  }

  private BlockKeys keys(String... hashes) {
    List<BlockHash> distinct = Arrays.stream(hashes).map(BlockHash::fromHex).toList();
    return BlockKeys.of(
        namespace, planner.layout().topology().localNamespace(), groupId, BlockHashes.of(distinct));
  }

  private void compareObjects(int round) {
    places.forEach(
        (page, part, head, token, id) -> {
          for (int side = 0; side < 2; side++) {
            byte[] expected = buffer(expectedBySize, page.sizeBytes(part));
            byte[] actual = buffer(actualBySize, page.sizeBytes(part));
            places.fill(expected, id, side == 1, round);
            objects[side].buffer().get(page.offset(part, head, token), actual);
            if (!Arrays.equals(expected, actual)) {
              mismatches++;
              if (firstMismatch == null) {
                firstMismatch = describeMismatch(page, part, head, token, side, expected);
              }
            }
          }
        });
    if (firstMismatch != null) {
      throw mismatch(
          "%s; %d of %d places%s are wrong",
          firstMismatch, mismatches, 2 * places.count(), ofGroup());
    }
  }

  private String describeMismatch(
      Page page, Part part, int head, int token, int side, byte[] value) {
    int planned = page.offset(part, head, token);
    return String.format(
        "layer %s is not where the layout puts it, at byte %d of the object (address 0x%x); it is"
            + " %s",
        page.describe(block(side), part, head, token),
        planned,
        address(planned, side),
        whereabouts(value, side));
  }

  private String whereabouts(byte[] value, int side) {
    for (int other : new int[] {side, 1 - side}) {
      ByteBuffer object = objects[other].buffer();
      int found = find(value, object, 0);
      if (found >= 0) {
        return find(value, object, found + 1) >= 0
            ? String.format(
                "too short to be told from others, its %d bytes occur more than once", value.length)
            : String.format(
                "%s, at byte %d of block %d's object (address 0x%x)",
                places.describeAt(found, block(other)), found, block(other), address(found, other));
      }
    }
    return "not in one piece in the object of either block";
  }

  private static int find(byte[] value, ByteBuffer object, int from) {
    for (int at = from; at <= object.capacity() - value.length; at++) {
      int equal = 0;
      while (equal < value.length && object.get(at + equal) == value[equal]) {
        equal++;
      }
      if (equal == value.length) {
        return at;
      }
    }
    return -1;
  }

  private long address(int objectOffset, int side) {
    for (KVRange run : planner.rangesForBlock(block(side), groupId)) {
      long within = objectOffset - run.objectOffset();
      if (within >= 0 && within < run.length()) {
        return run.address() + within;
      }
    }
    throw new IllegalStateException("no run has byte " + objectOffset + " of the object");
  }

  private void compareReadBack(int round) {
    places.forEach(
        (page, part, head, token, id) -> {
          byte[] expected = buffer(expectedBySize, page.sizeBytes(part));
          byte[] actual = buffer(actualBySize, page.sizeBytes(part));
          places.fill(expected, id, false, round);
          // A probe that writes nothing must not be taken for one that reads what is expected.
          Arrays.fill(actual, TrialPlaces.NEVER);
          KVProbe.Place place =
              new KVProbe.Place(page.layerName(), trial.secondBlock(), part, head, token);
          try {
            trial.probe().read(place, actual);
          } catch (RuntimeException e) {
            throw probeFailed("read", place, e);
          }
          int different = Arrays.mismatch(expected, actual);
          if (different >= 0) {
            throw mismatch(
                "layer %s does not read back: block %d was loaded with what block %d holds, but"
                    + " byte %d of the value that the probe reads there is 0x%02x instead of 0x%02x",
                page.describe(trial.secondBlock(), part, head, token),
                trial.secondBlock(),
                trial.firstBlock(),
                different,
                actual[different],
                expected[different]);
          }
        });
  }

  private static UMBPException probeFailed(
      String call, KVProbe.Place place, RuntimeException cause) {
    return new UMBPException(
        UMBPException.Reason.INVALID_ARGUMENT,
        String.format("the probe can't %s %s: %s", call, place, cause),
        cause);
  }

  private static UMBPException mismatch(String format, Object... arguments) {
    return new UMBPException(
        UMBPException.Reason.LAYOUT_MISMATCH, String.format(Locale.ROOT, format, arguments));
  }
}
