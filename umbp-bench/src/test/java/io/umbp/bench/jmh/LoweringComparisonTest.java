package io.umbp.bench.jmh;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.UMBPException;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

class LoweringComparisonTest {
  private static boolean isOnThePath(String program) {
    return Arrays.stream(System.getenv().getOrDefault("PATH", "").split(File.pathSeparator))
        .anyMatch(directory -> Files.isExecutable(Path.of(directory, program)));
  }

  /** On a developer's machine without Python this is left out, in CI it fails. */
  @Test
  void umbpAndPythonMakeTheSameRanges() {
    assumeTrue(isOnThePath("python3") || "true".equals(System.getenv("CI")), "no python3");
    LoweringComparison.Result result =
        LoweringComparison.compare("python3", new LoweringCase(3, 5), 2, 3);
    assertEquals(30, result.ranges());
    assertTrue(result.pythonVersion().startsWith("3."), result.toString());
    assertTrue(result.columnsNanos() > 0, result.toString());
    assertTrue(result.objectsNanos() > 0, result.toString());
    assertTrue(result.pythonColumnsNanos() > 0, result.toString());
    assertTrue(result.pythonObjectsNanos() > 0, result.toString());
    assertEquals(6, result.toString().lines().count());
  }

  @Test
  void aMissingInterpreterIsRefused() {
    UMBPException e =
        assertThrows(
            UMBPException.class,
            () -> LoweringComparison.compare("no-such-python", new LoweringCase(1, 1), 1, 1));
    assertEquals(UMBPException.Reason.UNSUPPORTED, e.reason());
    assertTrue(String.valueOf(e.getMessage()).startsWith("no-such-python cannot be started"));
  }

  @Test
  void aFailingInterpreterIsAnError() {
    assertThrows(
        IllegalStateException.class,
        () -> LoweringComparison.compare("false", new LoweringCase(1, 1), 1, 1));
  }
}
