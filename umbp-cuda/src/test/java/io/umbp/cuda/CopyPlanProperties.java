package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.cuda.CopyPlan.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.LongRange;
import net.jqwik.api.statistics.Statistics;
import net.jqwik.api.statistics.StatisticsReport;
import net.jqwik.api.statistics.StatisticsReport.StatisticsReportMode;

class CopyPlanProperties {
  /** Size of an allocation and of a slab; they lie side by side, without a gap. */
  private static final int REGION = 2048;

  private static final long[] BASES = {
    0x7f00_0000_0000L, 0, Long.MAX_VALUE - REGION, Long.MAX_VALUE - 2 * REGION - 100
  };

  private final CopyPlan plan = new CopyPlan();

  @Property(tries = 3000)
  @StatisticsReport(StatisticsReportMode.OFF)
  void piecesMoveExactlyTheBytesOfTheirRows(
      @ForAll @IntRange(max = 12) int bursts,
      @ForAll @LongRange(max = 80) long kernelBelow,
      @ForAll @IntRange(min = 1, max = 12) int kernelMin,
      @ForAll @IntRange(min = 2, max = 5) int stridedMin,
      @ForAll @LongRange(max = 30) long stridedMinBytes,
      @ForAll @LongRange(max = 300) long maxPitch,
      @ForAll Random random) {
    CudaCopySettings settings =
        CudaCopySettings.builder()
            .kernelBelowBytes(kernelBelow)
            .kernelMinRanges(kernelMin)
            .stridedMinRanges(stridedMin)
            .stridedMinBytes(stridedMinBytes)
            .tableRanges(1 + random.nextInt(10))
            .build();
    Rows rows = new Rows(random);
    for (int i = 0; i < bursts; i++) {
      rows.burst();
    }
    int from = random.nextInt(rows.batch.count() + 1);
    from = random.nextBoolean() ? 0 : from;
    int to = from + random.nextInt(rows.batch.count() - from + 1);
    to = random.nextBoolean() ? rows.batch.count() : to;

    plan.plan(rows.batch, from, to, rows.deviceRegion, rows.hostRegion, settings, maxPitch);

    int next = from;
    for (int piece = 0; piece < plan.count(); piece++) {
      assertEquals(next, plan.firstRow(piece), "rows follow each other");
      next = plan.endRow(piece);
      assertTrue(next > plan.firstRow(piece), "a piece without rows");
      assertEquals(rows.bytes(plan.firstRow(piece), next), bytes(piece), "piece " + piece);
      for (int row = plan.firstRow(piece); row < next; row++) {
        assertEquals(rows.deviceRegion[plan.firstRow(piece)], rows.deviceRegion[row]);
        assertEquals(rows.hostRegion[plan.firstRow(piece)], rows.hostRegion[row]);
      }
      checkShape(piece, settings, maxPitch);
      if (piece > 0) {
        assertFalse(couldMerge(rows, piece), "pieces " + (piece - 1) + " and " + piece);
      }
    }
    assertEquals(to, next);
    checkPaths(settings);
  }

  private void checkShape(int piece, CudaCopySettings settings, long maxPitch) {
    long width = plan.widthBytes(piece);
    if (plan.path(piece) == Path.STRIDED) {
      assertTrue(plan.height(piece) >= settings.stridedMinRanges());
      assertTrue(width >= settings.stridedMinBytes());
      assertTrue(plan.devicePitchBytes(piece) >= width);
      assertTrue(plan.hostPitchBytes(piece) >= width);
      assertTrue(plan.devicePitchBytes(piece) <= maxPitch);
      assertTrue(plan.hostPitchBytes(piece) <= maxPitch);
    } else {
      assertEquals(1, plan.height(piece));
      assertEquals(width, plan.devicePitchBytes(piece));
      assertEquals(width, plan.hostPitchBytes(piece));
    }
  }

  private boolean couldMerge(Rows rows, int piece) {
    int before = piece - 1;
    return plan.height(before) == 1
        && plan.height(piece) == 1
        && plan.deviceAddress(before) + plan.widthBytes(before) == plan.deviceAddress(piece)
        && plan.hostAddress(before) + plan.widthBytes(before) == plan.hostAddress(piece)
        && rows.deviceRegion[plan.firstRow(before)] == rows.deviceRegion[plan.firstRow(piece)]
        && rows.hostRegion[plan.firstRow(before)] == rows.hostRegion[plan.firstRow(piece)];
  }

