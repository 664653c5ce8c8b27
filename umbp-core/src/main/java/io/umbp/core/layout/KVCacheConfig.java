package io.umbp.core.layout;

import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * An engine's KV cache as the engine configured it: which layers form a group, and how tensors hold
 * them. Immutable.
 *
 * @param groups the KV cache groups; a group's id is its place in the list; copied
 * @param tensors the buffers in the engine's order, each layer of a group in exactly one; copied
 */
public record KVCacheConfig(List<Group> groups, List<Tensor> tensors) {

  /**
   * One layer.
   *
   * @param name unique name, not empty
   * @param spec what it keeps for each block
   */
  public record Layer(String name, KVCacheSpec spec) {
    /** Checks the name. */
    public Layer {
      if (name.isEmpty()) {
        throw UMBPException.invalid("the name of a %s layer is empty", spec.kind());
      }
    }
  }

  /** Whether the blocks of a group are stored and loaded. */
  public enum Transfer {
    /** Blocks move: the group's layers are part of the layout. */
    ENABLED,
    /** Blocks stay with the engine: the layout leaves the group out. */
    DISABLED
  }

  /**
   * Layers whose blocks are allocated together under one block id.
   *
   * @param layers the layers, at least one, all with the same block size; what else they keep may
   *     differ; copied
   * @param transfer whether the group's blocks are stored and loaded
   */
  public record Group(List<Layer> layers, Transfer transfer) {
    /** Checks that there are layers, and their block sizes. */
    public Group {
      layers = List.copyOf(layers);
      if (layers.isEmpty()) {
        throw UMBPException.invalid("a KV cache group has no layers");
      }
      Layer first = layers.get(0);
      for (Layer layer : layers) {
        if (layer.spec().blockSize() != first.spec().blockSize()) {
          throw UMBPException.invalid(
              "layer '%s' has blocks of %d tokens, layer '%s' of the same group has %d",
              layer.name(), layer.spec().blockSize(), first.name(), first.spec().blockSize());
        }
      }
    }

    /**
     * Returns the number of tokens in a block.
     *
     * @return above 0
     */
    public int blockSize() {
      return layers.get(0).spec().blockSize();
    }
  }

  /**
   * The place of one page in each block of a tensor.
   *
   * @param layers the layers that keep their pages there, at least one. Several layers are of
   *     different groups: they use the same bytes under different block ids; copied
   */
  public record Slot(List<String> layers) {
    /** Checks that there are layers. */
    public Slot {
      layers = List.copyOf(layers);
      if (layers.isEmpty()) {
        throw UMBPException.invalid("a slot of a KV tensor has no layers");
      }
    }
  }

