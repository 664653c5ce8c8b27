package io.umbp.bench;

import io.umbp.api.BlockHash;
import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.Kind;
import io.umbp.bench.CatalogueModel.StateCache;
import io.umbp.bench.CatalogueModel.TokenCache;
import io.umbp.core.identity.NamespaceManifest;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;

/**
 * The KV cache of a model as an engine sets it up: its groups and tensors, the same on each
 * tensor-parallel rank. Immutable.
 *
 * <p>Groups are formed as vLLM forms them: layers of one kind are dealt out to groups of equal
 * size, that of the smallest kind, and the n-th layers of all groups share a slot when their pages
 * are alike. A state joins them when it is not larger than their page.
 */
final class EngineCache {
  /** Tokens in a block, unless told else; as in vLLM. */
  static final int DEFAULT_BLOCK_SIZE = 16;

  /** One kind is dealt out by the size of the larger one when it is less than this many times. */
  private static final double GROUP_SIZE_RATIO = 1.5;

  private final CatalogueModel model;
  private final CatalogueModel part;
  private final int ranks;
  private final KVCacheLayout layout;
  private final KVSplit split;
  private final int blockSize;
  private final List<List<Integer>> groups;
  private final long[] objectBytes;
  private final List<TensorSketch> tensors = new ArrayList<>();

  /**
   * One tensor: in each slot the caches that share it.
   *
   * @param slots caches of different groups, as a rank has them; copied
   */
  record TensorSketch(List<List<Cache>> slots, KVCacheLayout layout, KVSplit split) {
    TensorSketch {
      slots = slots.stream().map(List::copyOf).toList();
    }
  }

  private EngineCache(
      CatalogueModel model,
      CatalogueModel part,
      int ranks,
      KVCacheLayout layout,
      KVSplit split,
      int blockSize) {
    this.model = model;
    this.part = part;
    this.ranks = ranks;
    this.layout = layout;
    this.split = split;
    this.blockSize = blockSize;
    groups = deal(part.caches());
    objectBytes = new long[groups.size()];
    for (int group = 0; group < objectBytes.length; group++) {
      for (Cache cache : group(group)) {
        objectBytes[group] += pageBytes(cache);
      }
    }
    for (List<List<Integer>> pool : pools()) {
      addTensors(pool);
    }
  }

  /**
   * Sets a catalogue model up.
   *
   * @param model the model
   * @param ranks tensor-parallel ranks
   * @param layout physical order of what has heads and tokens
   * @param split where its values lie
   * @param blockSize tokens in a block
   */
  static EngineCache of(
      CatalogueModel model, int ranks, KVCacheLayout layout, KVSplit split, int blockSize) {
    return new EngineCache(model, model.onRank(ranks), ranks, layout, split, blockSize);
  }

  /** Sets up layers of so many bytes on each rank, without heads and tokens, in one group. */
  static EngineCache ofBytes(int layers, int layerBytes, int ranks, int blockSize) {
    List<Cache> caches = new ArrayList<>();
    for (int layer = 0; layer < layers; layer++) {
      caches.add(new StateCache("layer." + layer, ElementType.U8, 0, layerBytes, 1, 1, 0));
    }
    CatalogueModel model = new CatalogueModel("bytes", "", 1, caches);
    return new EngineCache(model, model, ranks, KVCacheLayout.LBNHC, KVSplit.FUSED, blockSize);
  }

  /**
   * Returns the tokens in a block that an engine would choose: {@value #DEFAULT_BLOCK_SIZE}, or the
   * smallest multiple at which a page of tokens is no smaller than a state.
   */
  static int defaultBlockSize(CatalogueModel model, int ranks) {
    long state = 0;
    long token = 0;
    for (Cache cache : model.onRank(ranks).caches()) {
      if (cache instanceof StateCache stateCache) {
        state = Math.max(state, stateCache.bytes());
      } else {
        token = Math.max(token, ((TokenCache) cache).bytesPerToken());
      }
    }
    if (state == 0 || token == 0) {
      return DEFAULT_BLOCK_SIZE;
    }
    long unit = token * DEFAULT_BLOCK_SIZE;
    return Math.toIntExact((state + unit - 1) / unit * DEFAULT_BLOCK_SIZE);
  }

