package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The fake CUDA driver used from many threads, built with the compiler's sanitizers. */
@Timeout(180)
class FakeCudaSanitizerTest {
  private static final Path SOURCES = Path.of("src/main/native");
  private static final Path EXERCISE = Path.of("src/test/native/exercise.c");

  @TempDir private Path temp;

  private record Run(int status, String text) {}

  private static Run run(List<String> command) throws Exception {
    Process process;
    try {
      process = new ProcessBuilder(command).redirectErrorStream(true).start();
    } catch (IOException e) {
      return new Run(-1, e.toString());
    }
    String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    return new Run(process.waitFor(), text);
  }

  private Run compile(String sanitizer, Path program, List<Path> sources) throws Exception {
    List<String> command = new ArrayList<>(List.of("gcc", "-std=gnu11", "-g", "-O1", "-pthread"));
    command.addAll(List.of("-fsanitize=" + sanitizer, "-o", program.toString()));
    sources.forEach(source -> command.add(source.toString()));
    return run(command);
  }

  /** All of the driver but what calls Java. */
  private static List<Path> sources() throws IOException {
    try (Stream<Path> files = Files.list(SOURCES)) {
      return files
          .filter(file -> file.toString().endsWith(".c") && !file.endsWith("control.c"))
          .sorted()
          .collect(Collectors.toCollection(ArrayList::new));
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"thread", "address,undefined"})
  void nothingIsReported(String sanitizer) throws Exception {
    boolean isRequired = "true".equals(System.getenv("CI"));
    Optional<String> reason = FakeCudaDriver.unavailableReason();
    assumeTrue(reason.isEmpty() || isRequired, () -> reason.orElse("available"));
    Path empty = Files.writeString(temp.resolve("empty.c"), "int main(void) { return 0; }");
    Run probe = compile(sanitizer, temp.resolve("empty"), List.of(empty));
    assumeTrue(probe.status() == 0 || isRequired, probe.text());
    Path program = temp.resolve("exercise");
    List<Path> sources = sources();
    sources.add(EXERCISE);
    Run compiled = compile(sanitizer, program, sources);
    assertEquals(0, compiled.status(), compiled.text());
    Run ran = run(List.of(program.toString()));
    assertEquals(0, ran.status(), ran.text());
    assertTrue(ran.text().startsWith("0 wrong, "), ran.text());
    assertEquals(1, ran.text().lines().count(), ran.text());
  }
}
