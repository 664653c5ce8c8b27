package io.umbp.core.identity;

import io.umbp.api.BlockHash;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVOrigin;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.core.identity.NamespaceFingerprint.Drafter;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.StringJoiner;
import org.jspecify.annotations.Nullable;

/**
 * Collects what an engine runs for its {@link NamespaceManifest}. Thread-confined. {@link #cache}
 * and {@link #hash} are needed, the rest is none unless given.
 */
public final class NamespaceManifestBuilder {
  private final String model;
  private @Nullable String revision;
  private @Nullable String quantization;
  private Map<String, String> overrides = Map.of();
  private @Nullable String kvDtype;
  private @Nullable String kvScales;
  private @Nullable KVCacheConfig cache;
  private @Nullable RankTopology topology;
  private Map<String, Integer> stages = Map.of();
  private @Nullable Drafter drafter;
  private @Nullable String hashAlgorithm;
  private @Nullable BlockHash firstParent;
  private int hashBlockSize;
  private KVOrigin origin = KVOrigin.OWN_WRITER;

  NamespaceManifestBuilder(String model) {
    this.model = Objects.requireNonNull(present("model", model));
  }

  /** Refuses an empty text, which could mean a value or none. */
  private static @Nullable String present(String what, @Nullable String text) {
    if (text != null && text.isEmpty()) {
      throw UMBPException.invalid("%s is empty; null means none", what);
    }
    return text;
  }

  /**
   * Sets the weights' revision.
   *
   * @param revision a name or digest that changes when the weights do, not empty; null for none
   * @return this builder
   */
  public NamespaceManifestBuilder revision(@Nullable String revision) {
    this.revision = present("revision", revision);
    return this;
  }

  /**
   * Sets how the weights are quantised.
   *
   * @param quantization the method and its parameters, not empty; null for none
   * @return this builder
   */
  public NamespaceManifestBuilder weightQuantization(@Nullable String quantization) {
    this.quantization = present("weight quantization", quantization);
    return this;
  }

  /**
   * Sets what is configured otherwise than in the model's own configuration, such as RoPE scaling
   * or the window size, and all else that changes KV and has no place of its own here.
   *
   * @param overrides names, not empty, and values; their order makes no difference; copied
   * @return this builder
   */
  public NamespaceManifestBuilder overrides(Map<String, String> overrides) {
    if (overrides.containsKey("")) {
      throw UMBPException.invalid("the name of an override is empty");
    }
    this.overrides = Map.copyOf(overrides);
    return this;
  }

  /**
   * Sets the number format of KV where the element types of the layers don't tell it.
   *
   * @param dtype the engine's name of it, such as {@code fp8_e4m3}, not empty; null for none
   * @return this builder
   */
  public NamespaceManifestBuilder kvDtype(@Nullable String dtype) {
    this.kvDtype = present("KV dtype", dtype);
    return this;
  }

  /**
   * Sets the scales of quantised KV.
   *
   * @param scales the numbers or a digest of them, not empty; null for none
   * @return this builder
   */
  public NamespaceManifestBuilder kvScales(@Nullable String scales) {
    this.kvScales = present("KV scales", scales);
    return this;
  }

  /**
   * Sets the KV cache. Groups whose transfer is disabled don't count.
   *
   * @param cache the cache of the whole model, on every pipeline stage, so that all stages derive
   *     the same namespace
   * @param topology parallel sizes; which rank it is makes no difference
   * @return this builder
   */
  public NamespaceManifestBuilder cache(KVCacheConfig cache, RankTopology topology) {
    this.cache = cache;
    this.topology = topology;
    return this;
  }

  /**
   * Sets which pipeline stage has which layers; needed with several stages.
   *
   * @param stageOfLayer the stage of each layer that is stored and loaded; copied
   * @return this builder
   */
  public NamespaceManifestBuilder stages(Map<String, Integer> stageOfLayer) {
    this.stages = Map.copyOf(stageOfLayer);
    return this;
  }

