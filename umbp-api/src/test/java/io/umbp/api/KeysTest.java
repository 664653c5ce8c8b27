package io.umbp.api;

import static io.umbp.api.Refusals.assertRefused;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.ListIterator;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Hashes, ranks, namespaces, keys and their columns. */
class KeysTest {
  private static final UMBPNamespace NAMESPACE =
      new UMBPNamespace("194ba6ca064be076ca7fed5e5a6a505e");
  private static final RankNamespace RANK_0 = new RankNamespace(0, 0, 0, 0);
  private static final RankNamespace RANK_1 = new RankNamespace(1, 0, 1, 0);
  private static final String PREFIX = "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:";

  private static byte[] counting(int length) {
    byte[] bytes = new byte[length];
    for (int i = 0; i < length; i++) {
      bytes[i] = (byte) i;
    }
    return bytes;
  }

  private static BlockHashes column(String... hashes) {
    return BlockHashes.of(Arrays.stream(hashes).map(BlockHash::fromHex).toList());
  }

  @Test
  void case1KeysOfEqualBytesFindEachOtherAndKeepTheirOwnCopy() {
    byte[] one = counting(32);
    byte[] two = counting(32);
    BlockKey first = new BlockKey(new UMBPNamespace("m"), RANK_0, 0, BlockHash.of(one));
    BlockKey second = new BlockKey(new UMBPNamespace("m"), RANK_0, 0, BlockHash.of(two));
    Map<BlockKey, String> map = new HashMap<>(Map.of(first, "found"));
    Arrays.fill(one, (byte) 0xEE);
    first.hash().toBytes()[0] = 9;
    assertEquals(first, second);
    assertEquals(first.hashCode(), second.hashCode());
    assertEquals("found", map.get(second));
    assertEquals(
        PREFIX + "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        first.toString());
  }

  @Test
  void theGoldenKey() {
    String text = "umbp:vllm:v1:194ba6ca064be076ca7fed5e5a6a505e:tp0:pcp0:dcp0:pp0:g0:00ff";
    BlockKey key = new BlockKey(NAMESPACE, RANK_0, 0, BlockHash.fromHex("00FF"));
    assertEquals(text, key.toString());
    assertEquals(key, BlockKey.parse(text));
  }

  @Test
  void everyPartOfAKeyCounts() {
    BlockKey key = new BlockKey(NAMESPACE, RANK_0, 0, BlockHash.fromHex("0a"));
    List<BlockKey> others =
        List.of(
            new BlockKey(new UMBPNamespace("n"), RANK_0, 0, key.hash()),
            new BlockKey(NAMESPACE, new RankNamespace(1, 0, 0, 0), 0, key.hash()),
            new BlockKey(NAMESPACE, new RankNamespace(0, 1, 0, 0), 0, key.hash()),
            new BlockKey(NAMESPACE, new RankNamespace(0, 0, 1, 0), 0, key.hash()),
            new BlockKey(NAMESPACE, new RankNamespace(0, 0, 0, 1), 0, key.hash()),
            new BlockKey(NAMESPACE, RANK_0, 1, key.hash()),
            new BlockKey(NAMESPACE, RANK_0, 0, BlockHash.fromHex("0a00")));
    Set<String> texts = new TreeSet<>(Set.of(key.toString()));
    for (BlockKey other : others) {
      assertNotEquals(key, other);
      assertTrue(texts.add(other.toString()), other.toString());
    }
  }

  @Test
  void hashLengthsAreBounded() {
    assertEquals(1, BlockHash.of(new byte[1]).length());
    assertEquals(255, BlockHash.of(new byte[255]).length());
    assertEquals(255, BlockHash.fromHex("ab".repeat(255)).length());
    String message = "block hash has %d bytes, allowed are 1 to 255";
    assertRefused(message.formatted(0), () -> BlockHash.of(new byte[0]));
    assertRefused(message.formatted(256), () -> BlockHash.of(new byte[256]));
    assertRefused(message.formatted(0), () -> BlockHash.fromHex(""));
    assertRefused(message.formatted(256), () -> BlockHash.fromHex("ab".repeat(256)));
    assertRefused(message.formatted(0), () -> BlockHashes.of(0, new byte[0]));
    assertRefused(message.formatted(256), () -> BlockHashes.of(256, new byte[256]));
    assertRefused(message.formatted(-1), () -> BlockHashes.of(-1, new byte[1]));
  }

  @Test
  void hexIsTwoDigitsAByteOfEitherCase() {
    assertArrayEquals(new byte[] {0, (byte) 0xAB, 0x7F}, BlockHash.fromHex("00aB7f").toBytes());
    assertEquals("00ab7f", BlockHash.fromHex("00AB7F").toString());
    assertRefused("block hash 'abc' is not hexadecimal", () -> BlockHash.fromHex("abc"));
    assertRefused("block hash '0g' is not hexadecimal", () -> BlockHash.fromHex("0g"));
    assertRefused("block hash '%d' is not hexadecimal", () -> BlockHash.fromHex("%d"));
  }

  @Test
  void aHashEqualsOnlyHashesOfItsBytes() {
    BlockHash hash = BlockHash.fromHex("0102");
    assertNotEquals(hash, BlockHash.fromHex("0103"));
    Set<Integer> hashCodes = new HashSet<>();
    for (int i = 0; i < 256; i++) {
      hashCodes.add(BlockHash.of(new byte[] {1, (byte) i}).hashCode());
    }
    assertEquals(256, hashCodes.size());
    assertNotEquals(hash, BlockHash.fromHex("010200"));
    assertFalse(hash.equals((Object) "0102"));
  }

  @Test
  void aColumnCopiesWhatItIsGiven() {
    byte[] bytes = {1, 2, 3, 4};
    BlockHashes hashes = BlockHashes.of(2, bytes);
    bytes[2] = 9;
    assertEquals("0304", hashes.get(1).toString());
    List<BlockHash> list = new ArrayList<>(List.of(BlockHash.fromHex("0a")));
    BlockHashes ofList = BlockHashes.of(list);
    list.add(BlockHash.fromHex("0b"));
    assertEquals(1, ofList.size());
    hashes.get(0).toBytes()[0] = 9;
    assertEquals("0102", hashes.get(0).toString());
    assertEquals("2 hashes of 2 bytes", hashes.toString());
  }

  @Test
  void columnsOfABuilderStayAsTheyWereTaken() {
    BlockHashes.Builder builder = new BlockHashes.Builder(2, 1);
    byte[] source = new byte[4];
    List<BlockHashes> taken = new ArrayList<>();
    for (int i = 0; i < 100; i++) {
      taken.add(builder.column());
      source[1] = (byte) i;
      source[2] = (byte) (i * 7);
      builder.append(source, 1);
    }
    assertEquals(100, builder.size());
    for (int size = 0; size < 100; size++) {
      BlockHashes column = taken.get(size);
      assertEquals(size, column.size());
      for (int i = 0; i < size; i++) {
        assertTrue(column.matches(i, new byte[] {(byte) i, (byte) (i * 7)}), size + " " + i);
      }
    }
    assertRefused("-1 expected hashes; must be >= 0", () -> new BlockHashes.Builder(2, -1));
    assertRefused(
        "1073741824 hashes of 2 bytes exceed the limit of 2147483647 bytes a column",
        () -> new BlockHashes.Builder(2, 1 << 30));
    assertThrows(UMBPException.class, () -> new BlockHashes.Builder(0, 1));
  }

  @Test
  void aColumnHasOneLength() {
    assertRefused(
        "7 bytes of hashes are no multiple of the hash length 2",
        () -> BlockHashes.of(2, new byte[7]));
    assertRefused(
        "block hash 1 has 1 bytes, the first has 2; a column needs one length",
        () -> column("0a0b", "0c"));
    assertRefused(
        "10000000 hashes of 255 bytes exceed the limit of 2147483647 bytes a column",
        () -> BlockHashes.of(Collections.nCopies(10_000_000, BlockHash.of(new byte[255]))));
  }

  @Test
  void emptyColumnsHaveNoElements() {
    assertEquals(0, BlockHashes.empty().size());
    assertSame(BlockHashes.empty(), BlockHashes.of(List.of()));
    assertEquals(0, BlockHashes.of(8, new byte[0]).size());
    assertEquals(8, BlockHashes.of(8, new byte[0]).hashLength());
    assertRefused("hash index 0 is outside [0, 0)", () -> BlockHashes.empty().get(0));
  }

  @Test
  void slicesAndSelectionsNameTheirElements() {
    BlockHashes hashes = column("0a00", "0b01", "0c02", "0d03");
    BlockHashes slice = hashes.slice(1, 4).slice(1, 3);
    assertEquals(2, slice.size());
    assertEquals(2, slice.hashLength());
    assertEquals("0c02", slice.get(0).toString());
    assertEquals("0d03", slice.get(1).toString());
    assertEquals(hashes.fingerprint(3), slice.fingerprint(1));
    byte[] target = new byte[5];
    slice.copyTo(1, target, 2);
    assertArrayEquals(new byte[] {0, 0, 0x0d, 3, 0}, target);
    assertTrue(slice.matches(0, new byte[] {0x0c, 2}));
    assertFalse(slice.matches(0, new byte[] {0x0c, 3}));
    assertFalse(slice.matches(0, new byte[] {0x0c}));
    assertFalse(slice.matches(0, new byte[] {0x0c, 2, 0}));
    assertEquals(0, hashes.slice(4, 4).size());
    assertRefused("hash index 2 is outside [0, 2)", () -> slice.get(2));
    assertRefused("hash index -1 is outside [0, 2)", () -> slice.fingerprint(-1));
    assertRefused("hash index 2 is outside [0, 2)", () -> slice.matches(2, target));
    assertRefused("hash index 2 is outside [0, 2)", () -> slice.copyTo(2, target, 0));
    assertRefused("slice [-1, 2) is outside [0, 4)", () -> hashes.slice(-1, 2));
    assertRefused("slice [2, 1) is outside [0, 4)", () -> hashes.slice(2, 1));
    assertRefused("slice [0, 5) is outside [0, 4)", () -> hashes.slice(0, 5));

    BlockHashes picked = hashes.slice(1, 4).select(2, 0, 2);
    assertEquals(3, picked.size());
    assertEquals("0d03", picked.get(0).toString());
    assertEquals("0b01", picked.get(1).toString());
    assertEquals("0d03", picked.get(2).toString());
    assertEquals(0, hashes.select().size());
    assertRefused("hash index 4 is outside [0, 4)", () -> hashes.select(0, 4));
  }

  /** Of 4,096 boxes more than half are used: chains average below two (at random: 2,589 used). */
  @ParameterizedTest
  @ValueSource(ints = {2, 7, 8, 9, 16, 20, 32, 33, 255})
  void countersAnywhereInAHashSpreadOverATable(int hashLength) {
    for (int at = 0; at < 2 * (hashLength - 1); at++) {
      int low = at / 2 + at % 2;
      int high = at / 2 + 1 - at % 2;
      byte[] bytes = counting(hashLength);
      Set<Integer> folded = new HashSet<>();
      Set<Integer> lowBits = new HashSet<>();
      for (int i = 0; i < 4_096; i++) {
        bytes[low] = (byte) i;
        bytes[high] = (byte) (i >> 8);
        long fingerprint = BlockHashes.of(hashLength, bytes).fingerprint(0);
        folded.add(Long.hashCode(fingerprint) & 4_095);
        lowBits.add((int) fingerprint & 4_095);
      }
      String where = "counter with low byte %d, high byte %d".formatted(low, high);
      assertTrue(folded.size() > 2_048, where + " folded: " + folded.size());
      assertTrue(lowBits.size() > 2_048, where + " low bits: " + lowBits.size());
    }
  }

  @Test
  void namespacesHaveAnAlphabet() {
    assertEquals("AZaz09._-", new UMBPNamespace("AZaz09._-").toString());
    assertEquals(128, new UMBPNamespace("a".repeat(128)).value().length());
    String length = "namespace has %d characters, allowed are 1 to 128";
    assertRefused(length.formatted(0), () -> new UMBPNamespace(""));
    assertRefused(length.formatted(129), () -> new UMBPNamespace("a".repeat(129)));
    for (char c : ":/@[`{,%*\n \u0000é\u0660\uff11".toCharArray()) {
      assertRefused(
          "namespace 'a%sb' has the character U+%04X at index 1, allowed are A-Z a-z 0-9 . _ -"
              .formatted(c, (int) c),
          () -> new UMBPNamespace("a" + c + "b"));
    }
  }

  @Test
  void ranksAreNotNegative() {
    assertEquals("tp1:pcp2:dcp3:pp4", new RankNamespace(1, 2, 3, 4).toString());
    assertRefused(
        "ranks must be >= 0, but are tp -1, pcp 0, dcp 0, pp 0",
        () -> new RankNamespace(-1, 0, 0, 0));
    assertRefused(
        "ranks must be >= 0, but are tp 0, pcp -1, dcp 0, pp 0",
        () -> new RankNamespace(0, -1, 0, 0));
    assertRefused(
        "ranks must be >= 0, but are tp 0, pcp 0, dcp -1, pp 0",
        () -> new RankNamespace(0, 0, -1, 0));
    assertRefused(
        "ranks must be >= 0, but are tp 0, pcp 0, dcp 0, pp -1",
        () -> new RankNamespace(0, 0, 0, -1));
    assertRefused(
        "group id -1 must be >= 0",
        () -> new BlockKey(NAMESPACE, RANK_0, -1, BlockHash.fromHex("00")));
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0A",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0a:",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0a\n",
        " umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp00:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp01:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g01:0a",
        "umbp:vllm:v1:m:tp**:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp0:pcp*:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp*:pcp*:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp*:pcp0:dcp*:pp0:g0:0a",
        "umbp:vllm:v1:m:tp*:pcp0:dcp0:pp*:g0:0a",
        "umbp:vllm:v1:m:tp*:pcp0:dcp0:pp0:g*:0a",
        "umbp:vllm:v1:m:tp*0:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp-2147483648:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp+1:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp-1:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp\u0661:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp12345678901:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:pcp0:tp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:m:tp0:pcp0:dcp0:g0:0a",
        "umbp:vllm:v1::tp0:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:a:b:tp0:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v1:a/b:tp0:pcp0:dcp0:pp0:g0:0a",
        "umbp:vllm:v2:m:tp0:pcp0:dcp0:pp0:g0:0a",
        "umbp:sglang:v1:m:tp0:pcp0:dcp0:pp0:g0:0a",
        "UMBP:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0a",
        "lmcache:vllm:v1:m:tp0:pcp0:dcp0:pp0:g0:0a",
      })
  void textThatNoKeyWritesIsRefused(String text) {
    assertRefused(
        "'"
            + text
            + "' is no key of the form umbp:vllm:v1:<namespace>:tp<T>:pcp<P>:dcp<D>:pp<Q>:g<G>"
            + ":<lower-case hex hash>",
        () -> BlockKey.parse(text));
  }

