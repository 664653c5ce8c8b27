package io.umbp.bench;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.HdrHistogram.Histogram;

/** What a replay counted. Thread-confined. */
final class ReplayReport {
  final Histogram lookupNanos = new Histogram(3);
  final Histogram loadNanos = new Histogram(3);
  final MemorySamples memory = new MemorySamples();
  final List<String> defects = new ArrayList<>();
  long requests;
  long inputTokens;
  long lookupBlocks;
  long hitBlocks;
  long storedBlocks;
  long storedObjects;
  long storedBytes;
  long evictedObjects;
  long loadedBytes;
  long failedKeys;
  long checkedBytes;
  long corruptBytes;
  long elapsedNanos;

  /** The figures under their names in JSON. */
  Map<String, Long> figures() {
    Map<String, Long> figures = new LinkedHashMap<>();
    figures.put("requests", requests);
    figures.put("lookup_blocks", lookupBlocks);
    figures.put("hit_blocks", hitBlocks);
    figures.put("stored_blocks", storedBlocks);
    figures.put("stored_objects", storedObjects);
    figures.put("evicted_objects", evictedObjects);
    figures.put("input_tokens", inputTokens);
    figures.put("hit_tokens", hitBlocks * Trace.BLOCK_TOKENS);
    figures.put("loaded_bytes", loadedBytes);
    figures.put("stored_bytes", storedBytes);
    figures.put("failed_keys", failedKeys);
    figures.put("corrupt_bytes", corruptBytes);
    figures.put("lookup_p50_ns", lookupNanos.getValueAtPercentile(50));
    figures.put("lookup_p99_ns", lookupNanos.getValueAtPercentile(99));
    figures.put("load_p50_ns", loadNanos.getValueAtPercentile(50));
    figures.put("load_p99_ns", loadNanos.getValueAtPercentile(99));
    return figures;
  }

  /** The figures as lines for people. */
  List<String> table() {
    List<String> lines = new ArrayList<>();
    figures()
        .forEach(
            (name, value) ->
                lines.add(
                    String.format(
                        Locale.ROOT,
                        "  %-16s %,18d%s",
                        name.replace('_', ' '),
                        value,
                        note(name))));
    lines.add(String.format(Locale.ROOT, "  %-16s %18.2f", "seconds", elapsedNanos / 1e9));
    return lines;
  }

  private String note(String name) {
    if (name.equals("hit_blocks") && lookupBlocks > 0) {
      return String.format(
          Locale.ROOT, "  %.1f %% of the lookup blocks", 100.0 * hitBlocks / lookupBlocks);
    }
    if (name.equals("corrupt_bytes")) {
      return String.format(Locale.ROOT, "  of %,d loaded and checked", checkedBytes);
    }
    return "";
  }
}
