package io.umbp.bench;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.bench.ReplaySettings.Verification;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.ArgGroup;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** Replays a trace and checks every byte that comes back. */
@Command(
    name = "replay",
    description =
        "Replays a production trace through the connector over a fake GPU and checks every byte that"
            + " comes back.",
    mixinStandardHelpOptions = true,
    sortOptions = false)
final class ReplayCommand implements Callable<Integer> {
  private static final String BUNDLED = "bundled:";

  /** Pools without a size. */
  enum PoolLimit {
    /** As much as the machine has. */
    UNLIMITED
  }

  /** Which block makes room for another. */
  enum Policy {
    /** The least recently used one. */
    LRU
  }

  /** The three ways to say how large the pool is. */
  static final class PoolSize {
    @Option(names = "--pool", paramLabel = "unlimited", description = "no limit (default)")
    @Nullable PoolLimit limit;

    @Option(names = "--pool-bytes", paramLabel = "N", description = "capacity in bytes")
    @Nullable Long bytes;

    @Option(
        names = "--pool-blocks",
        paramLabel = "N",
        description = "capacity in blocks, each with the objects of all ranks")
    @Nullable Long blocks;
  }

  @Spec private CommandSpec spec;

  @Option(
      names = "--trace",
      paramLabel = "FILE",
      defaultValue = "bundled:conversation",
      description =
          "trace in Mooncake's JSONL format, plain or gzip, or bundled:conversation or"
              + " bundled:synthetic (default: ${DEFAULT-VALUE})")
  private String trace;

  @ArgGroup(exclusive = true)
  private @Nullable PoolSize pool;

  @Option(
      names = "--policy",
      defaultValue = "lru",
      paramLabel = "lru",
      description = "eviction policy (default: ${DEFAULT-VALUE})")
  private Policy policy;

  @Option(
      names = "--tp",
      paramLabel = "N",
      defaultValue = "1",
      description = "tensor-parallel ranks (default: ${DEFAULT-VALUE})")
  private int ranks;

  @Option(
      names = "--layers",
      paramLabel = "N",
      defaultValue = "4",
      description = "layers of each rank (default: ${DEFAULT-VALUE})")
  private int layers;

  @Option(
      names = "--layer-bytes",
      paramLabel = "N",
      defaultValue = "1024",
      description = "bytes of a block in one layer (default: ${DEFAULT-VALUE})")
  private int layerBytes;

  @Option(
      names = "--concurrency",
      paramLabel = "N",
      defaultValue = "1",
      description = "requests in flight (default: ${DEFAULT-VALUE})")
  private int concurrency;

  @Option(names = "--limit", paramLabel = "N", description = "replay the first N requests only")
  private @Nullable Integer limit;

  @Option(
      names = "--fail-rate",
      paramLabel = "P",
      defaultValue = "0",
      description = "probability that a copied row fails, 0 to 1 (default: ${DEFAULT-VALUE})")
  private double failRate;

  @Option(
      names = "--seed",
      paramLabel = "N",
      defaultValue = "1",
      description = "seed of the failing rows (default: ${DEFAULT-VALUE})")
  private long seed;

  @Option(
      names = "--verify",
      defaultValue = "all",
      paramLabel = "all|none",
      description = "which loaded bytes to check (default: ${DEFAULT-VALUE})")
  private Verification verify;

  @Option(names = "--json", paramLabel = "FILE", description = "write the figures to a JSON file")
  private @Nullable Path json;

  /** What stands between the pool and the GPU's copy engine. */
  UnaryOperator<KVCopyEngine> copyEngine = UnaryOperator.identity();

  @Override
  public Integer call() {
    ReplaySettings settings = settings();
    checkJson();
    Trace requests = readTrace();
    PrintWriter out = spec.commandLine().getOut();
    PrintWriter err = spec.commandLine().getErr();
    ReplayReport report;
    try (ReplayProgress progress = ReplayProgress.of(requests.requests().size(), err);
        ReplayEngine engine = new ReplayEngine(requests, settings, progress, copyEngine)) {
      report = engine.run();
    }
    out.println(heading(requests, settings));
    report.table().forEach(out::println);
    out.flush();
    writeJson(report);
    for (String defect : report.defects) {
      err.println("umbp replay: " + defect);
    }
    if (report.corruptBytes > 0) {
      err.println("umbp replay: " + report.corruptBytes + " loaded bytes are corrupt");
    }
    err.flush();
    return report.corruptBytes > 0 || !report.defects.isEmpty() ? 1 : 0;
  }