  @Test
  void numbersOfAKeyFitAnInt() {
    String text = "umbp:vllm:v1:m:tp2147483647:pcp0:dcp0:pp0:g2147483647:0a";
    assertEquals(Integer.MAX_VALUE, BlockKey.parse(text).rank().tp());
    assertEquals(Integer.MAX_VALUE, BlockKey.parse(text).groupId());
    for (String over :
        List.of(
            "umbp:vllm:v1:m:tp2147483648:pcp0:dcp0:pp0:g0:0a",
            "umbp:vllm:v1:m:tp0:pcp2147483648:dcp0:pp0:g0:0a",
            "umbp:vllm:v1:m:tp0:pcp0:dcp2147483648:pp0:g0:0a",
            "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp2147483648:g0:0a",
            "umbp:vllm:v1:m:tp0:pcp0:dcp0:pp0:g2147483648:0a")) {
      assertRefused(
          "key '" + over + "' has the number 2147483648, the limit is 2147483647",
          () -> BlockKey.parse(over));
    }
  }

  @Test
  void parseRefusesPartsThatAreTooLong() {
    assertEquals(255, BlockKey.parse(PREFIX + "ab".repeat(255)).hash().length());
    assertRefused(
        "block hash has 256 bytes, allowed are 1 to 255",
        () -> BlockKey.parse(PREFIX + "ab".repeat(256)));
    assertRefused(
        "namespace has 129 characters, allowed are 1 to 128",
        () -> BlockKey.parse(PREFIX.replace(":m:", ":" + "m".repeat(129) + ":") + "ab"));
    assertRefused(
        "block hash has 2000000 bytes, allowed are 1 to 255",
        () -> BlockKey.parse(PREFIX + "ab".repeat(2_000_000)));
  }

