package io.umbp.bench.jmh;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.management.ThreadMXBean;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.IntSupplier;

/**
 * Lowers one batch with umbp and with planners written in Python, in turn, so that a noisy machine
 * slows all alike. The checksums over addresses, object offsets and lengths must agree. Python's
 * times are processor time and umbp's are wall time: a sample of Python's is long enough for other
 * programs to run inside it, and must not count them.
 *
 * <p>Run it with {@code java -cp umbp.jar io.umbp.bench.jmh.LoweringComparison}; it needs {@code
 * python3} on the path.
 */
public final class LoweringComparison {
  private static final String PYTHON = "python3";
  private static final String SCRIPT = "lowering.py";
  private static final int ROUNDS = 7;
  private static final int SAMPLES = 21;
  private static final int LOWERINGS_PER_SAMPLE = 10;
  private static final int WARM_UP_SAMPLES = 200;
  private static final long CHECKSUM_FACTOR = 0x9E3779B97F4A7C15L;
  private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();

  private final LoweringCase lowering;
  private final CopyBatch rows = new CopyBatch();

  /**
   * What one comparison found; times are medians.
   *
   * @param ranges ranges of the batch
   * @param checksum over addresses, object offsets and lengths, the same for all
   * @param pythonVersion version of the Python that ran
   * @param columnsNanos umbp's columns, nanoseconds a range
   * @param columnsBytes bytes that umbp's columns allocate, a range
   * @param objectsNanos umbp with an object a range, nanoseconds a range
   * @param pythonObjectsNanos Python with an object a range, nanoseconds a range
   * @param pythonColumnsNanos Python with columns, nanoseconds a range
   */
  record Result(
      int ranges,
      String checksum,
      String pythonVersion,
      double columnsNanos,
      double columnsBytes,
      double objectsNanos,
      double pythonObjectsNanos,
      double pythonColumnsNanos) {

    @Override
    public String toString() {
      return String.join(
          System.lineSeparator(),
          String.format(
              Locale.ROOT,
              "%d ranges, checksum %s; Java %s, Python %s",
              ranges,
              checksum,
              System.getProperty("java.version"),
              pythonVersion),
          String.format("%-25s %10s %10s %8s", "", "ns/range", "B/range", "ratio"),
          line("umbp, columns", columnsNanos, String.format(Locale.ROOT, "%.3f", columnsBytes)),
          line("umbp, object a range", objectsNanos, ""),
          line("Python, object a range", pythonObjectsNanos, ""),
          line("Python, columns", pythonColumnsNanos, ""));
    }

    private String line(String name, double nanos, String bytes) {
      return String.format(
          Locale.ROOT, "%-25s %10.2f %10s %8.1f", name, nanos, bytes, nanos / columnsNanos);
    }
  }

  private LoweringComparison(LoweringCase lowering) {
    this.lowering = lowering;
  }

  /**
   * Compares on 64 layers, 2 runs a page and 64 blocks, and prints medians and ratios. Ends the
   * process with 2 when there is no Python.
   *
   * @param args none
   */
  public static void main(String[] args) {
    try {
      LoweringCase lowering = new LoweringCase(LoweringBenchmark.LAYERS, LoweringBenchmark.BLOCKS);
      System.out.println(compare(PYTHON, lowering, ROUNDS, SAMPLES));
    } catch (UMBPException e) {
      System.err.println(e.getMessage());
      System.exit(2);
    }
  }

  /**
   * Runs all sides in turn.
   *
   * @param python the interpreter's name on the path
   * @throws UMBPException UNSUPPORTED when the interpreter cannot be started
   * @throws IllegalStateException when it fails, or makes other ranges than umbp
   */
  static Result compare(String python, LoweringCase lowering, int rounds, int samples) {
    return new LoweringComparison(lowering).compare(python, rounds, samples);
  }

  private Result compare(String python, int rounds, int samples) {
    String checksum = columnsChecksum();
    check(checksum, "umbp with an object a range", objectsChecksum());
    medianNanos(this::lowerToColumns, WARM_UP_SAMPLES);
    medianNanos(this::lowerToObjects, WARM_UP_SAMPLES);
    double[] columns = new double[rounds];
    double[] objects = new double[rounds];
    double[] pythonColumns = new double[rounds];
    double[] pythonObjects = new double[rounds];
    double columnsBytes = 0;
    String version = "";
    for (int round = 0; round < rounds; round++) {
      columns[round] = medianNanos(this::lowerToColumns, samples);
      columnsBytes = Math.max(columnsBytes, bytesPerRange(samples));
      objects[round] = medianNanos(this::lowerToObjects, samples);
      JsonNode theirs = runPython(python, samples);
      check(checksum, "Python with objects", theirs.path("objects_checksum").asText());
      check(checksum, "Python with columns", theirs.path("columns_checksum").asText());
      pythonObjects[round] = theirs.path("objects_ns").asDouble();
      pythonColumns[round] = theirs.path("columns_ns").asDouble();
      version = theirs.path("python").asText();
    }
    return new Result(
        lowering.ranges(),
        checksum,
        version,
        median(columns),
        columnsBytes,
        median(objects),
        median(pythonObjects),
        median(pythonColumns));
  }

