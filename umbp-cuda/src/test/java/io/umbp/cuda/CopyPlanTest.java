package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.cuda.CopyPlan.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class CopyPlanTest {
  private static final long D = 0x7f00_0000_0000L;
  private static final long H = 0x5500_0000_0000L;
  private static final int KIB = 1024;
  private static final long MAX_PITCH = Integer.MAX_VALUE;

  private final CopyBatch batch = new CopyBatch();
  private final CopyPlan plan = new CopyPlan();
  private int[] deviceRegion = new int[0];
  private int[] hostRegion = new int[0];
  private CudaCopySettings settings = CudaCopySettings.defaults();
  private long maxPitch = MAX_PITCH;

  @Test
  void nothingBecomesNothing() {
    assertPieces();
    row(D, H, 64);
    plan.plan(batch, 1, 1, deviceRegion, hostRegion, settings, MAX_PITCH);
    assertEquals(0, plan.count());
    assertCalls(0, 0, 0);
  }

  @Test
  void oneRowIsOneCopy() {
    row(D, H, 512);
    assertPieces(copy(D, H, 512, 0, 1));
    assertCalls(1, 0, 0);
    assertBytes(512, 0, 0);
  }

  @Test
  void rowsAdjacentOnBothSidesMerge() {
    row(D, H, 100);
    row(D + 100, H + 100, 50);
    row(D + 150, H + 150, 7);
    row(D + 157, H + 158, 9); // a gap on the host
    row(D + 167, H + 167, 9); // and one on the device
    assertPieces(
        copy(D, H, 157, 0, 3), copy(D + 157, H + 158, 9, 3, 4), copy(D + 167, H + 167, 9, 4, 5));
    assertBytes(175, 0, 0);
  }

  @Test
  void rowsThatDescendDoNotMerge() {
    row(D + 100, H + 100, 100);
    row(D, H, 100);
    assertPieces(copy(D + 100, H + 100, 100, 0, 1), copy(D, H, 100, 1, 2));
  }

  @Test
  void neighboursOfTwoAllocationsOrSlabsNeverMerge() {
    row(D, H, 100, 0, 0);
    row(D + 100, H + 100, 100, 1, 0);
    row(D + 200, H + 200, 100, 1, 1);
    assertPieces(
        copy(D, H, 100, 0, 1),
        copy(D + 100, H + 100, 100, 1, 2),
        copy(D + 200, H + 200, 100, 2, 3));
  }

  @Test
  void onlyTheRowsAskedForArePlanned() {
    lines(6, D, 100, H, 100, 100);
    plan.plan(batch, 2, 5, deviceRegion, hostRegion, settings, MAX_PITCH);
    assertEquals(List.of(copy(D + 200, H + 200, 300, 2, 5)), pieces());
  }

  @Test
  void linesAtOneStrideBecomeOnePiece() {
    lines(4, D, 10_000, H, 4096, 4096);
    assertPieces(strided(D, H, 4096, 4, 10_000, 4096, 0, 4));
    assertCalls(0, 1, 0);
    assertBytes(0, 4 * 4096, 0);
  }

  @Test
  void mergedRowsAreLinesToo() {
    for (long i = 0; i < 4; i++) {
      row(D + 20_000 * i, H + 10_000 * i, 3000);
      row(D + 20_000 * i + 3000, H + 10_000 * i + 3000, 5000);
    }
    assertPieces(strided(D, H, 8000, 4, 20_000, 10_000, 0, 8));
  }

  @Test
  void threeLinesAreTooFew() {
    lines(3, D, 10_000, H, 4096, 4096);
    assertPieces(
        copy(D, H, 4096, 0, 1),
        copy(D + 10_000, H + 4096, 4096, 1, 2),
        copy(D + 20_000, H + 8192, 4096, 2, 3));
  }

  @Test
  void linesNarrowerThanTheLeastStayApart() {
    lines(4, D, 10_000, H, 4096, 4095);
    assertPieces(
        copy(D, H, 4095, 0, 1),
        copy(D + 10_000, H + 4096, 4095, 1, 2),
        copy(D + 20_000, H + 8192, 4095, 2, 3),
        copy(D + 30_000, H + 12_288, 4095, 3, 4));
  }

  @Test
  void linesMayFollowEachOtherOnOneSide() {
    lines(4, D, 4096, H, 5000, 4096);
    lines(4, D + 100_000, 5000, H + 100_000, 4096, 4096);
    assertPieces(
        strided(D, H, 4096, 4, 4096, 5000, 0, 4),
        strided(D + 100_000, H + 100_000, 4096, 4, 5000, 4096, 4, 8));
  }

  @Test
  void theLastLineOfAShortRunMayStartTheNext() {
    row(D, H, 4096);
    row(D + 5000, H + 5000, 4096);
    lines(4, D + 10_000, 8192, H + 10_000, 6000, 4096);
    assertPieces(
        copy(D, H, 4096, 0, 1),
        copy(D + 5000, H + 5000, 4096, 1, 2),
        strided(D + 10_000, H + 10_000, 4096, 4, 8192, 6000, 2, 6));
  }

  @Test
  void aRunEndsWhereWidthStrideAllocationOrSlabChange() {
    lines(4, D, 10_000, H, 5000, 4096);
    row(D + 40_000, H + 20_000, 4097);
    assertPieces(
        strided(D, H, 4096, 4, 10_000, 5000, 0, 4), copy(D + 40_000, H + 20_000, 4097, 4, 5));

    clear();
    lines(4, D, 10_000, H, 5000, 4096);
    row(D + 40_000, H + 20_001, 4096);
    assertPieces(
        strided(D, H, 4096, 4, 10_000, 5000, 0, 4), copy(D + 40_000, H + 20_001, 4096, 4, 5));

    clear();
    for (long i = 0; i < 8; i++) {
      row(D + 10_000 * i, H + 5000 * i, 4096, (int) i / 4, 0);
    }
    assertPieces(
        strided(D, H, 4096, 4, 10_000, 5000, 0, 4),
        strided(D + 40_000, H + 20_000, 4096, 4, 10_000, 5000, 4, 8));

    clear();
    for (long i = 0; i < 8; i++) {
      row(D + 10_000 * i, H + 5000 * i, 4096, 0, (int) i / 4);
    }
    assertPieces(
        strided(D, H, 4096, 4, 10_000, 5000, 0, 4),
        strided(D + 40_000, H + 20_000, 4096, 4, 10_000, 5000, 4, 8));
  }

  @Test
  void descendingAndOverlappingLinesAreNotStrided() {
    lines(4, D + 30_000, -10_000, H, 4096, 4096);
    plan();
    assertCalls(4, 0, 0);

    clear();
    lines(4, D, 10_000, H + 12_288, -4096, 4096);
    plan();
    assertCalls(4, 0, 0);

    clear();
    lines(4, D, 4095, H, 4096, 4096);
    plan();
    assertCalls(4, 0, 0);

    clear();
    lines(4, D, 4096, H, 4095, 4096);
    plan();
    assertCalls(4, 0, 0);
  }

  @Test
  void aPitchMayReachTheDevicesLimitAndNotExceedIt() {
    maxPitch = 10_000;
    lines(4, D, 10_000, H, 10_000, 4096);
    assertPieces(strided(D, H, 4096, 4, 10_000, 10_000, 0, 4));

    clear();
    lines(4, D, 10_001, H, 10_000, 4096);
    plan();
    assertCalls(4, 0, 0);

    clear();
    lines(4, D, 10_000, H, 10_001, 4096);
    plan();
    assertCalls(4, 0, 0);
  }

  @Test
  void sixteenShortLinesGoToTheKernelAndFifteenDoNot() {
    scatter(15, 28 * KIB - 1);
    plan();
    assertCalls(15, 0, 0);
    assertBytes(15 * (28 * KIB - 1), 0, 0);

    scatter(1, 28 * KIB - 1);
    plan();
    assertCalls(0, 0, 1);
    assertEquals(16, plan.count());
    assertBytes(0, 0, 16 * (28 * KIB - 1));
    assertEquals(Path.KERNEL, plan.path(7));
    assertEquals(1, plan.height(7));
    assertEquals(7, plan.firstRow(7));
    assertEquals(8, plan.endRow(7));
  }

  @Test
  void longLinesAreCopiedBesideTheKernel() {
    scatter(16, 100);
    scatter(1, 28 * KIB);
    lines(4, D + (1L << 32), 10_000, H + (1L << 32), 5000, 4096);
    plan();
    assertCalls(1, 1, 1);
    assertBytes(28 * KIB, 4 * 4096, 1600);
    assertEquals(Path.COPY, plan.path(16));
    assertEquals(Path.STRIDED, plan.path(17));
  }

  @Test
  void aKernelThatIsSwitchedOffIsNotUsed() {
    settings = CudaCopySettings.builder().kernelBelowBytes(0).build();
    scatter(100, 1);
    plan();
    assertCalls(100, 0, 0);
  }

  @Test
  void addressesAroundHalfTheAddressSpaceAreCompared() {
    long top = Long.MAX_VALUE - 50_000;
    row(top, H, 40_000);
    row(top + 40_000, H + 40_000, 10_001); // ends at 2^63
    row(Long.MIN_VALUE, H + 50_001, 100);
    assertPieces(copy(top, H, 50_101, 0, 3));

    clear();
    long start = Long.MAX_VALUE - 15_000;
    lines(4, start, 10_000, start, 5000, 4096);
    assertPieces(strided(start, start, 4096, 4, 10_000, 5000, 0, 4));

    clear();
    row(Long.MAX_VALUE - 4095, H, 4096);
    row(0x1000, H + 5000, 4096);
    row(Long.MAX_VALUE - 4095, H + 10_000, 4096);
    row(0x1000, H + 15_000, 4096);
    plan();
    assertCalls(4, 0, 0);
  }

  @Test
  void aMergedPieceMayBeLong() {
    lines(1024, D, 1L << 30, H, 1L << 30, 1L << 30);
    assertPieces(copy(D, H, 1L << 40, 0, 1024));
    assertBytes(1L << 40, 0, 0);
  }

  @Test
  void aPlanKeepsNothingOfTheOneBefore() {
    scatter(200, 100);
    plan();
    assertCalls(0, 0, 1);
    clear();
    row(D, H, 5);
    assertPieces(copy(D, H, 5, 0, 1));
    assertCalls(1, 0, 0);
    assertBytes(5, 0, 0);
  }

  @Test
  void rowsOutsideTheBatchAreRefused() {
    row(D, H, 5);
    assertRefused("rows [0, 2) are planned of a batch of 1", 0, 2);
    assertRefused("rows [-1, 1) are planned of a batch of 1", -1, 1);
    assertRefused("rows [1, 0) are planned of a batch of 1", 1, 0);
    hostRegion = new int[0];
    assertRefused("rows before 1 are planned with the regions of 1 and 0 rows", 0, 1);
  }

  private void assertRefused(String message, int from, int to) {
    UMBPException e =
        assertThrows(
            UMBPException.class,
            () -> plan.plan(batch, from, to, deviceRegion, hostRegion, settings, MAX_PITCH));
    assertEquals(message, e.getMessage());
  }

  private record Piece(
      Path path,
      long device,
      long host,
      long width,
      int height,
      long devicePitch,
      long hostPitch,
      int firstRow,
      int endRow) {}

  private static Piece copy(long device, long host, long width, int firstRow, int endRow) {
    return new Piece(Path.COPY, device, host, width, 1, width, width, firstRow, endRow);
  }

  private static Piece strided(
      long device,
      long host,
      long width,
      int height,
      long devicePitch,
      long hostPitch,
      int firstRow,
      int endRow) {
    return new Piece(
        Path.STRIDED, device, host, width, height, devicePitch, hostPitch, firstRow, endRow);
  }

  private void row(long device, long host, long bytes) {
    row(device, host, bytes, 0, 0);
  }

  private void row(long device, long host, long bytes, int deviceId, int hostId) {
    int row = batch.count();
    batch.add(device, host, bytes, 0);
    deviceRegion = Arrays.copyOf(deviceRegion, row + 1);
    hostRegion = Arrays.copyOf(hostRegion, row + 1);
    deviceRegion[row] = deviceId;
    hostRegion[row] = hostId;
  }

  private void lines(
      int count, long device, long deviceStride, long host, long hostStride, long bytes) {
    for (int i = 0; i < count; i++) {
      row(device + deviceStride * i, host + hostStride * i, bytes);
    }
  }

  /** Adds rows of one length at no common stride. */
  private void scatter(int rows, long bytes) {
    for (int i = 0; i < rows; i++) {
      long at = batch.count();
      row(D + at * 100_000 + at * at, H + at * 100_000, bytes);
    }
  }

  private void clear() {
    batch.reset(TransferDirection.STORE, 0, 1);
    deviceRegion = new int[0];
    hostRegion = new int[0];
  }

  private void plan() {
    plan.plan(batch, 0, batch.count(), deviceRegion, hostRegion, settings, maxPitch);
  }

  private void assertPieces(Piece... expected) {
    plan();
    assertEquals(List.of(expected), pieces());
  }

  private List<Piece> pieces() {
    List<Piece> pieces = new ArrayList<>();
    for (int i = 0; i < plan.count(); i++) {
      pieces.add(
          new Piece(
              plan.path(i),
              plan.deviceAddress(i),
              plan.hostAddress(i),
              plan.widthBytes(i),
              plan.height(i),
              plan.devicePitchBytes(i),
              plan.hostPitchBytes(i),
              plan.firstRow(i),
              plan.endRow(i)));
    }
    return pieces;
  }

  /** Checks the calls of each path; the kernel needs one for all of its pieces here. */
  private void assertCalls(int copies, int strided, int launches) {
    List<Piece> pieces = pieces();
    assertEquals(
        List.of((long) copies, (long) strided, (long) launches),
        List.of(
            pieces.stream().filter(piece -> piece.path() == Path.COPY).count(),
            pieces.stream().filter(piece -> piece.path() == Path.STRIDED).count(),
            pieces.stream().filter(piece -> piece.path() == Path.KERNEL).limit(1).count()));
  }

  private void assertBytes(long copied, long strided, long kernel) {
    Map<Path, Long> bytes = new EnumMap<>(Path.class);
    pieces().forEach(each -> bytes.merge(each.path(), each.width() * each.height(), Long::sum));
    assertEquals(
        List.of(copied, strided, kernel),
        Stream.of(Path.COPY, Path.STRIDED, Path.KERNEL)
            .map(path -> bytes.getOrDefault(path, 0L))
            .toList());
  }
}