  @Test
  void replicatedKeysParse() {
    String text = "umbp:vllm:v1:m:tp*:pcp0:dcp0:pp1:g2:bee44665ffd65ac8";
    BlockKey key = BlockKey.parse(text);
    assertEquals(new RankNamespace(0, 0, 0, 1).replicated(), key.rank());
    assertTrue(key.rank().isReplicated());
    assertEquals(text, key.toString());
    String split = "objects of all tp ranks belong to pcp 0 and dcp 0, but are pcp %d, dcp %d";
    assertRefused(
        split.formatted(1, 0), () -> BlockKey.parse("umbp:vllm:v1:m:tp*:pcp1:dcp0:pp1:g2:0a"));
    assertRefused(
        split.formatted(0, 3), () -> BlockKey.parse("umbp:vllm:v1:m:tp*:pcp0:dcp3:pp1:g2:0a"));
  }

  @Test
  void messagesQuoteTheStartOfLongText() {
    String start = PREFIX + "0a".repeat(100);
    String quoted = "'" + start.substring(0, 200) + "...' (1000001 characters)";
    assertRefused(
        quoted
            + " is no key of the form umbp:vllm:v1:<namespace>:tp<T>:pcp<P>:dcp<D>:pp<Q>:g<G>"
            + ":<lower-case hex hash>",
        () -> BlockKey.parse(start + "0".repeat(1_000_001 - start.length())));
    assertRefused(
        "block hash '" + "x".repeat(200) + "...' (201 characters) is not hexadecimal",
        () -> BlockHash.fromHex("x".repeat(201)));
    assertRefused(
        "block hash '" + "x".repeat(200) + "' is not hexadecimal",
        () -> BlockHash.fromHex("x".repeat(200)));
  }

