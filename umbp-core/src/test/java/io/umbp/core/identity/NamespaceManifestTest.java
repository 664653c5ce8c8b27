package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.common.hash.Hashing;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.ElementType;
import io.umbp.api.KVOrigin;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.NamespaceFingerprint.Drafter;
import io.umbp.core.identity.NamespaceManifest.Difference;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import java.io.File;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

class NamespaceManifestTest {
  private static final BlockHasher HASHER = BlockHasher.strict("0", 16);

  private static final KVCacheSpec.Attention SPEC =
      new KVCacheSpec.Attention(
          "FullAttentionSpec", 16, ElementType.BF16, 8, 128, 128, TPSharding.SHARDED, 0);

  private static final KVCacheConfig ONE = tensor(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 64, 1, 0);

  private static NamespaceManifestBuilder base() {
    return base(ONE);
  }

  private static NamespaceManifestBuilder base(KVCacheConfig config) {
    return NamespaceManifest.builder("m")
        .cache(config, RankTopology.tensorParallel(0, 2))
        .hash(HASHER);
  }

  private static KVCacheConfig attention(
      String kind, int blockSize, ElementType type, int kvHeads, int keySize, int valueSize) {
    return attention(kind, blockSize, type, kvHeads, keySize, valueSize, TPSharding.SHARDED, 0);
  }

  private static KVCacheConfig attention(
      String kind,
      int blockSize,
      ElementType type,
      int kvHeads,
      int keySize,
      int valueSize,
      TPSharding sharding,
      int window) {
    return new KVCacheConfig(
        groupOf(
            new KVCacheSpec.Attention(
                kind, blockSize, type, kvHeads, keySize, valueSize, sharding, window)),
        ONE.tensors());
  }

  private static KVCacheConfig tensor(
      KVCacheLayout layout, KVSplit split, int blockCount, int kernelBlocks, long blockStride) {
    List<Slot> slots = List.of(new Slot(List.of("l0")));
    return new KVCacheConfig(
        groupOf(SPEC),
        List.of(new Tensor(slots, layout, split, blockCount, kernelBlocks, blockStride)));
  }

  private static List<Group> groupOf(KVCacheSpec spec) {
    return List.of(new Group(List.of(new Layer("l0", spec)), Transfer.ENABLED));
  }

