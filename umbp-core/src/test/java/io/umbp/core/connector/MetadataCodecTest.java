package io.umbp.core.connector;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.GroupBlock;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.LoadResult;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;

class MetadataCodecTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final RankNamespace RANK = new RankNamespace(0, 0, 0, 0);
  private static final HexFormat HEX = HexFormat.of();

  /** One step of version 1, as the document has it: it must be read for ever. */
  private static final String SAMPLE =
      "554d4250"
          + "01"
          + "01"
          + "01000000"
          + "01000000"
          + "70"
          + "01000000"
          + "01000000"
          + "6d"
          + "00000000"
          + "00000000"
          + "00000000"
          + "00000000"
          + "00000000"
          + "01000000"
          + "01000000"
          + "72"
          + "00000000"
          + "02000000"
          + "00000000"
          + "01000000"
          + "07000000"
          + "09000000"
          + "02"
          + "abcd"
          + "0102"
          + "00000000"
          + "ffffffffffffffff";

  private static byte[] sealed(String hex) {
    byte[] body = HEX.parseHex(hex);
    CRC32C sum = new CRC32C();
    sum.update(body);
    return ByteBuffer.allocate(body.length + 4)
        .order(ByteOrder.LITTLE_ENDIAN)
        .put(body)
        .putInt((int) sum.getValue())
        .array();
  }

  private static UMBPConnectorMetadata sample() {
    BlockKeys keys =
        BlockKeys.of(
            NAMESPACE, RANK, new int[] {0, 1}, BlockHashes.of(2, HEX.parseHex("abcd0102")));
    return new UMBPConnectorMetadata(
        Set.of("p"), Map.of("r", BlockLoadBatch.of("r", keys, 7, 9)), Map.of(), -1);
  }

  @Test
  void theBytesOfAStepAreThoseOfTheDocument() throws IOException {
    byte[] expected = sealed(SAMPLE);
    assertEquals(HEX.formatHex(expected), HEX.formatHex(MetadataCodec.toBytes(sample())));
    assertEquals(sample(), MetadataCodec.toStep(expected));
    String document = Files.readString(Path.of("../docs/metadata-format.md"));
    String shown =
        document
            .substring(document.indexOf("```hex") + 6, document.lastIndexOf("```"))
            .replaceAll("(?m)#.*$", "")
            .replaceAll("\\s", "");
    assertEquals(HEX.formatHex(expected), shown);
  }

  @Test
  void theBytesOfAReport() {
    UMBPConnectorWorkerMetadata report =
        new UMBPConnectorWorkerMetadata(
            Map.of("r", new LoadResult(1, Set.of(new GroupBlock(0, 5)), Set.of())),
            Map.of(
                3L,
                new StoreEventResult(
                    2,
                    Set.of(
                        new StoredObject(1, BlockHash.fromHex("ff")),
                        new StoredObject(1, BlockHash.fromHex("01"))))));
    String expected =
        "554d4250"
            + "01"
            + "02"
            + "01000000"
            + "01000000"
            + "72"
            + "01000000"
            + "01000000"
            + "00000000"
            + "05000000"
            + "00000000"
            + "01000000"
            + "0300000000000000"
            + "02000000"
            + "02000000"
            + "01000000"
            + "0101"
            + "01000000"
            + "01ff";
    assertEquals(HEX.formatHex(sealed(expected)), HEX.formatHex(MetadataCodec.toBytes(report)));
    assertEquals(report, MetadataCodec.toReport(sealed(expected)));
  }

  @Test
  void aHandshakeComesBackAsItWas() {
    UMBPHandshakeMetadata handshake = handshake(new Random(1));
    assertEquals(handshake, MetadataCodec.toHandshake(MetadataCodec.toBytes(handshake)));
  }

  private static UMBPHandshakeMetadata handshake(Random random) {
    KVPageShape shape =
        new KVPageShape(
            List.of(Axis.KERNEL_BLOCK, Axis.KV, Axis.TOKEN, Axis.HEAD), 4, 2, 8, 2, 16, 16);
    long bytes = shape.pageBytes();
    List<KVRegion> regions =
        List.of(
            new KVRegion("layer \u00e9\ud83d\ude00", 0, 64, 32, 0, 16),
            new KVRegion(
                "b",
                random.nextInt(1, 9),
                4 * bytes,
                bytes,
                32,
                8,
                List.of(new PageSegment(0, bytes / 2), new PageSegment(bytes, bytes / 2)),
                shape));
    return new UMBPHandshakeMetadata(
        NAMESPACE,
        "umbp-manifest 1\nmodel=" + random.nextInt() + "\n",
        new KVLayoutDescriptor(
            regions,
            RankTopology.ofGlobalRank(random.nextInt(4), 2, 1, 1, 2),
            Set.of(0),
            KVLayoutDescriptor.RANK_LOCAL));
  }

  private static UMBPConnectorMetadata step(Random random) {
    Map<String, BlockLoadBatch> loads = new HashMap<>();
    Map<String, BlockStoreBatch> stores = new HashMap<>();
    int requests = random.nextInt(6);
    for (int i = 0; i < requests; i++) {
      String load = "l" + random.nextInt();
      loads.put(load, BlockLoadBatch.of(load, keys(random, i + 1), blockIds(random, i + 1)));
      String store = "s" + random.nextInt();
      stores.put(store, BlockStoreBatch.of(store, keys(random, i + 1), blockIds(random, i + 1)));
    }
    Set<String> preempted = new HashSet<>();
    for (int i = random.nextInt(4); i > 0; i--) {
      preempted.add(Integer.toString(random.nextInt()));
    }
    return new UMBPConnectorMetadata(
        preempted, loads, stores, stores.isEmpty() ? -1 : random.nextLong() >>> 1);
  }

  private static int[] blockIds(Random random, int count) {
    return random.ints(count, 0, Integer.MAX_VALUE).toArray();
  }

  private static BlockKeys keys(Random random, int count) {
    byte[] hashes = new byte[count * 32];
    random.nextBytes(hashes);
    return BlockKeys.of(
            new UMBPNamespace("n" + random.nextInt(2)),
            new RankNamespace(random.nextInt(3), 0, 0, random.nextInt(2)),
            random.ints(count, 0, 4).toArray(),
            BlockHashes.of(32, hashes))
        .replicating(random.nextBoolean() ? Set.of() : Set.of(1, 3));
  }

  private static UMBPConnectorWorkerMetadata report(Random random) {
    Map<String, LoadResult> loads = new HashMap<>();
    Map<Long, StoreEventResult> events = new HashMap<>();
    for (int i = random.nextInt(5); i > 0; i--) {
      loads.put(
          "r" + random.nextInt(),
          new LoadResult(random.nextInt(4), blocks(random), blocks(random)));
      Set<StoredObject> failed = new HashSet<>();
      for (int k = random.nextInt(4); k > 0; k--) {
        byte[] hash = new byte[random.nextInt(1, 40)];
        random.nextBytes(hash);
        failed.add(new StoredObject(random.nextInt(9), BlockHash.of(hash)));
      }
      events.put(random.nextLong(), new StoreEventResult(random.nextInt(9), failed));
    }
    return new UMBPConnectorWorkerMetadata(loads, events);
  }

  private static Set<GroupBlock> blocks(Random random) {
    Set<GroupBlock> blocks = new HashSet<>();
    for (int i = random.nextInt(5); i > 0; i--) {
      blocks.add(new GroupBlock(random.nextInt(9), random.nextInt(1 << 20)));
    }
    return blocks;
  }

  @Test
  void valuesComeBackAsTheyWereAndEqualOnesHaveEqualBytes() {
    for (long seed = 0; seed < 2_000; seed++) {
      String message = "seed " + seed;
      UMBPConnectorMetadata step = step(new Random(seed));
      byte[] bytes = MetadataCodec.toBytes(step);
      assertEquals(step, MetadataCodec.toStep(bytes), message);
      UMBPConnectorMetadata same =
          new UMBPConnectorMetadata(
              Set.copyOf(step.preempted()),
              new TreeMap<>(step.loads()),
              new TreeMap<>(step.stores()),
              step.storeEvent());
      assertArrayEquals(bytes, MetadataCodec.toBytes(same), message);
      UMBPConnectorMetadata read = MetadataCodec.toStep(bytes);
      step.loads()
          .forEach(
              (id, batch) ->
                  assertEquals(
                      batch.keys().replicatedGroups(),
                      read.loads().get(id).keys().replicatedGroups(),
                      message));
      UMBPConnectorWorkerMetadata report = report(new Random(seed));
      assertEquals(report, MetadataCodec.toReport(MetadataCodec.toBytes(report)), message);
    }
  }

  private static String refusal(Function<byte[], ?> read, byte[] bytes) {
    UMBPException refusal = assertThrows(UMBPException.class, () -> read.apply(bytes));
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
    return refusal.getMessage();
  }

  private static void assertRefused(String part, Function<byte[], ?> read, byte[] bytes) {
    String message = refusal(read, bytes);
    assertTrue(message.contains(part), message);
  }

  @Test
  void whatIsWrongIsSaid() {
    byte[] good = sealed(SAMPLE);
    Function<byte[], ?> read = MetadataCodec::toStep;
    assertRefused("the shortest metadata has 10", read, new byte[9]);
    assertRefused("'UMBP'", read, sealed("00" + SAMPLE.substring(2)));
    assertRefused(
        "at byte 5: it has the version 2, read is 1 only",
        read,
        sealed(SAMPLE.replaceFirst("0101", "0201")));
    assertRefused("kind 1, 2 is wanted", MetadataCodec::toReport, good);
    assertRefused("kind 1, 3 is wanted", MetadataCodec::toHandshake, good);
    byte[] flipped = good.clone();
    flipped[20] ^= 1;
    assertRefused("CRC32C", read, flipped);
    assertRefused("1 bytes are left over", read, sealed(SAMPLE + "00"));
    assertRefused(
        "4294967295 texts of at least 4 bytes each",
        read,
        sealed(SAMPLE.substring(0, 12) + "ffffffff" + SAMPLE.substring(20)));
    assertRefused(
        "no valid UTF-8", read, sealed(SAMPLE.substring(0, 28) + "ff" + SAMPLE.substring(30)));
    for (int length = 0; length < good.length; length++) {
      refusal(read, Arrays.copyOf(good, length));
      if (length >= 6 && length < good.length - 4) {
        refusal(read, sealed(SAMPLE.substring(0, 2 * length)));
      }
    }
    assertRefused("key space 1 of 1", read, sealed(SAMPLE.replace("7200000000", "7201000000")));
    assertRefused("block id -1", read, sealed(SAMPLE.replace("07000000", "ffffffff")));
    String twice =
        "554d4250"
            + "01"
            + "01"
            + "02000000"
            + "0100000070"
            + "0100000070"
            + "00000000"
            + "00000000"
            + "00000000"
            + "ffffffffffffffff";
    assertRefused("sorted, each entry once", read, sealed(twice));
    UMBPException refusal =
        assertThrows(
            UMBPException.class,
            () ->
                MetadataCodec.toBytes(
                    new UMBPConnectorMetadata(Set.of("\ud800"), Map.of(), Map.of(), -1)));
    assertTrue(refusal.getMessage().contains("no valid UTF-16"), refusal.getMessage());
    BlockLoadBatch other = sample().loads().get("r");
    refusal =
        assertThrows(
            UMBPException.class,
            () ->
                MetadataCodec.toBytes(
                    new UMBPConnectorMetadata(Set.of(), Map.of("x", other), Map.of(), -1)));
    assertEquals("a batch of request 'r' stands under the id 'x'", refusal.getMessage());
  }

  @Test
  void noBytesDoMoreThanBeingRefused() {
    Random random = new Random(20261201);
    for (int round = 0; round < 4_000; round++) {
      UMBPConnectorMetadata step = step(random);
      UMBPConnectorWorkerMetadata report = report(random);
      UMBPHandshakeMetadata handshake = handshake(random);
      for (int i = 0; i < 20; i++) {
        attack(MetadataCodec.toBytes(step), random, MetadataCodec::toStep, MetadataCodec::toBytes);
        attack(
            MetadataCodec.toBytes(report), random, MetadataCodec::toReport, MetadataCodec::toBytes);
        attack(
            MetadataCodec.toBytes(handshake),
            random,
            MetadataCodec::toHandshake,
            MetadataCodec::toBytes);
      }
    }
  }

  /** Changes some bytes behind the header, with a checksum that is right. */
  private static <T> void attack(
      byte[] good, Random random, Function<byte[], T> read, Function<T, byte[]> write) {
    int size = good.length - 4;
    byte[] body = Arrays.copyOf(good, random.nextInt(4) > 0 ? size : random.nextInt(6, size + 1));
    for (int i = random.nextInt(4); i > 0 && body.length > 6; i--) {
      int at = random.nextInt(6, body.length);
      body[at] = (byte) (random.nextBoolean() ? random.nextInt() : random.nextInt(3) - 1);
    }
    byte[] bytes = sealed(HEX.formatHex(body));
    try {
      assertArrayEquals(bytes, write.apply(read.apply(bytes)));
    } catch (UMBPException e) {
      assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
      assertTrue(e.getMessage().startsWith("metadata of "), e.getMessage());
    }
  }
}
