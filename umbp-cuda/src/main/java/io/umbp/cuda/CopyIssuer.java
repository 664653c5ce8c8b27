package io.umbp.cuda;

import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.KVCopyEngine;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import jcuda.driver.CUDA_MEMCPY2D;
import jcuda.driver.CUmemorytype;
import jcuda.driver.CUstream;

/**
 * Checks the rows of a batch, then turns them into driver calls. Reused from batch to batch;
 * thread-confined in between.
 *
 * <p>A call for many rows that the driver refuses has done nothing: its rows are then copied one by
 * one, so that a row which can't be copied fails its key and no other.
 */
final class CopyIssuer {
  private final CopyCounters counters;
  private final CopyPlan plan = new CopyPlan();
  private final CUDA_MEMCPY2D strided = new CUDA_MEMCPY2D();
  private int[] deviceRegion = new int[64];
  private int[] hostRegion = new int[64];
  private int[] launch = new int[64];
  private List<Slab> usedSlabs = List.of();
  private long bytes;

  CopyIssuer(CopyCounters counters) {
    this.counters = counters;
  }

  /**
   * Checks every row.
   *
   * @param memory the registered memory of the batch's device
   * @param slabs the live slabs
   * @throws UMBPException INVALID_ARGUMENT naming the first bad row
   */
  void check(
      CopyBatch batch, AddressRanges<DeviceMemory.Allocation> memory, AddressRanges<Slab> slabs) {
    int count = batch.count();
    if (deviceRegion.length < count) {
      deviceRegion = new int[batch.device().length];
      hostRegion = new int[batch.device().length];
    }
    long[] device = batch.device();
    long[] host = batch.host();
    long[] length = batch.length();
    int[] key = batch.key();
    long[] isUsed = new long[(slabs.size() + 63) >>> 6];
    long total = 0;
    int range = -1;
    int slab = -1;
    for (int row = 0; row < count; row++) {
      long n = length[row];
      if (n <= 0 || n > KVCopyEngine.MAX_SLAB_BYTES) {
        throw UMBPException.invalid(
            "row %d has %d bytes, allowed are 1 to %d", row, n, KVCopyEngine.MAX_SLAB_BYTES);
      }
      if (key[row] < 0 || key[row] >= batch.keyCount()) {
        throw UMBPException.invalid(
            "row %d serves key %d, the batch has keys 0 to %d",
            row, key[row], batch.keyCount() - 1);
      }
      range = memory.find(device[row], n, range);
      if (range < 0) {
        throw UMBPException.invalid(
            "row %d: %d bytes at 0x%x are not inside registered memory of device %d",
            row, n, device[row], batch.deviceOrdinal());
      }
      slab = slabs.find(host[row], n, slab);
      if (slab < 0) {
        throw UMBPException.invalid(
            "row %d: %d bytes at 0x%x are not inside a live slab", row, n, host[row]);
      }
      deviceRegion[row] = memory.owner(range).number();
      hostRegion[row] = slab;
      isUsed[slab >>> 6] |= 1L << slab;
      total += n;
    }
    bytes = total;
    usedSlabs = slabsOf(slabs, isUsed);
  }

  private static List<Slab> slabsOf(AddressRanges<Slab> slabs, long[] isUsed) {
    List<Slab> used = new ArrayList<>();
    for (int i = 0; i < isUsed.length; i++) {
      for (long word = isUsed[i]; word != 0; word &= word - 1) {
        used.add(slabs.owner((i << 6) + Long.numberOfTrailingZeros(word)));
      }
    }
    return used;
  }

  List<Slab> usedSlabs() {
    return usedSlabs;
  }

  long bytes() {
    return bytes;
  }

  /** Enqueues all rows behind the fence, with an event behind each mark; the context is current. */
  void issue(CudaCopyTicket ticket) {
    int code = ticket.awaitFence();
    CopyBatch batch = ticket.batch();
    int from = 0;
    for (int mark = 0; mark < batch.markCount(); mark++) {
      from = issue(ticket, from, batch.markEnd()[mark], code);
      ticket.recordEnd(mark);
    }
    if (from < batch.count() || batch.markCount() == 0) {
      issue(ticket, from, batch.count(), code);
      ticket.recordEnd(batch.markCount());
    }
  }

