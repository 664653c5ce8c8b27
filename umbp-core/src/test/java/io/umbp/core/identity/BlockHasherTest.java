package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.google.common.hash.Hashing;
import io.umbp.api.BlockHashes;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.Golden;
import io.umbp.core.identity.BlockHasher.Extras;
import io.umbp.core.identity.BlockHasher.Sequence;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

class BlockHasherTest {
  static Stream<Arguments> vectors() {
    return Golden.section("block_hashes");
  }

  static BlockHasher hasher(JsonNode vector) {
    return BlockHasher.compatible(
        vector.get("hash_seed").textValue(), vector.get("block_size").intValue());
  }

  static Extras extras(JsonNode vector) {
    return Extras.none()
        .withLoraName(vector.get("lora_name").textValue())
        .withCacheSalt(vector.get("cache_salt").textValue());
  }

  static List<String> expected(JsonNode vector) {
    List<String> hashes = new ArrayList<>();
    vector.get("block_hashes").forEach(hash -> hashes.add(hash.textValue()));
    return hashes;
  }

  static List<String> hex(BlockHashes hashes) {
    return IntStream.range(0, hashes.size()).mapToObj(i -> hashes.get(i).toString()).toList();
  }

  @ParameterizedTest(name = "golden block hashes {0}")
  @MethodSource("vectors")
  void goldenHashes(int index, JsonNode vector) {
    BlockHasher hasher = hasher(vector);
    int[] tokens = Golden.ints(vector.get("token_ids"));

    assertEquals(vector.get("none_hash").textValue(), hasher.firstParent().toString());
    assertEquals(expected(vector), hex(hasher.hash(tokens, extras(vector))));
  }

  @ParameterizedTest(name = "golden block hashes {0}, token by token")
  @MethodSource("vectors")
  void goldenHashesTokenByToken(int index, JsonNode vector) {
    BlockHasher hasher = hasher(vector);
    int[] tokens = Golden.ints(vector.get("token_ids"));
    List<String> expected = expected(vector);
    Sequence sequence = hasher.start(extras(vector));
    for (int i = 0; i < tokens.length; i++) {
      assertEquals((i + 1) / hasher.blockSize(), sequence.append(new int[] {tokens[i]}));
      assertEquals(expected.subList(0, sequence.size()), hex(sequence.hashes()));
    }
  }

  @Test
  @DisplayName("tokens at every step of CBOR's integer forms")
  void integersHaveTheShortestForm() {
    BlockHasher hasher = BlockHasher.compatible("0", 9);
    int[] tokens = {0, 23, 24, 255, 256, 65_535, 65_536, 16_777_216, Integer.MAX_VALUE};
    String block =
        "835820"
            + "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
            + "89"
            + "00"
            + "17"
            + "1818"
            + "18ff"
            + "190100"
            + "19ffff"
            + "1a00010000"
            + "1a01000000"
            + "1a7fffffff"
            + "f6";
    assertEquals(sha256(HexFormat.of().parseHex(block)), only(hasher, tokens, Extras.none()));
  }

  @ParameterizedTest
  @ValueSource(ints = {1, 23, 24, 255, 256, 65_535, 65_536})
  @DisplayName("blocks at every step of CBOR's array lengths")
  void arrayLengthsHaveTheShortestForm(int blockSize) {
    ByteArrayOutputStream block = new ByteArrayOutputStream();
    block.writeBytes(new byte[] {(byte) 0x83, 0x58, 0x20});
    block.writeBytes(BlockHasher.compatible("0", blockSize).firstParent().toBytes());
    if (blockSize < 24) {
      block.write(0x80 + blockSize);
    } else if (blockSize < 256) {
      block.writeBytes(new byte[] {(byte) 0x98, (byte) blockSize});
    } else if (blockSize < 65_536) {
      block.writeBytes(new byte[] {(byte) 0x99, (byte) (blockSize >> 8), (byte) blockSize});
    } else {
      block.writeBytes(new byte[] {(byte) 0x9a, 0, 1, 0, 0});
    }
    block.writeBytes(new byte[blockSize]);
    block.write(0xf6);
    assertEquals(
        sha256(block.toByteArray()),
        only(BlockHasher.compatible("0", blockSize), new int[blockSize], Extras.none()));
  }