  @Test
  void keyColumnsAreBlockMajor() {
    BlockHashes hashes = column("0a", "0b");
    BlockKeys keys =
        BlockKeys.of(NAMESPACE, RANK_0, new int[] {0, 10}, hashes).onRanks(List.of(RANK_0, RANK_1));
    assertSame(hashes, keys.hashes());
    assertEquals(2, keys.rows());
    assertEquals(4, keys.size());
    assertEquals(NAMESPACE, keys.namespace());
    assertEquals(List.of(RANK_0, RANK_1), keys.ranks());
    String start = "umbp:vllm:v1:194ba6ca064be076ca7fed5e5a6a505e:";
    assertEquals(
        List.of(
            start + "tp0:pcp0:dcp0:pp0:g0:0a",
            start + "tp1:pcp0:dcp1:pp0:g0:0a",
            start + "tp0:pcp0:dcp0:pp0:g10:0b",
            start + "tp1:pcp0:dcp1:pp0:g10:0b"),
        keys);
    for (int i = 0; i < 4; i++) {
      assertEquals(i / 2, keys.row(i));
      assertEquals(i % 2 == 0 ? RANK_0 : RANK_1, keys.rank(i));
      assertEquals(i / 2 * 10, keys.groupId(i));
      assertEquals(keys.get(i), keys.key(i).toString());
    }
  }

