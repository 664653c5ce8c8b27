package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.ElementType;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.From;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.Tuple;

class NamespaceManifestProperties {
  /** Texts of characters that have a meaning in the format, and of any others. */
  @Provide
  Arbitrary<String> texts() {
    return Arbitraries.frequencyOf(
            Tuple.of(3, Arbitraries.of('a', '=', '\\', 'u', '0', '\n', '[', ']', '.', ',', ' ')),
            Tuple.of(1, Arbitraries.chars().all()))
        .list()
        .ofMinSize(1)
        .ofMaxSize(6)
        .map(
            chars -> {
              StringBuilder text = new StringBuilder();
              chars.forEach(text::append);
              return text.toString();
            });
  }

  @Provide
  Arbitrary<Map<String, String>> overrides() {
    return Arbitraries.maps(texts(), texts()).ofMaxSize(4);
  }

  private static NamespaceManifest manifest(Map<String, String> overrides, String layer) {
    KVCacheSpec spec =
        new KVCacheSpec.Attention(
            "FullAttentionSpec", 16, ElementType.BF16, 8, 128, 128, TPSharding.SHARDED, 0);
    return NamespaceManifest.builder("m")
        .overrides(overrides)
        .cache(
            new KVCacheConfig(
                List.of(new Group(List.of(new Layer(layer, spec)), Transfer.ENABLED)),
                List.of(Tensor.packed(KVCacheLayout.LBNHC, KVSplit.BLOCKS, 4, List.of(layer)))),
            RankTopology.single())
        .hash("own", BlockHash.fromHex("00"), 16)
        .build();
  }

  @Property
  void whatIsWrittenIsReadBack(
      @ForAll @From("overrides") Map<String, String> overrides,
      @ForAll @From("texts") String layer) {
    NamespaceManifest manifest = manifest(overrides, layer);
    NamespaceManifest read = NamespaceManifest.parse(manifest.text());
    assertEquals(manifest, read);
    assertEquals(manifest.text(), read.text());
    assertEquals(manifest.namespace(), read.namespace());
    assertEquals(List.of(), manifest.explain(read));
    assertTrue(manifest.text().chars().allMatch(c -> c == '\n' || (c >= ' ' && c <= '~')));
  }

  @Property
  void differentFieldsGiveDifferentTexts(
      @ForAll @From("overrides") Map<String, String> one,
      @ForAll @From("overrides") Map<String, String> other,
      @ForAll @From("texts") String layer) {
    assertEquals(one.equals(other), manifest(one, layer).equals(manifest(other, layer)));
    assertEquals(one.equals(other), manifest(one, layer).explain(manifest(other, layer)).isEmpty());
  }

  @Property(tries = 3_000)
  void mutatedTextIsReadAsItStandsOrRefused(
      @ForAll @From("overrides") Map<String, String> overrides, @ForAll long seed) {
    SplittableRandom random = new SplittableRandom(seed);
    String text = mutate(manifest(overrides, "l").text(), random);
    try {
      assertEquals(text, NamespaceManifest.parse(text).text());
    } catch (UMBPException e) {
      assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    }
  }

  private static String mutate(String text, SplittableRandom random) {
    StringBuilder mutated = new StringBuilder(text);
    String characters = "=\\u0afF\n\r []é.";
    for (int i = 1 + random.nextInt(3); i > 0; i--) {
      int at = random.nextInt(mutated.length());
      int end = Math.min(mutated.length(), at + 1 + random.nextInt(20));
      char c = characters.charAt(random.nextInt(characters.length()));
      switch (random.nextInt(4)) {
        case 0 -> mutated.setCharAt(at, c);
        case 1 -> mutated.insert(at, c);
        case 2 -> mutated.insert(at, mutated.substring(at, end));
        default -> mutated.delete(at, end);
      }
      if (mutated.length() == 0) {
        break;
      }
    }
    return mutated.toString();
  }
}
