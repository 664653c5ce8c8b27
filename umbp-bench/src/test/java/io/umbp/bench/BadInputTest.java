package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.zip.GZIPOutputStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Whatever the user gets wrong: one line that says what and where, exit code 2, no file written.
 */
class BadInputTest {
  private static final String GOOD =
      "{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}\n";

  @TempDir private Path directory;

  private String trace(String text) throws IOException {
    return Files.writeString(directory.resolve("trace.jsonl"), text).toString();
  }

  /** Runs a command that must be refused, and returns its one line. */
  private String refused(String... arguments) {
    Cli.Result result = Cli.run(arguments);
    assertEquals(2, result.exitCode(), result.toString());
    assertEquals("", result.out());
    List<String> lines = result.err().lines().toList();
    assertEquals(1, lines.size(), result.err());
    return lines.get(0);
  }

  private void assertTraceRefused(String expected, String text) throws IOException {
    String file = trace(text);
    Path json = directory.resolve("figures.json");
    String line = refused("replay", "--trace", file, "--json", json.toString());
    assertEquals("umbp replay: " + file + expected, line);
    assertFalse(Files.exists(json), "nothing half written");
  }

  @Test
  void aGoodTraceIsAccepted() throws IOException {
    assertEquals(0, Cli.run("replay", "--trace", trace(GOOD + "\n" + GOOD)).exitCode());
  }

  @Test
  void aMissingFile() {
    String file = directory.resolve("no.jsonl").toString();
    assertEquals("umbp replay: " + file + ": no such file", refused("replay", "--trace", file));
  }

  @Test
  void aDirectory() {
    String line = refused("replay", "--trace", directory.toString());
    assertTrue(line.startsWith("umbp replay: " + directory + ": cannot be read"), line);
  }

  @Test
  void anEmptyFile() throws IOException {
    assertTraceRefused(": there is no request in it", "");
    assertTraceRefused(": there is no request in it", "\n\n");
  }

  @Test
  void aTruncatedLine() throws IOException {
    String file = trace(GOOD + GOOD.substring(0, 60));
    String line = refused("replay", "--trace", file);
    assertTrue(line.startsWith("umbp replay: " + file + ":2: no complete JSON object"), line);
  }

