package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.SupportsShardedLoad;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPShardPlanner;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.testkit.FakeGpu;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/**
 * An engine of some tensor-parallel size with KV on a fake GPU. Each byte of a block follows from
 * the block's hash and from the layer, K or V, head of the model, token and byte that it belongs
 * to; where the byte lies follows from the order of the axes alone.
 */
final class TPEngine {
  static final int BLOCKS = 11;
  static final byte CANARY = (byte) 0xEE;
  static final Duration LONG = Duration.ofSeconds(20);

  final UMBPNamespace namespace;
  final List<Rank> ranks = new ArrayList<>();
  final UMBPSchedulerHandle scheduler;
  private final FakeGpu gpu;
  private final List<Tensor> tensors;

  /** Layers of one kind in one buffer without padding. */
  record Tensor(
      String name,
      int groupId,
      KVCacheSpec spec,
      int layers,
      KVCacheLayout layout,
      KVSplit split,
      int kernelBlocks) {

    List<String> names() {
      return IntStream.range(0, layers).mapToObj(i -> name + "." + i).toList();
    }
  }

  static KVCacheConfig config(List<Tensor> tensors) {
    List<KVCacheConfig.Group> groups = new ArrayList<>();
    List<KVCacheConfig.Tensor> buffers = new ArrayList<>();
    for (int id = 0; tensors.stream().mapToInt(Tensor::groupId).max().orElseThrow() >= id; id++) {
      List<KVCacheConfig.Layer> layers = new ArrayList<>();
      for (Tensor tensor : tensors) {
        if (tensor.groupId == id) {
          tensor.names().forEach(name -> layers.add(new KVCacheConfig.Layer(name, tensor.spec)));
        }
      }
      groups.add(new KVCacheConfig.Group(layers, KVCacheConfig.Transfer.ENABLED));
    }
    for (Tensor tensor : tensors) {
      buffers.add(
          new KVCacheConfig.Tensor(
              tensor.names().stream().map(name -> new KVCacheConfig.Slot(List.of(name))).toList(),
              tensor.layout,
              tensor.split,
              BLOCKS,
              tensor.kernelBlocks,
              KVCacheConfig.Tensor.PACKED));
    }
    return new KVCacheConfig(groups, buffers);
  }

  TPEngine(
      FakeGpu gpu, EmbeddedRuntime runtime, String namespace, int tpSize, List<Tensor> tensors) {
    this.gpu = gpu;
    this.tensors = tensors;
    this.namespace = new UMBPNamespace(namespace);
    KVCacheConfig config = config(tensors);
    for (int rank = 0; rank < tpSize; rank++) {
      ranks.add(new Rank(runtime, RankTopology.tensorParallel(rank, tpSize), config));
    }
    Rank first = ranks.get(0);
    scheduler =
        runtime.createSchedulerHandle(this.namespace, first.layout.topology(), first.layout);
  }

  static BlockHashes hashes(int... numbers) {
    List<BlockHash> hashes = new ArrayList<>();
    for (int number : numbers) {
      hashes.add(BlockHash.of(new byte[] {(byte) number, 1, 2, 3}));
    }
    return BlockHashes.of(hashes);
  }

  /** Whether a block can be put together out of this engine's objects, as a scheduler asks. */
  boolean isPresent(int groupId, int hash) {
    BlockKeys keys =
        new BlockIdentityCodec(namespace, ranks.get(0).layout).allRankKeys(groupId, hashes(hash));
    for (boolean isThere : scheduler.lookup(keys)) {
      if (!isThere) {
        return false;
      }
    }
    return true;
  }

  /** Stores blocks on every rank, or on the first one when the group is replicated. */
  void storeAll(int groupId, int[] hashes, int... blocks) {
    for (Rank rank : ranks) {
      if (rank.tp() == 0 || !rank.layout.replicatedGroups().contains(groupId)) {
        rank.store(groupId, hashes, blocks);
      }
    }
  }

  static byte pattern(int hash, int layer, int part, int head, int token, int at) {
    int mixed = 17;
    for (int value : new int[] {hash, layer, part, head, token, at}) {
      mixed = (mixed + value) * 0x9E3779B1;
      mixed ^= mixed >>> 15;
    }
    return (byte) Math.floorMod(mixed, 230);
  }

  /** One rank: its worker, its buffers and what they should hold. */
  final class Rank {
    final SupportsShardedLoad worker;
    final KVLayoutDescriptor layout;
    private final List<Long> bases = new ArrayList<>();
    private final List<byte[]> expected = new ArrayList<>();

    private Rank(EmbeddedRuntime runtime, RankTopology topology, KVCacheConfig config) {
      layout = KVLayoutPlanner.describe(config, topology);
      worker = runtime.createWorkerHandle(namespace, topology, layout);
      Map<String, KVCacheTensor> registered = new HashMap<>();
      for (TensorPlan plan : KVLayoutPlanner.tensors(config, topology)) {
        long base = gpu.malloc(0, plan.sizeBytes());
        bases.add(base);
        expected.add(new byte[(int) plan.sizeBytes()]);
        registered.putAll(plan.onDevice(base, 0));
      }
      reset();
      worker.registerBuffers(registered);
    }

    int tp() {
      return layout.topology().tpRank();
    }

    ShardedSource source(TPEngine producer) {
      return TPShardPlanner.plan(producer.namespace, producer.ranks.get(0).layout, layout);
    }

