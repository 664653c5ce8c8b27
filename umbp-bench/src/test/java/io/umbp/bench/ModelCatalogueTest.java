package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.Kind;
import io.umbp.bench.CatalogueModel.StateCache;
import io.umbp.bench.CatalogueModel.TokenCache;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The expected bytes are worked out by hand from the models' public configurations. */
class ModelCatalogueTest {
  private static final ModelCatalogue CATALOGUE = ModelCatalogue.bundled();

  static List<String> names() {
    return CATALOGUE.names();
  }

  private static long count(CatalogueModel model, Kind kind) {
    return model.caches().stream().filter(cache -> cache.kind() == kind).count();
  }

  private static List<Integer> indexes(CatalogueModel model, Kind kind) {
    return IntStream.range(0, model.caches().size())
        .filter(i -> model.caches().get(i).kind() == kind)
        .boxed()
        .toList();
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      textBlock =
          """
          # name             | full | sliding | latent | indexer | state | bytes per token | state bytes
          llama-3.1-8b       |   32 |       0 |      0 |       0 |     0 |          131072 |        0
          llama-3.1-70b      |   80 |       0 |      0 |       0 |     0 |          327680 |        0
          qwen3-32b          |   64 |       0 |      0 |       0 |     0 |          262144 |        0
          qwen3-30b-a3b      |   48 |       0 |      0 |       0 |     0 |           98304 |        0
          qwen3-235b-a22b    |   94 |       0 |      0 |       0 |     0 |          192512 |        0
          mistral-7b-v0.1    |    0 |      32 |      0 |       0 |     0 |          131072 |        0
          gemma-3-27b        |   10 |      52 |      0 |       0 |     0 |          507904 |        0
          gpt-oss-20b        |   12 |      12 |      0 |       0 |     0 |           49152 |        0
          gpt-oss-120b       |   18 |      18 |      0 |       0 |     0 |           73728 |        0
          deepseek-v3        |    0 |       0 |     61 |       0 |     0 |           70272 |        0
          deepseek-v3.2      |    0 |       0 |     61 |      61 |     0 |           78324 |        0
          nemotron-h-8b      |    4 |       0 |      0 |       0 |    24 |           16384 | 51806208
          qwen3-next-80b-a3b |   12 |       0 |      0 |       0 |    36 |           24576 | 39518208
          """)
  void eachModelHasTheBytesOfItsConfiguration(
      String name,
      long full,
      long sliding,
      long latent,
      long indexer,
      long state,
      long bytesPerToken,
      long stateBytes) {
    CatalogueModel model = CATALOGUE.model(name);
    assertEquals(full, count(model, Kind.FULL));
    assertEquals(sliding, count(model, Kind.SLIDING));
    assertEquals(latent, count(model, Kind.LATENT));
    assertEquals(indexer, count(model, Kind.INDEXER));
    assertEquals(state, count(model, Kind.STATE));
    assertEquals(bytesPerToken, model.bytesPerToken());
    assertEquals(stateBytes, model.stateBytes());
  }

  @Test
  void theTableAboveHasEveryModel() {
    assertEquals(13, names().size());
  }

  @Test
  void fullLayersStandWhereTheConfigurationPutsThem() {
    assertEquals(
        List.of(5, 11, 17, 23, 29, 35, 41, 47, 53, 59),
        indexes(CATALOGUE.model("gemma-3-27b"), Kind.FULL));
    assertEquals(
        List.of(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23),
        indexes(CATALOGUE.model("gpt-oss-20b"), Kind.FULL));
    assertEquals(
        List.of(3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47),
        indexes(CATALOGUE.model("qwen3-next-80b-a3b"), Kind.FULL));
    assertEquals(
        List.of(
            "model.layers.7.mixer.attn",
            "model.layers.18.mixer.attn",
            "model.layers.29.mixer.attn",
            "model.layers.40.mixer.attn"),
        CATALOGUE.model("nemotron-h-8b").caches().stream()
            .filter(cache -> cache.kind() == Kind.FULL)
            .map(Cache::layerName)
            .toList());
  }