  /** Indexes of the caches of each group. */
  private static List<List<Integer>> deal(List<Cache> caches) {
    Map<String, List<Integer>> kinds = new LinkedHashMap<>();
    for (int i = 0; i < caches.size(); i++) {
      Cache cache = caches.get(i);
      kinds.computeIfAbsent(cache.kind().specName(), kind -> new ArrayList<>()).add(i);
    }
    int smallest = kinds.values().stream().mapToInt(List::size).min().orElseThrow();
    int largest = kinds.values().stream().mapToInt(List::size).max().orElseThrow();
    int groupSize = largest < smallest * GROUP_SIZE_RATIO ? largest : smallest;
    List<List<Integer>> groups = new ArrayList<>();
    for (List<Integer> kind : kinds.values()) {
      int count = (kind.size() + groupSize - 1) / groupSize;
      for (int group = 0; group < count; group++) {
        List<Integer> dealt = new ArrayList<>();
        for (int i = group; i < kind.size(); i += count) {
          dealt.add(kind.get(i));
        }
        groups.add(dealt);
      }
    }
    return groups;
  }

  /** The groups that share slots. */
  private List<List<List<Integer>>> pools() {
    Map<String, List<List<Integer>>> pools = new LinkedHashMap<>();
    boolean areStatesShared = areStatesShared();
    for (List<Integer> group : groups) {
      Cache first = part.caches().get(group.get(0));
      String pool =
          first instanceof TokenCache tokens
              ? tokens.heads() + " x " + (tokens.keySize() + tokens.valueSize())
              : "state";
      pools.computeIfAbsent(areStatesShared ? "all" : pool, key -> new ArrayList<>()).add(group);
    }
    return List.copyOf(pools.values());
  }

  /** Whether each state fits into the page of each token cache, and the layout has such pages. */
  private boolean areStatesShared() {
    boolean hasWholePages =
        layout != KVCacheLayout.LHBNC && layout != KVCacheLayout.BHLNC && split != KVSplit.PLANES;
    long state = 0;
    long page = Long.MAX_VALUE;
    for (Cache cache : part.caches()) {
      if (cache instanceof StateCache stateCache) {
        state = Math.max(state, stateCache.bytes());
      } else {
        page = Math.min(page, pageBytes(cache));
      }
    }
    return hasWholePages && state > 0 && page < Long.MAX_VALUE && state <= page;
  }

  private void addTensors(List<List<Integer>> pool) {
    List<List<Cache>> slots = new ArrayList<>();
    int slotCount = pool.stream().mapToInt(List::size).max().orElseThrow();
    boolean hasTokens = false;
    for (int slot = 0; slot < slotCount; slot++) {
      List<Cache> sharing = new ArrayList<>();
      for (List<Integer> group : pool) {
        if (slot < group.size()) {
          Cache cache = part.caches().get(group.get(slot));
          hasTokens |= cache instanceof TokenCache;
          sharing.add(cache);
        }
      }
      slots.add(sharing);
    }
    boolean isLayerFirst = layout.name().startsWith("L");
    if (!hasTokens) {
      KVCacheLayout whole = isLayerFirst ? KVCacheLayout.LBNHC : KVCacheLayout.BLNHC;
      add(slots, whole, KVSplit.FUSED, isLayerFirst);
    } else if (layout == KVCacheLayout.BHLNC) {
      Map<Long, List<List<Cache>>> alike = new LinkedHashMap<>();
      for (List<Cache> slot : slots) {
        alike.computeIfAbsent(pageBytes(slot.get(0)), bytes -> new ArrayList<>()).add(slot);
      }
      alike.values().forEach(some -> add(some, layout, split, false));
    } else {
      add(slots, layout, split, isLayerFirst);
    }
  }

  private void add(
      List<List<Cache>> slots, KVCacheLayout order, KVSplit values, boolean isEachAlone) {
    if (isEachAlone) {
      slots.forEach(slot -> tensors.add(new TensorSketch(List.of(slot), order, values)));
    } else {
      tensors.add(new TensorSketch(slots, order, values));
    }
  }

  /** The model that was set up. */
  CatalogueModel model() {
    return model;
  }

  /** The model as a rank has it. */
  CatalogueModel part() {
    return part;
  }

  int ranks() {
    return ranks;
  }

  /** Whether there is any cache with heads and tokens. */
  boolean hasTokens() {
    return part.caches().stream().anyMatch(TokenCache.class::isInstance);
  }

  KVCacheLayout layout() {
    return layout;
  }

  KVSplit split() {
    return split;
  }

  int blockSize() {
    return blockSize;
  }

  int groupCount() {
    return groups.size();
  }

