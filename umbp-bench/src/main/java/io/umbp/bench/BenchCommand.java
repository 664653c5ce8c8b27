package io.umbp.bench;

import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.bench.ReplaySettings.Device;
import io.umbp.cuda.Cuda;
import io.umbp.cuda.CudaCalibration;
import io.umbp.cuda.CudaCalibration.Measurement;
import io.umbp.cuda.CudaCopySettings;
import java.io.PrintWriter;
import java.util.Locale;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** Measures the ways to copy ranges on a card. */
@Command(
    name = "bench",
    description =
        "Measures how fast ranges of 4 KiB to 1 MiB move between a CUDA device and pinned memory, by"
            + " each way of copying them and beside one large copy, and picks the thresholds.",
    mixinStandardHelpOptions = true,
    sortOptions = false)
final class BenchCommand implements Callable<Integer> {
  @Spec private CommandSpec spec;

  @Option(
      names = "--device",
      paramLabel = "cuda|fake-cuda",
      required = true,
      description = "the machine's CUDA driver, or the fake one, whose speed means nothing")
  private Device device;

  @Option(
      names = "--ordinal",
      paramLabel = "N",
      defaultValue = "0",
      description = "which card (default: ${DEFAULT-VALUE})")
  private int ordinal;

  @Option(
      names = "--bytes",
      paramLabel = "N",
      defaultValue = "268435456",
      description = "bytes of each round (default: ${DEFAULT-VALUE})")
  private long bytes;

  @Option(
      names = "--rounds",
      paramLabel = "N",
      defaultValue = "9",
      description = "measured rounds of each case; the median counts (default: ${DEFAULT-VALUE})")
  private int rounds;

  @Override
  public Integer call() {
    if (device == Device.FAKE_GPU) {
      throw new BadInputException("--device is fake-gpu, allowed are cuda and fake-cuda");
    }
    if (device == Device.FAKE_CUDA) {
      CudaGpus.installFake(1);
    }
    Cuda.Availability availability = Cuda.availability();
    if (!availability.isAvailable()) {
      throw new BadInputException("--device %s: %s", device, availability.detail());
    }
    CudaCalibration measured;
    try {
      measured = CudaCalibration.measure(ordinal, bytes, rounds);
    } catch (UMBPException e) {
      throw new BadInputException("%s", e.getMessage());
    }
    print(measured, availability.detail());
    return 0;
  }

  private void print(CudaCalibration measured, String driver) {
    PrintWriter out = spec.commandLine().getOut();
    out.printf(
        Locale.ROOT,
        "umbp bench on %s %d (%s): %,d bytes, median of %d rounds%n",
        device,
        ordinal,
        driver,
        bytes,
        rounds);
    out.printf(
        Locale.ROOT,
        "one large copy: load %.2f GB/s, store %.2f GB/s%n",
        measured.largeLoad() / 1e9,
        measured.largeStore() / 1e9);
    TextTable table = new TextTable("range bytes", "direction", "way", "GB/s", "of large copy");
    for (Measurement each : measured.measurements()) {
      boolean isLoad = each.direction() == TransferDirection.LOAD;
      double large = isLoad ? measured.largeLoad() : measured.largeStore();
      table.add(
          String.format(Locale.ROOT, "%,d", each.rangeBytes()),
          each.direction().name().toLowerCase(Locale.ROOT),
          each.way().name().toLowerCase(Locale.ROOT),
          String.format(Locale.ROOT, "%.2f", each.bytesPerSecond() / 1e9),
          String.format(Locale.ROOT, "%.3f", each.bytesPerSecond() / large));
    }
    table.lines().forEach(out::println);
    CudaCopySettings chosen = measured.settings();
    out.printf(
        Locale.ROOT,
        "kernelBelowBytes %,d, stridedMinBytes %,d, stagingBytes %,d%n",
        chosen.kernelBelowBytes(),
        chosen.stridedMinBytes(),
        chosen.stagingBytes());
    out.flush();
  }
}
