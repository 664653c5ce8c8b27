package io.umbp.api;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.ForAll;
import net.jqwik.api.From;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.Size;

/** What holds for every key and every hash. */
class KeyProperties {
  private static final String MUTATIONS = "0123456789abcdefABCDEFgtp:-_.*umbvl \n\u0660\uD800";

  @Provide
  Arbitrary<BlockHash> hashes() {
    return Arbitraries.bytes().array(byte[].class).ofMinSize(1).ofMaxSize(255).map(BlockHash::of);
  }

  @Provide
  Arbitrary<UMBPNamespace> namespaces() {
    return Arbitraries.strings()
        .withCharRange('a', 'z')
        .withCharRange('A', 'Z')
        .withCharRange('0', '9')
        .withChars("._-")
        .ofMinLength(1)
        .ofMaxLength(128)
        .map(UMBPNamespace::new);
  }

  @Provide
  Arbitrary<RankNamespace> ranks() {
    Arbitrary<Integer> rank = Arbitraries.integers().greaterOrEqual(0);
    return Combinators.combine(rank, rank, rank, rank).as(RankNamespace::new);
  }

  /** Also those of objects that all tensor-parallel ranks share. */
  @Provide
  Arbitrary<RankNamespace> ranksOfKeys() {
    return Arbitraries.oneOf(ranks(), ranks().map(RankNamespace::replicated));
  }

  @Provide
  Arbitrary<BlockKey> keys() {
    return Combinators.combine(
            namespaces(), ranksOfKeys(), Arbitraries.integers().greaterOrEqual(0), hashes())
        .as(BlockKey::new);
  }

  @Property(tries = 500)
  void aKeyParsesBackToItsParts(@ForAll("keys") BlockKey key) {
    BlockKey parsed = BlockKey.parse(key.toString());
    assertEquals(key.namespace(), parsed.namespace());
    assertEquals(key.rank(), parsed.rank());
    assertEquals(key.groupId(), parsed.groupId());
    assertArrayEquals(key.hash().toBytes(), parsed.hash().toBytes());
    assertEquals(key.hashCode(), parsed.hashCode());
  }

  @Property(tries = 300)
  void columnsWriteTheTextOfTheirKeys(
      @ForAll("namespaces") UMBPNamespace namespace,
      @ForAll @Size(min = 1, max = 4) List<@From("ranks") RankNamespace> ranks,
      @ForAll @IntRange(min = 1, max = 255) int hashLength,
      @ForAll @IntRange(max = 6) int rows,
      @ForAll Random random) {
    byte[] bytes = new byte[rows * hashLength];
    random.nextBytes(bytes);
    int[] groupIds = random.ints(rows, 0, Integer.MAX_VALUE).toArray();
    BlockKeys keys =
        BlockKeys.of(namespace, ranks.get(0), groupIds, BlockHashes.of(hashLength, bytes))
            .onRanks(ranks);
    assertEquals(rows * ranks.size(), keys.size());
    for (int i = 0; i < keys.size(); i++) {
      BlockKey key = keys.key(i);
      assertEquals(ranks.get(i % ranks.size()), key.rank());
      assertEquals(groupIds[i / ranks.size()], key.groupId());
      assertEquals(key.toString(), keys.get(i));
    }
  }

  /** Against keys that are built one by one from text. */
  @Property(tries = 500)
  void rowsOfSomeReplicatedGroupsHaveTheKeysOfAHandWrittenLoop(
      @ForAll @Size(min = 1, max = 7) List<@From("smallRanks") RankNamespace> ranks,
      @ForAll @Size(max = 8) List<@IntRange(max = 3) Integer> groups,
      @ForAll Set<@IntRange(max = 4) Integer> replicated,
      @ForAll Random random) {
    byte[] bytes = new byte[groups.size() * 2];
    random.nextBytes(bytes);
    List<String> expected = new ArrayList<>();
    List<Integer> rows = new ArrayList<>();
    for (int row = 0; row < groups.size(); row++) {
      Set<String> keysOfRow = new LinkedHashSet<>();
      List<String> all = new ArrayList<>();
      for (RankNamespace rank : ranks) {
        boolean isShared = replicated.contains(groups.get(row));
        String place =
            isShared
                ? "tp*:pcp0:dcp0:pp" + rank.pp()
                : "tp%d:pcp%d:dcp%d:pp%d".formatted(rank.tp(), rank.pcp(), rank.dcp(), rank.pp());
        String hash = HexFormat.of().formatHex(bytes, row * 2, row * 2 + 2);
        String key = "umbp:vllm:v1:m:" + place + ":g" + groups.get(row) + ":" + hash;
        if (!isShared || keysOfRow.add(key)) {
          all.add(key);
        }
      }
      expected.addAll(all);
      rows.addAll(Collections.nCopies(all.size(), row));
    }
    BlockKeys keys =
        BlockKeys.of(
                new UMBPNamespace("m"),
                ranks.get(0),
                groups.stream().mapToInt(Integer::intValue).toArray(),
                BlockHashes.of(2, bytes))
            .replicating(replicated)
            .onRanks(ranks);
    assertEquals(expected, keys);
    for (int i = 0; i < keys.size(); i++) {
      assertEquals(rows.get(i), keys.row(i));
      assertEquals(groups.get(keys.row(i)), keys.groupId(i));
      assertEquals(expected.get(i), keys.key(i).toString());
      assertEquals(keys.key(i), BlockKey.parse(expected.get(i)));
      assertEquals(replicated.contains(keys.groupId(i)), keys.rank(i).isReplicated());
    }
  }

