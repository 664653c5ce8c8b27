package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.Golden;
import io.umbp.core.identity.NamespaceFingerprint.Deployment;
import io.umbp.core.identity.NamespaceFingerprint.Drafter;
import io.umbp.core.identity.NamespaceFingerprint.Group;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

class NamespaceFingerprintTest {
  private static final String LLAMA = "meta-llama/Llama-3.1-8B";

  static Stream<Arguments> vectors() {
    return Golden.section("namespaces");
  }

  private static Deployment deployment(JsonNode fields) {
    List<Group> groups = new ArrayList<>();
    for (JsonNode each : fields.get("groups")) {
      List<String> layers = new ArrayList<>();
      each.get("layers").forEach(layer -> layers.add(layer.textValue()));
      groups.add(
          new Group(
              each.get("kind").textValue(),
              layers,
              each.get("block_size").intValue(),
              each.get("dtype").textValue()));
    }
    JsonNode drafter = fields.get("speculative");
    return new Deployment(
        fields.get("model").textValue(),
        fields.get("revision").textValue(),
        fields.get("block_size").intValue(),
        fields.get("cache_layout").textValue(),
        groups,
        RankTopology.ofGlobalRank(
            0,
            fields.get("tp").intValue(),
            fields.get("pcp").intValue(),
            fields.get("dcp").intValue(),
            fields.get("pp").intValue()),
        drafter == null
            ? null
            : new Drafter(
                drafter.get("method").textValue(),
                drafter.get("model").textValue(),
                drafter.get("revision").textValue()));
  }

  @ParameterizedTest(name = "golden namespace {0}")
  @MethodSource("vectors")
  void goldenNamespace(int index, JsonNode vector) throws IOException {
    Deployment deployment = deployment(vector.get("fields"));
    assertEquals(
        vector.get("namespace").textValue(), NamespaceFingerprint.compatible(deployment).value());
    assertEquals(
        vector.get("fields"),
        new ObjectMapper().readTree(NamespaceFingerprint.compatibleJson(deployment)));
  }

  private static Deployment twoLayers(String model, @Nullable Drafter drafter) {
    Group group = new Group("FullAttentionSpec", List.of("layer1", "layer2"), 16, "torch.float16");
    return new Deployment(model, null, 16, null, List.of(group), RankTopology.single(), drafter);
  }

  private static String namespace(Deployment deployment) {
    return NamespaceFingerprint.compatible(deployment).value();
  }

  @Test
  void quotedNamespaces() {
    assertEquals("194ba6ca064be076ca7fed5e5a6a505e", namespace(twoLayers(LLAMA, null)));
    assertEquals(
        "4202ff71cf26f9f3b71b51cb31827a27",
        namespace(twoLayers(LLAMA, new Drafter("eagle", "drafter-a", "main"))));
    assertEquals("80d5aae914acc8d02fd220539b75bcbe", namespace(twoLayers("modèle/x", null)));
  }

  @Test
  void canonicalJsonIsSortedAndDense() {
    assertEquals(
        "{\"block_size\":16,\"cache_layout\":null,\"dcp\":1,\"groups\":[{\"block_size\":16,"
            + "\"dtype\":\"torch.float16\",\"kind\":\"FullAttentionSpec\",\"layers\":[\"layer1\","
            + "\"layer2\"]}],\"layout_version\":1,\"model\":\"m\",\"pcp\":1,\"pp\":1,"
            + "\"revision\":null,\"speculative\":{\"method\":\"eagle\",\"model\":null,"
            + "\"revision\":\"main\"},\"tp\":1}",
        NamespaceFingerprint.compatibleJson(twoLayers("m", new Drafter("eagle", null, "main"))));
  }

  @Test
  void textIsEscapedAsPythonDoes() {
    String json =
        NamespaceFingerprint.compatibleJson(
            twoLayers("\"\\/\b\f\n\r\t\0\u001f ~\u007f\u0080é\u2028\uD83D\uDE00", null));
    String model = json.substring(json.indexOf("\"model\":") + 8, json.indexOf(",\"pcp\""));
    assertEquals(
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f ~\\u007f\\u0080\\u00e9\\u2028\\ud83d\\ude00\"",
        model);
  }

  @Test
  void aDrafterAndEachOfItsPartsChangeTheNamespace() {
    List<@Nullable Drafter> drafters = new ArrayList<>();
    drafters.add(null);
    drafters.add(new Drafter(null, null, null));
    drafters.add(new Drafter("eagle", "drafter-a", "main"));
    drafters.add(new Drafter("eagle", "drafter-b", "main"));
    drafters.add(new Drafter("eagle", "drafter-a", "r2"));
    drafters.add(new Drafter("eagle", "drafter-a", null));
    drafters.add(new Drafter("mtp", "drafter-a", "main"));
    Set<String> namespaces = new HashSet<>();
    for (Drafter drafter : drafters) {
      namespaces.add(namespace(twoLayers(LLAMA, drafter)));
    }
    assertEquals(drafters.size(), namespaces.size());
  }

