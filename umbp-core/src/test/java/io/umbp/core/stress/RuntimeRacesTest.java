package io.umbp.core.stress;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Runs {@link RuntimeRaces} under jcstress, in a JVM of its own. */
class RuntimeRacesTest {
  /** Milliseconds for each race; a nightly run gives more. */
  private static final String RACE_MILLIS = System.getProperty("umbp.stress.millis", "300");

  @TempDir private Path directory;

  @Test
  @Timeout(value = 30, unit = TimeUnit.MINUTES)
  void noOutcomeIsForbiddenButTheCanarys() throws Exception {
    String output = stress();
    List<String> races =
        Arrays.stream(RuntimeRaces.class.getDeclaredClasses()).map(Class::getSimpleName).toList();
    assertEquals(10, races.size());
    Matcher failures =
        Pattern.compile("(?m)^io\\.umbp\\.core\\.stress\\.RuntimeRaces\\.(\\w+) .*")
            .matcher(output);
    boolean hasCanaryFailed = false;
    while (failures.find()) {
      assertEquals("CanaryHitWithoutHold", failures.group(1), output);
      assertTrue(failures.group().contains("Observed forbidden state: 1, -2"), output);
      hasCanaryFailed = true;
    }
    assertTrue(hasCanaryFailed, "the canary was not found: " + output);
    assertFalse(output.contains("[ERROR]"), output);
    Matcher counts =
        Pattern.compile("(\\d+) planned; (\\d+) passed, (\\d+) failed, 0 soft errs, 0 hard errs")
            .matcher(output.substring(output.lastIndexOf("(Results:")));
    assertTrue(counts.find(), output);
    int planned = Integer.parseInt(counts.group(1));
    assertTrue(planned >= races.size() && planned % races.size() == 0, output);
    assertEquals(planned / races.size() * (races.size() - 1), Integer.parseInt(counts.group(2)));
    assertEquals(planned / races.size(), Integer.parseInt(counts.group(3)));
  }

  private String stress() throws IOException, InterruptedException {
    List<String> command = new ArrayList<>();
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.add("-cp");
    command.add(classPath());
    command.add("org.openjdk.jcstress.Main");
    command.addAll(List.of("-f", "1", "-fsm", "1", "-iters", "1", "-time", RACE_MILLIS));
    command.addAll(List.of("-sc", "false", "-af", "NONE", "-jvmArgs", "-Xmx256m"));
    command.addAll(List.of("-strideSize", "32", "-strideCount", "8"));
    command.addAll(List.of("-t", "RuntimeRaces", "-r", directory.toString()));
    Process process =
        new ProcessBuilder(command).directory(directory.toFile()).redirectErrorStream(true).start();
    try {
      return new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    } finally {
      process.destroyForcibly();
      process.waitFor();
    }
  }

  /** What the races need: jcstress looks through all of it in every JVM. */
  private static String classPath() {
    return Pattern.compile(File.pathSeparator, Pattern.LITERAL)
        .splitAsStream(System.getProperty("java.class.path"))
        .filter(
            entry ->
                Pattern.compile("umbp-(core|api)|jcstress|jopt|guava|failureaccess|slf4j-api")
                    .matcher(entry)
                    .find())
        .collect(Collectors.joining(File.pathSeparator));
  }
}
