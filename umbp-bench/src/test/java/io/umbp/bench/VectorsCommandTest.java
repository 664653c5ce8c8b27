package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class VectorsCommandTest {
  private static final Path GOLDEN = Path.of("../umbp-core/src/test/resources/golden/golden.json");

  @TempDir private Path directory;

  @Test
  void theGoldenVectorsPass() {
    Cli.Result result = Cli.run("vectors", GOLDEN.toString());
    assertEquals(0, result.exitCode(), result.toString());
    List<String> lines = result.outLines();
    assertEquals("519 passed, 0 failed, 0 skipped", lines.get(lines.size() - 1));
    assertTrue(lines.contains("topologies: 28 passed, 0 failed"), result.out());
    assertTrue(lines.contains("keys: 60 passed, 0 failed"), result.out());
    assertTrue(lines.contains("plans: 60 passed, 0 failed"), result.out());
    assertTrue(lines.contains("trackers: 60 passed, 0 failed"), result.out());
    assertTrue(lines.contains("namespaces: 13 passed, 0 failed"), result.out());
    assertTrue(lines.contains("block_hashes: 30 passed, 0 failed"), result.out());
    assertTrue(lines.contains("tp_shard_mappings: 268 passed, 0 failed"), result.out());
  }

  private Cli.Result tampered(Consumer<JsonNode> change) throws IOException {
    ObjectMapper json = new ObjectMapper();
    JsonNode root = json.readTree(GOLDEN.toFile());
    change.accept(root);
    Path file = directory.resolve("tampered.json");
    json.writeValue(file.toFile(), root);
    return Cli.run("vectors", file.toString());
  }

  private void assertOneFails(String expectedLine, Consumer<JsonNode> change) throws IOException {
    Cli.Result result = tampered(change);
    assertEquals(1, result.exitCode(), result.toString());
    List<String> lines = result.outLines();
    assertEquals("518 passed, 1 failed, 0 skipped", lines.get(lines.size() - 1));
    assertTrue(lines.stream().anyMatch(line -> line.startsWith(expectedLine)), result.out());
  }

  @Test
  void aWrongKeyFails() throws IOException {
    assertOneFails(
        "keys[0]: key: expected umbp:vllm:v1:m:tp3:pcp0:dcp1:pp0:g3:bee44665ffd65ac8,"
            + " actual umbp:vllm:v1:m:tp3:pcp0:dcp1:pp0:g2:bee44665ffd65ac8",
        root ->
            ((ObjectNode) root.get("keys").get(0))
                .put("key", "umbp:vllm:v1:m:tp3:pcp0:dcp1:pp0:g3:bee44665ffd65ac8"));
  }

  @Test
  void aWrongTopologyFails() throws IOException {
    assertOneFails(
        "topologies[0]: rank_count: expected 2, actual 1",
        root -> ((ObjectNode) root.get("topologies").get(0)).put("rank_count", 2));
  }

  @Test
  void aTopologyThatShouldBeRefusedFails() throws IOException {
    assertOneFails(
        "topologies[0]: topology: expected a refusal, actual RankTopology",
        root -> ((ObjectNode) root.get("topologies").get(0)).putNull("all_namespaces"));
  }

  @Test
  void aWrongRangeFails() throws IOException {
    assertOneFails(
        "plans[5]: ranges: expected ",
        root -> ((ArrayNode) root.get("plans").get(5).get("ranges").get(0)).set(3, 12345));
  }

  @Test
  void aWrongTrackerStepFails() throws IOException {
    assertOneFails(
        "trackers[2]: step 1 (mark) saved_tokens: expected 129, actual 128",
        root -> ((ObjectNode) root.get("trackers").get(2).get(1)).put("saved_tokens", 129));
  }

  @Test
  void aWrongNamespaceFails() throws IOException {
    assertOneFails(
        "namespaces[12]: namespace: expected 194ba6ca064be076ca7fed5e5a6a505e, actual ",
        root ->
            ((ObjectNode) root.get("namespaces").get(12).get("fields"))
                .putObject("speculative")
                .putNull("method")
                .putNull("model")
                .putNull("revision"));
  }

  @Test
  void anotherLayoutVersionFails() throws IOException {
    assertOneFails(
        "namespaces[3]: layout_version: expected 1, actual 2",
        root ->
            ((ObjectNode) root.get("namespaces").get(3).get("fields")).put("layout_version", 2));
  }

  @Test
  void aWrongBlockHashFails() throws IOException {
    assertOneFails(
        "block_hashes[1]: block_hashes: expected ",
        root -> ((ArrayNode) root.get("block_hashes").get(1).get("block_hashes")).set(3, "00ff"));
  }

  @Test
  void aWrongHashSeedFails() throws IOException {
    assertOneFails(
        "block_hashes[0]: none_hash: expected "
            + "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e, actual ",
        root -> ((ObjectNode) root.get("block_hashes").get(0)).put("hash_seed", "1"));
  }

  @Test
  void aWrongHeadSliceFails() throws IOException {
    assertOneFails(
        "tp_shard_mappings[8]: slices: expected ",
        root ->
            ((ObjectNode) root.get("tp_shard_mappings").get(8).get("slices").get(0))
                .put("source_head", 0));
  }

  @Test
  void aVectorWithoutAFieldFails() throws IOException {
    assertOneFails("keys[1]: ", root -> ((ObjectNode) root.get("keys").get(1)).remove("group_id"));
  }

  @Test
  void unknownSectionsAreSkipped() throws IOException {
    Cli.Result result = tampered(root -> ((ObjectNode) root).putArray("news").add(1).add(2));
    assertEquals(0, result.exitCode());
    assertTrue(result.out().contains("news: 2 skipped, this build has no check for them"));
    assertTrue(result.out().endsWith("519 passed, 0 failed, 2 skipped\n"), result.out());
  }

  @Test
  void unreadableInputIsRefused() throws IOException {
    assertRefused("no.json: no such file", directory.resolve("no.json"));
    assertRefused("bad.json:2: no JSON", write("bad.json", "{\n\"keys\": [}"));
    assertRefused("list.json: no JSON object", write("list.json", "[]"));
    assertRefused("empty.json: no JSON object", write("empty.json", ""));
    assertRefused("flat.json: no JSON object", write("flat.json", "{\"keys\": 1}"));
  }

  private Path write(String name, String text) throws IOException {
    return Files.writeString(directory.resolve(name), text);
  }

  private static void assertRefused(String expected, Path file) {
    Cli.Result result = Cli.run("vectors", file.toString());
    assertEquals(2, result.exitCode(), result.toString());
    assertEquals("", result.out());
    assertEquals(1, result.err().lines().count(), result.err());
    assertTrue(result.err().contains(expected), result.err());
  }
}