    /** Fills all buffers with canary bytes. */
    void reset() {
      for (int i = 0; i < bases.size(); i++) {
        Arrays.fill(expected.get(i), CANARY);
        gpu.write(bases.get(i), expected.get(i));
      }
    }

    int heads(KVCacheSpec.Attention spec) {
      return spec.sharding() == TPSharding.REPLICATED
          ? spec.kvHeads()
          : Math.max(1, spec.kvHeads() / layout.topology().tpSize());
    }

    int firstHead(KVCacheSpec.Attention spec) {
      int size = layout.topology().tpSize();
      if (spec.sharding() == TPSharding.REPLICATED) {
        return 0;
      }
      return size <= spec.kvHeads()
          ? tp() * (spec.kvHeads() / size)
          : tp() / (size / spec.kvHeads());
    }

    /** Says what a block should hold. */
    void expect(int groupId, int hash, int block) {
      for (int i = 0; i < tensors.size(); i++) {
        Tensor tensor = tensors.get(i);
        if (tensor.groupId != groupId) {
          continue;
        }
        if (tensor.spec instanceof KVCacheSpec.State state) {
          int bytes = (int) state.pageBytes();
          for (int layer = 0; layer < tensor.layers; layer++) {
            put(i, (layer * BLOCKS + block) * bytes, bytes, hash, layer, 0, 0, 0);
          }
        } else {
          expectHeads(i, (KVCacheSpec.Attention) tensor.spec, hash, block);
        }
      }
    }

    private void expectHeads(int index, KVCacheSpec.Attention spec, int hash, int block) {
      Tensor tensor = tensors.get(index);
      int keyBytes = spec.keySize() * spec.elementType().sizeBytes();
      int valueBytes = spec.valueSize() * spec.elementType().sizeBytes();
      boolean isFused = tensor.split == KVSplit.FUSED || valueBytes == 0;
      int kernelTokens = spec.blockSize() / tensor.kernelBlocks;
      for (int layer = 0; layer < tensor.layers; layer++) {
        for (int part = 0; part < (valueBytes > 0 ? 2 : 1); part++) {
          for (int head = 0; head < heads(spec); head++) {
            for (int token = 0; token < spec.blockSize(); token++) {
              int at = 0;
              String axes =
                  TrialEngine.order(tensor.layout, valueBytes > 0 ? tensor.split : KVSplit.FUSED);
              for (int i = 0; i < axes.length(); i++) {
                char axis = axes.charAt(i);
                at =
                    switch (axis) {
                      case 'L' -> at * tensor.layers + layer;
                      case 'B' ->
                          at * BLOCKS * tensor.kernelBlocks
                              + block * tensor.kernelBlocks
                              + token / kernelTokens;
                      case 'K' -> at * 2 + part;
                      case 'H' -> at * heads(spec) + head;
                      case 'N' -> at * kernelTokens + token % kernelTokens;
                      case 'C' ->
                          at * (isFused ? keyBytes + valueBytes : keyBytes)
                              + (isFused && part == 1 ? keyBytes : 0);
                      default -> throw new AssertionError(axis);
                    };
              }
              int bytes = part == 0 ? keyBytes : valueBytes;
              put(index, at, bytes, hash, layer, part, firstHead(spec) + head, token);
            }
          }
        }
      }
    }

    private void put(
        int tensor, int at, int bytes, int hash, int layer, int part, int head, int token) {
      for (int i = 0; i < bytes; i++) {
        expected.get(tensor)[at + i] = pattern(hash, tensor * 16 + layer, part, head, token, i);
      }
    }

    BlockKeys keys(int groupId, int... hashes) {
      return new BlockIdentityCodec(namespace, layout).localKeys(groupId, hashes(hashes));
    }

    /** Writes the patterns of blocks and starts storing them. */
    TransferJobState startStore(int groupId, int[] hashes, int... blocks) {
      for (int i = 0; i < hashes.length; i++) {
        expect(groupId, hashes[i], blocks[i]);
      }
      for (int i = 0; i < bases.size(); i++) {
        gpu.write(bases.get(i), expected.get(i));
      }
      return worker.store(
          BlockStoreBatch.of("r", keys(groupId, hashes), blocks), DeviceFence.hostComplete());
    }

    /** Stores blocks with their patterns and publishes them. */
    void store(int groupId, int[] hashes, int... blocks) {
      TransferJobState stored = worker.await(startStore(groupId, hashes, blocks), LONG);
      assertEquals(hashes.length, worker.publish(stored), () -> stored + " " + stored.detail(0));
    }

    TransferJobState startLoad(ShardedSource source, int groupId, int[] hashes, int... blocks) {
      return worker.load(
          BlockLoadBatch.of("r", keys(groupId, hashes), blocks),
          source,
          DeviceFence.hostComplete());
    }

    TransferJobState load(ShardedSource source, int groupId, int[] hashes, int... blocks) {
      return worker.await(startLoad(source, groupId, hashes, blocks), LONG);
    }

    /** Checks every byte of all buffers. */
    void assertMemory(String when) {
      for (int i = 0; i < bases.size(); i++) {
        byte[] content = expected.get(i);
        assertEquals(
            -1,
            gpu.mismatch(bases.get(i), content, 0, content.length),
            when + ": first wrong byte of buffer " + i + " on rank " + tp());
      }
    }

    /** Returns the bytes of one object of a group. */
    long objectBytes(int groupId) {
      return layout.objectBytes(groupId);
    }
  }
}