  @Test
  void objectsOfAllTpRanksHaveAStarForTheirRank() {
    RankNamespace shared = new RankNamespace(3, 0, 0, 2).replicated();
    assertEquals("tp*:pcp0:dcp0:pp2", shared.toString());
    assertEquals(new RankNamespace(RankNamespace.ALL_TP, 0, 0, 2), shared);
    assertEquals(shared, new RankNamespace(0, 0, 0, 2).replicated());
    assertEquals(shared, new RankNamespace(1, 2, 3, 2).replicated(), "whatever the rank");
    assertEquals(shared, shared.replicated());
    assertNotEquals(shared, new RankNamespace(0, 0, 0, 2));
    assertNotEquals(shared, new RankNamespace(0, 0, 0, 3).replicated(), "the stage counts");
    assertTrue(shared.isReplicated());
    assertFalse(RANK_0.isReplicated());
    String text = "umbp:vllm:v1:m:tp*:pcp0:dcp0:pp2:g1:0a";
    BlockKey key = new BlockKey(new UMBPNamespace("m"), shared, 1, BlockHash.fromHex("0a"));
    assertEquals(text, key.toString());
    assertEquals(key, BlockKey.parse(text));
    assertEquals(key.hashCode(), BlockKey.parse(text).hashCode());
  }

