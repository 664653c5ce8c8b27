package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.databind.JsonNode;
import io.umbp.core.Golden;
import io.umbp.core.identity.BlockHasher.Sequence;
import java.util.List;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.From;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.Size;

class BlockHasherProperties {
  @Provide
  Arbitrary<JsonNode> goldenVectors() {
    return Arbitraries.of(
        Golden.section("block_hashes").map(each -> (JsonNode) each.get()[1]).toList());
  }

  @Property(tries = 500)
  void goldenHashesInRandomPieces(
      @ForAll @From("goldenVectors") JsonNode vector,
      @ForAll @Size(max = 40) List<@IntRange(min = 0, max = 40) Integer> pieces) {
    int[] tokens = Golden.ints(vector.get("token_ids"));
    Sequence sequence = BlockHasherTest.hasher(vector).start(BlockHasherTest.extras(vector));
    int from = 0;
    for (int piece : pieces) {
      int to = Math.min(tokens.length, from + piece);
      sequence.append(tokens, from, to);
      from = to;
    }
    sequence.append(tokens, from, tokens.length);
    assertEquals(BlockHasherTest.expected(vector), BlockHasherTest.hex(sequence.hashes()));
  }
}
