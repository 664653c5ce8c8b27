package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;

class TPShardPlannerProperties {
  private static final UMBPNamespace STORED = new UMBPNamespace("stored");

  /** A cache that engines of two sizes have, and the rank that loads. */
  record Pair(KVCacheConfig config, int from, int to, int rank) {}

  @Provide
  Arbitrary<Pair> pairs() {
    return Arbitraries.randomValue(TPShardPlannerProperties::randomPair);
  }

  private static Pair randomPair(Random random) {
    int heads = 1 + random.nextInt(12);
    KVCacheLayout[] layouts = KVCacheLayout.values();
    KVSplit[] splits = KVSplit.values();
    int layerCount = 1 + random.nextInt(4);
    List<List<Layer>> groups = new ArrayList<>();
    List<Tensor> tensors = new ArrayList<>();
    for (int i = 0; i < layerCount; i++) {
      int kernelBlocks = 1 + random.nextInt(2);
      int keySize = 1 + random.nextInt(3);
      KVSplit split = splits[random.nextInt(splits.length)];
      int valueSize = split == KVSplit.FUSED ? random.nextInt(4) : keySize;
      KVCacheSpec spec =
          new KVCacheSpec.Attention(
              "kind",
              4,
              ElementType.U8,
              heads,
              keySize,
              valueSize,
              random.nextInt(4) == 0 ? TPSharding.REPLICATED : TPSharding.SHARDED,
              0);
      if (groups.isEmpty() || random.nextInt(3) == 0) {
        groups.add(new ArrayList<>());
      }
      groups.get(random.nextInt(groups.size())).add(new Layer("layer" + i, spec));
      tensors.add(
          new Tensor(
              List.of(new Slot(List.of("layer" + i))),
              layouts[random.nextInt(layouts.length)],
              split,
              2,
              kernelBlocks,
              Tensor.PACKED));
    }
    groups.removeIf(List::isEmpty);
    int to = size(heads, random);
    KVCacheConfig config =
        new KVCacheConfig(
            groups.stream().map(layers -> new Group(layers, Transfer.ENABLED)).toList(), tensors);
    return new Pair(config, size(heads, random), to, random.nextInt(to));
  }

  /** A size that divides the number of heads, or is a multiple of it. */
  private static int size(int heads, Random random) {
    int size = 1 + random.nextInt(24);
    return heads % size == 0 || size % heads == 0 ? size : size(heads, random);
  }

  private static KVLayoutDescriptor layout(KVCacheConfig config, int rank, int size) {
    return KVLayoutPlanner.describe(config, RankTopology.tensorParallel(rank, size));
  }

  /** The bytes of one object, from what belongs where in a page of its rank. */
  private static byte[] object(KVLayoutDescriptor layout, int groupId) {
    byte[] bytes = new byte[(int) layout.objectBytes(groupId)];
    int start = 0;
    for (KVRegion region : layout.regions()) {
      if (region.groupId() == groupId) {
        fill(bytes, start, region, layout.topology());
        start += (int) region.blockBytes();
      }
    }
    return bytes;
  }

  private static void fill(byte[] bytes, int start, KVRegion region, RankTopology topology) {
    KVPageShape shape = region.shape();
    int size = topology.tpSize();
    int first = 0;
    if (shape.heads() < shape.totalHeads()) {
      first =
          size <= shape.totalHeads()
              ? topology.tpRank() * shape.heads()
              : topology.tpRank() / (size / shape.totalHeads());
    }
    for (Part part : shape.hasValues() ? Part.values() : new Part[] {Part.KEY}) {
      long length = part == Part.KEY ? shape.keyBytes() : shape.valueBytes();
      for (int head = 0; head < shape.heads(); head++) {
        for (int token = 0; token < shape.tokens(); token++) {
          int at = start + (int) shape.offset(part, head, token);
          for (int i = 0; i < length; i++) {
            bytes[at + i] =
                (byte)
                    (region.layerName() + part + (first + head) + "," + token + "," + i).hashCode();
          }
        }
      }
    }
  }

  @Property(tries = 1500)
  void thePiecesMakeTheObjectByteForByte(@ForAll("pairs") Pair pair) {
    KVLayoutDescriptor consumer = layout(pair.config, pair.rank, pair.to);
    ShardedSource source =
        TPShardPlanner.plan(STORED, layout(pair.config, pair.from - 1, pair.from), consumer);
    TPShardPlanner.check(source, consumer);
    for (ShardedSource.Group group : source.groups()) {
      Map<RankNamespace, byte[]> stored = new HashMap<>();
      for (int rank = 0; rank < pair.from; rank++) {
        KVLayoutDescriptor producer = layout(pair.config, rank, pair.from);
        byte[] object = object(producer, group.groupId());
        byte[] same = stored.putIfAbsent(producer.rankOf(group.groupId()), object);
        if (same != null) {
          assertArrayEquals(same, object, "objects of a replicated group");
        }
      }
      byte[] made = new byte[(int) group.objectBytes()];
      Arrays.fill(made, (byte) 0xEE);
      Slice before = null;
      for (Slice slice : group.slices()) {
        byte[] object = stored.get(group.producers().get(slice.producer()));
        assertEquals(object.length, group.producerObjectBytes());
        System.arraycopy(
            object,
            (int) slice.sourceOffset(),
            made,
            (int) slice.objectOffset(),
            (int) slice.length());
        boolean goesOn =
            before != null
                && before.producer() == slice.producer()
                && before.sourceOffset() + before.length() == slice.sourceOffset();
        assertEquals(false, goesOn, "two pieces that are one");
        before = slice;
      }
      assertArrayEquals(object(consumer, group.groupId()), made);
    }
  }
}