  private int issue(CudaCopyTicket ticket, int from, int to, int fenceCode) {
    if (fenceCode != Driver.SUCCESS) {
      ticket.failAll(Driver.describe("cuStreamWaitEvent", fenceCode));
      return to;
    }
    new Segment(ticket).issue(from, to);
    return to;
  }

  /** The rows up to one mark. */
  private final class Segment {
    private final CudaCopyTicket ticket;
    private final CudaDevice device;
    private final CopyBatch batch;
    private final CUstream stream;
    private final boolean isLoad;
    private final CudaCopySettings settings;
    private final long staging;
    private int launchCount;
    private long launchBytes;

    Segment(CudaCopyTicket ticket) {
      this.ticket = ticket;
      device = ticket.device();
      batch = ticket.batch();
      isLoad = ticket.isLoad();
      stream = device.stream(isLoad);
      settings = device.settings();
      staging = device.staging(isLoad);
    }

    void issue(int from, int to) {
      plan.plan(batch, from, to, deviceRegion, hostRegion, settings, device.maxPitchBytes());
      for (int piece = 0; piece < plan.count(); piece++) {
        switch (plan.path(piece)) {
          case COPY -> copyPiece(piece);
          case STRIDED -> copyStrided(piece);
          case KERNEL -> {
            if (device.hasKernel()) {
              addToLaunch(piece);
            } else {
              copyPiece(piece);
            }
          }
        }
      }
      launch();
      counters.ranges.add(to - from);
    }

    private void copyPiece(int piece) {
      int code = copy(plan.deviceAddress(piece), plan.hostAddress(piece), plan.widthBytes(piece));
      if (code != Driver.SUCCESS) {
        refused(piece, "cuMemcpyAsync", code);
      }
    }

    private int copy(long deviceAddress, long hostAddress, long length) {
      counters.copyCalls.increment();
      counters.copyBytes.add(length);
      Handles.Address onDevice = new Handles.Address(deviceAddress);
      Handles.Address onHost = new Handles.Address(hostAddress);
      return isLoad
          ? Driver.memcpyAsync(onDevice, onHost, length, stream)
          : Driver.memcpyAsync(onHost, onDevice, length, stream);
    }

    private void copyStrided(int piece) {
      Handles.Address onDevice = new Handles.Address(plan.deviceAddress(piece));
      Handles.Address onHost = new Handles.Address(plan.hostAddress(piece));
      strided.srcMemoryType = CUmemorytype.CU_MEMORYTYPE_UNIFIED;
      strided.dstMemoryType = CUmemorytype.CU_MEMORYTYPE_UNIFIED;
      strided.srcDevice = isLoad ? onHost : onDevice;
      strided.dstDevice = isLoad ? onDevice : onHost;
      strided.srcPitch = isLoad ? plan.hostPitchBytes(piece) : plan.devicePitchBytes(piece);
      strided.dstPitch = isLoad ? plan.devicePitchBytes(piece) : plan.hostPitchBytes(piece);
      strided.WidthInBytes = plan.widthBytes(piece);
      strided.Height = plan.height(piece);
      counters.stridedCalls.increment();
      counters.stridedBytes.add(plan.widthBytes(piece) * plan.height(piece));
      int code = Driver.memcpy2DAsync(strided, stream);
      if (code != Driver.SUCCESS) {
        refused(piece, "cuMemcpy2DAsync", code);
      }
    }

    private void addToLaunch(int piece) {
      long width = plan.widthBytes(piece);
      if (launchCount == settings.tableRanges()
          || (staging != 0 && launchBytes + width > settings.stagingBytes())) {
        launch();
      }
      if (launchCount == launch.length) {
        launch = Arrays.copyOf(launch, launchCount * 2);
      }
      launch[launchCount++] = piece;
      launchBytes += width;
    }

