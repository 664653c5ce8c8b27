package io.umbp.bench;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.bench.ReplaySettings.Device;
import io.umbp.bench.ReplaySettings.Verification;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVSplit;
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
        "Replays a production trace through the connector over a fake or real GPU and checks every byte that"
            + " comes back.",
    mixinStandardHelpOptions = true,
    sortOptions = false)
final class ReplayCommand implements Callable<Integer> {
  private static final String BUNDLED = "bundled:";
  private static final int DEFAULT_LAYERS = 4;
  private static final int DEFAULT_LAYER_BYTES = 1024;

  /** What a block of a model may have on all ranks unless told else: the sample has 67,000. */
  private static final long DEFAULT_BLOCK_BYTES = 16 << 10;

  private static final int MAX_BLOCK_SIZE = 4096;

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
      names = "--model",
      paramLabel = "NAME",
      description =
          "replay with the groups and layers of a model; umbp layout --list has the names")
  private @Nullable String model;

  @Option(
      names = "--tp",
      paramLabel = "N",
      defaultValue = "1",
      description = "tensor-parallel ranks (default: ${DEFAULT-VALUE})")
  private int ranks;

  @Option(
      names = "--layout",
      description =
          "with --model: order of layer, block, head, token and content: ${COMPLETION-CANDIDATES}"
              + " (default: LBNHC)")
  private @Nullable KVCacheLayout layout;

  @Option(
      names = "--split",
      description = "with --model: where values lie: ${COMPLETION-CANDIDATES} (default: blocks)")
  private @Nullable KVSplit split;

  @Option(
      names = "--block-size",
      paramLabel = "N",
      description =
          "with --model: tokens in a block of the engine; each stands for one block of 512 tokens of"
              + " the trace (default: 16)")
  private @Nullable Integer blockSize;

  @Option(
      names = "--scale",
      paramLabel = "S",
      description =
          "with --model: divide keys, values and states by S, to at least one element; heads, layers"
              + " and tokens stay (default: the smallest power of 2 that makes a block on all ranks"
              + " at most 16 KiB)")
  private @Nullable Integer scale;

  @Option(
      names = "--layers",
      paramLabel = "N",
      description = "without --model: layers of each rank (default: 4)")
  private @Nullable Integer layers;

  @Option(
      names = "--layer-bytes",
      paramLabel = "N",
      description = "without --model: bytes of a block in one layer (default: 1024)")
  private @Nullable Integer layerBytes;

  @Option(
      names = "--concurrency",
      paramLabel = "N",
      defaultValue = "1",
      description = "requests in flight (default: ${DEFAULT-VALUE})")
  private int concurrency;

  @Option(names = "--limit", paramLabel = "N", description = "replay the first N requests only")
  private @Nullable Integer limit;

  @Option(
      names = "--repeat",
      paramLabel = "N",
      defaultValue = "1",
      description =
          "replay the trace N times over, and show what memory and threads are held after each"
              + " (default: ${DEFAULT-VALUE})")
  private int rounds;

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

  @Option(
      names = "--device",
      paramLabel = "fake-gpu|fake-cuda|cuda",
      defaultValue = "fake-gpu",
      description =
          "what stands for the GPUs: the testkit's fake GPU, the fake CUDA driver under the real"
              + " JCuda, or the machine's CUDA driver (default: ${DEFAULT-VALUE})")
  private Device device;

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
    try (ReplayProgress progress =
            ReplayProgress.of(rounds * (long) requests.requests().size(), err);
        ReplayEngine engine = new ReplayEngine(requests, settings, progress, copyEngine)) {
      report = engine.run();
    }
    out.println(heading(requests, settings));
    if (model != null) {
      out.println(shape(settings.cache()));
    }
    report.table().forEach(out::println);
    if (rounds > 1) {
      report.memory.table().forEach(out::println);
    }
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
    EngineCache cache = settings.cache();
    String what =
        model == null
            ? cache.part().caches().size()
                + " layers of "
                + cache.pageBytes(cache.part().caches().get(0))
                + " bytes"
            : model;
    return String.format(
        Locale.ROOT,
        "umbp replay of %s: tp %d, %s, pool %s, policy %s%s",
        requests.name(),
        ranks,
        what,
        isUnlimited ? "unlimited" : String.format(Locale.ROOT, "%,d bytes", settings.poolBytes()),
        policy.name().toLowerCase(Locale.ROOT),
        device == Device.FAKE_GPU ? "" : ", device " + device);
  }

  /** What a model's blocks are. */
  private static String shape(EngineCache cache) {
    return String.format(
        Locale.ROOT,
        "  layout %s, split %s; a block: %,d tokens, %,d %s %,d bytes, contents 1/%,d",
        cache.layout(),
        cache.split().name().toLowerCase(Locale.ROOT),
        cache.blockSize(),
        cache.objectsPerBlock(),
        cache.objectsPerBlock() == 1 ? "object of" : "objects, together",
        cache.blockBytesOnAllRanks(),
        cache.model().scale());
  }

  private ReplaySettings settings() {
    if (limit != null && limit < 1) {
      throw new BadInputException("--limit is %d, needed is at least 1", limit);
    }
    ReplaySettings.requireCount("--tp", ranks, ReplaySettings.MAX_RANKS);
    EngineCache cache = model == null ? plainCache() : modelCache(model);
    return new ReplaySettings(
        poolBytes(cache), cache, rounds, concurrency, failRate, seed, verify, device);
  }

  private EngineCache plainCache() {
    refuse("without --model", "--layout", layout);
    refuse("without --model", "--split", split);
    refuse("without --model", "--block-size", blockSize);
    refuse("without --model", "--scale", scale);
    int count = layers == null ? DEFAULT_LAYERS : layers;
    int bytes = layerBytes == null ? DEFAULT_LAYER_BYTES : layerBytes;
    ReplaySettings.requireCount("--layers", count, Integer.MAX_VALUE);
    ReplaySettings.requireCount("--layer-bytes", bytes, Integer.MAX_VALUE);
    if ((long) count * bytes > KVCopyEngine.MAX_SLAB_BYTES) {
      throw new BadInputException(
          "--layers %d of --layer-bytes %d make blocks of %d bytes, allowed are at most %d",
          count, bytes, (long) count * bytes, KVCopyEngine.MAX_SLAB_BYTES);
    }
    return EngineCache.ofBytes(count, bytes, ranks, Trace.BLOCK_TOKENS);
  }

  private static void refuse(String where, String option, @Nullable Object value) {
    if (value != null) {
      throw new BadInputException("%s has no meaning %s", option, where);
    }
  }

  private EngineCache modelCache(String name) {
    refuse("with --model", "--layers", layers);
    refuse("with --model", "--layer-bytes", layerBytes);
    CatalogueModel whole = ModelCatalogue.bundled().model(name);
    int tokens = blockSize == null ? EngineCache.DEFAULT_BLOCK_SIZE : blockSize;
    if (tokens < 2 || tokens > MAX_BLOCK_SIZE) {
      throw new BadInputException(
          "--block-size is %d, allowed are 2 to %d", tokens, MAX_BLOCK_SIZE);
    }
    if (scale != null) {
      ReplaySettings.requireCount("--scale", scale, Integer.MAX_VALUE);
      return scaled(whole, scale, tokens);
    }
    EngineCache cache = scaled(whole, 1, tokens);
    EngineCache smaller = scaled(whole, 2, tokens);
    while (cache.blockBytesOnAllRanks() > DEFAULT_BLOCK_BYTES
        && smaller.blockBytesOnAllRanks() < cache.blockBytesOnAllRanks()) {
      cache = smaller;
      smaller = scaled(whole, Math.multiplyExact(2, cache.model().scale()), tokens);
    }
    return cache;
  }

  private EngineCache scaled(CatalogueModel whole, int factor, int tokens) {
    return EngineCache.of(
        whole.scaledDown(factor),
        ranks,
        layout == null ? KVCacheLayout.LBNHC : layout,
        split == null ? KVSplit.BLOCKS : split,
        tokens);
  }

  private long poolBytes(EngineCache cache) {
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
      return Math.multiplyExact(blocks, cache.blockBytesOnAllRanks());
    } catch (ArithmeticException e) {
      throw new BadInputException(
          "--pool-blocks %d of %d bytes on %d ranks is more than 64 bits can count",
          blocks, cache.blockBytesOnAllRanks(), ranks);
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