  @Test
  void objectsOfAllTpRanksAreNotSplitByContext() {
    String message = "objects of all tp ranks belong to pcp 0 and dcp 0, but are pcp %d, dcp %d";
    int all = RankNamespace.ALL_TP;
    assertRefused(message.formatted(1, 0), () -> new RankNamespace(all, 1, 0, 0));
    assertRefused(message.formatted(0, 1), () -> new RankNamespace(all, 0, 1, 0));
    assertRefused(message.formatted(-1, 0), () -> new RankNamespace(all, -1, 0, 0));
    assertRefused(
        "ranks must be >= 0, but are tp -2147483648, pcp 0, dcp 0, pp -1",
        () -> new RankNamespace(all, 0, 0, -1));
    assertRefused(
        message.formatted(1, 0), () -> BlockKey.parse("umbp:vllm:v1:m:tp*:pcp1:dcp0:pp0:g0:0a"));
    assertRefused(
        message.formatted(0, 1), () -> BlockKey.parse("umbp:vllm:v1:m:tp*:pcp0:dcp1:pp0:g0:0a"));
  }

  @Test
  void rowsOfReplicatedGroupsHaveOneKeyAStage() {
    List<RankNamespace> ranks =
        List.of(
            new RankNamespace(0, 0, 0, 0),
            new RankNamespace(1, 0, 0, 0),
            new RankNamespace(0, 0, 0, 1),
            new RankNamespace(1, 0, 0, 1));
    BlockHashes hashes = column("0a", "0b", "0c");
    BlockKeys plain =
        BlockKeys.of(new UMBPNamespace("m"), RANK_0, new int[] {0, 3, 0}, hashes).onRanks(ranks);
    BlockKeys keys = plain.replicating(Set.of(3, 8));
    assertEquals(12, plain.size());
    assertEquals(10, keys.size());
    assertEquals(3, keys.rows());
    assertEquals(Set.of(3, 8), keys.replicatedGroups());
    assertEquals(ranks, keys.ranks());
    assertEquals(List.of(), plain.replicas());
    assertEquals(List.of(ranks.get(0).replicated(), ranks.get(2).replicated()), keys.replicas());
    String start = "umbp:vllm:v1:m:";
    assertEquals(
        List.of(
            start + "tp0:pcp0:dcp0:pp0:g0:0a",
            start + "tp1:pcp0:dcp0:pp0:g0:0a",
            start + "tp0:pcp0:dcp0:pp1:g0:0a",
            start + "tp1:pcp0:dcp0:pp1:g0:0a",
            start + "tp*:pcp0:dcp0:pp0:g3:0b",
            start + "tp*:pcp0:dcp0:pp1:g3:0b",
            start + "tp0:pcp0:dcp0:pp0:g0:0c",
            start + "tp1:pcp0:dcp0:pp0:g0:0c",
            start + "tp0:pcp0:dcp0:pp1:g0:0c",
            start + "tp1:pcp0:dcp0:pp1:g0:0c"),
        keys);
    int[] rows = {0, 0, 0, 0, 1, 1, 2, 2, 2, 2};
    for (int i = 0; i < 10; i++) {
      assertEquals(rows[i], keys.row(i));
      assertEquals(keys.get(i), keys.key(i).toString());
    }
    assertRefused("key index 10 is outside [0, 10)", () -> keys.row(10));
    assertRefused("key index -1 is outside [0, 10)", () -> keys.rank(-1));

    assertEquals(plain, keys.replicating(Set.of()), "a group can be made plain again");
    assertEquals(plain, plain.replicating(Set.of(8)), "no row is of that group");
    BlockKeys oneRank = keys.onRanks(List.of(ranks.get(3)));
    assertEquals(
        List.of(
            start + "tp1:pcp0:dcp0:pp1:g0:0a",
            start + "tp*:pcp0:dcp0:pp1:g3:0b",
            start + "tp1:pcp0:dcp0:pp1:g0:0c"),
        oneRank);
  }