  /**
   * Sets the speculative decoder.
   *
   * @param drafter the decoder, or null for none
   * @return this builder
   */
  public NamespaceManifestBuilder drafter(@Nullable Drafter drafter) {
    this.drafter = drafter;
    return this;
  }

  /**
   * Sets what hashes blocks.
   *
   * @param hasher the engine's hasher
   * @return this builder
   */
  public NamespaceManifestBuilder hash(BlockHasher hasher) {
    return hash(hasher.algorithm(), hasher.firstParent(), hasher.blockSize());
  }

  /**
   * Sets how the engine itself hashes blocks.
   *
   * @param algorithm the algorithm's name, not empty
   * @param firstParent what stands for the parent of first blocks: the hash of the seed
   * @param blockSize tokens between two hashes of a sequence, above 0
   * @return this builder
   */
  public NamespaceManifestBuilder hash(String algorithm, BlockHash firstParent, int blockSize) {
    if (blockSize < 1) {
      throw UMBPException.invalid("hash block size %d must be >= 1 token", blockSize);
    }
    this.hashAlgorithm = present("hash algorithm", algorithm);
    this.firstParent = firstParent;
    this.hashBlockSize = blockSize;
    return this;
  }

  /**
   * Sets who may have written the KV in the engine's buffers; {@link KVOrigin#OWN_WRITER} unless
   * told otherwise.
   *
   * @param origin who
   * @return this builder
   */
  public NamespaceManifestBuilder origin(KVOrigin origin) {
    this.origin = origin;
    return this;
  }

  /**
   * Returns the manifest.
   *
   * @return the manifest of all that was set
   * @throws UMBPException INVALID_ARGUMENT when cache or hash were not set, a layer has no stage
   *     although there are several, the cache has no layout on the ranks, or the text would have
   *     more than {@value NamespaceManifest#MAX_LENGTH} characters
   */
  public NamespaceManifest build() {
    if (cache == null || topology == null) {
      throw UMBPException.invalid("the manifest of model '%s' needs the KV cache", model);
    }
    if (hashAlgorithm == null || firstParent == null) {
      throw UMBPException.invalid("the manifest of model '%s' needs the block hash", model);
    }
    Map<String, String> fields = new HashMap<>();
    fields.put("layout-version", String.valueOf(NamespaceManifest.LAYOUT_VERSION));
    fields.put("model", model);
    putPresent(fields, "model.revision", revision);
    putPresent(fields, "model.quantization", quantization);
    overrides.forEach((name, value) -> fields.put("override." + name, value));
    putPresent(fields, "kv.dtype", kvDtype);
    putPresent(fields, "kv.scales", kvScales);
    fields.put(
        NamespaceManifest.ORIGIN,
        switch (origin) {
          case OWN_WRITER -> "own-writer";
          case MAY_BE_FOREIGN -> NamespaceManifest.FOREIGN;
        });
    fields.put("hash.algorithm", hashAlgorithm);
    fields.put("hash.first-parent", firstParent.toString());
    fields.put("hash.block-size", String.valueOf(hashBlockSize));
    if (drafter != null) {
      fields.put("drafter", "yes");
      putPresent(fields, "drafter.method", drafter.method());
      putPresent(fields, "drafter.model", drafter.model());
      putPresent(fields, "drafter.revision", drafter.revision());
    }
    fields.put("parallel.tp", String.valueOf(topology.tpSize()));
    fields.put("parallel.pp", String.valueOf(topology.ppSize()));
    fields.put("parallel.pcp", String.valueOf(topology.pcpSize()));
    fields.put("parallel.dcp", String.valueOf(topology.dcpSize()));
    putCache(fields, cache, topology);
    return NamespaceManifest.of(fields);
  }

  private static void putPresent(Map<String, String> fields, String name, @Nullable String value) {
    if (value != null) {
      fields.put(name, value);
    }
  }

