package io.umbp.bench.sim;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import picocli.CommandLine;

class SimulationTest {
  private static final int SEEDS = 2_000;

  /** A nightly run says how many, and where they begin. */
  private static final long NIGHTLY_SEEDS = Long.getLong("umbp.simulate.seeds", 0);

  private static final long FIRST_SEED = Long.getLong("umbp.simulate.first", 0);

  @TempDir private Path directory;

  private record Result(int exitCode, String out, String err) {}

  private static Result run(SimParts parts, String... arguments) {
    SimulateCommand command = new SimulateCommand();
    command.parts = parts;
    StringWriter out = new StringWriter();
    StringWriter err = new StringWriter();
    int exitCode =
        new CommandLine(command)
            .setOut(new PrintWriter(out))
            .setErr(new PrintWriter(err))
            .execute(arguments);
    return new Result(exitCode, out.toString(), err.toString());
  }

  @Test
  @DisplayName("2,000 seeds over 1, 2, 4 ranks, 1 to 3 groups and faults at 0, 1 and 10 %")
  void noRuleIsBroken() {
    Result result = run(new SimParts(), "--seeds", Integer.toString(SEEDS));
    assertEquals(0, result.exitCode, result.err);
    assertTrue(result.out.contains("seeds                         2,000"), result.out);
    for (String figure :
        new String[] {
          "hit tokens",
          "loads",
          "lost blocks",
          "store events",
          "failed objects",
          "evicted objects",
          "preemptions",
          "aborts",
          "clears",
          "passed deadlines"
        }) {
      String line =
          result.out.lines().filter(each -> each.contains(figure)).findFirst().orElseThrow();
      long count = Long.parseLong(line.replace(figure, "").replace(",", "").strip());
      assertTrue(count > SEEDS / 4, "hardly any: " + line);
    }
  }

  @Test
  void noRuleIsBrokenAtNight() {
    if (NIGHTLY_SEEDS > 0) {
      Result result =
          run(
              new SimParts(),
              "--seeds",
              Long.toString(NIGHTLY_SEEDS),
              "--seed",
              Long.toString(FIRST_SEED));
      assertEquals(0, result.exitCode, result.err);
      System.out.println(result.out);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aPlantedBugIsFound(PlantedBug bug) {
    for (long seed = 0; seed < SEEDS; seed++) {
      SimSettings settings = SimSettings.ofIndex(seed);
      try {
        Simulation.run(settings, Choices.ofSeed(seed), bug.parts());
      } catch (RuntimeException e) {
        System.out.println(bug + " is found by seed " + seed + ": " + e.getMessage());
        return;
      }
    }
    throw new AssertionError(bug + " is not found within " + SEEDS + " seeds");
  }

  @Test
  void aSeedAndItsDecisionsGiveTheSameRun() {
    for (long seed = 0; seed < 27; seed++) {
      SimSettings settings = SimSettings.ofIndex(seed);
      Choices choices = Choices.ofSeed(seed);
      SimReport first = Simulation.run(settings, choices, new SimParts());
      List<List<Integer>> script = choices.taken();
      SimReport second = Simulation.run(settings, Choices.ofSeed(seed), new SimParts());
      assertEquals(first.table(), second.table(), "seed " + seed);
      Choices scripted = Choices.ofScript(script);
      assertEquals(
          first.table(), Simulation.run(settings, scripted, new SimParts()).table(), "as a script");
      assertEquals(script, scripted.taken());
      assertEquals(script, Choices.parse(Choices.format(script)));
    }
  }

  @Test
  void anotherJvmDecidesTheSame() throws IOException {
    Process other =
        new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp",
                System.getProperty("java.class.path"),
                "io.umbp.bench.UmbpCommand",
                "simulate",
                "--seeds",
                "270")
            .redirectError(ProcessBuilder.Redirect.DISCARD)
            .start();
    String out = new String(other.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertEquals(run(new SimParts(), "--seeds", "270").out, out);
  }

  @Test
  void aFailingSeedIsMadeSmallAndRunsAgain() throws IOException {
    SimParts parts = PlantedBug.KEY_OF_ANOTHER_BLOCK.parts();
    Result result = run(parts, "--faults", "0", "--ranks", "1", "--groups", "1");
    assertEquals(1, result.exitCode);
    String[] lines = result.err.strip().split("\n", -1);
    int first = 0;
    while (!lines[first].contains("umbp simulate: seed")) {
      first++;
    }
    assertTrue(
        lines[first + 1].matches(
            "  again: umbp simulate --seed \\d+ --ranks 1 --groups 1 --faults 0.0"),
        result.err);
    Matcher counts =
        Pattern.compile("  (\\d+) decisions instead of (\\d+): .*").matcher(lines[first + 2]);
    assertTrue(counts.matches(), result.err);
    assertTrue(
        Integer.parseInt(counts.group(1)) < Integer.parseInt(counts.group(2)) / 2,
        "not small: " + result.err);
    Path script = directory.resolve("script");
    Files.writeString(script, lines[lines.length - 1] + "\n");
    String[] again = {
      "--script", script.toString(), "--ranks", "1", "--groups", "1", "--faults", "0"
    };
    assertEquals(1, run(parts, again).exitCode);
    assertEquals(0, run(new SimParts(), again).exitCode, "without the bug");
    Files.writeString(script, "1,x");
    assertEquals(2, run(parts, again).exitCode);
    assertEquals(2, run(parts, "--script", directory.resolve("none").toString()).exitCode);
  }

  @Test
  void wrongOptionsAreRefused() {
    for (String[] arguments :
        new String[][] {
          {"--ranks", "0"},
          {"--ranks", "5"},
          {"--groups", "4"},
          {"--faults", "1.5"},
          {"--seeds", "0"},
          {"--faults", "NaN"}
        }) {
      Result result = run(new SimParts(), arguments);
      assertEquals(2, result.exitCode, Arrays.toString(arguments));
      assertTrue(result.err.contains(arguments[0]), result.err);
    }
    assertEquals(0, run(new SimParts(), "--seed", "5").exitCode);
  }

  @Test
  void scriptsAreMadeSmall() {
    Predicate<List<List<Integer>>> fails =
        script -> script.stream().flatMap(List::stream).filter(value -> value >= 3).count() >= 2;
    List<List<Integer>> script = Choices.parse("5,1,0;2,9;9;4,0,0,1;;7");
    assertTrue(fails.test(script));
    List<List<Integer>> small = Shrinker.shrink(script, fails);
    assertEquals(2, Choices.count(small), small.toString());
    assertEquals(6, small.stream().flatMap(List::stream).mapToInt(Integer::intValue).sum());
  }

  @Test
  void theBlockPoolRefusesWhatNoEngineMayDo() {
    SimBlocks blocks = new SimBlocks(1, 3, block -> block.blockId() == 2);
    int first = blocks.take(0);
    assertEquals(1, first);
    assertThrows(SimViolation.class, () -> blocks.take(0), "a copy uses block 2");
    blocks.release(0, first);
    assertThrows(SimViolation.class, () -> blocks.release(0, first));
    assertFalse(blocks.nextEvicted(2).isEmpty());
  }
}
