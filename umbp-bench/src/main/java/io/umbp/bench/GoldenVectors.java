package io.umbp.bench;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRange;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.BlockHasher;
import io.umbp.core.identity.NamespaceFingerprint;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVLayoutPlanner.LayerPlacement;
import io.umbp.core.layout.TPShardMapping;
import io.umbp.core.layout.TPShardMapping.HeadSlice;
import io.umbp.core.request.RequestTracker;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Checks vectors that another program computed against this build, one method a section. A check
 * throws {@link Mismatch}, or what this build or a missing field throws. Stateless.
 */
final class GoldenVectors {
  private GoldenVectors() {}

  /** This build gives something else than the vector says. */
  static final class Mismatch extends RuntimeException {
    private static final long serialVersionUID = 1L;

    Mismatch(String what, Object expected, Object actual) {
      super(String.format("%s: expected %s, actual %s", what, expected, actual));
    }
  }

  private static void same(String what, Object expected, Object actual) {
    if (!Objects.equals(expected, actual)) {
      throw new Mismatch(what, expected, actual);
    }
  }

  static void topology(JsonNode vector) {
    JsonNode sizes = vector.required("topology");
    if (vector.required("all_namespaces").isNull()) {
      refusedTopology(sizes);
      return;
    }
    RankTopology topology = topology(vector.required("rank").intValue(), sizes);
    same("tp_rank", number(sizes, "tp_rank"), topology.tpRank());
    same("pcp_rank", number(sizes, "pcp_rank"), topology.pcpRank());
    same("dcp_rank", number(sizes, "dcp_rank"), topology.dcpRank());
    same("pp_rank", number(sizes, "pp_rank"), topology.ppRank());
    same("local_namespace", rank(vector.required("local_namespace")), topology.localNamespace());
    same("rank_count", number(vector, "rank_count"), topology.rankCount());
    List<RankNamespace> all = new ArrayList<>();
    vector.required("all_namespaces").forEach(each -> all.add(rank(each)));
    same("all_namespaces", all, topology.allNamespaces());
  }

  private static void refusedTopology(JsonNode sizes) {
    RankTopology accepted;
    try {
      accepted =
          new RankTopology(
              number(sizes, "tp_rank"),
              number(sizes, "tp_size"),
              number(sizes, "pcp_rank"),
              number(sizes, "pcp_size"),
              number(sizes, "dcp_rank"),
              number(sizes, "dcp_size"),
              number(sizes, "pp_rank"),
              number(sizes, "pp_size"));
    } catch (UMBPException refused) {
      return;
    }
    throw new Mismatch("topology", "a refusal", accepted);
  }

  private static RankTopology topology(int globalRank, JsonNode sizes) {
    return RankTopology.ofGlobalRank(
        globalRank,
        number(sizes, "tp_size"),
        number(sizes, "pcp_size"),
        number(sizes, "dcp_size"),
        number(sizes, "pp_size"));
  }

  static void key(JsonNode vector) {
    UMBPNamespace namespace = new UMBPNamespace(vector.required("namespace").textValue());
    RankNamespace rank = rank(vector.required("rank"));
    int groupId = number(vector, "group_id");
    BlockHash hash = BlockHash.fromHex(vector.required("block_hash").textValue());
    BlockKey key = new BlockKey(namespace, rank, groupId, hash);
    String text = vector.required("key").textValue();
    same("key", text, key.toString());
    same(
        "key of a column",
        text,
        BlockKeys.of(namespace, rank, groupId, BlockHashes.of(List.of(hash))).get(0));
    same("parsed key", key, BlockKey.parse(text));
  }

  static void plan(JsonNode vector) {
    int blockId = number(vector, "block_id");
    List<KVRegion> regions = new ArrayList<>();
    Map<String, LayerPlacement> placements = new HashMap<>();
    for (JsonNode each : vector.required("regions")) {
      KVRegion region =
          new KVRegion(
              each.required("layer_name").textValue(),
              number(each, "group_id"),
              each.required("block_stride").longValue(),
              each.required("block_bytes").longValue(),
              each.required("object_offset").longValue(),
              number(each, "block_size"));
      regions.add(region);
      String layer = region.layerName();
      long stride = vector.required("physical_strides").required(layer).longValue();
      long base = vector.required("base_addresses").required(layer).longValue();
      long physicalBlocks = (blockId + 1L) * (region.blockStride() / stride);
      placements.put(layer, new LayerPlacement(base, stride, Math.toIntExact(physicalBlocks)));
    }
    KVLayoutPlanner planner =
        KVLayoutPlanner.place(new KVLayoutDescriptor(regions, RankTopology.single()), placements);
    long objectBytes = Arrays.stream(planner.groupIds()).mapToLong(planner::objectBytes).sum();
    same("object_size", vector.required("object_size").longValue(), objectBytes);
    List<KVRange> expected = new ArrayList<>();
    vector.required("ranges").forEach(row -> expected.add(range(row)));
    JsonNode group = vector.required("group_id");
    List<KVRange> actual =
        group.isNull()
            ? planner.rangesForBlock(blockId)
            : planner.rangesForBlock(blockId, group.intValue());
    same("ranges", expected, actual);
  }

  private static KVRange range(JsonNode row) {
    return new KVRange(
        row.required(0).textValue(),
        row.required(1).intValue(),
        row.required(2).intValue(),
        row.required(3).longValue(),
        row.required(4).longValue(),
        row.required(5).longValue(),
        row.required(6).longValue());
  }

