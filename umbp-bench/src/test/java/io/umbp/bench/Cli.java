package io.umbp.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.umbp.api.spi.KVCopyEngine;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import picocli.CommandLine;

/** Runs the command inside the test. */
final class Cli {
  /** How a command ended. */
  record Result(int exitCode, String out, String err) {
    List<String> outLines() {
      return out.lines().toList();
    }

    /** What stands on the error stream besides the progress. */
    List<String> complaints() {
      return err.lines().filter(line -> !line.startsWith("replayed ")).toList();
    }
  }

  private Cli() {}

  static Result run(String... arguments) {
    return run(UnaryOperator.identity(), arguments);
  }

  /** Runs the command with something between the pool and the GPU's copy engine. */
  static Result run(UnaryOperator<KVCopyEngine> copyEngine, String... arguments) {
    StringWriter out = new StringWriter();
    StringWriter err = new StringWriter();
    CommandLine line = UmbpCommand.commandLine();
    ReplayCommand replay = line.getSubcommands().get("replay").getCommand();
    replay.copyEngine = copyEngine;
    line.setOut(new PrintWriter(out, true));
    line.setErr(new PrintWriter(err, true));
    int exitCode = line.execute(arguments);
    return new Result(exitCode, out.toString(), err.toString());
  }

  /** Adds {@code --json} to a replay that must succeed, and returns the figures. */
  static JsonNode figures(Path json, String... arguments) throws IOException {
    List<String> all = new ArrayList<>(List.of("replay", "--json", json.toString()));
    all.addAll(List.of(arguments));
    Result result = run(all.toArray(String[]::new));
    if (result.exitCode() != 0) {
      throw new AssertionError(result.toString());
    }
    return new ObjectMapper().readTree(json.toFile());
  }
}
