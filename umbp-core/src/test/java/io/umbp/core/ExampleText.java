package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;

/** Holds an example in a document against the test source that runs it. */
final class ExampleText {
  private ExampleText() {}

  /** Checks that a document shows the lines between the example marks of a source, unindented. */
  static void assertShown(String source, String document, int indent) throws IOException {
    List<String> lines = Files.readAllLines(Path.of(source));
    List<String> marks = lines.stream().map(String::strip).toList();
    String example =
        lines
            .subList(marks.indexOf("// example-begin") + 1, marks.indexOf("// example-end"))
            .stream()
            .map(line -> line.isEmpty() ? line : line.substring(indent))
            .collect(Collectors.joining("\n"))
            .strip();
    assertTrue(
        Files.readString(Path.of(document)).contains(example),
        document + " does not show the example of " + source);
  }
}
