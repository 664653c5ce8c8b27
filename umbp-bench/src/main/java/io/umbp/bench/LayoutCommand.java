package io.umbp.bench;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.Kind;
import io.umbp.bench.CatalogueModel.TokenCache;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TensorPlan;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** Shows how the KV cache of a model lies in memory, and what its objects are. */
@Command(
    name = "layout",
    description =
        "Shows how the KV cache of a model lies in memory: its groups, regions and objects, and one"
            + " page drawn.",
    mixinStandardHelpOptions = true,
    sortOptions = false)
final class LayoutCommand implements Callable<Integer> {
  /** Enough for strides that differ from pages to show. */
  private static final int BLOCKS = 1024;

  private static final int MAX_BLOCK_SIZE = 1 << 20;

  @Spec private CommandSpec spec;

  @Parameters(arity = "0..1", paramLabel = "MODEL", description = "a name that --list prints")
  private @Nullable String name;

  @Option(
      names = "--tp",
      paramLabel = "N",
      defaultValue = "1",
      description = "tensor-parallel ranks (default: ${DEFAULT-VALUE})")
  private int ranks;

  @Option(
      names = "--layout",
      defaultValue = "LBNHC",
      description =
          "physical order of layer, block, head, token and content: ${COMPLETION-CANDIDATES}"
              + " (default: ${DEFAULT-VALUE})")
  private KVCacheLayout layout;

  @Option(
      names = "--split",
      defaultValue = "blocks",
      description =
          "values beside each key, behind the keys of a block, or behind all keys:"
              + " ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE})")
  private KVSplit split;

  @Option(
      names = "--block-size",
      paramLabel = "N",
      description =
          "tokens in a block (default: 16, or the next multiple at which a block's page holds the"
              + " model's state)")
  private @Nullable Integer blockSize;

  @Option(names = "--list", description = "print the catalogue and nothing else")
  private boolean isList;

  @Override
  public Integer call() {
    PrintWriter out = spec.commandLine().getOut();
    ModelCatalogue catalogue = ModelCatalogue.bundled();
    if (isList == (name != null)) {
      throw new BadInputException("needed is the name of a model or --list, one of them");
    }
    List<String> lines = name == null ? list(catalogue) : describe(catalogue.model(name));
    lines.forEach(out::println);
    out.flush();
    return 0;
  }

  private static String number(long value) {
    return String.format(Locale.ROOT, "%,d", value);
  }

  private static List<String> list(ModelCatalogue catalogue) {
    TextTable table = new TextTable("model", "bytes per token", "state bytes", "layers");
    for (String name : catalogue.names()) {
      CatalogueModel model = catalogue.model(name);
      Map<Kind, Long> counts =
          model.caches().stream()
              .collect(Collectors.groupingBy(Cache::kind, TreeMap::new, Collectors.counting()));
      table.add(
          name,
          number(model.bytesPerToken()),
          model.stateBytes() == 0 ? "-" : number(model.stateBytes()),
          counts.entrySet().stream()
              .map(count -> count.getValue() + " " + count.getKey().title())
              .collect(Collectors.joining(", ")));
    }
    return table.lines();
  }

  private List<String> describe(CatalogueModel model) {
    EngineCache cache = engineCache(model);
    KVLayoutDescriptor descriptor = cache.describe(0, BLOCKS);
    List<String> lines = new ArrayList<>();
    lines.add(
        String.format(
            Locale.ROOT,
            "%s: tp %d, layout %s, split %s, blocks of %,d tokens",
            model.name(),
            ranks,
            layout,
            split.name().toLowerCase(Locale.ROOT),
            cache.blockSize()));
    lines.add("  from " + model.source());
    lines.add("");
    lines.addAll(groups(cache, descriptor).lines());
    lines.add("");
    lines.addAll(regions(cache, descriptor).lines());
    lines.add("");
    lines.addAll(sums(cache));
    Set<String> drawn = new HashSet<>();
    for (TensorSketch tensor : cache.tensors()) {
      for (Cache part : tensor.slots().stream().flatMap(List::stream).toList()) {
        if (drawn.add(content(part))) {
          lines.add("");
          lines.addAll(caption(tensor, part, descriptor));
          lines.addAll(PageDrawing.lines(tensor, part, cache.blockSize()));
        }
      }
    }
    return lines;
  }

  private EngineCache engineCache(CatalogueModel model) {
    if (ranks < 1 || ranks > ReplaySettings.MAX_RANKS) {
      throw new BadInputException(
          "--tp is %d, allowed are 1 to %d", ranks, ReplaySettings.MAX_RANKS);
    }
    int tokens = blockSize == null ? EngineCache.defaultBlockSize(model, ranks) : blockSize;
    if (tokens < 1 || tokens > MAX_BLOCK_SIZE) {
      throw new BadInputException(
          "--block-size is %d, allowed are 1 to %d", tokens, MAX_BLOCK_SIZE);
    }
    return EngineCache.of(model, ranks, layout, split, tokens);
  }

  private static TextTable groups(EngineCache cache, KVLayoutDescriptor descriptor) {
    TextTable table =
        new TextTable(
            "group", "kind", "layers", "window", "each rank", "object bytes", "runs", "merged");
    KVLayoutPlanner planner = planner(cache, descriptor);
    for (int group = 0; group < cache.groupCount(); group++) {
      List<KVRange> ranges = planner.rangesForBlock(1, group);
      Cache first = cache.group(group).get(0);
      int window = first instanceof TokenCache tokens ? tokens.slidingWindow() : 0;
      table.add(
          Integer.toString(group),
          cache.kinds(group).stream().map(Kind::title).collect(Collectors.joining(" + ")),
          Integer.toString(cache.group(group).size()),
          window == 0 ? "-" : number(window),
          descriptor.replicatedGroups().contains(group) ? "the same" : "own part",
          number(descriptor.objectBytes(group)),
          number(ranges.size()),
          number(merged(ranges)));
    }
    return table;
  }

