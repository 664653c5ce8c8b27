package io.umbp.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.GZIPInputStream;

/** What a replay must count, found without umbp: an LRU of block ids and the rules of the trace. */
final class TraceSimulation {
  final Map<String, Long> figures = new LinkedHashMap<>();

  private final LinkedHashMap<Long, Boolean> present = new LinkedHashMap<>(16, 0.75f, true);

  TraceSimulation(String sample, int limit, int capacity) throws IOException {
    this(sample, limit, capacity, 1);
  }

  TraceSimulation(String sample, int limit, int capacity, int rounds) throws IOException {
    List<JsonNode> requests = read(sample, limit);
    for (int round = 0; round < rounds; round++) {
      requests.forEach(request -> serve(request, capacity));
    }
  }

  private static List<JsonNode> read(String sample, int limit) throws IOException {
    List<JsonNode> requests = new ArrayList<>();
    try (BufferedReader lines =
        new BufferedReader(
            new InputStreamReader(
                new GZIPInputStream(
                    TraceSimulation.class.getResourceAsStream("traces/" + sample + ".jsonl.gz")),
                StandardCharsets.UTF_8))) {
      ObjectMapper json = new ObjectMapper();
      for (String line = lines.readLine();
          line != null && requests.size() < limit;
          line = lines.readLine()) {
        requests.add(json.readTree(line));
      }
    }
    return requests;
  }

  private void serve(JsonNode request, int capacity) {
    int tokens = request.get("input_length").intValue();
    JsonNode ids = request.get("hash_ids");
    int full = Math.min(tokens / 512, ids.size());
    int usable = Math.min((tokens - 1) / 512, ids.size());
    int hits = 0;
    while (hits < usable && present.containsKey(ids.get(hits).longValue())) {
      hits++;
    }
    Set<Long> added = new LinkedHashSet<>();
    for (int i = hits; i < full; i++) {
      long id = ids.get(i).longValue();
      if (!present.containsKey(id)) {
        if (present.size() + added.size() == capacity) {
          present.remove(present.keySet().iterator().next());
          count("evicted_objects", 1);
        }
        added.add(id);
      }
    }
    added.forEach(id -> present.put(id, true));
    for (int i = full - 1; i >= 0; i--) {
      present.get(ids.get(i).longValue());
    }
    count("requests", 1);
    count("lookup_blocks", usable);
    count("hit_blocks", hits);
    count("stored_blocks", added.size());
    count("stored_objects", added.size());
    count("input_tokens", tokens);
    count("hit_tokens", hits * 512L);
    count("evicted_objects", 0);
  }

  private void count(String name, long more) {
    figures.merge(name, more, Long::sum);
  }
}