  /** The kernel gets all short lines or none. */
  private void checkPaths(CudaCopySettings settings) {
    Set<Path> taken = EnumSet.noneOf(Path.class);
    int shortLines = 0;
    int toKernel = 0;
    for (int piece = 0; piece < plan.count(); piece++) {
      taken.add(plan.path(piece));
      boolean isShort =
          plan.height(piece) == 1 && plan.widthBytes(piece) < settings.kernelBelowBytes();
      shortLines += isShort ? 1 : 0;
      toKernel += plan.path(piece) == Path.KERNEL ? 1 : 0;
    }
    assertEquals(shortLines >= settings.kernelMinRanges() ? shortLines : 0, toKernel);
    for (Path path : Path.values()) {
      Statistics.label(path.toString())
          .collect(taken.contains(path))
          .coverage(coverage -> coverage.check(true).percentage(percent -> percent > 5));
    }
  }

  /** Returns where each byte of a piece lies, on the device and the host. */
  private List<Long> bytes(int piece) {
    List<Long> bytes = new ArrayList<>();
    for (int line = 0; line < plan.height(piece); line++) {
      for (long at = 0; at < plan.widthBytes(piece); at++) {
        bytes.add(plan.deviceAddress(piece) + line * plan.devicePitchBytes(piece) + at);
        bytes.add(plan.hostAddress(piece) + line * plan.hostPitchBytes(piece) + at);
      }
    }
    return bytes;
  }

  /** A batch of bursts of rows, each burst along a stride, a neighbourhood or nothing at all. */
  private static final class Rows {
    private final CopyBatch batch = new CopyBatch();
    private final Random random;
    private final long deviceBase;
    private final long hostBase;
    private final int regions;
    private int[] deviceRegion = new int[16];
    private int[] hostRegion = new int[16];

    private Rows(Random random) {
      this.random = random;
      deviceBase = BASES[random.nextInt(BASES.length)];
      hostBase = BASES[random.nextInt(BASES.length)];
      regions = 1 + random.nextInt(3);
      batch.reset(TransferDirection.STORE, 0, 1);
    }

    /** Adds a burst, one in four with the rows of two layers in turn. */
    private void burst() {
      int rows = 1 + random.nextInt(10);
      int layers = random.nextInt(4) == 0 ? 2 : 1;
      int[] length = {length(), length()};
      int[] device = {random.nextInt(REGION), random.nextInt(REGION)};
      int[] host = {random.nextInt(REGION), random.nextInt(REGION)};
      int deviceId = random.nextInt(regions);
      int hostId = random.nextInt(regions);
      int deviceStride = length[0] + gap();
      int hostStride = length[0] + gap();
      boolean isDescending = random.nextInt(8) == 0;
      boolean isScattered = random.nextInt(3) == 0;
      for (int row = 0; row < rows; row++) {
        for (int layer = 0; layer < layers; layer++) {
          int block = isScattered ? random.nextInt(20) : isDescending ? rows - row : row;
          add(
              deviceId * REGION + device[layer] + block * deviceStride,
              hostId * REGION + host[layer] + row * hostStride,
              length[layer]);
        }
      }
    }

    private int length() {
      return random.nextBoolean() ? 16 : 1 + random.nextInt(60);
    }

    private int gap() {
      return switch (random.nextInt(3)) {
        case 0 -> 0;
        case 1 -> random.nextInt(8);
        default -> -random.nextInt(8);
      };
    }

    /** Adds a row that runs on to the next allocation or slab as a row for each. */
    private void add(int device, int host, int length) {
      int done = 0;
      while (done < length) {
        int deviceAt = Math.max(0, device + done);
        int hostAt = Math.max(0, host + done);
        int fits = Math.min(REGION - deviceAt % REGION, REGION - hostAt % REGION);
        int part = Math.min(length - done, fits);
        int row = batch.count();
        deviceRegion = Arrays.copyOf(deviceRegion, row + 1);
        hostRegion = Arrays.copyOf(hostRegion, row + 1);
        deviceRegion[row] = deviceAt / REGION;
        hostRegion[row] = hostAt / REGION;
        batch.add(deviceBase + deviceAt, hostBase + hostAt, part, 0);
        done += part;
      }
    }

    private List<Long> bytes(int from, int to) {
      List<Long> bytes = new ArrayList<>();
      for (int row = from; row < to; row++) {
        for (long at = 0; at < batch.length()[row]; at++) {
          bytes.add(batch.device()[row] + at);
          bytes.add(batch.host()[row] + at);
        }
      }
      return bytes;
    }
  }
}