  /** Places the tensors one behind the other, with a gap between them. */
  private static KVLayoutPlanner planner(EngineCache cache, KVLayoutDescriptor descriptor) {
    Map<String, LayerPlacement> placements = new HashMap<>();
    long address = 1L << 40;
    for (TensorPlan tensor : KVLayoutPlanner.tensors(cache.config(BLOCKS), descriptor.topology())) {
      long base = address;
      tensor
          .onDevice(base, 0)
          .forEach(
              (layer, placed) ->
                  placements.put(layer, LayerPlacement.of(placed.address(), placed)));
      address = Math.addExact(address, Math.addExact(tensor.sizeBytes(), 512L));
    }
    return KVLayoutPlanner.place(descriptor, placements);
  }

  /** The runs that are left when those are joined that touch in memory and in the object. */
  static int merged(List<KVRange> ranges) {
    int runs = 0;
    long address = -1;
    long offset = -1;
    for (KVRange range : ranges) {
      if (range.address() != address || range.objectOffset() != offset) {
        runs++;
      }
      address = range.address() + range.length();
      offset = range.objectOffset() + range.length();
    }
    return runs;
  }

  private static TextTable regions(EngineCache cache, KVLayoutDescriptor descriptor) {
    TextTable table =
        new TextTable("region", "group", "heads", "content", "bytes", "runs", "stride");
    Map<String, LayerNames> names = new LinkedHashMap<>();
    Map<String, String[]> rows = new HashMap<>();
    Map<String, Cache> parts = new HashMap<>();
    Map<String, Cache> wholes = new HashMap<>();
    cache.part().caches().forEach(part -> parts.put(part.layerName(), part));
    cache.model().caches().forEach(whole -> wholes.put(whole.layerName(), whole));
    for (KVRegion region : descriptor.regions()) {
      Cache part = Objects.requireNonNull(parts.get(region.layerName()));
      Cache whole = Objects.requireNonNull(wholes.get(region.layerName()));
      String[] row = {
        "",
        Integer.toString(region.groupId()),
        heads(part, whole),
        content(part),
        number(region.blockBytes()),
        number(Math.max(1, region.pageSegments().size())),
        number(region.blockStride())
      };
      LayerNames pattern = LayerNames.of(region.layerName());
      String key = pattern.prefix() + "#" + pattern.suffix() + String.join("|", row);
      rows.put(key, row);
      names.merge(key, pattern, LayerNames::plus);
    }
    names.forEach(
        (key, pattern) -> {
          String[] row = Objects.requireNonNull(rows.get(key));
          row[0] = pattern.toString();
          table.add(row);
        });
    return table;
  }

  private static String heads(Cache part, Cache whole) {
    if (part instanceof TokenCache onRank && whole instanceof TokenCache all) {
      return onRank.heads() == all.heads()
          ? Integer.toString(all.heads())
          : onRank.heads() + " of " + all.heads();
    }
    return "-";
  }

  private static String content(Cache cache) {
    if (cache instanceof TokenCache tokens) {
      String type = tokens.elementType().name().toLowerCase(Locale.ROOT);
      String value = tokens.valueSize() == 0 ? "" : " + " + tokens.valueSize();
      return tokens.keySize() + value + " " + type;
    }
    return "state";
  }

  private List<String> sums(EngineCache cache) {
    List<String> lines = new ArrayList<>();
    lines.add(
        String.format(
            Locale.ROOT,
            "  KV bytes per token  %,d in the whole model, %,d on a rank",
            cache.model().bytesPerToken(),
            cache.part().bytesPerToken()));
    if (cache.model().stateBytes() > 0) {
      lines.add(
          String.format(
              Locale.ROOT,
              "  state bytes         %,d in the whole model, %,d on a rank",
              cache.model().stateBytes(),
              cache.part().stateBytes()));
    }
    lines.add(
        String.format(
            Locale.ROOT,
            "  objects of a block  %,d, together %,d bytes",
            cache.objectsPerBlock(),
            cache.blockBytesOnAllRanks()));
    return lines;
  }

  private static List<String> caption(
      TensorSketch tensor, Cache part, KVLayoutDescriptor descriptor) {
    KVRegion region =
        descriptor.regions().stream()
            .filter(some -> some.layerName().equals(part.layerName()))
            .findFirst()
            .orElseThrow();
    int runs = Math.max(1, region.pageSegments().size());
    List<String> lines = new ArrayList<>();
    lines.add(
        String.format(
            Locale.ROOT,
            "  %s: a page is %,d %s",
            part.layerName(),
            runs,
            runs == 1 ? "run" : "runs"));
    int sharing = tensor.slots().get(0).size();
    if (sharing > 1) {
      lines.add("  in a slot that " + sharing + " groups use under different block ids");
    }
    long padding = region.blockStride() - region.blockBytes();
    if (tensor.slots().size() == 1 && runs == 1 && padding > 0) {
      lines.add("  with " + number(padding) + " bytes of padding behind it");
    }
    return lines;
  }
}