  @Test
  void keyColumnsAreOfSingleRanks() {
    RankNamespace shared = RANK_0.replicated();
    String message =
        "tp*:pcp0:dcp0:pp0 are all tp ranks; name one, and replicate its groups instead";
    BlockHashes hashes = column("0a");
    assertRefused(message, () -> BlockKeys.of(NAMESPACE, shared, 0, hashes));
    assertRefused(
        message, () -> BlockKeys.of(NAMESPACE, RANK_0, 0, hashes).onRanks(List.of(RANK_1, shared)));
  }

  @Test
  void mixedColumnsEndAtTheLimitOfKeysToo() {
    List<RankNamespace> ranks = new ArrayList<>();
    for (int tp = 0; tp < 65_536; tp++) {
      ranks.add(new RankNamespace(tp, 0, 0, 0));
    }
    int[] groupIds = new int[40_000];
    Arrays.fill(groupIds, 0, 32_768, 1);
    BlockKeys oneRank =
        BlockKeys.of(NAMESPACE, RANK_0, groupIds, BlockHashes.of(1, new byte[40_000]));
    assertRefused(
        "40000 rows on 65536 ranks exceed the limit of 2147483647 keys",
        () -> oneRank.replicating(Set.of(0)).onRanks(ranks));
    assertEquals(7_232 * 65_536 + 32_768, oneRank.replicating(Set.of(1)).onRanks(ranks).size());
  }