  private int lowerToColumns() {
    rows.reset(TransferDirection.STORE, 0, lowering.batch.size());
    lowering.planner.lower(lowering.batch, lowering.objectAddresses, rows);
    return rows.count();
  }

  private int lowerToObjects() {
    int ranges = 0;
    for (int i = 0; i < lowering.batch.size(); i++) {
      ranges += rangesOf(i).size();
    }
    return ranges;
  }

  private List<KVRange> rangesOf(int key) {
    return lowering.planner.rangesForBlock(lowering.batch.blockId(key), LoweringCase.GROUP);
  }

  private double medianNanos(IntSupplier lower, int samples) {
    double[] nanos = new double[samples];
    long ranges = 0;
    for (int sample = 0; sample < samples; sample++) {
      long start = System.nanoTime();
      for (int i = 0; i < LOWERINGS_PER_SAMPLE; i++) {
        ranges += lower.getAsInt();
      }
      nanos[sample] = System.nanoTime() - start;
    }
    return median(nanos) * samples / ranges;
  }

  private double bytesPerRange(int samples) {
    long before = THREADS.getCurrentThreadAllocatedBytes();
    for (int i = 0; i < samples; i++) {
      lowerToColumns();
    }
    long allocated = THREADS.getCurrentThreadAllocatedBytes() - before;
    return (double) allocated / samples / lowering.ranges();
  }

  private static double median(double[] values) {
    Arrays.sort(values);
    return values[values.length / 2];
  }

  private String columnsChecksum() {
    lowerToColumns();
    long sum = 0;
    for (int row = 0; row < rows.count(); row++) {
      long offset = rows.host()[row] - lowering.objectAddresses[rows.key()[row]];
      sum = mix(sum, rows.device()[row], offset, rows.length()[row]);
    }
    return String.format("%016x", sum);
  }

  private String objectsChecksum() {
    long sum = 0;
    for (int i = 0; i < lowering.batch.size(); i++) {
      for (KVRange range : rangesOf(i)) {
        sum = mix(sum, range.address(), range.objectOffset(), range.length());
      }
    }
    return String.format("%016x", sum);
  }

  private static long mix(long sum, long address, long offset, long length) {
    long mixed = sum * CHECKSUM_FACTOR + address;
    mixed = mixed * CHECKSUM_FACTOR + offset;
    return mixed * CHECKSUM_FACTOR + length;
  }

  private static void check(String expected, String who, String actual) {
    if (!actual.equals(expected)) {
      throw new IllegalStateException(
          who + " makes other ranges: checksum " + actual + ", umbp's columns have " + expected);
    }
  }

  private JsonNode runPython(String python, int samples) {
    try {
      ProcessBuilder command = new ProcessBuilder(python, "-I", "-c", script());
      command.redirectError(ProcessBuilder.Redirect.INHERIT);
      Process process = start(command, python);
      try (OutputStream in = process.getOutputStream()) {
        in.write(new ObjectMapper().writeValueAsBytes(input(samples)));
      }
      byte[] out = process.getInputStream().readAllBytes();
      int exit = process.waitFor();
      if (exit != 0) {
        throw new IllegalStateException(python + " ended with " + exit);
      }
      return new ObjectMapper().readTree(out);
    } catch (IOException e) {
      throw new IllegalStateException("no result from " + python, e);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while " + python + " was running", e);
    }
  }

  private static Process start(ProcessBuilder command, String python) {
    try {
      return command.start();
    } catch (IOException e) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          python + " cannot be started, so there is nothing to compare with: " + e.getMessage(),
          e);
    }
  }

  private static String script() throws IOException {
    try (InputStream in = LoweringComparison.class.getResourceAsStream(SCRIPT)) {
      if (in == null) {
        throw new IllegalStateException("no resource " + SCRIPT);
      }
      return new String(in.readAllBytes(), StandardCharsets.UTF_8);
    }
  }

  private ObjectNode input(int samples) {
    ObjectNode input = new ObjectMapper().createObjectNode();
    input.put("samples", samples);
    input.put("group", LoweringCase.GROUP);
    ArrayNode layers = input.putArray("layers");
    for (KVRegion region : lowering.planner.layout().regions()) {
      LayerPlacement placement = lowering.placement(region);
      ArrayNode layer =
          layers
              .addArray()
              .add(region.layerName())
              .add(region.groupId())
              .add(region.blockStride())
              .add(region.blockBytes());
      ArrayNode segments = layer.addArray();
      for (KVRegion.PageSegment segment : region.pageSegments()) {
        segments.addArray().add(segment.offset()).add(segment.length());
      }
      layer.add(placement.baseAddress()).add(placement.physicalStride());
    }
    ArrayNode blocks = input.putArray("blocks");
    ArrayNode objects = input.putArray("objects");
    for (int i = 0; i < lowering.batch.size(); i++) {
      blocks.add(lowering.batch.blockId(i));
      objects.add(lowering.objectAddresses[i]);
    }
    return input;
  }
}