  private void putCache(Map<String, String> fields, KVCacheConfig cache, RankTopology topology) {
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(cache, topology);
    Map<String, KVCacheSpec> specs = new HashMap<>();
    for (KVCacheConfig.Group group : cache.groups()) {
      group.layers().forEach(layer -> specs.put(layer.name(), layer.spec()));
    }
    Map<String, KVCacheConfig.Tensor> tensors = new HashMap<>();
    for (KVCacheConfig.Tensor tensor : cache.tensors()) {
      for (KVCacheConfig.Slot slot : tensor.slots()) {
        slot.layers().forEach(layer -> tensors.put(layer, tensor));
      }
    }
    Map<Integer, List<String>> names = new HashMap<>();
    for (KVRegion region : layout.regions()) {
      String name = region.layerName();
      names.computeIfAbsent(region.groupId(), id -> new ArrayList<>()).add(name);
      putLayer(
          fields,
          region,
          Objects.requireNonNull(specs.get(name)),
          Objects.requireNonNull(tensors.get(name)));
      if (topology.ppSize() > 1) {
        fields.put("layer[" + name + "].stage", String.valueOf(stage(name, topology.ppSize())));
      }
    }
    names.forEach(
        (id, layers) -> {
          String group = "group[" + id + "].";
          fields.put(group + "block-size", String.valueOf(cache.groups().get(id).blockSize()));
          fields.put(group + "layers", join(layers));
          fields.put(group + "replicated", layout.replicatedGroups().contains(id) ? "yes" : "no");
        });
  }

  private int stage(String layer, int stageCount) {
    Integer stage = stages.get(layer);
    if (stage == null || stage < 0 || stage >= stageCount) {
      throw UMBPException.invalid(
          "layer '%s' is on pipeline stage %s; with %d stages each layer must be on one in [0, %d)",
          layer, stage, stageCount, stageCount);
    }
    return stage;
  }

  /** Joins names by commas so that no two lists give the same text. */
  private static String join(List<String> names) {
    StringJoiner joined = new StringJoiner(",");
    for (String name : names) {
      joined.add(name.replace("\\", "\\\\").replace(",", "\\,"));
    }
    return joined.toString();
  }

  private static void putLayer(
      Map<String, String> fields, KVRegion region, KVCacheSpec spec, KVCacheConfig.Tensor tensor) {
    String layer = "layer[" + region.layerName() + "].";
    fields.put(layer + "kind", spec.kind());
    fields.put(layer + "element-type", spec.elementType().name());
    fields.put(layer + "sharding", spec.sharding().name());
    fields.put(layer + "page-bytes", String.valueOf(region.blockBytes()));
    if (spec instanceof KVCacheSpec.Attention attention) {
      fields.put(layer + "kv-heads", String.valueOf(attention.kvHeads()));
      fields.put(layer + "rank-heads", String.valueOf(region.shape().heads()));
      fields.put(layer + "key-size", String.valueOf(attention.keySize()));
      fields.put(layer + "value-size", String.valueOf(attention.valueSize()));
      fields.put(layer + "sliding-window", String.valueOf(attention.slidingWindow()));
      fields.put(layer + "layout", tensor.layout().name());
      fields.put(layer + "kv-split", tensor.split().name());
      fields.put(layer + "page-order", pageOrder(region.shape()));
    }
  }

  /** Returns a page's axes outermost first, without kernel blocks that make no difference. */
  private static String pageOrder(KVPageShape shape) {
    StringJoiner order = new StringJoiner(" ");
    boolean isKernelBlockOpen = false;
    for (Axis axis : shape.axes()) {
      if (axis == Axis.KERNEL_BLOCK) {
        isKernelBlockOpen = true;
        continue;
      }
      if (isKernelBlockOpen && axis != Axis.TOKEN && shape.size(axis) > 1) {
        order.add("kernel-block/" + shape.kernelBlocks());
      }
      isKernelBlockOpen &= axis != Axis.TOKEN && shape.size(axis) == 1;
      order.add(axis.name().toLowerCase(Locale.ROOT));
    }
    return order.toString();
  }
}
