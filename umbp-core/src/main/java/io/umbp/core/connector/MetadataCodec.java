package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferBatch;
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
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * What scheduler and workers say to each other, as bytes for whatever channel an engine has between
 * its processes. Stateless.
 *
 * <p>docs/metadata-format.md has the format. Equal values have equal bytes on every JVM, and only
 * those: reading refuses anything else with one INVALID_ARGUMENT that says what is wrong where, and
 * allocates no more than a small multiple of what it was given. A worker gets keys and block ids,
 * never tokens.
 */
public final class MetadataCodec {
  private static final Comparator<StoredObject> BY_GROUP_AND_HASH =
      Comparator.comparingInt(StoredObject::groupId)
          .thenComparing(object -> object.hash().toBytes(), Arrays::compareUnsigned);
  private static final Comparator<GroupBlock> BY_GROUP_AND_BLOCK =
      Comparator.comparingInt(GroupBlock::groupId).thenComparingInt(GroupBlock::blockId);

  private MetadataCodec() {}

  /** What the keys of a batch have in common. */
  private record KeySpace(
      UMBPNamespace namespace, RankNamespace rank, Set<Integer> replicatedGroups) {}

  /**
   * Writes what the scheduler tells the workers.
   *
   * @param step one step
   * @return its bytes
   * @throws UMBPException INVALID_ARGUMENT when a text is no valid UTF-16, or a batch stands under
   *     another request's id than its own
   */
  public static byte[] toBytes(UMBPConnectorMetadata step) {
    MetadataWriter out = new MetadataWriter(MetadataWriter.STEP);
    writeTexts(out, new TreeSet<>(step.preempted()));
    Map<KeySpace, Integer> spaces = new LinkedHashMap<>();
    TreeMap<String, BlockLoadBatch> loads = new TreeMap<>(step.loads());
    TreeMap<String, BlockStoreBatch> stores = new TreeMap<>(step.stores());
    loads.values().forEach(batch -> spaces.putIfAbsent(spaceOf(batch), spaces.size()));
    stores.values().forEach(batch -> spaces.putIfAbsent(spaceOf(batch), spaces.size()));
    out.count(spaces.size());
    for (KeySpace space : spaces.keySet()) {
      out.text(space.namespace.value());
      out.number(space.rank.tp());
      out.number(space.rank.pcp());
      out.number(space.rank.dcp());
      out.number(space.rank.pp());
      writeNumbers(out, space.replicatedGroups);
    }
    writeBatches(out, loads, spaces);
    writeBatches(out, stores, spaces);
    out.number64(step.storeEvent());
    return out.bytes();
  }

  private static KeySpace spaceOf(BlockTransferBatch batch) {
    BlockKeys keys = batch.keys();
    return new KeySpace(
        keys.namespace(), keys.ranks().get(0), new TreeSet<>(keys.replicatedGroups()));
  }

  private static void writeBatches(
      MetadataWriter out,
      SortedMap<String, ? extends BlockTransferBatch> batches,
      Map<KeySpace, Integer> spaces) {
    out.count(batches.size());
    for (Map.Entry<String, ? extends BlockTransferBatch> entry : batches.entrySet()) {
      BlockTransferBatch batch = entry.getValue();
      if (!batch.requestId().equals(entry.getKey())) {
        throw UMBPException.invalid(
            "a batch of request '%s' stands under the id '%s'", batch.requestId(), entry.getKey());
      }
      out.text(entry.getKey());
      out.number(spaces.getOrDefault(spaceOf(batch), 0));
      BlockKeys keys = batch.keys();
      int rows = batch.size();
      out.count(rows);
      for (int row = 0; row < rows; row++) {
        out.number(keys.groupIdOf(row));
      }
      for (int row = 0; row < rows; row++) {
        out.number(batch.blockId(row));
      }
      if (rows > 0) {
        out.hashes(keys.hashes());
      }
    }
  }

  /**
   * Reads what the scheduler tells the workers.
   *
   * @param bytes as {@link #toBytes(UMBPConnectorMetadata)} wrote them
   * @return the step
   * @throws UMBPException INVALID_ARGUMENT
   */
  public static UMBPConnectorMetadata toStep(byte[] bytes) {
    MetadataReader in = new MetadataReader(bytes, MetadataWriter.STEP);
    return in.whole(
        () -> {
          Set<String> preempted = readTexts(in);
          List<KeySpace> spaces = new ArrayList<>();
          int spaceCount = in.count("key spaces", 25);
          for (int i = 0; i < spaceCount; i++) {
            spaces.add(
                new KeySpace(
                    new UMBPNamespace(in.text()),
                    new RankNamespace(in.number(), in.number(), in.number(), in.number()),
                    readNumbers(in)));
          }
          Map<String, BlockLoadBatch> loads = readBatches(in, "loads", spaces, BlockLoadBatch::of);
          Map<String, BlockStoreBatch> stores =
              readBatches(in, "stores", spaces, BlockStoreBatch::of);
          return new UMBPConnectorMetadata(preempted, loads, stores, in.number64());
        },
        MetadataCodec::toBytes);
  }