  @Provide
  Arbitrary<RankNamespace> smallRanks() {
    Arbitrary<Integer> rank = Arbitraries.integers().between(0, 2);
    return Combinators.combine(rank, rank, rank, rank).as(RankNamespace::new);
  }

  @Property(tries = 2)
  void mutatedTextIsAnotherKeyOrRefused(@ForAll Random random) {
    int parsed = 0;
    for (int i = 0; i < 100_000; i++) {
      StringBuilder text =
          new StringBuilder(
              i % 2 == 0
                  ? "umbp:vllm:v1:m1:tp0:pcp10:dcp2:pp0:g3:00ff7e"
                  : "umbp:vllm:v1:m1:tp*:pcp0:dcp0:pp1:g3:00ff7e");
      for (int edits = 1 + random.nextInt(3); edits > 0; edits--) {
        mutate(text, random);
      }
      try {
        assertEquals(text.toString(), BlockKey.parse(text.toString()).toString());
        parsed++;
      } catch (UMBPException e) {
        assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
      }
    }
    assertTrue(parsed > 1_000 && parsed < 99_000, parsed + " of 100000 were keys");
  }

  private static void mutate(StringBuilder text, Random random) {
    char c = MUTATIONS.charAt(random.nextInt(MUTATIONS.length()));
    int at = random.nextInt(text.length() + 1);
    switch (random.nextInt(4)) {
      case 0 -> text.insert(at, c);
      case 1 -> text.delete(at, Math.min(text.length(), at + 1 + random.nextInt(3)));
      case 2 -> text.insert(at, text.substring(at, Math.min(text.length(), at + 8)));
      default -> text.setCharAt(Math.min(at, text.length() - 1), c);
    }
    if (text.isEmpty()) {
      text.append(c);
    }
  }

  @Property(tries = 500)
  void equalBytesHaveEqualFingerprintsWhereverTheyStand(
      @ForAll("hashes") BlockHash hash,
      @ForAll @IntRange(max = 20) int before,
      @ForAll @IntRange(max = 3) int after,
      @ForAll Random random) {
    int length = hash.length();
    byte[] bytes = new byte[(before + 1 + after) * length];
    random.nextBytes(bytes);
    System.arraycopy(hash.toBytes(), 0, bytes, before * length, length);
    BlockHashes column = BlockHashes.of(length, bytes);
    long alone = BlockHashes.of(List.of(hash)).fingerprint(0);
    assertEquals(alone, column.fingerprint(before));
    assertEquals(alone, column.slice(before, before + 1).fingerprint(0));
    assertEquals(alone, column.select(before).fingerprint(0));
    assertEquals(hash, column.get(before));
    assertTrue(column.matches(before, hash.toBytes()));
  }

  @Property(tries = 200)
  void everyFlippedByteChangesTheFingerprint(
      @ForAll("hashes") BlockHash hash, @ForAll @IntRange(min = 1, max = 255) int flip) {
    long before = BlockHashes.of(List.of(hash)).fingerprint(0);
    for (int at = 0; at < hash.length(); at++) {
      byte[] bytes = hash.toBytes();
      bytes[at] ^= (byte) flip;
      assertNotEquals(before, BlockHashes.of(bytes.length, bytes).fingerprint(0), "byte " + at);
    }
  }

  @Property(tries = 20)
  void fingerprintsOfManyHashesDiffer(
      @ForAll @IntRange(min = 4, max = 255) int hashLength, @ForAll Random random) {
    byte[] bytes = new byte[2_000 * hashLength];
    random.nextBytes(bytes);
    for (int i = 0; i < 2_000; i++) {
      bytes[i * hashLength] = (byte) i;
      bytes[i * hashLength + 1] = (byte) (i >> 8);
    }
    BlockHashes column = BlockHashes.of(hashLength, bytes);
    assertEquals(
        2_000, IntStream.range(0, 2_000).mapToLong(column::fingerprint).distinct().count());
  }

  @Property(tries = 50)
  void hashesOfEveryLengthKeepTheirBytes(@ForAll @IntRange(min = 1, max = 255) int hashLength) {
    byte[] bytes = new byte[3 * hashLength];
    new Random(hashLength).nextBytes(bytes);
    BlockHashes column = BlockHashes.of(hashLength, bytes);
    assertEquals(3, column.size());
    byte[] joined = new byte[bytes.length];
    for (int i = 0; i < 3; i++) {
      column.copyTo(i, joined, i * hashLength);
      assertEquals(column.get(i), BlockHash.fromHex(column.get(i).toString()));
    }
    assertArrayEquals(bytes, joined);
  }
}
