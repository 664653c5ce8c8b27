package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.umbp.bench.PlantedFault.Fault;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

class ReplayCommandTest {
  private static final String CONVERSATION = "conversation-4000";
  private static final int UNLIMITED = Integer.MAX_VALUE;
  private static final long OBJECT_BYTES = 4 * 1024;

  @TempDir private Path directory;
  private Path json;

  @BeforeEach
  void chooseFile() {
    json = directory.resolve("figures.json");
  }

  private static void assertFigures(Map<String, Long> expected, JsonNode actual) {
    expected.forEach((name, value) -> assertEquals(value, actual.required(name).longValue(), name));
  }

  @Test
  void anUnlimitedPoolHitsWhatTheTraceRepeats() throws IOException {
    JsonNode figures = Cli.figures(json, "--limit", "400");
    TraceSimulation simulation = new TraceSimulation(CONVERSATION, 400, UNLIMITED);
    assertFigures(simulation.figures, figures);
    long hits = simulation.figures.get("hit_blocks");
    long stores = simulation.figures.get("stored_blocks");
    assertTrue(hits > 1000, "hits " + hits);
    assertFigures(
        Map.of(
            "loaded_bytes", hits * OBJECT_BYTES,
            "stored_bytes", stores * OBJECT_BYTES,
            "evicted_objects", 0L,
            "failed_keys", 0L,
            "corrupt_bytes", 0L),
        figures);
  }

  @ParameterizedTest
  @CsvSource({"2000", "700", "300"})
  void aSmallPoolEvictsTheLeastRecentBlock(int capacity) throws IOException {
    JsonNode figures =
        Cli.figures(
            json, "--limit", "600", "--pool-blocks", Integer.toString(capacity), "--policy", "lru");
    TraceSimulation simulation = new TraceSimulation(CONVERSATION, 600, capacity);
    assertTrue(simulation.figures.get("evicted_objects") > 0);
    assertFigures(simulation.figures, figures);
  }

  @Test
  void aTraceMayBeReplayedOverAndOverWithALookAtMemory() throws IOException {
    Cli.Result result =
        Cli.run(
            "replay",
            "--limit",
            "100",
            "--repeat",
            "4",
            "--pool-blocks",
            "300",
            "--json",
            json.toString());
    assertEquals(0, result.exitCode(), result.err());
    assertFigures(
        new TraceSimulation(CONVERSATION, 100, 300, 4).figures,
        new ObjectMapper().readTree(json.toFile()));
    List<String> memory =
        result.out().lines().dropWhile(line -> !line.contains("heap bytes")).toList();
    assertEquals(6, memory.size(), result.out());
    assertTrue(memory.get(4).matches(" +4 +[\\d,]+ +[\\d,]+ +\\d+"), memory.get(4));
    assertTrue(memory.get(5).contains("medians of the middle and the last third"), memory.get(5));
    assertEquals(2, Cli.run("replay", "--repeat", "0").exitCode());
  }

  @Test
  void theSyntheticSampleIsThereToo() throws IOException {
    JsonNode figures = Cli.figures(json, "--trace", "bundled:synthetic", "--limit", "250");
    assertFigures(new TraceSimulation("synthetic-1000", 250, UNLIMITED).figures, figures);
  }

  @Test
  void twoRanksHitTheSameAndStoreTwice() throws IOException {
    JsonNode figures = Cli.figures(json, "--limit", "400", "--tp", "2", "--pool", "unlimited");
    Map<String, Long> expected = new TraceSimulation(CONVERSATION, 400, UNLIMITED).figures;
    expected.merge("stored_objects", 2L, Math::multiplyExact);
    assertFigures(expected, figures);
    assertEquals(
        expected.get("hit_blocks") * 2 * OBJECT_BYTES, figures.get("loaded_bytes").longValue());
    assertEquals(0, figures.get("corrupt_bytes").longValue());
  }

