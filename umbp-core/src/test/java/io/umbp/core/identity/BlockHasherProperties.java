package io.umbp.core.identity;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.databind.JsonNode;
import com.google.common.hash.Hashing;
import com.google.common.primitives.Bytes;
import com.google.common.primitives.Ints;
import io.umbp.core.Golden;
import io.umbp.core.identity.BlockHasher.Extras;
import io.umbp.core.identity.BlockHasher.Media;
import io.umbp.core.identity.BlockHasher.Sequence;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
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

  /** The extras of a prompt as plain values. */
  record Prompt(
      Optional<String> lora,
      Optional<String> salt,
      List<Media> media,
      List<Byte> embeddings,
      int bytesPerToken) {

    Extras extras(int blockSize) {
      byte[] bytes = Bytes.toArray(embeddings);
      return Extras.none()
          .withLoraName(lora.orElse(null))
          .withCacheSalt(salt.orElse(null))
          .withMedia(media)
          .withPromptEmbeddings(
              bytes.length == 0 ? null : ByteBuffer.wrap(bytes), bytesPerToken, blockSize);
    }

    /** What {@link BlockHasher} documents of a block's keys, as lists, numbers, texts and bytes. */
    List<Object> keys(boolean strict, int block, int blockSize) {
      int start = block * blockSize;
      List<Object> keys = new ArrayList<>();
      lora.ifPresent(name -> keys.add(strict ? List.of(1, name) : name));
      for (Media each : sortedMedia()) {
        int offset = each.offset() - start;
        if (offset < blockSize && offset + each.length() > 0) {
          keys.add(
              strict
                  ? List.of(2, each.identifier(), offset, each.length())
                  : List.of(each.identifier(), offset));
        }
      }
      if (block == 0) {
        salt.ifPresent(text -> keys.add(strict ? List.of(3, text) : text));
      }
      if (!embeddings.isEmpty()) {
        int from = Math.min(embeddings.size(), start * bytesPerToken);
        int to = Math.min(embeddings.size(), (start + blockSize) * bytesPerToken);
        byte[] digest = sha256(Bytes.toArray(embeddings.subList(from, to)));
        keys.add(strict ? List.of(4, digest, (to - from) / bytesPerToken) : digest);
      }
      return keys;
    }

    private List<Media> sortedMedia() {
      List<Media> sorted = new ArrayList<>(media);
      sorted.sort(Comparator.comparingInt(Media::offset));
      return sorted;
    }

    /**
     * This prompt with those of its extras from another whose bits are set, or with two swapped.
     */
    Prompt with(Prompt other, int bits) {
      Prompt embedded = (bits & 8) == 0 ? this : other;
      return new Prompt(
          (bits & 16) != 0 ? salt : (bits & 1) == 0 ? lora : other.lora,
          (bits & 16) != 0 ? lora : (bits & 2) == 0 ? salt : other.salt,
          (bits & 4) == 0 ? media : other.media,
          embedded.embeddings,
          embedded.bytesPerToken);
    }

    /** Equal for prompts that mean the same. */
    List<Object> meaning() {
      return List.of(
          lora, salt, sortedMedia(), embeddings, embeddings.isEmpty() ? 0 : bytesPerToken);
    }
  }

  @Provide
  Arbitrary<Prompt> prompts() {
    Arbitrary<String> texts = Arbitraries.of("a", "b", "aa", "\u0001", "a".repeat(24));
    Arbitrary<Media> media =
        Combinators.combine(
                Arbitraries.of("a", "b"),
                Arbitraries.integers().between(0, 4),
                Arbitraries.integers().between(1, 8))
            .as(Media::new);
    Arbitrary<Integer> widths = Arbitraries.integers().between(1, 2);
    Arbitrary<List<Byte>> bytes =
        Arbitraries.bytes().between((byte) 0, (byte) 1).list().ofMaxSize(4);
    return Combinators.combine(
            texts.optional(0.5), texts.optional(0.5), media.list().ofMaxSize(3), bytes, widths)
        .as(
            (lora, salt, items, embeddings, width) ->
                new Prompt(
                    lora,
                    salt,
                    items,
                    embeddings.subList(0, embeddings.size() / width * width),
                    width));
  }

  @Property
  void differentExtrasHaveDifferentStrictBytes(
      @ForAll @From("prompts") Prompt one,
      @ForAll @From("prompts") Prompt random,
      @ForAll @IntRange(min = 0, max = 31) int changed,
      @ForAll @IntRange(min = 1, max = 40) int blockSize) {
    Prompt other = one.with(random, changed);
    assertEquals(
        one.meaning().equals(other.meaning()),
        strictBytes(one, blockSize).equals(strictBytes(other, blockSize)));
  }

  /** The keys of as many blocks as have any of their own, one text a block. */
  private static List<String> strictBytes(Prompt prompt, int blockSize) {
    ExtraKeys keys = new ExtraKeys(prompt.extras(blockSize), true, blockSize);
    byte[] target = new byte[keys.maxBytes()];
    List<String> blocks = new ArrayList<>();
    for (int block = 0; block * blockSize < 13; block++) {
      blocks.add(HexFormat.of().formatHex(target, 0, keys.put(target, 0, block)));
    }
    return blocks;
  }

  @Property
  void hashesAreThoseOfASimpleEncoder(
      @ForAll @From("prompts") Prompt prompt,
      @ForAll @IntRange(min = 1, max = 6) int blockSize,
      @ForAll boolean strict,
      @ForAll @Size(max = 16) List<@IntRange(min = 0) Integer> tokens) {
    BlockHasher hasher =
        strict ? BlockHasher.strict("s", blockSize) : BlockHasher.compatible("s", blockSize);
    List<String> expected = new ArrayList<>();
    byte[] parent = sha256(cbor("s"));
    for (int block = 0; (block + 1) * blockSize <= tokens.size(); block++) {
      List<Object> keys = prompt.keys(strict, block, blockSize);
      byte[] frame =
          Bytes.concat(
              new byte[] {(byte) 0x83},
              cbor(parent),
              cbor(tokens.subList(block * blockSize, (block + 1) * blockSize)),
              keys.isEmpty() ? new byte[] {(byte) 0xf6} : cbor(keys));
      parent = sha256(frame);
      expected.add(HexFormat.of().formatHex(parent));
    }
    assertEquals(
        expected, BlockHasherTest.hex(hasher.hash(Ints.toArray(tokens), prompt.extras(blockSize))));
  }

  private static byte[] sha256(byte[] bytes) {
    return Hashing.sha256().hashBytes(bytes).asBytes();
  }

  private static byte[] cbor(Object value) {
    if (value instanceof Integer number) {
      return number < 0 ? cborHead(1, -1L - number) : cborHead(0, number);
    }
    if (value instanceof byte[] bytes) {
      return Bytes.concat(cborHead(2, bytes.length), bytes);
    }
    if (value instanceof String text) {
      byte[] bytes = text.getBytes(UTF_8);
      return Bytes.concat(cborHead(3, bytes.length), bytes);
    }
    List<?> list = (List<?>) value;
    byte[] array = cborHead(4, list.size());
    for (Object each : list) {
      array = Bytes.concat(array, cbor(each));
    }
    return array;
  }

  private static byte[] cborHead(int majorType, long value) {
    if (value < 24) {
      return new byte[] {(byte) ((majorType << 5) + value)};
    }
    int log = value < 1 << 8 ? 0 : value < 1 << 16 ? 1 : 2;
    byte[] head = new byte[1 + (1 << log)];
    head[0] = (byte) ((majorType << 5) + 24 + log);
    for (int i = 1; i < head.length; i++) {
      head[i] = (byte) (value >> (8 * (head.length - 1 - i)));
    }
    return head;
  }
}
