package io.umbp.core.identity;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import io.umbp.api.UMBPException;
import io.umbp.core.identity.BlockHasher.Extras;
import io.umbp.core.identity.BlockHasher.Media;
import io.umbp.core.identity.BlockHasher.Sequence;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class ExtraKeysTest {
  private static final int[] TOKENS = IntStream.rangeClosed(1, 8).toArray();
  private static final List<Media> MEDIA = List.of(new Media("img", 1, 5), new Media("snd", 6, 2));

  /** Extras named by letters: L adapter "a", M media, S salt "x", E 3 embeddings of 2 bytes. */
  private static Extras extras(String letters) {
    Extras extras = Extras.none();
    if (letters.contains("L")) {
      extras = extras.withLoraName("a");
    }
    if (letters.contains("M")) {
      extras = extras.withMedia(MEDIA);
    }
    if (letters.contains("S")) {
      extras = extras.withCacheSalt("x");
    }
    if (letters.contains("E")) {
      extras = extras.withPromptEmbeddings(ByteBuffer.wrap(new byte[] {0, 1, 2, 3, 4, 5}), 2, 4);
    }
    return extras;
  }

  private static List<String> hash(BlockHasher hasher, Extras extras) {
    return BlockHasherTest.hex(hasher.hash(TOKENS, extras));
  }

  @ParameterizedTest(name = "vectors of docs/key-format.md, compatible: {0}")
  @CsvSource({
    "M, cd312984d38672efee6cfe1c31df30ab3f20d7b5d5ab3b9dbc344df782b013f4,"
        + " ac5af6626ea6c23d467e2219b82a81fa7bb05c5657e9017bf27b3128f2f88dd7",
    "E, a1327ed7599a00c4d1dcb0237f2371d207721d064f3a8ed14855724328b67611,"
        + " 24832a43cfc36eef7bdd2020e9b8fbe887b5296adb8130d7262e07320f0a7b43",
    "LMSE, 3d0ac1b38bcd558493883753e8cda0051294dd3ad06cca6ff9d30b3b82d8e88d,"
        + " 6d46d7c7ee0ff687755a852c118291508e631c0e387b576ccd114b63b2554aee",
  })
  void documentedCompatibleHashes(String letters, String first, String second) {
    assertEquals(List.of(first, second), hash(BlockHasher.compatible("0", 4), extras(letters)));
  }

  @ParameterizedTest(name = "vectors of docs/key-format.md, strict: {0}")
  @CsvSource({
    "L, a4ddb4889344a333be40e9a73b50e6014ba5b03f7de750ab61507ef227c1fe26,"
        + " ca00bdcc0e88ccb1f88fbc0a34f9a462bbd202b844879d8c87cba927f8f48e36",
    "S, 838ce9d026d6e937a5f648133a153d7975331243001e05943aeab27789e18653,"
        + " e7c4e6808120a97164f6e9b1c23e3f961b9b506766c3f5d29df922074d4f774d",
    "M, 82a87096a95d21f22e2b2c3d3fab9e84cc6459034d0910a52cfd2408dda91fb0,"
        + " 8bce4c693af57b5764325bfda4075dfd31cd8b720ca75e57914e67d5ca28f2c8",
    "E, 7c6b0e4bbd0a19e6eb42929f08676539b8e90d2241c3335e6afe2981d38d804f,"
        + " 7cd6b82fa803dd498ab1815ed59c3f05118509bb7ed65b335668164921ba26bf",
    "LMSE, 8e25d44a5c8e6d5af7fc0aa867bb78ef2a0fd9deb5a1aea91aa875e4e271e7ea,"
        + " c0f53b9caa102b336dd0536fa06620c55f3a57b75a464c21ccdeb50d84a65f55",
  })
  void documentedStrictHashes(String letters, String first, String second) {
    assertEquals(List.of(first, second), hash(BlockHasher.strict("0", 4), extras(letters)));
  }

  @Test
  @DisplayName("the bytes of a block's keys, compatible: LoRA, media, salt, embeddings")
  void compatibleBytes() {
    Extras extras = extras("LMS");
    assertEquals("83" + "6161" + "8263696d6701" + "6178", keys(extras, false).get(0));
    assertEquals("83" + "6161" + "8263696d6722" + "8263736e6402", keys(extras, false).get(1));
    assertEquals("81" + "6161", keys(extras, false).get(2));
    String nothing = "5820e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assertEquals("81" + nothing, keys(extras("E"), false).get(1));
    assertEquals("f6", keys(extras("S"), false).get(1));
  }

  @Test
  @DisplayName("the bytes of a block's keys, strict: each with its kind")
  void strictBytes() {
    Extras extras = extras("LMS");
    assertEquals("83" + "82016161" + "840263696d670105" + "82036178", keys(extras, true).get(0));
    assertEquals(
        "83" + "82016161" + "840263696d672205" + "840263736e640202", keys(extras, true).get(1));
    String digest = "17e88db187afd62c16e5debf3e6527cd006bc012bc90b51a810cd80c2d511f43";
    assertEquals("81" + "83045820" + digest + "03", keys(extras("E"), true).get(0));
  }

  /** The keys of the first three blocks of 4 tokens, in hexadecimal. */
  private static List<String> keys(Extras extras, boolean strict) {
    ExtraKeys keys = new ExtraKeys(extras, strict, 4);
    byte[] target = new byte[keys.maxBytes()];
    List<String> blocks = new ArrayList<>();
    for (int block = 0; block < 3; block++) {
      int end = keys.put(target, 0, block);
      blocks.add(HexFormat.of().formatHex(target, 0, end));
    }
    return blocks;
  }

  @Test
  @DisplayName("case 2: media separate the blocks they touch and all after them, no block before")
  void case2MediaSeparateBlocks() {
    int[] tokens = new int[48];
    List<Extras> prompts =
        List.of(
            Extras.none(),
            Extras.none().withMedia(List.of(new Media("a", 20, 4))),
            Extras.none().withMedia(List.of(new Media("b", 20, 4))),
            Extras.none().withMedia(List.of(new Media("a", 21, 4))));
    for (BlockHasher hasher :
        List.of(BlockHasher.compatible("0", 16), BlockHasher.strict("0", 16))) {
      List<Long> distinct = new ArrayList<>();
      for (int block = 0; block < 3; block++) {
        int each = block;
        distinct.add(
            prompts.stream()
                .map(extras -> BlockHasherTest.hex(hasher.hash(tokens, extras)).get(each))
                .distinct()
                .count());
      }
      assertEquals(List.of(1L, 4L, 4L), distinct);
    }
  }

  @Test
  @DisplayName("strict: the same text as adapter, medium or salt gives different first blocks")
  void kindsNeverCollide() {
    List<Extras> sameText =
        List.of(
            Extras.none().withLoraName("x"),
            Extras.none().withCacheSalt("x"),
            Extras.none().withMedia(List.of(new Media("x", 0, 1))),
            Extras.none().withLoraName("x").withCacheSalt("x"));
    BlockHasher strict = BlockHasher.strict("0", 4);
    assertEquals(
        4, sameText.stream().map(extras -> hash(strict, extras).get(0)).distinct().count());
    BlockHasher compatible = BlockHasher.compatible("0", 4);
    assertEquals(
        3, sameText.stream().map(extras -> hash(compatible, extras).get(0)).distinct().count());
  }

  @ParameterizedTest
  @ValueSource(strings = {"0", "seed"})
  @DisplayName("strict without extras hashes as compatible does, and says another algorithm")
  void strictWithoutExtras(String seed) {
    BlockHasher strict = BlockHasher.strict(seed, 4);
    BlockHasher compatible = BlockHasher.compatible(seed, 4);
    assertEquals(hash(compatible, Extras.none()), hash(strict, Extras.none()));
    assertEquals(compatible.firstParent(), strict.firstParent());
    assertEquals("sha256_cbor", compatible.algorithm());
    assertEquals("sha256_cbor_strict", strict.algorithm());
    assertNotEquals(hash(compatible, extras("L")), hash(strict, extras("L")));
  }

  @Test
  void embeddingsAreReadBetweenPositionAndLimit() {
    ByteBuffer direct = ByteBuffer.allocateDirect(10);
    direct.put(new byte[] {9, 9, 0, 1, 2, 3, 4, 5, 9, 9}).position(2).limit(8);
    Extras extras = Extras.none().withPromptEmbeddings(direct, 2, 4);
    assertEquals(2, direct.position());
    assertEquals(8, direct.limit());
    direct.put(2, (byte) 7);
    BlockHasher hasher = BlockHasher.strict("0", 4);
    assertEquals(hash(hasher, extras("E")), hash(hasher, extras));
    assertEquals(
        hash(hasher, Extras.none()), hash(hasher, extras.withPromptEmbeddings(null, 2, 4)));
  }

  @Test
  void mediaCountInOrderOfOffset() {
    List<Media> reversed = List.of(MEDIA.get(1), MEDIA.get(0));
    BlockHasher hasher = BlockHasher.compatible("0", 4);
    assertEquals(hash(hasher, extras("M")), hash(hasher, Extras.none().withMedia(reversed)));
    assertEquals(hash(hasher, Extras.none()), hash(hasher, extras("M").withMedia(List.of())));
  }

  @Test
  void badExtrasAreRefused() {
    Extras none = Extras.none();
    ByteBuffer six = ByteBuffer.wrap(new byte[6]);
    assertRefused("media identifier is empty", () -> new Media("", 0, 1));
    String range = "offset must be >= 0, length >= 1 and their sum <= 2147483647 tokens";
    assertRefused("media 'a' has offset -1 and length 1; " + range, () -> new Media("a", -1, 1));
    assertRefused("media 'a' has offset 0 and length 0; " + range, () -> new Media("a", 0, 0));
    assertRefused(
        "media 'a' has offset 2147483647 and length 1; " + range,
        () -> new Media("a", Integer.MAX_VALUE, 1));
    assertRefused(
        "media identifier of 2 characters has a lone surrogate and no UTF-8 form",
        () -> none.withMedia(List.of(new Media("a\uDC00", 0, 1))));
    String mebibyte = "a".repeat(1 << 20);
    List<Media> large = new ArrayList<>();
    for (int i = 0; i < 16; i++) {
      large.add(new Media(mebibyte, i, 1));
    }
    assertRefused(
        "identifiers of 16 media have 16777296 bytes, at most 16777216 are allowed",
        () -> none.withMedia(large));
    assertRefused(
        "0 embedding bytes a token must be >= 1", () -> none.withPromptEmbeddings(six, 0, 4));
    assertRefused(
        "6 bytes of prompt embeddings are no multiple of 4 bytes a token",
        () -> none.withPromptEmbeddings(six, 4, 4));
    assertRefused(
        "prompt embeddings are empty; null means none",
        () -> none.withPromptEmbeddings(ByteBuffer.allocate(0), 4, 4));
    assertRefused(
        "block size 0 is outside [1, 1048576] tokens", () -> none.withPromptEmbeddings(six, 2, 0));
    assertRefused(
        "prompt embeddings were digested for blocks of 8 tokens, the hasher's have 4",
        () -> BlockHasher.strict("0", 4).start(none.withPromptEmbeddings(six, 2, 8)));
  }

  @Test
  void hashingAllocatesNothingButRoomForTheHashes() {
    List<Media> media = new ArrayList<>();
    for (int i = 0; i < 100; i++) {
      media.add(new Media("image-" + i, 20 * i, 30));
    }
    Extras extras = extras("LSE").withMedia(media);
    BlockHasher hasher = BlockHasher.strict("0", 4);
    int[] tokens = new int[2_000];
    int blocks = tokens.length / 4;
    ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    long me = Thread.currentThread().getId();
    long least = Long.MAX_VALUE;
    for (int round = 0; round < 5; round++) {
      Sequence sequence = hasher.start(extras);
      long before = threads.getThreadAllocatedBytes(me);
      sequence.append(tokens);
      least = Math.min(least, threads.getThreadAllocatedBytes(me) - before);
    }
    long room = 2 * 512 * BlockHasher.HASH_LENGTH;
    assertTrue(least < room + blocks, least + " bytes for " + blocks + " blocks");

    int[] longPrompt = new int[40_000];
    int longBlocks = longPrompt.length / 4;
    long leastOfAll = Long.MAX_VALUE;
    for (int round = 0; round < 5; round++) {
      long before = threads.getThreadAllocatedBytes(me);
      assertEquals(longBlocks, hasher.hash(longPrompt, Extras.none()).size());
      leastOfAll = Math.min(leastOfAll, threads.getThreadAllocatedBytes(me) - before);
    }
    long once = (long) longBlocks * BlockHasher.HASH_LENGTH;
    assertTrue(leastOfAll < once + longBlocks, leastOfAll + " bytes for hashes of " + once);
  }

  private static void assertRefused(String message, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
    assertEquals(message, e.getMessage());
  }
}
