package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.core.layout.KVCacheLayout;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

class LayoutCommandTest {
  static List<String> names() {
    return ModelCatalogue.bundled().names();
  }

  private static List<String> layout(String arguments) {
    Cli.Result result = Cli.run(("layout " + arguments).split(" "));
    assertEquals(0, result.exitCode(), result.toString());
    assertEquals("", result.err());
    return result.outLines();
  }

  /** The words of the first line that starts with a word. */
  private static List<String> row(List<String> lines, String first) {
    return lines.stream()
        .map(line -> List.of(line.strip().split(" {2,}")))
        .filter(words -> words.get(0).equals(first))
        .findFirst()
        .orElseThrow(() -> new AssertionError(first + " in " + lines));
  }

  @Test
  void aWholePageOfAModelWithOneGroup() {
    assertEquals(
        """
        llama-3.1-8b: tp 4, layout LBNHC, split blocks, blocks of 16 tokens
          from https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json

          group  kind            layers  window  each rank  object bytes  runs  merged
              0  full attention      32       -  own part        524,288    32      32

          region                               group  heads   content          bytes  runs  stride
          model.layers.{0..31}.self_attn.attn      0  2 of 8  128 + 128 bf16  16,384     1  16,384

          KV bytes per token  131,072 in the whole model, 32,768 on a rank
          objects of a block  4, together 2,097,152 bytes

          model.layers.0.self_attn.attn: a page is 1 run
                   +------------------------------------------------------------+
          tensor   |  [block 0]   |   block 1    |   block 2    |      ...      | block stride 16,384
                   +------------------------------------------------------------+
          block 0  |              K              |              V               | 2 x 8,192
                   +------------------------------------------------------------+
          K        |   token 0    |   token 1    |     ...      |   token 15    | 16 x 512
                   +------------------------------------------------------------+
          token 0  |           head 0            |            head 1            | 2 x 256
                   +------------------------------------------------------------+
          head 0   |                          128 bf16                          | 256 bytes
                   +------------------------------------------------------------+
        """
            .lines()
            .toList(),
        layout("llama-3.1-8b --tp 4"));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          # arguments                                      | group | object bytes | runs  | merged
          llama-3.1-8b --layout BLNHC                      |     0 | 2,097,152    | 32    | 1
          llama-3.1-8b --layout BLNHC --split planes       |     0 | 2,097,152    | 64    | 64
          llama-3.1-8b --layout LHBNC                      |     0 | 2,097,152    | 256   | 256
          llama-3.1-8b --layout BHLNC --tp 8               |     0 | 262,144      | 32    | 1
          llama-3.1-70b --tp 8 --block-size 32             |     0 | 1,310,720    | 80    | 80
          qwen3-235b-a22b --tp 8                           |     0 | 770,048      | 94    | 94
          deepseek-v3 --tp 8                               |     0 | 1,124,352    | 61    | 61
          deepseek-v3.2 --layout BLHNC --block-size 64     |     0 | 5,012,736    | 122   | 1
          gemma-3-27b                                      |     0 | 1,179,648    | 9     | 9
          gemma-3-27b                                      |     5 | 1,048,576    | 8     | 8
          gemma-3-27b --layout BLNHC                       |     6 | 1,310,720    | 10    | 1
          gpt-oss-20b --split planes                       |     1 | 393,216      | 24    | 24
          nemotron-h-8b --tp 4                             |     0 | 2,158,592    | 4     | 4
          nemotron-h-8b --tp 4 --block-size 16             |     6 | 65,536       | 4     | 4
          qwen3-next-80b-a3b --block-size 544              |     3 | 13,369,344   | 12    | 12
          """)
  void objectsAndRunsOfAGroup(
      String arguments, String group, String objectBytes, String runs, String merged) {
    List<String> row = row(layout(arguments), group);
    assertEquals(List.of(objectBytes, runs, merged), row.subList(5, 8), row.toString());
  }

  @Test
  void latentsAreTheSameOnAllRanksAndStoredOnce() {
    List<String> lines = layout("deepseek-v3.2 --tp 8");
    assertEquals(
        List.of("0", "latent (MLA) + sparse indexer", "122", "-", "the same"),
        row(lines, "0").subList(0, 5));
    assertEquals(
        List.of(
            "model.layers.{0..60}.self_attn.attn", "0", "1", "576 bf16", "18,432", "1", "18,432"),
        row(lines, "model.layers.{0..60}.self_attn.attn"));
    assertEquals(
        List.of("0", "1", "132 u8", "2,112", "1", "2,112"),
        row(lines, "model.layers.{0..60}.self_attn.indexer.k_cache").subList(1, 7));
    assertEquals(
        List.of("objects of a block", "1, together 1,253,184 bytes"),
        row(lines, "objects of a block"));
    assertEquals(
        List.of("KV bytes per token", "78,324 in the whole model, 78,324 on a rank"),
        row(lines, "KV bytes per token"));
    assertEquals("own part", row(layout("deepseek-v3"), "0").get(4), "one rank replicates nothing");
  }

  @Test
  void groupsOfAHybridShareSlotsAndAStateIsPadded() {
    List<String> lines = layout("nemotron-h-8b");
    assertEquals(
        "nemotron-h-8b: tp 1, layout LBNHC, split blocks, blocks of 528 tokens", lines.get(0));
    assertEquals(
        List.of("0", "-", "state", "2,158,592", "1", "2,162,688"),
        row(lines, "model.layers.{0..39 by 13}.mixer").subList(1, 7));
    assertTrue(lines.contains("  in a slot that 7 groups use under different block ids"));
    assertTrue(lines.contains("  with 4,096 bytes of padding behind it"));
    assertEquals(
        "51,806,208 in the whole model, 51,806,208 on a rank", row(lines, "state bytes").get(1));
    List<String> small = layout("nemotron-h-8b --block-size 16");
    assertTrue(small.contains("  in a slot that 6 groups use under different block ids"));
    assertEquals("2,158,592", row(small, "model.layers.{0..39 by 13}.mixer").get(6));
  }

  @Test
  void windowsAndUnevenLayersAreShown() {
    List<String> lines = layout("gemma-3-27b");
    assertEquals(List.of("sliding window", "9", "1,024"), row(lines, "0").subList(1, 4));
    assertEquals(List.of("full attention", "10", "-"), row(lines, "6").subList(1, 4));
    assertEquals("0", row(lines, "model.layers.{0,7,14,..,57}.self_attn.attn").get(1));
    assertEquals("6", row(lines, "model.layers.{5..59 by 6}.self_attn.attn").get(1));
  }

  @Test
  void headsOutsideOfBlocksAreDrawnOutside() {
    List<String> bars =
        layout("llama-3.1-8b --tp 4 --layout LHBNC --split planes").stream()
            .filter(line -> line.contains("|"))
            .map(line -> line.strip().replaceAll(" +", " "))
            .toList();
    assertEquals(
        List.of(
            "tensor | K | V | 2 x blocks x 8,192",
            "K | head 0 | head 1 | 2 x blocks x 4,096",
            "head 0 | [block 0] | block 1 | block 2 | ... | block stride 4,096",
            "block 0 | token 0 | token 1 | ... | token 15 | 16 x 256",
            "token 0 | 128 bf16 | 256 bytes"),
        bars);
  }

  @ParameterizedTest
  @MethodSource("names")
  void everyModelFitsOnAPageInEveryOrder(String name) {
    for (KVCacheLayout order : KVCacheLayout.values()) {
      List<String> lines = layout(name + " --tp 2 --split planes --layout " + order);
      for (String line : lines) {
        assertTrue(line.length() <= 100, line.length() + ": " + line);
        assertTrue(line.chars().allMatch(c -> c >= ' ' && c <= '~'), line);
      }
      assertTrue(lines.size() < 70, name + " " + lines.size());
    }
  }

  @Test
  void theListHasEveryModel() {
    List<String> lines = layout("--list");
    assertEquals(names().size() + 1, lines.size());
    assertEquals(
        List.of("deepseek-v3.2", "78,324", "-", "61 latent (MLA), 61 sparse indexer"),
        row(lines, "deepseek-v3.2"));
    assertEquals(
        List.of("nemotron-h-8b", "16,384", "51,806,208", "4 full attention, 24 recurrent state"),
        row(lines, "nemotron-h-8b"));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          layout                                | needed is the name of a model or --list, one of them
          layout llama-3.1-8b --list            | needed is the name of a model or --list, one of them
          layout lama                           | there is no model 'lama' in the catalogue, it has llama-3.1-8b, llama-3.1-70b,
          layout llama-3.1-8b --tp 0            | --tp is 0, allowed are 1 to 256
          layout llama-3.1-8b --tp 3            | 8 KV heads of layer model.layers.0.self_attn.attn cannot be shared by 3 ranks
          layout nemotron-h-8b --tp 3           | 128 state heads in 8 groups of layer model.layers.0.mixer cannot be shared by 3 ranks
          layout llama-3.1-8b --block-size 0    | --block-size is 0, allowed are 1 to 1048576
          layout llama-3.1-8b --layout NHC      | Invalid value for option '--layout'
          layout llama-3.1-8b --split some      | Invalid value for option '--split'
          layout llama-3.1-8b qwen3-32b         | Unmatched argument
          """)
  void whatCannotBeShownIsRefused(String arguments, String expected) {
    Cli.Result result = Cli.run(arguments.split(" "));
    assertEquals(2, result.exitCode(), result.toString());
    assertEquals("", result.out());
    List<String> complaints = new ArrayList<>(result.complaints());
    assertEquals(1, complaints.size(), result.err());
    assertTrue(complaints.get(0).startsWith("umbp layout: " + expected), complaints.get(0));
  }
}
