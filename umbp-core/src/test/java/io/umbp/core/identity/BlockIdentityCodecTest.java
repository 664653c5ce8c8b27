package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.Golden;
import java.io.File;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

class BlockIdentityCodecTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m.L1");

  static Stream<Arguments> keys() {
    return Golden.section("keys");
  }

  static Stream<Arguments> topologies() {
    return Golden.section("topologies");
  }

  @ParameterizedTest(name = "golden key {0}")
  @MethodSource("keys")
  void goldenKey(int index, JsonNode vector) {
    String text = vector.get("key").textValue();
    int[] rank = Golden.ints(vector.get("rank"));
    UMBPNamespace namespace = new UMBPNamespace(vector.get("namespace").textValue());
    BlockHash hash = BlockHash.fromHex(vector.get("block_hash").textValue());
    int group = vector.get("group_id").intValue();
    RankNamespace ranks = new RankNamespace(rank[0], rank[1], rank[2], rank[3]);
    BlockKey key = new BlockKey(namespace, ranks, group, hash);

    assertEquals(text, key.toString());
    assertEquals(text, BlockKeys.of(namespace, ranks, group, BlockHashes.of(List.of(hash))).get(0));
    BlockIdentityCodec codec = new BlockIdentityCodec(namespace, RankTopology.single());
    assertEquals(key, codec.parse(text));
    assertEquals(Optional.of(key), codec.tryParse(text));
    if (ranks.dcp() == 0) {
      RankTopology topology =
          new RankTopology(
              ranks.tp(),
              ranks.tp() + 1,
              ranks.pcp(),
              ranks.pcp() + 1,
              0,
              1,
              ranks.pp(),
              ranks.pp() + 1);
      BlockIdentityCodec local = new BlockIdentityCodec(namespace, topology);
      assertEquals(text, local.localKey(group, hash).toString());
      assertEquals(text, local.localKeys(group, BlockHashes.of(List.of(hash))).get(0));
    }
  }

  @ParameterizedTest(name = "golden topology {0}")
  @MethodSource("topologies")
  void goldenTopology(int index, JsonNode vector) {
    JsonNode fields = vector.get("topology");
    int globalRank = vector.get("rank").intValue();
    int tp = fields.get("tp_size").intValue();
    int pcp = fields.get("pcp_size").intValue();
    int dcp = fields.get("dcp_size").intValue();
    int pp = fields.get("pp_size").intValue();
    if (vector.get("all_namespaces").isNull()) {
      UMBPException e =
          assertThrows(
              UMBPException.class, () -> RankTopology.ofGlobalRank(globalRank, tp, pcp, dcp, pp));
      assertEquals("dcp size " + dcp + " must divide tp size " + tp, e.getMessage());
      return;
    }
    RankTopology topology = RankTopology.ofGlobalRank(globalRank, tp, pcp, dcp, pp);
    assertEquals(
        new RankTopology(
            fields.get("tp_rank").intValue(),
            tp,
            fields.get("pcp_rank").intValue(),
            pcp,
            fields.get("dcp_rank").intValue(),
            dcp,
            fields.get("pp_rank").intValue(),
            pp),
        topology);
    assertEquals(rankOf(vector.get("local_namespace")), topology.localNamespace());

    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, topology);
    assertEquals(vector.get("rank_count").intValue(), codec.keysPerObject(0));
    BlockKeys keys = codec.allRankKeys(3, hashes(2));
    List<RankNamespace> expected =
        IntStream.range(0, vector.get("all_namespaces").size())
            .mapToObj(i -> rankOf(vector.get("all_namespaces").get(i)))
            .toList();
    assertEquals(expected, keys.ranks());
    for (int i = 0; i < keys.size(); i++) {
      assertEquals(i / expected.size(), keys.row(i));
      assertEquals(expected.get(i % expected.size()), keys.rank(i));
      assertEquals(keys.key(i).toString(), keys.get(i));
    }
  }

  private static RankNamespace rankOf(JsonNode array) {
    int[] rank = Golden.ints(array);
    return new RankNamespace(rank[0], rank[1], rank[2], rank[3]);
  }

  private static BlockHashes hashes(int count) {
    return BlockHashes.of(
        IntStream.range(0, count).mapToObj(i -> BlockHash.of(new byte[] {(byte) i, 7})).toList());
  }

  @Test
  void eachBlockCanHaveItsOwnGroup() {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.tensorParallel(1, 2));
    int[] groups = {0, 2};
    assertEquals(
        List.of(
            "umbp:vllm:v1:m.L1:tp1:pcp0:dcp0:pp0:g0:0007",
            "umbp:vllm:v1:m.L1:tp1:pcp0:dcp0:pp0:g2:0107"),
        codec.localKeys(groups, hashes(2)));
    assertEquals(
        List.of(
            "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g0:0007",
            "umbp:vllm:v1:m.L1:tp1:pcp0:dcp0:pp0:g0:0007",
            "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g2:0107",
            "umbp:vllm:v1:m.L1:tp1:pcp0:dcp0:pp0:g2:0107"),
        codec.allRankKeys(groups, hashes(2)));
  }

  private static BlockIdentityCodec replicating(int globalRank, int tp, int pp) {
    return new BlockIdentityCodec(
        NAMESPACE,
        new KVLayoutDescriptor(
            List.of(new KVRegion("a", 0, 64, 64, 0, 16), new KVRegion("b", 2, 64, 64, 64, 16)),
            RankTopology.ofGlobalRank(globalRank, tp, 1, 1, pp),
            Set.of(2),
            KVLayoutDescriptor.RANK_LOCAL));
  }

  @Test
  void aReplicatedGroupHasOneKeyForEachStage() {
    BlockIdentityCodec codec = replicating(5, 4, 2);
    assertEquals(8, codec.keysPerObject(0));
    assertEquals(2, codec.keysPerObject(2));
    assertEquals(8, codec.keysPerObject(9));
    String start = "umbp:vllm:v1:m.L1:";
    assertEquals(
        List.of(start + "tp1:pcp0:dcp0:pp1:g0:0007", start + "tp*:pcp0:dcp0:pp1:g2:0107"),
        codec.localKeys(new int[] {0, 2}, hashes(2)));
    assertEquals(
        List.of(
            start + "tp*:pcp0:dcp0:pp0:g2:0007",
            start + "tp*:pcp0:dcp0:pp1:g2:0007",
            start + "tp*:pcp0:dcp0:pp0:g2:0107",
            start + "tp*:pcp0:dcp0:pp1:g2:0107"),
        codec.allRankKeys(2, hashes(2)));
    assertEquals(10, codec.allRankKeys(new int[] {2, 0}, hashes(2)).size());
    BlockKey key = codec.localKey(2, hashes(1).get(0));
    assertEquals(start + "tp*:pcp0:dcp0:pp1:g2:0007", key.toString());
    assertEquals(key, codec.parse(key.toString()));
    assertEquals(Optional.of(key), codec.tryParse(key.toString()));
    assertEquals(Optional.empty(), codec.tryParse(start + "tp*:pcp1:dcp0:pp0:g2:0007"));
    assertEquals(
        start + "tp1:pcp0:dcp0:pp1:g0:0007", codec.localKey(0, hashes(1).get(0)).toString());
  }

  @Test
  void allTpRanksOfAStageMakeTheSameKeysForAReplicatedGroup() {
    List<String> ofRank0 = replicating(0, 4, 2).localKeys(2, hashes(3));
    for (int rank = 1; rank < 4; rank++) {
      assertEquals(ofRank0, replicating(rank, 4, 2).localKeys(2, hashes(3)));
    }
    assertTrue(Collections.disjoint(ofRank0, replicating(4, 4, 2).localKeys(2, hashes(3))));
  }

  @Test
  void negativeGroupsAreRefused() {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    for (Runnable call :
        List.<Runnable>of(
            () -> codec.keysPerObject(-1),
            () -> codec.localKey(-1, BlockHash.fromHex("00")),
            () -> codec.allRankKeys(-1, hashes(1)))) {
      assertEquals(
          "group id -1 must be >= 0", assertThrows(UMBPException.class, call::run).getMessage());
    }
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "",
        "umbp:vllm:v0:m.L1:tp0:pcp0:dcp0:pp0:g0:00",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g0:",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g0:0",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g0:0A",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g0:00 ",
        "umbp:vllm:v1:m.L1:tp00:pcp0:dcp0:pp0:g0:00",
        "umbp:vllm:v1:m.L1:tp**:pcp0:dcp0:pp0:g0:00",
        "umbp:vllm:v1:m.L1:tp0:pcp*:dcp0:pp0:g0:00",
        "umbp:vllm:v1:m.L1:tp-1:pcp0:dcp0:pp0:g0:00",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:pp0:g2147483648:00",
        "umbp:vllm:v1:m.L1:tp0:pcp0:dcp0:g0:00",
        "umbp:vllm:v1:m:g1:tp0:pcp0:dcp0:pp0:g0:00",
        "vllm-umbp:v1:00:g0:s0:00",
      })
  void textThatIsNoKeyIsEmptyWhenForeignIsExpected(String text) {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    assertEquals(Optional.empty(), codec.tryParse(text));
    UMBPException e = assertThrows(UMBPException.class, () -> codec.parse(text));
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertTrue(e.getMessage().contains("'" + text + "'"), e.getMessage());
  }

  @Test
  void keysOfOtherNamespacesAreForeign() {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    String text = "umbp:vllm:v1:m.L12:tp0:pcp0:dcp0:pp0:g0:00";
    assertEquals("m.L12", BlockKey.parse(text).namespace().value());
    assertEquals(Optional.empty(), codec.tryParse(text));
    UMBPException e = assertThrows(UMBPException.class, () -> codec.parse(text));
    assertEquals("key '" + text + "' is not of namespace 'm.L1'", e.getMessage());
  }

  @Test
  void hashesOfAnyAllowedLengthParseBack() {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    byte[] longest = new byte[BlockHash.MAX_LENGTH];
    Arrays.fill(longest, (byte) 0xA5);
    BlockKey key = codec.localKey(0, BlockHash.of(longest));
    assertEquals(key, codec.parse(key.toString()));
    assertEquals(Optional.empty(), codec.tryParse(key + "a5"));
    assertEquals(Optional.empty(), codec.tryParse(key + "a5".repeat(100_000)));
  }

  /** Prints the keys of case 1, in a JVM of its own. */
  public static void main(String[] args) {
    System.out.println(caseOneKeys(caseOneHash()));
  }

  private static byte[] caseOneHash() {
    byte[] hash = new byte[32];
    for (int i = 0; i < hash.length; i++) {
      hash[i] = (byte) i;
    }
    return hash;
  }

  private static List<String> caseOneKeys(byte[] hash) {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.tensorParallel(0, 2));
    return List.copyOf(codec.allRankKeys(0, BlockHashes.of(List.of(BlockHash.of(hash)))));
  }

  @Test
  @DisplayName("case 1: three fresh JVMs make the same key text")
  void case1KeyTextIsTheSameInEveryProcess() throws Exception {
    String tail =
        ":pcp0:dcp0:pp0:g0:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    String expected = "[umbp:vllm:v1:m.L1:tp0" + tail + ", umbp:vllm:v1:m.L1:tp1" + tail + "]";
    assertEquals(expected, caseOneKeys(caseOneHash()).toString());
    String classPath =
        codeSource(BlockIdentityCodecTest.class)
            + File.pathSeparator
            + codeSource(BlockIdentityCodec.class)
            + File.pathSeparator
            + codeSource(BlockKey.class);
    String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
    for (int i = 0; i < 3; i++) {
      Process process =
          new ProcessBuilder(java, "-cp", classPath, BlockIdentityCodecTest.class.getName())
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
  @DisplayName("case 1: keys are equal by content and keep nothing of the caller's array")
  void case1KeysAreValues() {
    byte[] one = caseOneHash();
    byte[] other = caseOneHash();
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    BlockKey first = codec.localKey(0, BlockHash.of(one));
    BlockKey second = codec.localKey(0, BlockHash.of(other));
    BlockKeys columns = codec.localKeys(0, BlockHashes.of(32, one));
    assertEquals(first, second);
    assertEquals(first.hashCode(), second.hashCode());
    Map<BlockKey, String> map = new HashMap<>();
    map.put(first, "found");
    String text = first.toString();

    Arrays.fill(one, (byte) 0xFF);

    assertEquals("found", map.get(second));
    assertEquals(second, first);
    assertEquals(text, first.toString());
    assertEquals(text, columns.get(0));
    assertEquals(first, columns.key(0));
  }

  @Test
  @DisplayName("case 2: keys come from the hashes handed in; other hashes and none share nothing")
  void case2KeysComeFromTheHashesHandedIn() {
    BlockIdentityCodec codec = new BlockIdentityCodec(NAMESPACE, RankTopology.single());
    Set<String> stored = new HashSet<>(codec.localKeys(0, hashesStartingWith("x")));
    assertEquals(3, stored.size());
    assertTrue(Collections.disjoint(stored, codec.allRankKeys(0, hashesStartingWith("y"))));
    assertTrue(Collections.disjoint(stored, codec.allRankKeys(0, hashesStartingWith("b"))));
    assertEquals(0, codec.allRankKeys(0, BlockHashes.empty()).size());
    assertEquals(stored, new HashSet<>(codec.allRankKeys(0, hashesStartingWith("x"))));
  }

  private static BlockHashes hashesStartingWith(String extra) {
    return BlockHashes.of(
        IntStream.range(0, 3)
            .mapToObj(i -> BlockHash.of((extra + i).getBytes(StandardCharsets.UTF_8)))
            .toList());
  }

  @ParameterizedTest(name = "case 7: with group 2 replicated on TP {0}, PP {1} both key sets agree")
  @CsvSource({"2, 1", "4, 1", "2, 2", "4, 3"})
  void case7WithReplicatedGroups(int tp, int pp) {
    int[] groups = {2, 0, 2};
    BlockStoreBatch planned =
        BlockStoreBatch.of("r", replicating(0, tp, pp).localKeys(groups, hashes(3)), 5, 6, 7);
    Set<String> written = new HashSet<>();
    for (int rank = 0; rank < tp * pp; rank++) {
      BlockIdentityCodec worker = replicating(rank, tp, pp);
      BlockKeys ownKeys = planned.onRank(worker.topology().localNamespace()).keys();
      assertEquals(worker.localKeys(groups, hashes(3)), ownKeys);
      written.addAll(ownKeys);
    }
    List<String> probed = replicating(0, tp, pp).allRankKeys(groups, hashes(3));
    assertEquals(2 * pp + tp * pp, probed.size());
    assertEquals(written, new HashSet<>(probed));
    assertEquals(probed.size(), written.size());
  }

  @Test
  @DisplayName("case 7: a scheduler probes exactly the keys that the workers write")
  void case7SchedulerProbesWhatWorkersWrite() {
    BlockHashes hash = BlockHashes.of(List.of(BlockHash.fromHex("00ff")));
    BlockIdentityCodec scheduler =
        new BlockIdentityCodec(NAMESPACE, RankTopology.tensorParallel(0, 2));
    BlockStoreBatch planned = BlockStoreBatch.of("r", scheduler.localKeys(0, hash), 5);
    Set<String> written = new HashSet<>();
    for (int rank = 0; rank < 2; rank++) {
      BlockIdentityCodec worker =
          new BlockIdentityCodec(NAMESPACE, RankTopology.tensorParallel(rank, 2));
      BlockKeys ownKeys = planned.onRank(worker.topology().localNamespace()).keys();
      assertEquals(worker.localKeys(0, hash), ownKeys);
      written.addAll(ownKeys);
    }
    List<String> probed = scheduler.allRankKeys(0, hash);
    assertEquals(2, probed.size());
    assertEquals(written, new HashSet<>(probed));
    assertNotEquals(probed.get(0), probed.get(1));
    assertFalse(scheduler.tryParse("umbp:vllm:v0:m.L1:tp0:g0:00ff").isPresent());
  }
}
