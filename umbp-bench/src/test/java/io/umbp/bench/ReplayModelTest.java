package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.umbp.bench.PlantedFault.Fault;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Replays with the groups, layers and orders of catalogue models. */
class ReplayModelTest {
  private static final int UNLIMITED = Integer.MAX_VALUE;
  private static final int LIMIT = 50;

  @TempDir private Path directory;
  private Path json;

  @BeforeEach
  void chooseFile() {
    json = directory.resolve("figures.json");
  }

  private JsonNode figures(String arguments) throws IOException {
    return Cli.figures(json, arguments.split(" "));
  }

  /** Bytes of a block on a rank: 16 tokens of each layer and head, and the smallest states. */
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          # arguments                                                  | objects | block bytes
          # 32 layers x 16 tokens x 8 heads x (1 + 1) x 2 bytes
          --model llama-3.1-8b --scale 128                             |       1 | 16384
          --model llama-3.1-8b --scale 64 --tp 4                       |       4 | 32768
          --model llama-3.1-8b --scale 64 --tp 4 --layout LHBNC        |       4 | 32768
          --model llama-3.1-8b --scale 128 --layout BHLNC --split planes |     1 | 16384
          --model llama-3.1-8b --scale 128 --block-size 512            |       1 | 524288
          # 61 layers x 16 tokens x 576 / 128 x 2 bytes
          --model deepseek-v3 --scale 128                              |       1 | 7808
          # the same and 61 x 16 x 132 / 128
          --model deepseek-v3.2 --scale 128 --layout BLHNC             |       1 | 8784
          # 62 layers x 16 tokens x 16 heads x 2 x 2 bytes, 7 groups
          --model gemma-3-27b --scale 128                              |       7 | 63488
          --model gemma-3-27b --scale 128 --tp 2 --layout BLNHC        |      14 | 63488
          --model gpt-oss-20b --scale 64 --layout LHBNC --split planes |       2 | 12288
          # 4 layers x 16 x 8 x 2 x 2 bytes, 24 states of 128 heads x (1079296 / 128 / 4096) x 2
          --model nemotron-h-8b --scale 4096 --tp 4                    |      28 | 14336
          --model nemotron-h-8b --scale 4096 --layout BLNHC            |       7 | 14336
          # 12 layers x 16 tokens x 2 heads x 2 x 2 bytes, 36 states of 32 heads x (548864 / 32 / 2048) x 2
          --model qwen3-next-80b-a3b --scale 2048                      |       4 | 19968
          --model mistral-7b-v0.1 --scale 128 --split fused            |       1 | 16384
          """)
  void everyLoadedByteOfEveryGroupIsRight(String arguments, long objects, long blockBytes)
      throws IOException {
    JsonNode figures = figures(arguments + " --limit " + LIMIT);
    Map<String, Long> expected = new TraceSimulation("conversation-4000", LIMIT, UNLIMITED).figures;
    for (String name : List.of("requests", "lookup_blocks", "hit_blocks", "stored_blocks")) {
      assertEquals(expected.get(name), figures.get(name).longValue(), name);
    }
    assertEquals(
        expected.get("stored_blocks") * objects, figures.get("stored_objects").longValue());
    assertEquals(
        expected.get("stored_blocks") * blockBytes, figures.get("stored_bytes").longValue());
    assertEquals(expected.get("hit_blocks") * blockBytes, figures.get("loaded_bytes").longValue());
    assertEquals(expected.get("input_tokens"), figures.get("input_tokens").longValue());
    assertEquals(0, figures.get("corrupt_bytes").longValue());
    assertTrue(expected.get("hit_blocks") > 0);
  }

  @ParameterizedTest
  @CsvSource({"deepseek-v3, 7808", "deepseek-v3.2, 8784"})
  void replicatedGroupsHaveOneObjectForAllRanks(String model, long objectBytes) throws IOException {
    JsonNode figures = figures("--model " + model + " --tp 2 --limit 400");
    Map<String, Long> expected = new TraceSimulation("conversation-4000", 400, UNLIMITED).figures;
    assertEquals(expected.get("stored_blocks"), figures.get("stored_objects").longValue());
    assertEquals(
        expected.get("stored_blocks") * objectBytes, figures.get("stored_bytes").longValue());
    assertEquals(0, figures.get("corrupt_bytes").longValue());
    assertEquals(expected.get("hit_blocks"), figures.get("hit_blocks").longValue());
  }

  @Test
  void groupsAreEvictedAndCopiesFailWithoutAWrongByte() throws IOException {
    JsonNode figures =
        figures(
            "--model gpt-oss-20b --tp 2 --limit 300 --pool-blocks 600 --concurrency 4"
                + " --fail-rate 0.0002 --seed 3");
    assertEquals(300, figures.get("requests").longValue());
    assertEquals(0, figures.get("corrupt_bytes").longValue());
    assertTrue(figures.get("evicted_objects").longValue() > 1000, figures.toString());
    assertTrue(figures.get("failed_keys").longValue() > 10, figures.toString());
    assertTrue(figures.get("hit_blocks").longValue() > 0, figures.toString());
  }

  @ParameterizedTest
  @EnumSource(
      mode = EnumSource.Mode.EXCLUDE,
      names = {"FAILED_KEY", "NO_FENCES"})
  void aPlantedFaultIsFoundInAnyOrder(Fault fault) throws IOException {
    for (String order : List.of("LBNHC", "LHBNC")) {
      Cli.Result result =
          Cli.run(
              engine -> new PlantedFault(engine, fault),
              "replay",
              "--model",
              "gemma-3-27b",
              "--tp",
              "2",
              "--layout",
              order,
              "--limit",
              "20",
              "--json",
              json.toString());
      assertEquals(1, result.exitCode(), result.toString());
      JsonNode figures = new ObjectMapper().readTree(json.toFile());
      assertTrue(figures.get("corrupt_bytes").longValue() > 0, figures.toString());
    }
  }

  @Test
  void theDefaultScaleMakesSmallBlocks() {
    List<String> lines =
        Cli.run("replay --model llama-3.1-8b --tp 4 --limit 5".split(" ")).outLines();
    assertEquals(
        "umbp replay of bundled conversation-4000: tp 4, llama-3.1-8b, pool unlimited, policy lru",
        lines.get(0));
    assertEquals(
        "  layout LBNHC, split blocks; a block: 16 tokens, 4 objects, together 16,384 bytes,"
            + " contents 1/128",
        lines.get(1));
    assertEquals(
        "  layout LBNHC, split blocks; a block: 16 tokens, 7 objects, together 63,488 bytes,"
            + " contents 1/128",
        Cli.run("replay --model gemma-3-27b --limit 5".split(" ")).outLines().get(1),
        "no smaller than one element");
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          --model lama                              | there is no model 'lama' in the catalogue, it has llama-3.1-8b,
          --model llama-3.1-8b --scale 0            | --scale is 0, allowed are 1 to 2147483647
          --model llama-3.1-8b --block-size 1       | --block-size is 1, allowed are 2 to 4096
          --model llama-3.1-8b --tp 3               | 8 KV heads of layer model.layers.0.self_attn.attn cannot be shared by 3 ranks
          --model llama-3.1-8b --layers 3           | --layers has no meaning with --model
          --model llama-3.1-8b --layer-bytes 3      | --layer-bytes has no meaning with --model
          --layout BLNHC                            | --layout has no meaning without --model
          --split planes                            | --split has no meaning without --model
          --scale 4                                 | --scale has no meaning without --model
          --block-size 16                           | --block-size has no meaning without --model
          --model llama-3.1-8b --pool-bytes 16383   | a pool of 16383 bytes holds no block, a block of a rank has 16384 bytes
          --model llama-3.1-70b --scale 1 --block-size 4096 | an object of llama-3.1-70b has 1342177280 bytes, allowed are at most 1073741824
          """)
  void anImpossibleOption(String options, String expected) {
    List<String> arguments = new ArrayList<>(List.of("replay", "--json", json.toString()));
    arguments.addAll(List.of(options.split(" ")));
    Cli.Result result = Cli.run(arguments.toArray(String[]::new));
    assertEquals(2, result.exitCode(), result.toString());
    String line = result.err().strip();
    assertEquals(1, line.lines().count(), line);
    assertTrue(line.startsWith("umbp replay: " + expected), line);
    assertTrue(Files.notExists(json));
  }

  @Test
  void aTraceOfSmallerBlocksHasAsManyOfThem() {
    for (int tokens : new int[] {0, 1, 511, 512, 513, 1023, 1024, 1030, 60000}) {
      for (int size : new int[] {2, 16, 512, 600}) {
        int scaled = Trace.tokens(tokens, size);
        assertEquals(tokens / 512, scaled / size, tokens + " at " + size);
        assertEquals((tokens - 1) / 512, (scaled - 1) / size, tokens + " at " + size);
      }
    }
    assertEquals(1030, Trace.tokens(1030, 512));
  }
}