  @Test
  void aTruncatedGzipFile() throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (GZIPOutputStream gzip = new GZIPOutputStream(bytes)) {
      gzip.write(GOOD.repeat(50).getBytes(StandardCharsets.UTF_8));
    }
    Path file = directory.resolve("trace.jsonl.gz");
    Files.write(file, bytes.toByteArray());
    assertEquals(0, Cli.run("replay", "--trace", file.toString()).exitCode());
    Files.write(file, Arrays.copyOf(bytes.toByteArray(), bytes.size() / 2));
    String line = refused("replay", "--trace", file.toString());
    assertTrue(line.startsWith("umbp replay: " + file + ":"), line);
    assertTrue(line.endsWith(": the compressed file ends in the middle"), line);
  }

  @Test
  void noJson() throws IOException {
    String file = trace(GOOD + GOOD + "hello\n");
    String line = refused("replay", "--trace", file);
    assertTrue(line.startsWith("umbp replay: " + file + ":3: no complete JSON object"), line);
    String two = trace(GOOD.strip() + GOOD);
    assertTrue(refused("replay", "--trace", two).contains(":1: no complete JSON object"));
  }

  @Test
  void binaryData() throws IOException {
    Path file = directory.resolve("binary");
    Files.write(file, new byte[] {(byte) 0xFF, (byte) 0xFE, 0, 1, 2, 3});
    String line = refused("replay", "--trace", file.toString());
    assertTrue(line.startsWith("umbp replay: " + file + ":1: "), line);
  }

  @Test
  void aLineThatIsNoObject() throws IOException {
    assertTraceRefused(":2: no JSON object", GOOD + "[1, 2]\n");
  }

  @Test
  void aLineWithoutHashIds() throws IOException {
    assertTraceRefused(":2: no hash_ids, a list of numbers", GOOD + "{\"input_length\": 5}\n");
    assertTraceRefused(
        ":1: no hash_ids, a list of numbers", "{\"input_length\": 5, \"hash_ids\": 7}\n");
  }

  @Test
  void aHashIdThatIsNoNumber() throws IOException {
    assertTraceRefused(
        ":1: hash_ids[1] is \"x\", needed is a 64-bit number",
        "{\"input_length\": 5, \"hash_ids\": [1, \"x\"]}\n");
    assertTraceRefused(
        ":1: hash_ids[0] is 9223372036854775808, needed is a 64-bit number",
        "{\"input_length\": 5, \"hash_ids\": [9223372036854775808]}\n");
  }

  @Test
  void aLineWithoutALength() throws IOException {
    assertTraceRefused(":1: no input_length", "{\"hash_ids\": [1]}\n");
  }

  @Test
  void aLengthThatCannotBe() throws IOException {
    assertTraceRefused(
        ":2: input_length is -1, needed are 0 to 2147483647 tokens",
        GOOD + "{\"input_length\": -1, \"hash_ids\": [1]}\n");
    assertTraceRefused(
        ":1: input_length is 2147483648, needed are 0 to 2147483647 tokens",
        "{\"input_length\": 2147483648, \"hash_ids\": [1]}\n");
    assertTraceRefused(
        ":1: input_length is 5.5, needed are 0 to 2147483647 tokens",
        "{\"input_length\": 5.5, \"hash_ids\": [1]}\n");
    assertTraceRefused(
        ":1: output_length is -3, needed are 0 to 2147483647 tokens",
        "{\"input_length\": 5, \"output_length\": -3, \"hash_ids\": [1]}\n");
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          --tp 0               | --tp is 0, allowed are 1 to 256
          --tp 257             | --tp is 257, allowed are 1 to 256
          --tp two             | Invalid value for option '--tp': 'two' is not an int
          --layers 0           | --layers is 0
          --layer-bytes -8     | --layer-bytes is -8
          --layer-bytes 1073741824 | make blocks of 4294967296 bytes, allowed are at most 1073741824
          --layer-bytes 10GB   | '10GB' is not an int
          --concurrency 0      | --concurrency is 0
          --limit 0            | --limit is 0
          --fail-rate 1.5      | --fail-rate is 1.5, allowed are 0 to 1
          --fail-rate -0.1     | --fail-rate is -0.1
          --fail-rate NaN      | --fail-rate is NaN
          --seed x             | Invalid value for option '--seed'
          --pool-bytes 0       | --pool-bytes is 0
          --pool-bytes 4095    | a pool of 4095 bytes holds no block, a block of a rank has 4096 bytes
          --pool-blocks 0      | --pool-blocks is 0
          --pool-blocks -1     | --pool-blocks is -1
          --pool-blocks 9223372036854775807 | more than 64 bits can count
          --pool small         | Invalid value for option '--pool'
          --pool unlimited --pool-blocks 5 | mutually exclusive
          --policy arc         | Invalid value for option '--policy'
          --verify some        | Invalid value for option '--verify'
          --device rocm        | Invalid value for option '--device'
          --devices cuda       | Unknown option
          stray                | Unmatched argument
          """)
  void anImpossibleOption(String options, String expected) {
    String line = refused(("replay " + options).split(" "));
    assertTrue(line.startsWith("umbp replay: "), line);
    assertTrue(line.contains(expected), line);
  }

  @Test
  void aJsonFileThatCannotBeWrittenIsRefusedBeforeTheRun() throws IOException {
    Path nowhere = directory.resolve("no/figures.json");
    String line = refused("replay", "--json", nowhere.toString());
    assertEquals(
        "umbp replay: --json " + nowhere + ": there is no directory " + nowhere.getParent(), line);
    assertFalse(Files.exists(nowhere.getParent()));
    String onDirectory = refused("replay", "--json", directory.toString());
    assertEquals("umbp replay: --json " + directory + ": cannot be written", onDirectory);
  }

  @Test
  void aRefusedRunLeavesAnOldJsonFileAlone() throws IOException {
    Path json = Files.writeString(directory.resolve("old.json"), "old");
    refused("replay", "--trace", trace("nonsense"), "--json", json.toString());
    assertEquals("old", Files.readString(json));
  }

  @Test
  void noCommandAndUnknownCommands() {
    assertEquals("umbp: Missing required subcommand (see umbp --help)", refused());
    assertTrue(refused("reply").startsWith("umbp: Unmatched argument"), "unknown command");
    assertTrue(refused("vectors").contains("Missing required parameter"), "no file");
  }
}