  @ParameterizedTest
  @ValueSource(ints = {0, 9, 10, 99, 100, 1_000_000_000, Integer.MAX_VALUE})
  void groupsOfAnySizeAreWritten(int groupId) {
    BlockKeys keys = BlockKeys.of(NAMESPACE, RANK_1, groupId, column("00ff", "807f"));
    assertEquals(
        "umbp:vllm:v1:" + NAMESPACE + ":tp1:pcp0:dcp1:pp0:g" + groupId + ":807f", keys.get(1));
    assertEquals(BlockKey.parse(keys.get(0)), keys.key(0));
  }

  @Test
  void keyColumnsAreChecked() {
    assertRefused(
        "3 group ids do not match 2 block hashes",
        () -> BlockKeys.of(NAMESPACE, RANK_0, new int[3], column("0a", "0b")));
    assertRefused(
        "group id -2 must be >= 0",
        () -> BlockKeys.of(NAMESPACE, RANK_0, new int[] {0, -2}, column("0a", "0b")));
    assertRefused(
        "group id -1 must be >= 0", () -> BlockKeys.of(NAMESPACE, RANK_0, -1, column("0a")));
    BlockKeys keys = BlockKeys.of(NAMESPACE, RANK_0, 0, column("0a", "0b"));
    assertRefused("keys need at least one rank", () -> keys.onRanks(List.of()));
    assertRefused(
        "65536 rows on 65536 ranks exceed the limit of 2147483647 keys",
        () ->
            BlockKeys.of(NAMESPACE, RANK_0, 0, BlockHashes.of(1, new byte[65_536]))
                .onRanks(Collections.nCopies(65_536, RANK_0)));
    assertRefused("key index 2 is outside [0, 2)", () -> keys.row(2));
    assertRefused("key index -1 is outside [0, 2)", () -> keys.rank(-1));
    assertRefused("key index 2 is outside [0, 2)", () -> keys.groupId(2));
    assertRefused("key index 2 is outside [0, 2)", () -> keys.key(2));
  }

  @Test
  void keyColumnsCopyWhatTheyAreGiven() {
    int[] groupIds = {0, 1};
    List<RankNamespace> ranks = new ArrayList<>(List.of(RANK_0));
    BlockKeys keys = BlockKeys.of(NAMESPACE, RANK_0, groupIds, column("0a", "0b")).onRanks(ranks);
    groupIds[1] = 7;
    ranks.set(0, RANK_1);
    assertEquals(1, keys.groupId(1));
    assertEquals(RANK_0, keys.rank(1));
    assertThrows(UnsupportedOperationException.class, () -> keys.ranks().add(RANK_1));
    assertThrows(UnsupportedOperationException.class, () -> keys.set(0, "x"));
    assertThrows(UnsupportedOperationException.class, () -> keys.remove(0));
  }

  @Test
  void keysKeepTheListContract() {
    BlockKeys keys = BlockKeys.of(NAMESPACE, RANK_0, 3, column("0a", "0b", "0c"));
    List<String> plain = new ArrayList<>(keys);
    assertEquals(plain, keys);
    assertEquals(plain.hashCode(), keys.hashCode());
    assertEquals(plain.subList(1, 3), keys.subList(1, 3));
    assertEquals(2, keys.indexOf(plain.get(2)));
    assertFalse(keys.contains("0a"));
    assertThrows(IndexOutOfBoundsException.class, () -> keys.get(3));
    assertThrows(IndexOutOfBoundsException.class, () -> keys.get(-1));
    Iterator<String> iterator = keys.iterator();
    for (String text : plain) {
      assertEquals(text, iterator.next());
    }
    assertThrows(NoSuchElementException.class, iterator::next);
    ListIterator<String> backwards = keys.listIterator();
    assertThrows(NoSuchElementException.class, backwards::previous);
  }

  @Test
  void keysWithoutRowsAreEmpty() {
    BlockKeys keys =
        BlockKeys.of(NAMESPACE, RANK_0, 0, BlockHashes.empty()).onRanks(List.of(RANK_0, RANK_1));
    assertTrue(keys.isEmpty());
    assertEquals(0, keys.rows());
  }
}