  @Test
  void poolBlocksCountTheObjectsOfAllRanks() throws IOException {
    JsonNode byBlocks = Cli.figures(json, "--limit", "300", "--tp", "2", "--pool-blocks", "700");
    String bytes = Long.toString(700 * 2 * OBJECT_BYTES);
    JsonNode byBytes = Cli.figures(json, "--limit", "300", "--tp", "2", "--pool-bytes", bytes);
    assertTrue(byBlocks.get("evicted_objects").longValue() > 0);
    assertEquals(byBlocks.get("evicted_objects"), byBytes.get("evicted_objects"));
    assertEquals(byBlocks.get("hit_blocks"), byBytes.get("hit_blocks"));
  }

  @Test
  void pagesOfAnySizeAreChecked() throws IOException {
    JsonNode figures = Cli.figures(json, "--limit", "100", "--layers", "3", "--layer-bytes", "13");
    Map<String, Long> expected = new TraceSimulation(CONVERSATION, 100, UNLIMITED).figures;
    assertFigures(expected, figures);
    assertEquals(expected.get("hit_blocks") * 39, figures.get("loaded_bytes").longValue());
  }

  @Test
  void failedCopiesAreRecomputedAndNeverRead() throws IOException {
    JsonNode figures =
        Cli.figures(
            json,
            "--limit",
            "500",
            "--concurrency",
            "8",
            "--pool-blocks",
            "1000",
            "--fail-rate",
            "0.02",
            "--seed",
            "7");
    assertEquals(500, figures.get("requests").longValue());
    assertEquals(0, figures.get("corrupt_bytes").longValue());
    assertTrue(figures.get("failed_keys").longValue() > 100, figures.toString());
    assertTrue(figures.get("hit_blocks").longValue() > 0, figures.toString());
  }

  @Test
  void theSeedDecidesWhichRowsFail() throws IOException {
    String[] arguments = {"--limit", "200", "--fail-rate", "0.02", "--seed", "5"};
    JsonNode first = Cli.figures(json, arguments);
    JsonNode second = Cli.figures(json, arguments);
    assertTrue(first.get("failed_keys").longValue() > 0);
    assertEquals(first.get("failed_keys"), second.get("failed_keys"));
    assertEquals(first.get("hit_blocks"), second.get("hit_blocks"));
  }

  @Test
  void withEveryCopyFailingNothingIsStored() throws IOException {
    JsonNode figures = Cli.figures(json, "--limit", "50", "--fail-rate", "1");
    assertEquals(0, figures.get("hit_blocks").longValue());
    assertEquals(0, figures.get("stored_objects").longValue());
    assertEquals(50, figures.get("requests").longValue());
  }

  private String trace(String... requests) throws IOException {
    return Files.write(directory.resolve("trace.jsonl"), List.of(requests)).toString();
  }

  private static String request(int tokens, int... ids) {
    return String.format("{\"input_length\": %d, \"hash_ids\": %s}", tokens, Arrays.toString(ids));
  }

  @Test
  void theBlockOfTheLastTokenIsComputed() throws IOException {
    String trace = trace(request(1024, 1, 2), request(1024, 1, 2), request(1025, 1, 2, 3));
    JsonNode figures = Cli.figures(json, "--trace", trace);
    assertFigures(
        Map.of("lookup_blocks", 4L, "hit_blocks", 3L, "stored_blocks", 2L, "input_tokens", 3073L),
        figures);
  }

  @Test
  void aRequestThatStoresNothingKeepsItsPrefixRecent() throws IOException {
    String trace =
        trace(
            request(1100, 1, 2, 8),
            request(1100, 3, 4, 8),
            request(1100, 1, 2, 9),
            request(1100, 5, 6, 8),
            request(1100, 1, 2, 8));
    JsonNode figures = Cli.figures(json, "--trace", trace, "--pool-blocks", "4");
    assertFigures(Map.of("hit_blocks", 4L, "stored_blocks", 6L, "evicted_objects", 2L), figures);
  }

