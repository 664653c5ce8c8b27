package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.testkit.FakeCudaDriver;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The commands over the real JCuda on the fake CUDA driver. */
class CudaCommandTest {
  @TempDir private Path temp;

  @BeforeAll
  static void requireFakeDriver() {
    Optional<String> reason = FakeCudaDriver.unavailableReason();
    assumeTrue(
        reason.isEmpty() || "true".equals(System.getenv("CI")), () -> reason.orElse("available"));
  }

  /** The whole sample; the command itself fails when bytes, memory or driver objects are wrong. */
  @Test
  void theSampleReplaysAsOnTheFakeGpu() throws Exception {
    JsonNode figures = Cli.figures(temp.resolve("cuda.json"), "--device", "fake-cuda");
    assertEquals(34_452, figures.get("hit_blocks").asLong());
    assertEquals(67_461, figures.get("stored_blocks").asLong());
    assertEquals(141_115_392, figures.get("loaded_bytes").asLong());
    assertEquals(0, figures.get("corrupt_bytes").asLong());
    FakeCudaDriver driver = FakeCudaDriver.install();
    assertEquals(0, driver.violations());
    assertTrue(driver.calls("cuStreamWaitEvent") > 1000, "fences");
    assertTrue(driver.calls("cuLaunchKernel") > 100, "launches");
  }

  @Test
  void ranksHaveTheirOwnDevices() throws Exception {
    for (String tp : List.of("2", "4")) {
      List<String> arguments =
          List.of("--model", "llama-3.1-8b", "--tp", tp, "--limit", "150", "--concurrency", "4");
      JsonNode expected = figures("gpu", "fake-gpu", arguments);
      JsonNode found = figures("cuda", "fake-cuda", arguments);
      for (String name : List.of("hit_blocks", "stored_objects", "loaded_bytes", "stored_bytes")) {
        assertEquals(expected.get(name), found.get(name), name + " of tp " + tp);
      }
      assertEquals(0, found.get("corrupt_bytes").asLong());
    }
  }

  private JsonNode figures(String file, String device, List<String> arguments) throws Exception {
    String[] all = new String[arguments.size() + 2];
    arguments.toArray(all);
    all[arguments.size()] = "--device";
    all[arguments.size() + 1] = device;
    return Cli.figures(temp.resolve(file + ".json"), all);
  }

  /** Without the fence the same replay must find stale bytes, or it proves nothing. */
  @Test
  void aReplayWithoutFencesFindsStaleBytes() {
    Cli.Result result =
        Cli.run(
            copies -> new PlantedFault(copies, PlantedFault.Fault.NO_FENCES),
            "replay",
            "--device",
            "fake-cuda",
            "--limit",
            "300");
    assertEquals(1, result.exitCode());
    assertTrue(result.err().contains("loaded bytes are corrupt"), result.err());
  }

  @Test
  void benchPrintsATableAndSettings() {
    Cli.Result result =
        Cli.run("bench", "--device", "fake-cuda", "--bytes", "1048576", "--rounds", "1");
    assertEquals(0, result.exitCode(), result.err());
    assertTrue(result.out().contains("one large copy: load "), result.out());
    assertEquals(1 + 1 + 1 + 6 * 4 * 2 + 1, result.outLines().size(), result.out());
    assertTrue(result.out().contains("kernelBelowBytes "), result.out());
  }

  @Test
  void wrongDevicesAreRefused() {
    assertEquals(2, Cli.run("bench", "--device", "fake-gpu").exitCode());
    assertEquals(2, Cli.run("replay", "--device", "fake-cuda", "--fail-rate", "0.1").exitCode());
    assertEquals(2, Cli.run("replay", "--device", "rocm").exitCode());
    assertEquals(2, Cli.run("bench", "--device", "fake-cuda", "--ordinal", "3").exitCode());
  }
}
