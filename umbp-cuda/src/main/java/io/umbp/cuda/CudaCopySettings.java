package io.umbp.cuda;

import io.umbp.api.UMBPException;

/**
 * How batches become driver calls, and how much of them is under way at once. Immutable.
 *
 * <p>A driver call costs the processor one to a few microseconds whatever it moves, so small ranges
 * go many at a time: as the rows of one strided copy, or as the rows of one kernel launch. Long
 * ranges are best left to the copy engines of the device, which take nothing from its multi
 * processors. Where one becomes better than the other depends on the device and its bus; the
 * defaults are estimates, not measurements of a device.
 *
 * @param kernelBelowBytes length in bytes under which a range may go to the kernel, 0 (none does)
 *     to 1 GiB
 * @param kernelMinRanges least number of such ranges in one plan for a launch, at least 1
 * @param stridedMinRanges least number of ranges of one length at one distance for a strided copy,
 *     at least 2
 * @param stridedMinBytes least length in bytes of a range in a strided copy, 0 to 1 GiB
 * @param stagingBytes size in bytes of a staging buffer on the device, one a direction, that the
 *     kernel works on; 0 if it reads and writes mapped host memory itself
 * @param inFlightBytes bytes under way on one device at most, at least 1; one batch always runs
 * @param tableRanges rows of one launch at most, 1 to 1,048,576
 */
public record CudaCopySettings(
    long kernelBelowBytes,
    int kernelMinRanges,
    int stridedMinRanges,
    long stridedMinBytes,
    long stagingBytes,
    long inFlightBytes,
    int tableRanges) {
  private static final long GIB = 1L << 30;

  /** Checks each value, and that a staging buffer holds the longest range of the kernel. */
  public CudaCopySettings {
    check("kernelBelowBytes", kernelBelowBytes, 0, GIB, " bytes");
    check("kernelMinRanges", kernelMinRanges, 1, Integer.MAX_VALUE, " ranges");
    check("stridedMinRanges", stridedMinRanges, 2, Integer.MAX_VALUE, " ranges");
    check("stridedMinBytes", stridedMinBytes, 0, GIB, " bytes");
    check("stagingBytes", stagingBytes, 0, GIB, " bytes");
    check("inFlightBytes", inFlightBytes, 1, Long.MAX_VALUE, " bytes");
    check("tableRanges", tableRanges, 1, 1 << 20, " ranges");
    if (stagingBytes != 0 && stagingBytes < kernelBelowBytes) {
      throw UMBPException.invalid(
          "stagingBytes is %d bytes, it must be 0 or at least kernelBelowBytes, %d bytes",
          stagingBytes, kernelBelowBytes);
    }
  }

  private static void check(String name, long value, long least, long greatest, String unit) {
    if (value < least || value > greatest) {
      throw UMBPException.invalid(
          "%s is %d%s, it must be in [%d, %d]", name, value, unit, least, greatest);
    }
  }

  /**
   * Returns the standard settings.
   *
   * @return the defaults of {@link Builder}
   */
  public static CudaCopySettings defaults() {
    return builder().build();
  }

  /**
   * Starts from the standard settings.
   *
   * @return a builder with the defaults
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Starts from these settings.
   *
   * @return a builder with the values of this
   */
  public Builder toBuilder() {
    return builder()
        .kernelBelowBytes(kernelBelowBytes)
        .kernelMinRanges(kernelMinRanges)
        .stridedMinRanges(stridedMinRanges)
        .stridedMinBytes(stridedMinBytes)
        .stagingBytes(stagingBytes)
        .inFlightBytes(inFlightBytes)
        .tableRanges(tableRanges);
  }

  /** Collects settings. Thread-confined; values are checked in {@link #build}. */
  public static final class Builder {
    private long kernelBelowBytes = 28 << 10;
    private int kernelMinRanges = 16;
    private int stridedMinRanges = 4;
    private long stridedMinBytes = 4096;
    private long stagingBytes;
    private long inFlightBytes = 256L << 20;
    private int tableRanges = 4096;

    private Builder() {}

    /**
     * Sets the length under which a range may go to the kernel. The default is 28 KiB: from about
     * there on, a copy of its own should keep the bus as busy as the kernel does.
     *
     * @param bytes length in bytes, 0 (no range goes to the kernel) to 1 GiB
     * @return this
     */
    public Builder kernelBelowBytes(long bytes) {
      kernelBelowBytes = bytes;
      return this;
    }

    /**
     * Sets how many ranges below {@link #kernelBelowBytes} one plan must have for a launch. The
     * default is 16: for fewer, filling a table and launching saves little over single copies.
     *
     * @param ranges number of ranges, at least 1
     * @return this
     */
    public Builder kernelMinRanges(int ranges) {
      kernelMinRanges = ranges;
      return this;
    }

    /**
     * Sets how many ranges of one length at one distance make a strided copy. The default is 4: the
     * call costs several times that of a plain copy.
     *
     * @param ranges number of ranges, at least 2
     * @return this
     */
    public Builder stridedMinRanges(int ranges) {
      stridedMinRanges = ranges;
      return this;
    }

    /**
     * Sets the least length of a range in a strided copy. The default is 4096 bytes: a copy engine
     * is taken to move narrower rows slowly, the kernel is not.
     *
     * @param bytes length in bytes, 0 to 1 GiB
     * @return this
     */
    public Builder stridedMinBytes(long bytes) {
      stridedMinBytes = bytes;
      return this;
    }

    /**
     * Sets the size of a staging buffer on the device, one a direction. With one, the kernel works
     * within device memory and one long copy crosses the bus. The default is 0: the kernel reads
     * and writes mapped host memory itself, which takes no device memory and no second pass.
     *
     * @param bytes size in bytes, 0 or at least {@link #kernelBelowBytes}, to 1 GiB
     * @return this
     */
    public Builder stagingBytes(long bytes) {
      stagingBytes = bytes;
      return this;
    }

    /**
     * Sets how many bytes are under way on one device. The default is 256 MiB: some milliseconds of
     * a bus, enough to keep it busy, and little to wait behind for a batch of higher priority. A
     * batch that is longer runs alone.
     *
     * @param bytes bytes, at least 1
     * @return this
     */
    public Builder inFlightBytes(long bytes) {
      inFlightBytes = bytes;
      return this;
    }

    /**
     * Sets how many ranges one launch takes. The default is 4096: a table of 96 KiB, several ranges
     * for each block that a large device runs at once.
     *
     * @param ranges number of ranges, 1 to 1,048,576
     * @return this
     */
    public Builder tableRanges(int ranges) {
      tableRanges = ranges;
      return this;
    }

    /**
     * Checks the values.
     *
     * @return the settings
     * @throws UMBPException INVALID_ARGUMENT naming setting, value and limit
     */
    public CudaCopySettings build() {
      return new CudaCopySettings(
          kernelBelowBytes,
          kernelMinRanges,
          stridedMinRanges,
          stridedMinBytes,
          stagingBytes,
          inFlightBytes,
          tableRanges);
    }
  }
}