  /** The caches of a group, as a rank has them, in the order of their layers. */
  List<Cache> group(int groupId) {
    return groups.get(groupId).stream().map(part.caches()::get).toList();
  }

  List<TensorSketch> tensors() {
    return tensors;
  }

  /** Bytes of one block of a cache as a rank has it. */
  long pageBytes(Cache cache) {
    return cache instanceof TokenCache tokens
        ? tokens.bytesPerToken() * blockSize
        : ((StateCache) cache).bytes();
  }

  /** Bytes of a group's object on one rank. */
  long objectBytes(int groupId) {
    return objectBytes[groupId];
  }

  /** Bytes of the objects of a block in all groups on one rank. */
  long blockBytes() {
    return LongStream.of(objectBytes).sum();
  }

  long smallestObjectBytes() {
    return LongStream.of(objectBytes).min().orElseThrow();
  }

  long largestObjectBytes() {
    return LongStream.of(objectBytes).max().orElseThrow();
  }

  /** Whether a cache is the same on all ranks. */
  boolean isReplicated(Cache cache) {
    return ranks > 1 && cache instanceof TokenCache tokens && tokens.isReplicated();
  }

  /** Whether a group's objects are the same on all ranks. */
  boolean isReplicated(int groupId) {
    return group(groupId).stream().allMatch(this::isReplicated);
  }

  /** Objects of a block in all groups on all ranks. */
  int objectsPerBlock() {
    int count = 0;
    for (int group = 0; group < groups.size(); group++) {
      count += isReplicated(group) ? 1 : ranks;
    }
    return count;
  }

  /** Bytes of the objects of a block in all groups on all ranks. */
  long blockBytesOnAllRanks() {
    long sum = 0;
    for (int group = 0; group < groups.size(); group++) {
      sum =
          Math.addExact(
              sum, Math.multiplyExact(objectBytes(group), isReplicated(group) ? 1L : ranks));
    }
    return sum;
  }

  /** What the engine says of its cache. */
  KVCacheConfig config(int blockCount) {
    List<Group> configured = new ArrayList<>();
    for (List<Integer> group : groups) {
      List<Layer> layers = new ArrayList<>();
      for (int index : group) {
        layers.add(
            new Layer(
                part.caches().get(index).layerName(),
                spec(model.caches().get(index), part.caches().get(index))));
      }
      configured.add(new Group(layers, Transfer.ENABLED));
    }
    List<Tensor> placed = new ArrayList<>();
    for (TensorSketch tensor : tensors) {
      List<Slot> slots =
          tensor.slots().stream()
              .map(slot -> new Slot(slot.stream().map(Cache::layerName).toList()))
              .toList();
      placed.add(new Tensor(slots, tensor.layout(), tensor.split(), blockCount, 1, Tensor.PACKED));
    }
    return new KVCacheConfig(configured, placed);
  }

  private KVCacheSpec spec(Cache whole, Cache onRank) {
    String kind = whole.kind().specName();
    if (whole instanceof TokenCache tokens) {
      return new KVCacheSpec.Attention(
          kind,
          blockSize,
          tokens.elementType(),
          tokens.heads(),
          tokens.keySize(),
          tokens.valueSize(),
          tokens.isReplicated() ? TPSharding.REPLICATED : TPSharding.SHARDED,
          tokens.slidingWindow());
    }
    StateCache state = (StateCache) onRank;
    return new KVCacheSpec.State(
        kind, blockSize, state.elementType(), state.bytes(), TPSharding.SHARDED);
  }

  /**
   * Returns the layout of a rank.
   *
   * @param rank tensor-parallel rank
   * @param blockCount blocks of each tensor
   * @throws BadInputException when the layout cannot hold the model
   */
  KVLayoutDescriptor describe(int rank, int blockCount) {
    RankTopology topology = RankTopology.tensorParallel(rank, ranks);
    try {
      return KVLayoutPlanner.describe(config(blockCount), topology);
    } catch (UMBPException e) {
      throw new BadInputException("%s: %s", model.name(), e.getMessage());
    }
  }

  /** All that changes a byte of what the engine stores for a trace. */
  NamespaceManifest manifest() {
    return NamespaceManifest.builder(model.name())
        .cache(config(1), RankTopology.tensorParallel(0, ranks))
        .hash("trace", BlockHash.fromHex("00"), blockSize)
        .build();
  }

  /** The kinds of cache in a group. */
  List<Kind> kinds(int groupId) {
    return group(groupId).stream().map(Cache::kind).distinct().toList();
  }
}