  /** How a batch is made of its columns. */
  private interface BatchMaker<T> {
    T of(String requestId, BlockKeys keys, int... blockIds);
  }

  private static <T> Map<String, T> readBatches(
      MetadataReader in, String what, List<KeySpace> spaces, BatchMaker<T> maker) {
    Map<String, T> batches = new TreeMap<>();
    int count = in.count(what, 12);
    for (int i = 0; i < count; i++) {
      String requestId = in.text();
      batches.put(requestId, readBatch(in, requestId, spaces, maker));
    }
    return batches;
  }

  private static <T> T readBatch(
      MetadataReader in, String requestId, List<KeySpace> spaces, BatchMaker<T> maker) {
    int index = in.number();
    if (index < 0 || index >= spaces.size()) {
      throw in.wrong("key space %d of %d", index, spaces.size());
    }
    KeySpace space = spaces.get(index);
    int rows = in.count("rows", 8);
    int[] groupIds = new int[rows];
    int[] blockIds = new int[rows];
    for (int row = 0; row < rows; row++) {
      groupIds[row] = in.number();
    }
    for (int row = 0; row < rows; row++) {
      blockIds[row] = in.number();
    }
    BlockHashes hashes = rows == 0 ? BlockHashes.empty() : in.hashes(rows);
    BlockKeys keys =
        BlockKeys.of(space.namespace, space.rank, groupIds, hashes)
            .replicating(space.replicatedGroups);
    return maker.of(requestId, keys, blockIds);
  }

  /**
   * Writes what workers tell the scheduler.
   *
   * @param report of one worker, or a sum
   * @return its bytes
   * @throws UMBPException INVALID_ARGUMENT when a text is no valid UTF-16
   */
  public static byte[] toBytes(UMBPConnectorWorkerMetadata report) {
    MetadataWriter out = new MetadataWriter(MetadataWriter.REPORT);
    out.count(report.loads().size());
    new TreeMap<>(report.loads())
        .forEach(
            (requestId, result) -> {
              out.text(requestId);
              out.number(result.completedWorkers());
              writeBlocks(out, result.missingBlocks());
              writeBlocks(out, result.failedBlocks());
            });
    out.count(report.storeEvents().size());
    new TreeMap<>(report.storeEvents())
        .forEach(
            (event, result) -> {
              out.number64(event);
              out.number(result.completedWorkers());
              out.count(result.failedObjects().size());
              result.failedObjects().stream()
                  .sorted(BY_GROUP_AND_HASH)
                  .forEach(
                      object -> {
                        out.number(object.groupId());
                        out.hash(object.hash());
                      });
            });
    return out.bytes();
  }

  private static void writeBlocks(MetadataWriter out, Set<GroupBlock> blocks) {
    out.count(blocks.size());
    blocks.stream()
        .sorted(BY_GROUP_AND_BLOCK)
        .forEach(
            block -> {
              out.number(block.groupId());
              out.number(block.blockId());
            });
  }

  /**
   * Reads what workers tell the scheduler.
   *
   * @param bytes as {@link #toBytes(UMBPConnectorWorkerMetadata)} wrote them
   * @return the report
   * @throws UMBPException INVALID_ARGUMENT
   */
  public static UMBPConnectorWorkerMetadata toReport(byte[] bytes) {
    MetadataReader in = new MetadataReader(bytes, MetadataWriter.REPORT);
    return in.whole(
        () -> {
          Map<String, LoadResult> loads = new TreeMap<>();
          int loadCount = in.count("loads", 16);
          for (int i = 0; i < loadCount; i++) {
            loads.put(in.text(), new LoadResult(in.number(), readBlocks(in), readBlocks(in)));
          }
          Map<Long, StoreEventResult> events = new TreeMap<>();
          int eventCount = in.count("store events", 16);
          for (int i = 0; i < eventCount; i++) {
            long event = in.number64();
            int workers = in.number();
            Set<StoredObject> failed = new HashSet<>();
            int failedCount = in.count("failed objects", 6);
            for (int k = 0; k < failedCount; k++) {
              int groupId = in.number();
              BlockHash hash = in.hash();
              failed.add(new StoredObject(groupId, hash));
            }
            events.put(event, new StoreEventResult(workers, failed));
          }
          return new UMBPConnectorWorkerMetadata(loads, events);
        },
        MetadataCodec::toBytes);
  }

  private static Set<GroupBlock> readBlocks(MetadataReader in) {
    Set<GroupBlock> blocks = new HashSet<>();
    int count = in.count("blocks", 8);
    for (int i = 0; i < count; i++) {
      blocks.add(new GroupBlock(in.number(), in.number()));
    }
    return blocks;
  }

