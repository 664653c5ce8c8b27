package io.umbp.bench;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** Checks a file of golden vectors against this build. */
@Command(
    name = "vectors",
    description = "Checks a file of golden vectors against this build.",
    mixinStandardHelpOptions = true)
final class VectorsCommand implements Callable<Integer> {
  private static final Map<String, Consumer<JsonNode>> CHECKS =
      Map.of(
          "topologies", GoldenVectors::topology,
          "namespaces", GoldenVectors::namespace,
          "keys", GoldenVectors::key,
          "plans", GoldenVectors::plan,
          "trackers", GoldenVectors::tracker,
          "block_hashes", GoldenVectors::blockHashes,
          "tp_shard_mappings", GoldenVectors::tpShardMapping);

  @Spec private CommandSpec spec;

  @Parameters(
      paramLabel = "FILE",
      description = "JSON file with one array of vectors for each section")
  private Path file;

  private int passed;
  private int failed;
  private int skipped;

  @Override
  public Integer call() {
    JsonNode sections = read();
    PrintWriter out = spec.commandLine().getOut();
    for (Map.Entry<String, JsonNode> section : sections.properties()) {
      check(section.getKey(), section.getValue(), out);
    }
    out.println(passed + " passed, " + failed + " failed, " + skipped + " skipped");
    out.flush();
    return failed > 0 ? 1 : 0;
  }

  private JsonNode read() {
    JsonNode root;
    try {
      JsonMapper json =
          JsonMapper.builder().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS).build();
      root = json.readTree(Files.readAllBytes(file));
    } catch (JsonProcessingException e) {
      int line = e.getLocation() == null ? 1 : e.getLocation().getLineNr();
      throw new BadInputException("%s:%d: no JSON: %s", file, line, e.getOriginalMessage());
    } catch (NoSuchFileException e) {
      throw new BadInputException("%s: no such file", file);
    } catch (IOException e) {
      throw new BadInputException("%s: cannot be read: %s", file, e.getMessage());
    }
    if (!root.isObject() || root.isEmpty()) {
      throw new BadInputException("%s: no JSON object with a list of vectors a section", file);
    }
    for (JsonNode section : root) {
      if (!section.isArray()) {
        throw new BadInputException("%s: no JSON object with a list of vectors a section", file);
      }
    }
    return root;
  }

  private void check(String name, JsonNode vectors, PrintWriter out) {
    Consumer<JsonNode> check = CHECKS.get(name);
    if (check == null) {
      skipped += vectors.size();
      out.println(name + ": " + vectors.size() + " skipped, this build has no check for them");
      return;
    }
    int failedBefore = failed;
    for (int i = 0; i < vectors.size(); i++) {
      try {
        check.accept(vectors.get(i));
        passed++;
      } catch (RuntimeException e) {
        failed++;
        out.println(name + "[" + i + "]: " + e.getMessage());
      }
    }
    int wrong = failed - failedBefore;
    out.println(name + ": " + (vectors.size() - wrong) + " passed, " + wrong + " failed");
  }
}