    /** Copies the collected pieces by one kernel. */
    private void launch() {
      if (launchCount == 0) {
        return;
      }
      LaunchTable table = device.takeTable();
      if (table == null) {
        for (int i = 0; i < launchCount; i++) {
          copyPiece(launch[i]);
        }
      } else {
        ticket.keep(table);
        launch(table);
      }
      launchCount = 0;
      launchBytes = 0;
    }

    private void launch(LaunchTable table) {
      boolean isStaged =
          staging != 0 && launchBytes <= settings.stagingBytes() && hasLongHostRuns();
      long staged = staging;
      long longest = 0;
      for (int i = 0; i < launchCount; i++) {
        int piece = launch[i];
        long width = plan.widthBytes(piece);
        long onHost = isStaged ? staged : plan.hostAddress(piece);
        CopyKernel.putRow(
            table.rows(),
            i,
            isLoad ? onHost : plan.deviceAddress(piece),
            isLoad ? plan.deviceAddress(piece) : onHost,
            width);
        staged += width;
        longest = Math.max(longest, width);
      }
      int code = isStaged && isLoad ? copyHostRuns() : Driver.SUCCESS;
      if (code == Driver.SUCCESS) {
        counters.kernelLaunches.increment();
        counters.kernelBytes.add(launchBytes);
        code =
            Driver.launchKernel(
                device.function(),
                CopyKernel.gridX(launchCount, device.multiprocessors()),
                CopyKernel.gridY(launchCount, longest, device.multiprocessors()),
                CopyKernel.THREADS,
                stream,
                table.parameters(launchCount));
      }
      if (code == Driver.SUCCESS && isStaged && !isLoad) {
        code = copyHostRuns();
      }
      if (code != Driver.SUCCESS) {
        for (int i = 0; i < launchCount; i++) {
          refused(launch[i], "the launch of the copy kernel", code);
        }
      }
    }

    /** Tells whether the pieces lie so on the host that few copies serve many of them. */
    private boolean hasLongHostRuns() {
      int runs = 0;
      for (int i = 0; i < launchCount; i = runEnd(i)) {
        runs++;
      }
      return launchBytes / runs >= settings.kernelBelowBytes();
    }

    /** Returns the end of the pieces from i on that follow each other in one slab. */
    private int runEnd(int i) {
      int end = i + 1;
      while (end < launchCount
          && hostRegion[plan.firstRow(launch[end])] == hostRegion[plan.firstRow(launch[i])]
          && plan.hostAddress(launch[end])
              == plan.hostAddress(launch[end - 1]) + plan.widthBytes(launch[end - 1])) {
        end++;
      }
      return end;
    }

    /** Copies between the staging buffer and the host, a call for each run; stops at a failure. */
    private int copyHostRuns() {
      long staged = staging;
      int end;
      for (int i = 0; i < launchCount; i = end) {
        end = runEnd(i);
        int last = launch[end - 1];
        long length = plan.hostAddress(last) + plan.widthBytes(last) - plan.hostAddress(launch[i]);
        int code = copy(staged, plan.hostAddress(launch[i]), length);
        if (code != Driver.SUCCESS) {
          return code;
        }
        staged += length;
      }
      return Driver.SUCCESS;
    }

    /** Fails the row of a refused call, or copies its rows one by one. */
    private void refused(int piece, String call, int code) {
      int first = plan.firstRow(piece);
      int end = plan.endRow(piece);
      boolean isOneCopy = end == first + 1 && plan.path(piece) == CopyPlan.Path.COPY;
      for (int row = first; row < end; row++) {
        String rowCall = call;
        int rowCode = code;
        if (!isOneCopy && !Driver.isSticky(code)) {
          rowCall = "cuMemcpyAsync";
          rowCode = copy(batch.device()[row], batch.host()[row], batch.length()[row]);
        }
        if (rowCode != Driver.SUCCESS) {
          ticket.fail(batch.key()[row], describe(row, rowCall, rowCode));
        }
      }
    }

    private String describe(int row, String call, int code) {
      return String.format(
          "row %d of key %d, %d bytes at 0x%x: %s",
          row,
          batch.key()[row],
          batch.length()[row],
          batch.device()[row],
          Driver.describe(call, code));
    }
  }
}