  private static KVCacheConfig state(
      String kind, int blockSize, ElementType type, long pageBytes, TPSharding sharding) {
    return new KVCacheConfig(
        groupOf(new KVCacheSpec.State(kind, blockSize, type, pageBytes, sharding)),
        List.of(Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 64, List.of("l0"))));
  }

  private static NamespaceManifestBuilder state(String kind, int blockSize, long pageBytes) {
    return base(state(kind, blockSize, ElementType.F32, pageBytes, TPSharding.SHARDED));
  }

  /** A model of several layers, a group for each list of names; tensors in the order given. */
  private static KVCacheConfig layers(List<List<String>> groups, List<String> tensorOrder) {
    return new KVCacheConfig(
        groups.stream()
            .map(
                names ->
                    new Group(
                        names.stream().map(name -> new Layer(name, SPEC)).toList(),
                        Transfer.ENABLED))
            .toList(),
        List.of(Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 64, tensorOrder)));
  }

  private static final KVCacheConfig TWO = layers(List.of(List.of("a", "b")), List.of("a", "b"));

  private static NamespaceManifestBuilder twoStages(int stageOfB) {
    return base(TWO)
        .cache(TWO, RankTopology.ofGlobalRank(0, 2, 1, 1, 2))
        .stages(Map.of("a", 0, "b", stageOfB));
  }

  private static NamespaceManifestBuilder sizes(int tp, int pcp, int dcp) {
    return base().cache(ONE, RankTopology.ofGlobalRank(0, tp, pcp, dcp, 1));
  }

  private static Arguments change(
      String what, NamespaceManifestBuilder from, NamespaceManifestBuilder to, String... fields) {
    return Arguments.of(what, from.build(), to.build(), List.of(fields));
  }

  /** Name of the change, a manifest, the changed one, and the fields that tell it. */
  static Stream<Arguments> changes() {
    ElementType bf16 = ElementType.BF16;
    KVCacheLayout lbnhc = KVCacheLayout.LBNHC;
    KVSplit blocks = KVSplit.BLOCKS;
    String full = "FullAttentionSpec";
    return Stream.of(
        change(
            "model",
            base(),
            NamespaceManifest.builder("n")
                .cache(ONE, RankTopology.tensorParallel(0, 2))
                .hash(HASHER),
            "model"),
        change("revision", base(), base().revision("r2"), "model.revision"),
        change("other revision", base().revision("r1"), base().revision("r2"), "model.revision"),
        change(
            "weight quantization", base(), base().weightQuantization("awq"), "model.quantization"),
        change(
            "override",
            base(),
            base().overrides(Map.of("rope_theta", "1e6")),
            "override.rope_theta"),
        change(
            "value of an override",
            base().overrides(Map.of("window", "1")),
            base().overrides(Map.of("window", "2")),
            "override.window"),
        change("empty override", base(), base().overrides(Map.of("x", "")), "override.x"),
        change("KV dtype", base(), base().kvDtype("fp8_e4m3"), "kv.dtype"),
        change("KV scales", base().kvScales("k=1,v=1"), base().kvScales("k=1,v=2"), "kv.scales"),
        change("origin", base(), base().origin(KVOrigin.MAY_BE_FOREIGN), "kv.origin"),
        change("drafter", base(), base().drafter(new Drafter(null, null, null)), "drafter"),
        change(
            "drafter's method",
            base().drafter(new Drafter(null, "d", "r")),
            base().drafter(new Drafter("eagle", "d", "r")),
            "drafter.method"),
        change(
            "drafter's model",
            base().drafter(new Drafter("eagle", "d", "r")),
            base().drafter(new Drafter("eagle", "e", "r")),
            "drafter.model"),
        change(
            "drafter's revision",
            base().drafter(new Drafter("eagle", "d", "r")),
            base().drafter(new Drafter("eagle", "d", "s")),
            "drafter.revision"),
        change(
            "hash algorithm",
            base(),
            base().hash(BlockHasher.compatible("0", 16)),
            "hash.algorithm"),
        change("hash unit", base(), base().hash(BlockHasher.strict("0", 8)), "hash.block-size"),
        change("hash seed", base(), base().hash(BlockHasher.strict("1", 16)), "hash.first-parent"),
        change("tp size", sizes(8, 1, 1), sizes(16, 1, 1), "parallel.tp"),
        change("pcp size", sizes(2, 1, 1), sizes(2, 2, 1), "parallel.pcp"),
        change("dcp size", sizes(2, 1, 1), sizes(2, 1, 2), "parallel.dcp"),
        change(
            "pp size", base(TWO), twoStages(1), "layer[a].stage", "layer[b].stage", "parallel.pp"),
        change("stage of a layer", twoStages(1), twoStages(0), "layer[b].stage"),
        change(
            "layer name",
            base(layers(List.of(List.of("a", "b")), List.of("a", "b"))),
            base(layers(List.of(List.of("b", "a")), List.of("b", "a"))),
            "group[0].layers"),
        change(
            "order of layers in the tensors",
            base(TWO),
            base(layers(List.of(List.of("a", "b")), List.of("b", "a"))),
            "group[0].layers"),
        change(
            "group of a layer",
            base(layers(List.of(List.of("a", "b"), List.of("c")), List.of("a", "b", "c"))),
            base(layers(List.of(List.of("a"), List.of("b", "c")), List.of("a", "b", "c"))),
            "group[0].layers",
            "group[1].layers"),
        change("kind", base(), base(attention("Other", 16, bf16, 8, 128, 128)), "layer[l0].kind"),
        change(
            "block size, same page",
            base(),
            base(attention(full, 32, bf16, 8, 64, 64)),
            "group[0].block-size",
            "layer[l0].key-size",
            "layer[l0].value-size"),
        change(
            "element type",
            base(),
            base(attention(full, 16, ElementType.F16, 8, 128, 128)),
            "layer[l0].element-type"),
        change(
            "KV heads",
            base(),
            base(attention(full, 16, bf16, 16, 64, 64)),
            "layer[l0].key-size",
            "layer[l0].kv-heads",
            "layer[l0].rank-heads",
            "layer[l0].value-size"),
        change(
            "key and value size",
            base(attention(full, 16, bf16, 8, 192, 0)),
            base(attention(full, 16, bf16, 8, 96, 96)),
            "layer[l0].key-size",
            "layer[l0].page-order",
            "layer[l0].value-size"),
        change(
            "sharding",
            base(attention(full, 16, bf16, 1, 576, 0, TPSharding.SHARDED, 0)),
            base(attention(full, 16, bf16, 1, 576, 0, TPSharding.REPLICATED, 0)),
            "group[0].replicated",
            "layer[l0].sharding"),
        change(
            "sliding window",
            base(),
            base(attention(full, 16, bf16, 8, 128, 128, TPSharding.SHARDED, 1024)),
            "layer[l0].sliding-window"),
        change(
            "layout of other planes",
            base(),
            base(tensor(KVCacheLayout.BLNHC, blocks, 64, 1, 0)),
            "layer[l0].layout"),
        change(
            "layout by head",
            base(),
            base(tensor(KVCacheLayout.LBHNC, blocks, 64, 1, 0)),
            "layer[l0].layout",
            "layer[l0].page-order"),
        change(
            "K/V split",
            base(),
            base(tensor(lbnhc, KVSplit.PLANES, 64, 1, 0)),
            "layer[l0].kv-split"),
        change(
            "kernel blocks, each with K and V",
            base(),
            base(tensor(lbnhc, blocks, 64, 2, 0)),
            "layer[l0].page-order"),
        change(
            "number of such kernel blocks",
            base(tensor(lbnhc, blocks, 64, 4, 0)),
            base(tensor(lbnhc, blocks, 64, 2, 0)),
            "layer[l0].page-order"),
        change("kind of state", state("A", 16, 64), state("B", 16, 64), "layer[l0].kind"),
        change(
            "block size of a state", state("A", 16, 64), state("A", 32, 64), "group[0].block-size"),
        change(
            "page bytes of a state",
            state("A", 16, 64),
            state("A", 16, 128),
            "layer[l0].page-bytes"),
        change(
            "element type of a state",
            state("A", 16, 64),
            base(state("A", 16, ElementType.BF16, 64, TPSharding.SHARDED)),
            "layer[l0].element-type"),
        change(
            "sharding of a state",
            state("A", 16, 64),
            base(state("A", 16, ElementType.F32, 64, TPSharding.REPLICATED)),
            "group[0].replicated",
            "layer[l0].sharding"));
  }

  @ParameterizedTest(name = "a change of {0} changes the namespace")
  @MethodSource("changes")
  void everyFieldChangesTheNamespace(
      String what, NamespaceManifest from, NamespaceManifest to, List<String> fields) {
    assertNotEquals(from.namespace(), to.namespace());
    assertNotEquals(from, to);
    assertEquals(fields, from.explain(to).stream().map(Difference::field).toList());
    assertEquals(List.of(), from.explain(from));
    assertEquals(to, NamespaceManifest.parse(to.text()));
  }

  @Test
  @DisplayName("no field is without a change of its own in the table")
  void theTableCoversAllFields() {
    Set<String> untested = new HashSet<>();
    Set<String> tested = new HashSet<>();
    changes()
        .forEach(
            change -> {
              for (int i = 1; i <= 2; i++) {
                ((NamespaceManifest) change.get()[i])
                    .text()
                    .lines()
                    .skip(1)
                    .forEach(line -> untested.add(pattern(line.substring(0, line.indexOf('=')))));
              }
              ((List<?>) change.get()[3]).forEach(field -> tested.add(pattern(field.toString())));
            });
    untested.removeAll(tested);
    assertEquals(Set.of("layout-version"), untested);
  }

  private static String pattern(String field) {
    return field.replaceAll("\\[.*]", "[*]").replaceAll("^override\\..*", "override");
  }

  @Test
  @DisplayName("what leaves the bytes as they are leaves the namespace as it is")
  void whatDoesNotChangeBytesIsLeftOut() {
    NamespaceManifest base = base().build();
    KVCacheLayout lbnhc = KVCacheLayout.LBNHC;
    KVSplit blocks = KVSplit.BLOCKS;
    assertEquals(base, base(tensor(lbnhc, blocks, 4096, 1, 0)).build(), "block count");
    assertEquals(base, base(tensor(lbnhc, blocks, 64, 1, 1 << 20)).build(), "block stride");
    assertEquals(base, base().cache(ONE, RankTopology.tensorParallel(1, 2)).build(), "rank");
    assertEquals(
        base(tensor(lbnhc, KVSplit.FUSED, 64, 1, 0)).build(),
        base(tensor(lbnhc, KVSplit.FUSED, 64, 4, 0)).build(),
        "kernel blocks of a page by token");
    assertEquals(
        base(tensor(lbnhc, KVSplit.PLANES, 64, 1, 0)).build(),
        base(tensor(lbnhc, KVSplit.PLANES, 64, 4, 0)).build(),
        "kernel blocks inside of planes");
    KVCacheConfig withGroupThatStays =
        new KVCacheConfig(
            List.of(
                ONE.groups().get(0), new Group(List.of(new Layer("x", SPEC)), Transfer.DISABLED)),
            List.of(ONE.tensors().get(0), Tensor.packed(lbnhc, blocks, 64, List.of("x"))));
    assertEquals(base, base(withGroupThatStays).build(), "group that is not transferred");
    assertEquals(
        base(TWO).build(),
        base(new KVCacheConfig(
                TWO.groups(),
                List.of(
                    Tensor.packed(lbnhc, blocks, 64, List.of("a")),
                    Tensor.packed(lbnhc, blocks, 64, List.of("b")))))
            .build(),
        "a tensor a layer");
    assertEquals(base(TWO).build(), base(TWO).stages(Map.of("a", 7)).build(), "unused stages");
  }

  @ParameterizedTest
  @ValueSource(ints = {0, 1, 2, 3})
  @DisplayName("all ranks and pipeline stages derive the same")
  void allRanksDeriveTheSame(int globalRank) {
    assertEquals(
        twoStages(1).build(),
        twoStages(1).cache(TWO, RankTopology.ofGlobalRank(globalRank, 2, 1, 1, 2)).build());
  }

  @Test
  @DisplayName("case 1: the order of attributes makes no difference, nor what becomes of the map")
  void case1OrderOfOverridesMakesNoDifference() {
    Map<String, String> forth = new LinkedHashMap<>();
    Map<String, String> back = new LinkedHashMap<>();
    IntStream.range(0, 50).forEach(i -> forth.put("k" + i, "v" + i));
    IntStream.iterate(49, i -> i - 1).limit(50).forEach(i -> back.put("k" + i, "v" + i));
    NamespaceManifestBuilder builder = base().overrides(forth);
    forth.clear();
    assertEquals(base().overrides(back).build().text(), builder.build().text());
  }

  /** Prints a namespace whose attributes come from a map without order, in a JVM of its own. */
  public static void main(String[] args) {
    System.out.println(caseOneNamespace());
  }

  private static UMBPNamespace caseOneNamespace() {
    Map<String, String> overrides =
        Map.of("a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7");
    return base(layers(List.of(List.of("a", "b")), List.of("a", "b")))
        .overrides(overrides)
        .build()
        .namespace();
  }

  @Test
  @DisplayName("case 1: three fresh JVMs derive the same namespace from Map.of")
  void case1NamespaceIsTheSameInEveryProcess() throws Exception {
    String expected = "52f54dae0441da35945eda69b669e92e";
    assertEquals(expected, caseOneNamespace().value());
    List<String> places = new ArrayList<>();
    for (Class<?> type :
        List.of(
            NamespaceManifestTest.class,
            NamespaceManifest.class,
            UMBPNamespace.class,
            Hashing.class,
            Test.class,
            Arguments.class,
            Executable.class)) {
      places.add(codeSource(type));
    }
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    for (int i = 0; i < 3; i++) {
      Process process =
          new ProcessBuilder(
                  java,
                  "-cp",
                  String.join(File.pathSeparator, places),
                  NamespaceManifestTest.class.getName())
              .redirectError(ProcessBuilder.Redirect.INHERIT)
              .start();
      String output =
          new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
      assertEquals(0, process.waitFor());
      assertEquals(expected, output);
    }
  }

  private static String codeSource(Class<?> type) throws URISyntaxException {
    return Path.of(type.getProtectionDomain().getCodeSource().getLocation().toURI()).toString();
  }

  @Test
  @DisplayName("case 1: null means none; empty is refused, for it could mean either")
  void case1NullIsNoneAndEmptyIsRefused() {
    NamespaceManifestBuilder nulls =
        base().revision(null).weightQuantization(null).kvDtype(null).kvScales(null).drafter(null);
    assertEquals(base().build(), nulls.build());
    assertRefused("model is empty; null means none", () -> NamespaceManifest.builder(""));
    assertRefused("revision is empty; null means none", () -> nulls.revision(""));
    assertRefused(
        "weight quantization is empty; null means none", () -> nulls.weightQuantization(""));
    assertRefused("KV dtype is empty; null means none", () -> nulls.kvDtype(""));
    assertRefused("KV scales is empty; null means none", () -> nulls.kvScales(""));
    assertRefused(
        "hash algorithm is empty; null means none", () -> nulls.hash("", HASHER.firstParent(), 16));
    assertRefused(
        "hash block size 0 must be >= 1 token", () -> nulls.hash("h", HASHER.firstParent(), 0));
    assertRefused("the name of an override is empty", () -> nulls.overrides(Map.of("", "x")));
  }

  /** Two layers of case 4: 16 tokens, 8 heads of 128 elements, K and V. */
  private static KVCacheConfig caseFour(ElementType type) {
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "FullAttentionSpec", 16, type, 8, 128, 128, TPSharding.SHARDED, 0);
    return new KVCacheConfig(
        List.of(new Group(List.of(new Layer("l0", spec), new Layer("l1", spec)), Transfer.ENABLED)),
        List.of(Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 4, List.of("l0", "l1"))));
  }

  @Test
  @DisplayName("case 4: element type and weights revision are part of the namespace")
  void case4FormatAndWeightsArePartOfTheNamespace() {
    RankTopology one = RankTopology.single();
    KVCacheConfig bf16 = caseFour(ElementType.BF16);
    KVCacheConfig fp8 = caseFour(ElementType.F8_E4M3);
    assertEquals(131_072, KVLayoutPlanner.describe(bf16, one).objectBytes(0));
    assertEquals(65_536, KVLayoutPlanner.describe(fp8, one).objectBytes(0));
    NamespaceManifest first = caseFourManifest(bf16, "r1");
    NamespaceManifest second = caseFourManifest(fp8, "r1");
    NamespaceManifest third = caseFourManifest(bf16, "r2");

    BlockHashes hash = BlockHashes.of(List.of(BlockHash.fromHex("00ff")));
    Set<String> stored =
        new HashSet<>(new BlockIdentityCodec(first.namespace(), one).localKeys(0, hash));
    assertEquals(1, stored.size());
    for (NamespaceManifest other : List.of(second, third)) {
      assertTrue(
          Collections.disjoint(
              stored, new BlockIdentityCodec(other.namespace(), one).allRankKeys(0, hash)));
    }
    assertEquals(
        List.of(
            "layer[*].element-type (2 fields): BF16 here, F8_E4M3 there",
            "layer[*].page-bytes (2 fields): 65536 here, 32768 there"),
        first.explain(second).stream().map(Difference::toString).toList());
    assertEquals(
        List.of("model.revision: r1 here, r2 there"),
        first.explain(third).stream().map(Difference::toString).toList());
  }

  private static NamespaceManifest caseFourManifest(KVCacheConfig config, String revision) {
    return NamespaceManifest.builder("m")
        .revision(revision)
        .cache(config, RankTopology.single())
        .hash(HASHER)
        .build();
  }

  @Test
  @DisplayName("case 13: block-major and plane-major K/V never meet in one namespace")
  void case13KVOrderIsPartOfTheNamespace() {
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "FullAttentionSpec", 16, ElementType.F16, 1, 8, 8, TPSharding.SHARDED, 0);
    Map<KVSplit, NamespaceManifest> manifests = new HashMap<>();
    for (KVSplit split : List.of(KVSplit.BLOCKS, KVSplit.PLANES)) {
      KVCacheConfig config =
          new KVCacheConfig(
              List.of(new Group(List.of(new Layer("l", spec)), Transfer.ENABLED)),
              List.of(Tensor.packed(KVCacheLayout.LBNHC, split, 4, List.of("l"))));
      assertEquals(512, KVLayoutPlanner.describe(config, RankTopology.single()).objectBytes(0));
      assertEquals(2048, KVLayoutPlanner.tensors(config, RankTopology.single()).get(0).sizeBytes());
      manifests.put(split, caseFourManifest(config, "r1"));
    }
    NamespaceManifest blockMajor = manifests.get(KVSplit.BLOCKS);
    NamespaceManifest planeMajor = manifests.get(KVSplit.PLANES);
    assertNotEquals(blockMajor.namespace(), planeMajor.namespace());
    assertEquals(
        List.of("layer[l].kv-split: BLOCKS here, PLANES there"),
        blockMajor.explain(planeMajor).stream().map(Difference::toString).toList());
  }

  @Test
  @DisplayName("the vector of docs/key-format.md")
  void documentedVector() {
    assertEquals(DOCUMENTED, documented().text());
    assertEquals("dbfd6ca36281f41c8eaed493dc1dc3f4", documented().namespace().value());
    assertEquals(
        "foreign.cae015904a5b213ca712ee3751aa42a0",
        NamespaceManifest.parse(DOCUMENTED.replace("own-writer", "may-be-foreign"))
            .namespace()
            .value());
  }

  private static NamespaceManifest documented() {
    KVCacheSpec full =
        new KVCacheSpec.Attention(
            "FullAttentionSpec", 16, ElementType.BF16, 8, 128, 128, TPSharding.SHARDED, 0);
    KVCacheSpec state =
        new KVCacheSpec.State("MambaSpec", 64, ElementType.F32, 4096, TPSharding.REPLICATED);
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(
                new Group(List.of(new Layer("attn", full)), Transfer.ENABLED),
                new Group(List.of(new Layer("ssm=1", state)), Transfer.ENABLED)),
            List.of(
                new Tensor(
                    List.of(new Slot(List.of("attn"))),
                    KVCacheLayout.LBHNC,
                    KVSplit.BLOCKS,
                    64,
                    2,
                    Tensor.PACKED),
                Tensor.packed(KVCacheLayout.LBNHC, KVSplit.FUSED, 64, List.of("ssm=1"))));
    return NamespaceManifest.builder("modèle/x")
        .revision("main")
        .overrides(Map.of("rope_theta", "1e6", "rope\\type", "a\nb"))
        .cache(config, RankTopology.ofGlobalRank(0, 2, 1, 1, 2))
        .stages(Map.of("attn", 0, "ssm=1", 1))
        .drafter(new Drafter("eagle", "drafter-a", null))
        .hash(HASHER)
        .build();
  }

  private static final String DOCUMENTED =
      """
      umbp-manifest 1
      drafter=yes
      drafter.method=eagle
      drafter.model=drafter-a
      group[0].block-size=16
      group[0].layers=attn
      group[0].replicated=no
      group[1].block-size=64
      group[1].layers=ssm=1
      group[1].replicated=yes
      hash.algorithm=sha256_cbor_strict
      hash.block-size=16
      hash.first-parent=4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e
      kv.origin=own-writer
      layer[attn].element-type=BF16
      layer[attn].key-size=128
      layer[attn].kind=FullAttentionSpec
      layer[attn].kv-heads=8
      layer[attn].kv-split=BLOCKS
      layer[attn].layout=LBHNC
      layer[attn].page-bytes=32768
      layer[attn].page-order=kernel-block/2 kv head token
      layer[attn].rank-heads=4
      layer[attn].sharding=SHARDED
      layer[attn].sliding-window=0
      layer[attn].stage=0
      layer[attn].value-size=128
      layer[ssm\\u003d1].element-type=F32
      layer[ssm\\u003d1].kind=MambaSpec
      layer[ssm\\u003d1].page-bytes=4096
      layer[ssm\\u003d1].sharding=REPLICATED
      layer[ssm\\u003d1].stage=1
      layout-version=1
      model=mod\\u00e8le/x
      model.revision=main
      override.rope\\\\type=a\\u000ab
      override.rope_theta=1e6
      parallel.dcp=1
      parallel.pcp=1
      parallel.pp=2
      parallel.tp=2
      """;

  @Test
  void textsThatNobodyWroteAreRefused() {
    String start = "umbp-manifest 1\n";
    assertEquals(start + "a=1\n", NamespaceManifest.parse(start + "a=1\n").text());
    assertEquals(
        start + "new.field=a=b \n", NamespaceManifest.parse(start + "new.field=a=b \n").text());
    assertRefused("line 1 of the manifest has no line feed at its end", "");
    assertRefused("line 1 of the manifest has no line feed at its end", "umbp-manifest 1");
    assertRefused("line 1 of the manifest is not 'umbp-manifest 1'", "umbp-manifest 2\n");
    assertRefused("line 2 of the manifest is no field=value", start + "a\n");
    assertRefused("line 2 of the manifest is no field=value", start + "=a\n");
    assertRefused("line 2 of the manifest is no field=value", start + "\na=1\n");
    assertRefused("line 3 of the manifest has no line feed at its end", start + "a=1\nb=2");
    String order =
        "line 3 of the manifest is not behind the line before in the order of field names";
    assertRefused(order, start + "b=1\na=1\n");
    assertRefused(order, start + "a=1\na=1\n");
    for (String bad :
        List.of("\t", "\r", "é", "\\", "\\u", "\\u00", "\\u00E9", "\\u0061", "\\n", "\\u00g9")) {
      assertRefused(
          "line 2 of the manifest is not escaped as it must be", start + "a=" + bad + "\n");
      assertRefused("line 2 of the manifest is not escaped as it must be", start + bad + "=a\n");
    }
    assertRefused("line 2 of the manifest is not escaped as it must be", start + "a=\\u003d\n");
    assertEquals(
        start + "\\u003d\\\\=\\\\u\n",
        NamespaceManifest.parse(start + "\\u003d\\\\=\\\\u\n").text());
    assertRefused(
        "the manifest has 1048577 characters, at most 1048576 are allowed",
        start + "a=" + "1".repeat(1_048_577 - 19) + "\n");
  }

  private static void assertRefused(String message, String text) {
    assertRefused(message, () -> NamespaceManifest.parse(text));
  }

  @Test
  void aManifestThatIsTooLongIsRefused() {
    assertRefused(
        "the manifest has 1048577 characters, at most 1048576 are allowed",
        () ->
            base()
                .kvScales(
                    "1"
                        .repeat(
                            1_048_577 - "kv.scales=\n".length() - base().build().text().length()))
                .build());
  }

  @Test
  void whatIsNeededIsAskedFor() {
    assertRefused(
        "the manifest of model 'm' needs the KV cache",
        () -> NamespaceManifest.builder("m").hash(HASHER).build());
    assertRefused(
        "the manifest of model 'm' needs the block hash",
        () -> NamespaceManifest.builder("m").cache(TWO, RankTopology.single()).build());
    assertRefused(
        "layer 'b' is on pipeline stage 2; with 2 stages each layer must be on one in [0, 2)",
        () -> twoStages(2).build());
    assertRefused(
        "layer 'a' is on pipeline stage null; with 2 stages each layer must be on one in [0, 2)",
        () -> twoStages(1).stages(Map.of("b", 0)).build());
  }

  @Test
  @DisplayName("one difference for all layers and groups that differ alike; absent is a difference")
  void explainCollapsesLayers() {
    List<String> names =
        IntStream.range(0, 30).mapToObj(i -> "model.layers." + i + ".x[0]").toList();
    KVCacheConfig thirty = layers(List.of(names), names);
    List<String> more = new ArrayList<>(names);
    more.add(7, "extra");
    NamespaceManifest base = base(thirty).build();
    NamespaceManifest longer = base(layers(List.of(more), more)).build();
    Map<String, String> overrides = new TreeMap<>(Map.of("a[0].x", "1", "a[1].x", "1"));
    assertEquals(
        List.of(
            "group[0].layers: ...rs.5.x[0],model.layers.6.x[0],model.layers.7.x[0],model.laye..."
                + " here, ...rs.5.x[0],model.layers.6.x[0],extra,model.layers.7.x[0],mode... there",
            "layer[extra].element-type: none here, BF16 there"),
        base.explain(longer).subList(0, 2).stream().map(Difference::toString).toList());
    assertEquals(
        List.of(
            new Difference("override.a[0].x", "1", null, 1),
            new Difference("override.a[1].x", "1", null, 1)),
        base(thirty).overrides(overrides).build().explain(base));
    assertEquals(
        new Difference("layer[*].layout", "LBNHC", "BLNHC", 30),
        base.explain(
                base(new KVCacheConfig(
                        thirty.groups(),
                        List.of(Tensor.packed(KVCacheLayout.BLNHC, KVSplit.BLOCKS, 64, names))))
                    .build())
            .get(0));
  }

  @Test
  @DisplayName("lists of layer names are told apart whatever the names are")
  void listsOfNamesAreUnambiguous() {
    List<List<String>> lists =
        List.of(
            List.of("a,b", "c"), List.of("a", "b,c"), List.of("a\\", "b,c"), List.of("a\\,b", "c"));
    Set<String> values = new HashSet<>();
    for (List<String> names : lists) {
      base(layers(List.of(names), names))
          .build()
          .text()
          .lines()
          .filter(line -> line.startsWith("group[0].layers="))
          .forEach(values::add);
    }
    assertEquals(lists.size(), values.size());
  }

  @Test
  void aForeignEngineHasANamespaceOfItsOwn() {
    NamespaceManifest own = base().build();
    NamespaceManifest foreign = base().origin(KVOrigin.MAY_BE_FOREIGN).build();
    assertFalse(own.namespace().isForeign());
    assertTrue(foreign.namespace().isForeign());
    assertEquals(32, own.namespace().value().length());
    assertEquals(foreign.namespace(), NamespaceManifest.parse(foreign.text()).namespace());
    assertNotEquals(own.namespace().foreign(), foreign.namespace());
  }

  @Test
  @DisplayName("the names of enum constants in the text are part of the format")
  void enumNamesAreFrozen() {
    assertEquals(
        List.of("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8", "U8"),
        names(ElementType.values()));
    assertEquals(
        List.of("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"),
        names(KVCacheLayout.values()));
    assertEquals(List.of("FUSED", "BLOCKS", "PLANES"), names(KVSplit.values()));
    assertEquals(List.of("SHARDED", "REPLICATED"), names(TPSharding.values()));
  }

  private static List<String> names(Enum<?>[] constants) {
    return Arrays.stream(constants).map(Enum::name).toList();
  }

  private static void assertRefused(String message, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