  @Test
  @DisplayName("extra keys are UTF-8 texts: the LoRA name, then the salt")
  void extrasAreTexts() {
    BlockHasher hasher = BlockHasher.compatible("0", 1);
    Extras extras = Extras.none().withCacheSalt("é\uD83D\uDE00").withLoraName("a".repeat(24));
    String block =
        "835820"
            + "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
            + "8107"
            + "82"
            + "7818"
            + "61".repeat(24)
            + "66c3a9f09f9880";
    assertEquals(sha256(HexFormat.of().parseHex(block)), only(hasher, new int[] {7}, extras));
  }

  private static String sha256(byte[] bytes) {
    return Hashing.sha256().hashBytes(bytes).toString();
  }

  private static String only(BlockHasher hasher, int[] tokens, Extras extras) {
    List<String> hashes = hex(hasher.hash(tokens, extras));
    assertEquals(1, hashes.size());
    return hashes.get(0);
  }

  @Test
  @DisplayName("case 1: null means no extra; empty is refused, for it could mean either")
  void case1NullIsNoneAndEmptyIsRefused() {
    BlockHasher hasher = BlockHasher.compatible("0", 2);
    int[] tokens = {1, 2, 3, 4};
    Extras nulls = Extras.none().withLoraName("a").withLoraName(null).withCacheSalt(null);
    assertEquals(hex(hasher.hash(tokens, Extras.none())), hex(hasher.hash(tokens, nulls)));
    assertEquals(
        List.of(
            "a4d2c1b4e93a03eb50e0b865783b206c617b3b1479fb8a0aa6a9c4e888af6d5f",
            "bc5a1404fe3e258adafe3ad6aebc6ae6c17c21e3bda9517da501e33cf37ae950"),
        hex(hasher.hash(tokens, nulls)));
    assertRefused("LoRA name is empty; null means none", () -> nulls.withLoraName(""));
    assertRefused("cache salt is empty; null means none", () -> nulls.withCacheSalt(""));
    assertRefused(
        "hash seed is empty; engines that share KV need one fixed seed, such as \"0\"",
        () -> BlockHasher.compatible("", 16));
  }

  @Test
  @DisplayName("case 2: salt and adapter separate every block of 48 equal tokens")
  void case2SaltAndAdapterSeparateEveryBlock() {
    BlockHasher hasher = BlockHasher.compatible("0", 16);
    BlockIdentityCodec codec =
        new BlockIdentityCodec(new UMBPNamespace("m"), RankTopology.single());
    int[] tokens = IntStream.range(0, 48).toArray();
    Set<String> stored =
        new HashSet<>(codec.localKeys(0, hasher.hash(tokens, Extras.none().withCacheSalt("x"))));
    assertEquals(3, stored.size());
    Extras otherSalt = Extras.none().withCacheSalt("y");
    Extras adapter = Extras.none().withCacheSalt("x").withLoraName("b");
    for (Extras other : List.of(otherSalt, adapter, Extras.none())) {
      BlockHashes hashes = hasher.hash(tokens, other);
      assertEquals(3, hashes.size());
      assertTrue(Collections.disjoint(stored, codec.allRankKeys(0, hashes)));
    }
    assertEquals(0, hasher.hash(new int[0], Extras.none().withCacheSalt("x")).size());
  }

  @ParameterizedTest
  @CsvSource({
    ",, a4d2c1b4e93a03eb50e0b865783b206c617b3b1479fb8a0aa6a9c4e888af6d5f,"
        + " bc5a1404fe3e258adafe3ad6aebc6ae6c17c21e3bda9517da501e33cf37ae950",
    "a,, 70ebfec90ef2fb185e8fba65e68d9b55e8b2c7be3ad01d9036e8683c993afc54,"
        + " c503fdf78e4897272f19ccba8d20e1979f290ff1272e0ca730197356c5c77782",
    ",x, 0c09f448f7cec5c97092eb47c70f190133f80ff6d87d888449a805f4f8cf6b54,"
        + " b459a659126307487a517d4fa9e9fd3ca924545bd9b167c52e2f9b8a44e7348d",
    "a,x, 710b412b1889d7ed2ad1bc16e871bef16518419bba5fb38a1c79b0fa6c175f75,"
        + " 26dbff858e415aafe3338f56d1eb27f992c504112a6871642187d9323b37f5e6",
  })
  @DisplayName("the vectors of docs/key-format.md")
  void documentedHashes(@Nullable String lora, @Nullable String salt, String first, String second) {
    Extras extras = Extras.none().withLoraName(lora).withCacheSalt(salt);
    int[] tokens = {1, 2, 3, 4};
    assertEquals(List.of(first, second), hex(BlockHasher.compatible("0", 2).hash(tokens, extras)));
  }