  @Test
  void aRequestShorterThanABlockIsServed() throws IOException {
    JsonNode figures = Cli.figures(json, "--trace", trace(request(0), request(511, 7)));
    assertFigures(Map.of("requests", 2L, "lookup_blocks", 0L, "stored_blocks", 0L), figures);
  }

  @Test
  void aFailedLoadIsNoHit() throws IOException {
    String trace = trace(request(1600, 1, 2, 3), request(1600, 1, 2, 3));
    Cli.Result result =
        Cli.run(
            engine -> new PlantedFault(engine, Fault.FAILED_KEY),
            "replay",
            "--trace",
            trace,
            "--json",
            json.toString());
    assertEquals(0, result.exitCode(), result.toString());
    assertFigures(
        Map.of(
            "lookup_blocks", 6L,
            "hit_blocks", 1L,
            "failed_keys", 1L,
            "loaded_bytes", 2 * OBJECT_BYTES,
            "stored_blocks", 3L,
            "corrupt_bytes", 0L),
        new ObjectMapper().readTree(json.toFile()));
  }

  @ParameterizedTest
  @EnumSource(
      mode = EnumSource.Mode.EXCLUDE,
      names = {"FAILED_KEY", "NO_FENCES"})
  void aPlantedFaultIsFound(Fault fault) throws IOException {
    Cli.Result result =
        Cli.run(
            engine -> new PlantedFault(engine, fault),
            "replay",
            "--limit",
            "50",
            "--json",
            json.toString());
    assertEquals(1, result.exitCode(), result.toString());
    long corrupt = new ObjectMapper().readTree(json.toFile()).get("corrupt_bytes").longValue();
    if (fault == Fault.FLIPPED_BYTE) {
      assertEquals(49, corrupt, "each request but the first loads the block");
    } else {
      assertTrue(corrupt > 1000, "corrupt " + corrupt);
    }
    assertEquals(
        List.of("umbp replay: " + corrupt + " loaded bytes are corrupt"), result.complaints());
  }

  @Test
  void withoutVerificationNothingIsCompared() {
    Cli.Result result =
        Cli.run(
            engine -> new PlantedFault(engine, Fault.FLIPPED_BYTE),
            "replay",
            "--limit",
            "50",
            "--verify",
            "none");
    assertEquals(0, result.exitCode(), result.toString());
  }

  @Test
  void theJsonHasExactlyTheAgreedNames() throws IOException {
    List<String> names = new ArrayList<>();
    Cli.figures(json, "--limit", "20").fieldNames().forEachRemaining(names::add);
    assertEquals(
        List.of(
            "requests",
            "lookup_blocks",
            "hit_blocks",
            "stored_blocks",
            "stored_objects",
            "evicted_objects",
            "input_tokens",
            "hit_tokens",
            "loaded_bytes",
            "stored_bytes",
            "failed_keys",
            "corrupt_bytes",
            "lookup_p50_ns",
            "lookup_p99_ns",
            "load_p50_ns",
            "load_p99_ns"),
        names);
    try (var files = Files.list(directory)) {
      assertEquals(List.of(json), files.toList(), "no draft is left");
    }
  }

  @Test
  void progressIsPlainLinesWithoutATerminalAndTheTableComesLast() {
    Cli.Result result = Cli.run("replay", "--limit", "20");
    assertEquals(0, result.exitCode());
    List<String> progress = result.err().lines().toList();
    assertEquals(10, progress.size());
    assertEquals("replayed 20 of 20 requests", progress.get(9));
    assertTrue(
        result.outLines().get(0).startsWith("umbp replay of bundled conversation"), result.out());
    assertTrue(
        result.out().matches("(?s).*corrupt bytes +0  of 77,824 loaded and checked\\n.*"),
        result.out());
    assertFalse(Files.exists(json));
  }
}