  private String heading(Trace requests, ReplaySettings settings) {
    boolean isUnlimited = settings.poolBytes() == Long.MAX_VALUE;
    return String.format(
        Locale.ROOT,
        "umbp replay of %s: tp %d, %d layers of %d bytes, pool %s, policy %s",
        requests.name(),
        ranks,
        layers,
        layerBytes,
        isUnlimited ? "unlimited" : String.format(Locale.ROOT, "%,d bytes", settings.poolBytes()),
        policy.name().toLowerCase(Locale.ROOT));
  }

  private ReplaySettings settings() {
    if (limit != null && limit < 1) {
      throw new BadInputException("--limit is %d, needed is at least 1", limit);
    }
    return new ReplaySettings(
        poolBytes(), ranks, layers, layerBytes, concurrency, failRate, seed, verify);
  }

  private long poolBytes() {
    PoolSize size = pool;
    if (size == null || size.limit != null) {
      return Long.MAX_VALUE;
    }
    if (size.bytes != null) {
      return atLeastOne("--pool-bytes", size.bytes);
    }
    long blocks = size.blocks == null ? 0 : size.blocks;
    atLeastOne("--pool-blocks", blocks);
    try {
      long blockBytes =
          Math.multiplyExact(Math.multiplyExact((long) layers, layerBytes), (long) ranks);
      return Math.multiplyExact(blocks, blockBytes);
    } catch (ArithmeticException e) {
      throw new BadInputException(
          "--pool-blocks %d of %d ranks with %d layers of %d bytes is more than 64 bits can count",
          blocks, ranks, layers, layerBytes);
    }
  }

  private static long atLeastOne(String option, long value) {
    if (value < 1) {
      throw new BadInputException("%s is %d, needed is at least 1", option, value);
    }
    return value;
  }

  private Trace readTrace() {
    int most = limit == null ? Integer.MAX_VALUE : limit;
    return switch (trace) {
      case BUNDLED + "conversation" -> Trace.bundled("conversation-4000", most);
      case BUNDLED + "synthetic" -> Trace.bundled("synthetic-1000", most);
      default -> Trace.read(tracePath(), most);
    };
  }

  private Path tracePath() {
    try {
      return Path.of(trace);
    } catch (InvalidPathException e) {
      throw new BadInputException("--trace %s: no file name: %s", trace, e.getReason());
    }
  }

  /** Refuses a file that could not be written at the end. */
  private void checkJson() {
    if (json == null) {
      return;
    }
    Path directory = directory(json);
    if (!Files.isDirectory(directory)) {
      throw new BadInputException("--json %s: there is no directory %s", json, directory);
    }
    if (!Files.isWritable(directory) || Files.isDirectory(json)) {
      throw new BadInputException("--json %s: cannot be written", json);
    }
  }

  private static Path directory(Path file) {
    Path parent = file.toAbsolutePath().getParent();
    return parent == null ? file : parent;
  }

  private void writeJson(ReplayReport report) {
    if (json == null) {
      return;
    }
    try {
      String text =
          new ObjectMapper()
              .enable(SerializationFeature.INDENT_OUTPUT)
              .writeValueAsString(report.figures());
      String draftName = json.getFileName() + "." + ProcessHandle.current().pid() + ".tmp";
      Path draft = directory(json).resolve(draftName);
      try {
        Files.writeString(draft, text + '\n');
        Files.move(draft, json, StandardCopyOption.ATOMIC_MOVE);
      } finally {
        Files.deleteIfExists(draft);
      }
    } catch (IOException e) {
      throw new BadInputException("--json %s: cannot be written: %s", json, e.getMessage());
    }
  }
}