  @Test
  void everyFieldChangesTheNamespace() {
    Group group = new Group("FullAttentionSpec", List.of("a", "b"), 16, "torch.float16");
    Group other = new Group("MambaSpec", List.of("c"), 16, null);
    RankTopology tp4 = RankTopology.tensorParallel(0, 4);
    List<Deployment> deployments =
        List.of(
            new Deployment("m", "r", 16, "NHD", List.of(group), tp4, null),
            new Deployment("n", "r", 16, "NHD", List.of(group), tp4, null),
            new Deployment("m", "s", 16, "NHD", List.of(group), tp4, null),
            new Deployment("m", null, 16, "NHD", List.of(group), tp4, null),
            new Deployment("m", "r", 32, "NHD", List.of(group), tp4, null),
            new Deployment("m", "r", 16, "HND", List.of(group), tp4, null),
            new Deployment("m", "r", 16, null, List.of(group), tp4, null),
            new Deployment("m", "r", 16, "NHD", List.of(group, other), tp4, null),
            new Deployment("m", "r", 16, "NHD", List.of(other, group), tp4, null),
            withGroup(new Group("MLAAttentionSpec", List.of("a", "b"), 16, "torch.float16")),
            withGroup(new Group("FullAttentionSpec", List.of("b", "a"), 16, "torch.float16")),
            withGroup(new Group("FullAttentionSpec", List.of("a", "b"), 32, "torch.float16")),
            withGroup(new Group("FullAttentionSpec", List.of("a", "b"), 16, null)),
            withSizes(2, 1, 1, 1),
            withSizes(4, 2, 1, 1),
            withSizes(4, 1, 2, 1),
            withSizes(4, 1, 1, 2));
    Set<String> namespaces = new HashSet<>();
    deployments.forEach(each -> namespaces.add(namespace(each)));
    assertEquals(deployments.size(), namespaces.size());
  }

  private static Deployment withGroup(Group group) {
    return new Deployment(
        "m", "r", 16, "NHD", List.of(group), RankTopology.tensorParallel(0, 4), null);
  }

  private static Deployment withSizes(int tp, int pcp, int dcp, int pp) {
    Group group = new Group("FullAttentionSpec", List.of("a", "b"), 16, "torch.float16");
    RankTopology topology = RankTopology.ofGlobalRank(0, tp, pcp, dcp, pp);
    return new Deployment("m", "r", 16, "NHD", List.of(group), topology, null);
  }

  @Test
  @DisplayName("case 1: ranks of one engine agree, and nothing is kept of the caller's lists")
  void case1RanksAgreeAndListsAreCopied() {
    List<String> layers = new ArrayList<>(List.of("layer1"));
    List<Group> groups = new ArrayList<>();
    groups.add(new Group("FullAttentionSpec", layers, 16, null));
    Deployment rank0 =
        new Deployment("m", null, 16, null, groups, RankTopology.tensorParallel(0, 2), null);
    String expected = namespace(rank0);
    Deployment rank1 =
        new Deployment("m", null, 16, null, groups, RankTopology.tensorParallel(1, 2), null);
    assertEquals(expected, namespace(rank1));
    layers.set(0, "other");
    groups.clear();
    assertEquals(expected, namespace(rank0));
  }

  @Test
  @DisplayName("case 1: null means none; empty is refused, for it could mean either")
  void case1EmptyTextIsRefused() {
    Group group = new Group("FullAttentionSpec", List.of("a"), 16, null);
    List<Group> groups = List.of(group);
    RankTopology rank = RankTopology.single();
    assertEmptyRefused("model", () -> new Deployment("", null, 16, null, groups, rank, null));
    assertEmptyRefused("revision", () -> new Deployment("m", "", 16, null, groups, rank, null));
    assertEmptyRefused("cache layout", () -> new Deployment("m", null, 16, "", groups, rank, null));
    assertEmptyRefused("spec kind", () -> new Group("", List.of("a"), 16, null));
    assertEmptyRefused("layer name", () -> new Group("k", List.of("a", ""), 16, null));
    assertEmptyRefused("dtype", () -> new Group("k", List.of("a"), 16, ""));
    assertEmptyRefused("speculative method", () -> new Drafter("", "m", "r"));
    assertEmptyRefused("drafter model", () -> new Drafter("eagle", "", "r"));
    assertEmptyRefused("drafter revision", () -> new Drafter("eagle", "m", ""));
  }

  private static void assertEmptyRefused(String what, Executable call) {
    assertRefused(what + " is empty", call);
  }

  @Test
  void impossibleDeploymentsAreRefused() {
    Group group = new Group("k", List.of("a"), 16, null);
    RankTopology rank = RankTopology.single();
    assertRefused(
        "cache block size 0 must be >= 1 token",
        () -> new Deployment("m", null, 0, null, List.of(group), rank, null));
    assertRefused(
        "group block size -1 must be >= 1 token", () -> new Group("k", List.of("a"), -1, null));
    assertRefused(
        "a deployment has 0 KV cache groups, it needs at least 1",
        () -> new Deployment("m", null, 16, null, List.of(), rank, null));
    assertRefused(
        "a group of kind 'k' has 0 layers, it needs at least 1",
        () -> new Group("k", List.of(), 16, null));
    assertRefused(
        "layer 'a' stands twice in the groups",
        () -> new Deployment("m", null, 16, null, List.of(group, group), rank, null));
  }

  private static void assertRefused(String start, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(start, e.getMessage().split(";", 2)[0]);
  }
}