  @Test
  @DisplayName("as in vLLM, a salt and an adapter of one name share the first block, no other")
  void extrasHaveNoKind() {
    BlockHasher hasher = BlockHasher.compatible("0", 2);
    int[] tokens = {1, 2, 3, 4};
    List<String> salted = hex(hasher.hash(tokens, Extras.none().withCacheSalt("x")));
    List<String> adapted = hex(hasher.hash(tokens, Extras.none().withLoraName("x")));
    assertEquals(salted.get(0), adapted.get(0));
    assertNotEquals(salted.get(1), adapted.get(1));
  }

  @Test
  void theSeedSeparatesHashes() {
    int[] tokens = {1, 2, 3, 4};
    assertNotEquals(
        hex(BlockHasher.compatible("0", 2).hash(tokens, Extras.none())),
        hex(BlockHasher.compatible("1", 2).hash(tokens, Extras.none())));
  }

  @Test
  void badTokensAreRefusedAndNothingIsAppended() {
    BlockHasher hasher = BlockHasher.compatible("0", 2);
    Sequence sequence = hasher.start(Extras.none());
    sequence.append(new int[] {1});
    assertRefused(
        "token id -1 at index 2 must be >= 0", () -> sequence.append(new int[] {7, 7, -1}));
    assertRefused(
        "tokens [1, 4) are outside [0, 3)", () -> sequence.append(new int[] {1, 2, 3}, 1, 4));
    assertRefused(
        "tokens [-1, 2) are outside [0, 3)", () -> sequence.append(new int[] {1, 2, 3}, -1, 2));
    assertRefused(
        "tokens [2, 1) are outside [0, 3)", () -> sequence.append(new int[] {1, 2, 3}, 2, 1));
    assertEquals(1, sequence.append(new int[] {-5, 2, -5}, 1, 2));
    assertEquals(hex(hasher.hash(new int[] {1, 2}, Extras.none())), hex(sequence.hashes()));
  }

  @Test
  void badSizesAndTextsAreRefused() {
    assertRefused(
        "block size 0 is outside [1, 1048576] tokens", () -> BlockHasher.compatible("0", 0));
    assertRefused(
        "block size 1048577 is outside [1, 1048576] tokens",
        () -> BlockHasher.compatible("0", BlockHasher.MAX_BLOCK_SIZE + 1));
    assertRefused(
        "cache salt of 3 characters has a lone surrogate and no UTF-8 form",
        () -> Extras.none().withCacheSalt("x\uD800y"));
    assertRefused(
        "hash seed of 1 characters has a lone surrogate and no UTF-8 form",
        () -> BlockHasher.compatible("\uDC00", 16));
  }

  @Test
  void moreBlocksThanAnArrayHoldsAreRefused() {
    BlockHasher.checkBlocks(67_108_863);
    assertRefused(
        "the tokens make 67108864 blocks, a sequence has at most 67108863",
        () -> BlockHasher.checkBlocks(67_108_864));
  }

  @Test
  void hashesAreCopiesOfAnyPart() {
    Sequence sequence = BlockHasher.compatible("0", 1).start(Extras.none());
    sequence.append(new int[] {1, 2, 3});
    BlockHashes before = sequence.hashes();
    List<String> hex = hex(before);
    sequence.append(IntStream.range(0, 100).toArray());
    assertEquals(103, sequence.size());
    assertEquals(hex, hex(before));
    assertEquals(hex, hex(sequence.hashes(0, 3)));
    assertEquals(hex.subList(1, 2), hex(sequence.hashes(1, 2)));
    assertEquals(0, sequence.hashes(103, 103).size());
    assertRefused("blocks [0, 104) are outside [0, 103)", () -> sequence.hashes(0, 104));
    assertRefused("blocks [-1, 2) are outside [0, 103)", () -> sequence.hashes(-1, 2));
    assertRefused("blocks [3, 2) are outside [0, 103)", () -> sequence.hashes(3, 2));
  }

  @Test
  void sequencesOfOneHasherAreIndependent() {
    BlockHasher hasher = BlockHasher.compatible("42", 4);
    Sequence first = hasher.start(Extras.none());
    Sequence second = hasher.start(Extras.none());
    int[] tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int token : tokens) {
      first.append(new int[] {token});
      second.append(new int[] {token + 1});
    }
    assertEquals(hex(hasher.hash(tokens, Extras.none())), hex(first.hashes()));
    int[] shifted = Arrays.stream(tokens).map(token -> token + 1).toArray();
    assertEquals(hex(hasher.hash(shifted, Extras.none())), hex(second.hashes()));
  }

  private static void assertRefused(String message, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