  /**
   * Writes what a worker tells before the first step.
   *
   * @param handshake of one rank
   * @return its bytes
   * @throws UMBPException INVALID_ARGUMENT when a text is no valid UTF-16
   */
  public static byte[] toBytes(UMBPHandshakeMetadata handshake) {
    MetadataWriter out = new MetadataWriter(MetadataWriter.HANDSHAKE);
    out.text(handshake.namespace().value());
    out.text(handshake.manifest());
    KVLayoutDescriptor layout = handshake.layout();
    out.text(layout.format());
    RankTopology topology = layout.topology();
    out.number(topology.tpRank());
    out.number(topology.tpSize());
    out.number(topology.pcpRank());
    out.number(topology.pcpSize());
    out.number(topology.dcpRank());
    out.number(topology.dcpSize());
    out.number(topology.ppRank());
    out.number(topology.ppSize());
    writeNumbers(out, layout.replicatedGroups());
    out.count(layout.regions().size());
    for (KVRegion region : layout.regions()) {
      out.text(region.layerName());
      out.number(region.groupId());
      out.number64(region.blockStride());
      out.number64(region.blockBytes());
      out.number64(region.objectOffset());
      out.number(region.blockSize());
      out.count(region.pageSegments().size());
      for (PageSegment segment : region.pageSegments()) {
        out.number64(segment.offset());
        out.number64(segment.length());
      }
      KVPageShape shape = region.shape();
      out.count(shape.axes().size());
      shape.axes().forEach(axis -> out.number(code(axis)));
      out.number(shape.totalHeads());
      out.number(shape.heads());
      out.number(shape.tokens());
      out.number(shape.kernelBlocks());
      out.number64(shape.keyBytes());
      out.number64(shape.valueBytes());
    }
    return out.bytes();
  }

  private static int code(Axis axis) {
    return switch (axis) {
      case KERNEL_BLOCK -> 0;
      case KV -> 1;
      case HEAD -> 2;
      case TOKEN -> 3;
    };
  }

  private static Axis axis(MetadataReader in) {
    int code = in.number();
    return switch (code) {
      case 0 -> Axis.KERNEL_BLOCK;
      case 1 -> Axis.KV;
      case 2 -> Axis.HEAD;
      case 3 -> Axis.TOKEN;
      default -> throw in.wrong("axis %d; there are 0 to 3", code);
    };
  }

  /**
   * Reads what a worker tells before the first step.
   *
   * @param bytes as {@link #toBytes(UMBPHandshakeMetadata)} wrote them
   * @return the handshake
   * @throws UMBPException INVALID_ARGUMENT
   */
  public static UMBPHandshakeMetadata toHandshake(byte[] bytes) {
    MetadataReader in = new MetadataReader(bytes, MetadataWriter.HANDSHAKE);
    return in.whole(
        () -> {
          UMBPNamespace namespace = new UMBPNamespace(in.text());
          String manifest = in.text();
          String format = in.text();
          RankTopology topology =
              new RankTopology(
                  in.number(),
                  in.number(),
                  in.number(),
                  in.number(),
                  in.number(),
                  in.number(),
                  in.number(),
                  in.number());
          Set<Integer> replicated = readNumbers(in);
          List<KVRegion> regions = new ArrayList<>();
          int count = in.count("regions", 81);
          for (int i = 0; i < count; i++) {
            regions.add(readRegion(in));
          }
          return new UMBPHandshakeMetadata(
              namespace, manifest, new KVLayoutDescriptor(regions, topology, replicated, format));
        },
        MetadataCodec::toBytes);
  }

  private static KVRegion readRegion(MetadataReader in) {
    String layerName = in.text();
    int groupId = in.number();
    long blockStride = in.number64();
    long blockBytes = in.number64();
    long objectOffset = in.number64();
    int blockSize = in.number();
    List<PageSegment> segments = new ArrayList<>();
    int segmentCount = in.count("page segments", 16);
    for (int i = 0; i < segmentCount; i++) {
      segments.add(new PageSegment(in.number64(), in.number64()));
    }
    List<Axis> axes = new ArrayList<>();
    int axisCount = in.count("axes", 4);
    for (int i = 0; i < axisCount; i++) {
      axes.add(axis(in));
    }
    KVPageShape shape =
        new KVPageShape(
            axes, in.number(), in.number(), in.number(), in.number(), in.number64(), in.number64());
    return new KVRegion(
        layerName, groupId, blockStride, blockBytes, objectOffset, blockSize, segments, shape);
  }

  private static void writeTexts(MetadataWriter out, SortedSet<String> texts) {
    out.count(texts.size());
    texts.forEach(out::text);
  }

  private static Set<String> readTexts(MetadataReader in) {
    Set<String> texts = new HashSet<>();
    int count = in.count("texts", 4);
    for (int i = 0; i < count; i++) {
      texts.add(in.text());
    }
    return texts;
  }

  private static void writeNumbers(MetadataWriter out, Set<Integer> ascending) {
    out.count(ascending.size());
    ascending.forEach(out::number);
  }

  private static Set<Integer> readNumbers(MetadataReader in) {
    Set<Integer> numbers = new TreeSet<>();
    int count = in.count("numbers", 4);
    for (int i = 0; i < count; i++) {
      numbers.add(in.number());
    }
    return numbers;
  }
}
