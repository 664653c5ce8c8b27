package io.umbp.core;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.params.provider.Arguments;

/** The golden vectors, which an independent program computed. */
public final class Golden {
  private static final JsonNode ROOT = read();

  private Golden() {}

  private static JsonNode read() {
    try (InputStream in = Golden.class.getResourceAsStream("/golden/golden.json")) {
      return new ObjectMapper().readTree(in);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** Arguments (index, vector) for each vector of a section. */
  public static Stream<Arguments> section(String name) {
    JsonNode section = ROOT.get(name);
    return IntStream.range(0, section.size()).mapToObj(i -> Arguments.of(i, section.get(i)));
  }

  public static int[] ints(JsonNode array) {
    return IntStream.range(0, array.size()).map(i -> array.get(i).intValue()).toArray();
  }
}