  /**
   * One buffer that holds the pages of one or more layers.
   *
   * @param slots the places in the order of the axis L of the layout, at least one; copied
   * @param layout physical order
   * @param split where values lie with respect to keys
   * @param blockCount blocks of the engine's block manager, above 0
   * @param kernelBlocks (kernel) blocks of the attention kernel that make one block, above 0;
   *     divides the block size of every layer
   * @param blockStride bytes from one block's start to the next; {@link #PACKED} for as few as the
   *     pages need. Padding stands at the end of each kernel block
   */
  public record Tensor(
      List<Slot> slots,
      KVCacheLayout layout,
      KVSplit split,
      int blockCount,
      int kernelBlocks,
      long blockStride) {
    /** The block stride of a tensor without padding. */
    public static final long PACKED = 0;

    /** Checks the bounds. */
    public Tensor {
      slots = List.copyOf(slots);
      if (slots.isEmpty()) {
        throw UMBPException.invalid("a KV tensor has no slots");
      }
      String layer = slots.get(0).layers().get(0);
      if (blockCount <= 0 || kernelBlocks <= 0 || blockStride < 0) {
        throw UMBPException.invalid(
            "layer '%s': the tensor has %d blocks of %d kernel blocks with stride %d; the counts"
                + " must be > 0, the stride >= 0",
            layer, blockCount, kernelBlocks, blockStride);
      }
      if (blockStride % kernelBlocks != 0) {
        throw UMBPException.invalid(
            "layer '%s': %d kernel blocks do not divide the block stride %d",
            layer, kernelBlocks, blockStride);
      }
    }

    /**
     * Returns a tensor without padding whose layers have a slot each, and whose kernel blocks are
     * the blocks.
     *
     * @param layout physical order
     * @param split where values lie with respect to keys
     * @param blockCount blocks, above 0
     * @param layers the layers in order, at least one
     * @return the tensor
     */
    public static Tensor packed(
        KVCacheLayout layout, KVSplit split, int blockCount, List<String> layers) {
      List<Slot> slots = layers.stream().map(layer -> new Slot(List.of(layer))).toList();
      return new Tensor(slots, layout, split, blockCount, 1, PACKED);
    }

    /**
     * Returns the tensor that an engine knows by its shape. The names of the axes say where layers,
     * keys, values, heads and tokens lie, since two layouts can have one shape; a shape without
     * names is refused.
     *
     * @param layers the layers in order, at least one, all attention with blocks of one size
     * @param topology the rank it belongs to
     * @param axes a letter for each axis, outermost first: L layer, B (kernel) block, K key and
     *     value, H head, N token, C content. L, K and H may be left out where there is one. A K
     *     right before C, or none, is {@link KVSplit#FUSED}; then C without K is the elements of a
     *     key and a value, or of a latent
     * @param sizes elements of each axis
     * @return the tensor, packed, a slot for each layer; where N is less than a block's tokens,
     *     blocks are several kernel blocks
     * @throws UMBPException INVALID_ARGUMENT when axes are not named, no layout has them in that
     *     order, or sizes are not what the layers keep
     */
    public static Tensor ofShape(
        List<Layer> layers, RankTopology topology, String axes, int... sizes) {
      return TensorShape.tensor(layers, topology, axes, sizes);
    }
  }

  /** Checks that groups and tensors name the same layers, each once. */
  public KVCacheConfig {
    groups = List.copyOf(groups);
    tensors = List.copyOf(tensors);
    Map<String, Integer> groupOfLayer = new HashMap<>();
    for (int id = 0; id < groups.size(); id++) {
      for (Layer layer : groups.get(id).layers()) {
        Integer other = groupOfLayer.putIfAbsent(layer.name(), id);
        if (other != null) {
          throw UMBPException.invalid(
              "layer '%s' is in group %d and again in group %d", layer.name(), other, id);
        }
      }
    }
    Set<String> missing = new TreeSet<>(groupOfLayer.keySet());
    for (Tensor tensor : tensors) {
      for (Slot slot : tensor.slots()) {
        Set<Integer> groupsOfSlot = new HashSet<>();
        for (String layer : slot.layers()) {
          Integer group = groupOfLayer.get(layer);
          if (group == null) {
            throw UMBPException.invalid("layer '%s' of a KV tensor is in no group", layer);
          }
          if (!missing.remove(layer)) {
            throw UMBPException.invalid("layer '%s' is in more than one KV tensor slot", layer);
          }
          if (!groupsOfSlot.add(group)) {
            throw UMBPException.invalid(
                "layer '%s' shares its slot with another layer of group %d", layer, group);
          }
        }
      }
    }
    if (!missing.isEmpty()) {
      throw UMBPException.invalid("layers %s are in no KV tensor", missing);
    }
  }

  /**
   * Returns the groups whose objects are the same on all tensor-parallel ranks, so that one key and
   * one copy stand for all of them: those all of whose layers are {@link TPSharding#REPLICATED}.
   * Judged for each group, never for the whole model.
   *
   * @param topology parallel sizes; with one tensor-parallel rank or with context parallelism no
   *     group is replicated
   * @return ids of groups that are stored and loaded
   */
  public Set<Integer> replicatedGroups(RankTopology topology) {
    Set<Integer> replicated = new TreeSet<>();
    if (topology.tpSize() > 1 && topology.pcpSize() == 1 && topology.dcpSize() == 1) {
      for (int id = 0; id < groups.size(); id++) {
        Group group = groups.get(id);
        if (group.transfer() == Transfer.ENABLED
            && group.layers().stream()
                .allMatch(layer -> layer.spec().sharding() == TPSharding.REPLICATED)) {
          replicated.add(id);
        }
      }
    }
    return replicated;
  }
}