  static void tracker(JsonNode vector) {
    RequestTracker tracker = new RequestTracker();
    int step = 0;
    for (JsonNode each : vector) {
      String operation = each.required("op").textValue();
      JsonNode argument = each.required("arg");
      switch (operation) {
        case "update" -> tracker.updateBlocks(tables(argument));
        case "replace" -> tracker.replaceBlocks(tables(argument));
        case "mark" ->
            tracker.markSaved(argument.required(0).intValue(), argument.required(1).intValue());
        case "reset" -> tracker.reset();
        default -> throw new IllegalArgumentException("unknown operation '" + operation + "'");
      }
      String what = "step " + step + " (" + operation + ")";
      same(
          what + " block_ids",
          Arrays.deepToString(tables(each.required("block_ids"))),
          Arrays.deepToString(tables(tracker)));
      same(what + " saved_tokens", number(each, "saved_tokens"), tracker.savedTokens());
      step++;
    }
  }

  private static int[][] tables(RequestTracker tracker) {
    int[][] tables = new int[tracker.groupCount()][];
    for (int group = 0; group < tables.length; group++) {
      tables[group] = tracker.blockIds(group);
    }
    return tables;
  }

  private static int[][] tables(JsonNode lists) {
    int[][] tables = new int[lists.size()][];
    for (int i = 0; i < tables.length; i++) {
      tables[i] = ints(lists.get(i));
    }
    return tables;
  }

  static void namespace(JsonNode vector) {
    JsonNode fields = vector.required("fields");
    same("layout_version", 1, number(fields, "layout_version"));
    List<NamespaceFingerprint.Group> groups = new ArrayList<>();
    for (JsonNode each : fields.required("groups")) {
      List<String> layers = new ArrayList<>();
      each.required("layers").forEach(layer -> layers.add(layer.textValue()));
      groups.add(
          new NamespaceFingerprint.Group(
              text(each, "kind"), layers, number(each, "block_size"), textOrNull(each, "dtype")));
    }
    JsonNode drafter = fields.get("speculative");
    NamespaceFingerprint.Deployment deployment =
        new NamespaceFingerprint.Deployment(
            text(fields, "model"),
            textOrNull(fields, "revision"),
            number(fields, "block_size"),
            textOrNull(fields, "cache_layout"),
            groups,
            RankTopology.ofGlobalRank(
                0,
                number(fields, "tp"),
                number(fields, "pcp"),
                number(fields, "dcp"),
                number(fields, "pp")),
            drafter == null ? null : drafter(drafter));
    same(
        "namespace",
        text(vector, "namespace"),
        NamespaceFingerprint.compatible(deployment).value());
  }

  private static NamespaceFingerprint.Drafter drafter(JsonNode fields) {
    return new NamespaceFingerprint.Drafter(
        textOrNull(fields, "method"), textOrNull(fields, "model"), textOrNull(fields, "revision"));
  }

  static void blockHashes(JsonNode vector) {
    BlockHasher hasher =
        BlockHasher.compatible(text(vector, "hash_seed"), number(vector, "block_size"));
    same("none_hash", text(vector, "none_hash"), hasher.firstParent().toString());
    BlockHasher.Extras extras =
        BlockHasher.Extras.none()
            .withLoraName(textOrNull(vector, "lora_name"))
            .withCacheSalt(textOrNull(vector, "cache_salt"));
    int[] tokens = ints(vector.required("token_ids"));
    List<String> expected = new ArrayList<>();
    vector.required("block_hashes").forEach(hash -> expected.add(hash.textValue()));
    same("block_hashes", expected, texts(hasher.hash(tokens, extras)));
    BlockHasher.Sequence sequence = hasher.start(extras);
    for (int i = 0; i < tokens.length; i++) {
      sequence.append(tokens, i, i + 1);
    }
    same("block_hashes token by token", expected, texts(sequence.hashes()));
  }

  private static List<String> texts(BlockHashes hashes) {
    return IntStream.range(0, hashes.size()).mapToObj(i -> hashes.get(i).toString()).toList();
  }

  static void tpShardMapping(JsonNode vector) {
    List<HeadSlice> expected = new ArrayList<>();
    for (JsonNode each : vector.required("slices")) {
      expected.add(
          new HeadSlice(
              number(each, "producer_rank"),
              number(each, "source_head"),
              number(each, "destination_head"),
              number(each, "num_heads")));
    }
    TPShardMapping mapping =
        TPShardMapping.of(
            number(vector, "num_kv_heads"),
            number(vector, "producer_tp"),
            number(vector, "consumer_tp"),
            number(vector, "consumer_rank"));
    same("slices", expected, mapping.slices());
  }

  private static RankNamespace rank(JsonNode tuple) {
    int[] ranks = ints(tuple);
    if (ranks.length != 4) {
      throw new IllegalArgumentException(tuple + " is no rank [tp, pcp, dcp, pp]");
    }
    return new RankNamespace(ranks[0], ranks[1], ranks[2], ranks[3]);
  }

  private static int[] ints(JsonNode list) {
    int[] numbers = new int[list.size()];
    for (int i = 0; i < numbers.length; i++) {
      numbers[i] = list.get(i).intValue();
    }
    return numbers;
  }

  private static String text(JsonNode vector, String field) {
    JsonNode value = vector.required(field);
    if (!value.isTextual()) {
      throw new IllegalArgumentException(field + " is " + value + ", no text");
    }
    return value.textValue();
  }

  private static @Nullable String textOrNull(JsonNode vector, String field) {
    return vector.required(field).isNull() ? null : text(vector, field);
  }

  private static int number(JsonNode vector, String field) {
    return vector.required(field).intValue();
  }
}