  @ParameterizedTest
  @CsvSource({
    "mistral-7b-v0.1, 4096",
    "gemma-3-27b, 1024",
    "gpt-oss-20b, 128",
    "gpt-oss-120b, 128"
  })
  void onlySlidingLayersHaveAWindow(String name, int window) {
    for (Cache cache : CATALOGUE.model(name).caches()) {
      TokenCache tokens = (TokenCache) cache;
      assertEquals(
          cache.kind() == Kind.SLIDING ? window : 0, tokens.slidingWindow(), cache.layerName());
    }
  }

  @ParameterizedTest
  @CsvSource({
    "llama-3.1-8b, 4, 32768",
    "llama-3.1-8b, 8, 16384",
    "llama-3.1-8b, 16, 16384",
    "qwen3-235b-a22b, 8, 48128",
    "deepseek-v3, 8, 70272",
    "deepseek-v3.2, 4, 78324",
  })
  void aRankHasItsHeadsAndAtLeastOne(String name, int ranks, long bytesPerToken) {
    assertEquals(bytesPerToken, CATALOGUE.model(name).onRank(ranks).bytesPerToken());
  }

  @ParameterizedTest
  @CsvSource({
    // (3 * (128*64 + 2*8*128) + 128*64*128) * 2 = 2,158,592; a rank of 4 has a quarter of all
    "nemotron-h-8b, 1, 2158592",
    "nemotron-h-8b, 4, 539648",
    // with 16 ranks each needs one of the 8 groups: (3 * (8*64 + 2*1*128) + 8*64*128) * 2
    "nemotron-h-8b, 16, 135680",
    // (3 * (32*128 + 2*16*128) + 32*128*128) * 2
    "qwen3-next-80b-a3b, 1, 1097728",
    "qwen3-next-80b-a3b, 2, 548864",
  })
  void aStateIsSharedByHeads(String name, int ranks, long bytes) {
    CatalogueModel model = CATALOGUE.model(name).onRank(ranks);
    for (Cache cache : model.caches()) {
      if (cache instanceof StateCache state) {
        assertEquals(bytes, state.bytes(), cache.layerName());
      }
    }
  }

  @Test
  void headsThatCannotBeSharedAreRefused() {
    BadInputException thrown =
        assertThrows(BadInputException.class, () -> CATALOGUE.model("llama-3.1-8b").onRank(3));
    assertEquals(
        "8 KV heads of layer model.layers.0.self_attn.attn cannot be shared by 3 ranks: neither"
            + " number divides the other",
        thrown.getMessage());
    assertThrows(BadInputException.class, () -> CATALOGUE.model("nemotron-h-8b").onRank(24));
  }

  @ParameterizedTest
  @MethodSource("names")
  void scalingKeepsHeadsAndNeverReachesZero(String name) {
    CatalogueModel model = CATALOGUE.model(name);
    CatalogueModel small = model.scaledDown(1 << 30);
    for (int i = 0; i < small.caches().size(); i++) {
      if (small.caches().get(i) instanceof TokenCache tokens) {
        TokenCache original = (TokenCache) model.caches().get(i);
        assertEquals(original.heads(), tokens.heads());
        assertEquals(1, tokens.keySize());
        assertEquals(Math.min(1, original.valueSize()), tokens.valueSize());
      } else {
        StateCache state = (StateCache) small.caches().get(i);
        assertEquals(2L * state.heads(), state.bytes());
      }
    }
    assertEquals(131072 / 16, CATALOGUE.model("llama-3.1-8b").scaledDown(16).bytesPerToken());
  }

  @Test
  void anUnknownNameListsTheKnownOnes() {
    BadInputException thrown =
        assertThrows(BadInputException.class, () -> CATALOGUE.model("llama"));
    String message = Objects.requireNonNull(thrown.getMessage());
    assertTrue(
        message.startsWith("there is no model 'llama' in the catalogue, it has llama-3.1-8b,"));
    for (String name : names()) {
      assertTrue(message.contains(name), message);
    }
  }

  @Test
  void everyFigureHasASource() throws IOException {
    try (InputStream in = ModelCatalogue.class.getResourceAsStream("models.json")) {
      for (JsonNode model : new ObjectMapper().readTree(in).get("models")) {
        String source = model.get("source").asText();
        assertTrue(source.startsWith("https://") && source.endsWith("/config.json"), source);
        for (JsonNode added : model.path("engine")) {
          assertTrue(added.get("source").asText().startsWith("https://"), added.toString());
          assertTrue(added.has("value"), added.toString());
        }
      }
    }
  }
}
