package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What JVMs of their own find, each with its own temporary folder. */
@Timeout(300)
class CudaNativesTest {
  private static final String LIBRARY = "libJCudaDriver-12.6.0-linux-x86_64.so";

  @TempDir private Path temp;

  private final List<String> classPath =
      List.of(System.getProperty("java.class.path").split(File.pathSeparator));

  /** The probe's answer: its exit status and what it printed. */
  private record Answer(int status, String text) {}

  private Process start(List<String> classPath, String... arguments) throws IOException {
    List<String> command = new ArrayList<>();
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.addAll(List.of("-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"));
    command.addAll(List.of("-cp", String.join(File.pathSeparator, classPath)));
    command.addAll(Arrays.asList(arguments));
    return new ProcessBuilder(command).redirectErrorStream(true).start();
  }

  private static Answer answer(Process process) throws Exception {
    String text =
        new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8)
            .lines()
            .filter(line -> line.startsWith("probe: "))
            .collect(Collectors.joining("\n"));
    return new Answer(process.waitFor(), text);
  }

  private Answer probe(List<String> classPath, String tempFolder, String... options)
      throws Exception {
    List<String> arguments = new ArrayList<>(List.of("-Djava.io.tmpdir=" + tempFolder));
    arguments.addAll(List.of(options));
    arguments.add(CudaProbe.class.getName());
    return answer(start(classPath, arguments.toArray(new String[0])));
  }

  private void assertUnavailable(Answer answer, String... parts) {
    assertEquals(0, answer.status(), answer.text());
    assertTrue(answer.text().startsWith("probe: unavailable: "), answer.text());
    assertEquals(1, answer.text().lines().count(), answer.text());
    for (String part : parts) {
      assertTrue(answer.text().contains(part), answer.text());
    }
  }

  private void assertLive(Answer answer) {
    assertEquals("probe: live CUDA driver 12.6, 1 devices", answer.text());
    assertEquals(0, answer.status());
  }

  @Test
  @DisplayName("case 62: another platform")
  void case62Platform() throws Exception {
    assertUnavailable(
        probe(classPath, temp.toString(), "-Dos.arch=aarch64", "-Dprobe.fake=false"),
        "Linux/aarch64",
        "12.6.0",
        "linux-x86_64");
  }

  @Test
  @DisplayName("case 62: no natives on the class path")
  void case62NoNatives() throws Exception {
    List<String> without =
        classPath.stream().filter(entry -> !entry.contains("jcuda-natives")).toList();
    assertTrue(without.size() < classPath.size(), "natives on the tests' class path");
    assertUnavailable(
        probe(without, temp.toString(), "-Dprobe.fake=false"),
        "org.jcuda:jcuda-natives:12.6.0:linux-x86_64",
        LIBRARY);
  }

  @Test
  @DisplayName("case 62: a temporary folder that can't be written")
  void case62NoTemporaryFolder() throws Exception {
    assertUnavailable(
        probe(classPath, "/proc", "-Dprobe.fake=false"), "/proc/" + LIBRARY, "-Djava.library.path");
  }

  @Test
  @DisplayName("case 62: a truncated library in the temporary folder is replaced")
  void case62TruncatedLibrary() throws Exception {
    CudaRig.driver();
    Files.write(temp.resolve(LIBRARY), new byte[] {0x7f, 'E', 'L', 'F'});
    assertLive(probe(classPath, temp.toString()));
    assertTrue(Files.size(temp.resolve(LIBRARY)) > 100_000);
    try (Stream<Path> files = Files.list(temp)) {
      assertFalse(
          files.anyMatch(file -> file.toString().endsWith(".tmp")), "no half-written file is left");
    }
  }

  @Test
  @DisplayName("case 62: a driver that is too old, or has no device")
  void case62OldDriver() throws Exception {
    CudaRig.driver();
    assertUnavailable(probe(classPath, temp.toString(), "-Dprobe.version=10020"), "10.2", "11.0");
    assertUnavailable(probe(classPath, temp.toString(), "-Dprobe.devices=0"), "no CUDA device");
  }

  @Test
  @DisplayName("case 64: loading all classes of the package touches no driver")
  void case64LoadingTouchesNothing() throws Exception {
    CudaRig.driver();
    assertEquals(
        "probe: loaded, cuInit 0", probe(classPath, temp.toString(), "-Dprobe.load=true").text());
    try (Stream<Path> files = Files.list(temp)) {
      assertFalse(files.anyMatch(file -> file.toString().contains("JCuda")), "nothing is unpacked");
    }
  }

  @Test
  @DisplayName("twelve JVMs start at once with an empty temporary folder, six rounds: 72 live")
  void twelveStartAtOnce() throws Exception {
    CudaRig.driver();
    for (int round = 0; round < 6; round++) {
      Path folder = Files.createDirectory(temp.resolve("round" + round));
      List<Process> processes = new ArrayList<>();
      for (int i = 0; i < 12; i++) {
        processes.add(start(classPath, "-Djava.io.tmpdir=" + folder, CudaProbe.class.getName()));
      }
      for (Process process : processes) {
        assertLive(answer(process));
      }
    }
  }
}
