package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.abort;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CopyKernelPtxTest {
  private static final Path SOURCES = Path.of("src/main/cuda");

  @TempDir private Path folder;

  @Test
  void headerIsForTheOldestDriverAndDevice() {
    List<String> directives =
        CopyKernel.ptx()
            .lines()
            .filter(line -> line.startsWith(".") && !line.startsWith(".visible"))
            .limit(3)
            .toList();
    assertEquals(List.of(".version 7.0", ".target sm_70", ".address_size 64"), directives);
  }

  @Test
  void entryTakesATableAndItsRows() {
    String entry =
        """
        .visible .entry umbp_copy_ranges(
        	.param .u64 umbp_copy_ranges_param_0,
        	.param .u32 umbp_copy_ranges_param_1
        )
        .maxntid 256, 1, 1
        """;
    assertTrue(CopyKernel.ptx().contains(entry));
    assertTrue(entry.contains(CopyKernel.ENTRY + "("));
    assertTrue(entry.contains(".maxntid " + CopyKernel.THREADS + ","));
  }

  @Test
  void memoryIsReadAndWrittenInThePlainWay() {
    List<String> odd =
        CopyKernel.ptx()
            .lines()
            .map(String::trim)
            .filter(line -> line.matches("(@\\S+ )?(ld|st|atom|red|prefetch)\\b.*"))
            .filter(line -> !line.matches("(@\\S+ )?(ld|st)\\.(param\\.|global\\.|v4\\.)?u\\d+.*"))
            .toList();
    assertEquals(List.of(), odd);
  }

  /** Needs no tools: a kernel that was changed and not compiled is found everywhere. */
  @Test
  void ptxWasMadeFromThisSource() throws Exception {
    byte[] source = Files.readAllBytes(SOURCES.resolve("copy_ranges.cu"));
    byte[] digest = MessageDigest.getInstance("SHA-256").digest(source);
    assertEquals(
        "// Made by make-ptx.sh from copy_ranges.cu, SHA-256 " + HexFormat.of().formatHex(digest),
        CopyKernel.ptx().lines().findFirst().orElseThrow());
  }

  @Test
  void ptxIsAssembledForDevicesFromTuringOn() throws Exception {
    assumeTrue(isOnPath("ptxas"), "no ptxas on the path");
    Path ptx = Files.writeString(folder.resolve("copy_ranges.ptx"), CopyKernel.ptx());
    List<String> assembled = new ArrayList<>();
    for (String target : List.of("75", "80", "86", "89", "90", "100", "120")) {
      Path cubin = folder.resolve("copy_ranges." + target);
      String output =
          run("ptxas", "--warning-as-error", "-arch", "sm_" + target, "-o", cubin + "", ptx + "");
      if (Files.exists(cubin) && output.isBlank()) {
        assembled.add(target);
      } else {
        // This toolkit is too old or too new for the device.
        assertTrue(output.contains("'sm_" + target + "' is not defined"), output);
      }
    }
    assertFalse(assembled.isEmpty());
  }

  @Test
  void sourceStillGivesThisPtx() throws Exception {
    assumeTrue(isOnPath("nvcc") && isOnPath("gcc"), "no nvcc, or no gcc for it, on the path");
    Path made = folder.resolve("made.ptx");
    String output = run("bash", SOURCES.resolve("make-ptx.sh") + "", made + "");
    assertTrue(Files.exists(made), output);
    String ptx = Files.readString(made);
    if (!compiler(ptx).equals(compiler(CopyKernel.ptx()))) {
      abort("checked in: " + compiler(CopyKernel.ptx()) + "; here: " + compiler(ptx));
    }
    assertEquals(ptx, CopyKernel.ptx());
  }

  private static String compiler(String ptx) {
    return ptx.lines().filter(l -> l.contains("compilation tools")).findFirst().orElseThrow();
  }

  private static boolean isOnPath(String program) {
    for (String place : System.getenv("PATH").split(":", -1)) {
      if (Files.isExecutable(Path.of(place, program))) {
        return true;
      }
    }
    return false;
  }

  /** Returns what a program prints; it is done when this returns. */
  private static String run(String... command) throws IOException, InterruptedException {
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    process.getOutputStream().close();
    String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    process.waitFor();
    return output;
  }
}
