package io.umbp.core.layout;

import io.umbp.api.ElementType;
import io.umbp.api.UMBPException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * An engine's KV cache on one rank, as the engine configured it: which layers form a group, and
 * which tensors hold them. Immutable.
 *
 * @param groups the KV cache groups; a group's id is its place in the list; copied
 * @param tensors the buffers in the engine's order, each layer of a group in exactly one; copied
 */
public record KVCacheConfig(List<Group> groups, List<Tensor> tensors) {

  /**
   * What all layers of a group have in common.
   *
   * @param kind the engine's name for the kind of cache, such as {@code FullAttentionSpec}, not
   *     empty
   * @param blockSize tokens in one block, above 0
   * @param pageBytes bytes of one layer's page of one block, above 0
   * @param elementType number format of the page
   */
  public record Spec(String kind, int blockSize, long pageBytes, ElementType elementType) {
    /** Checks the bounds. */
    public Spec {
      if (kind.isEmpty()) {
        throw UMBPException.invalid("the kind of a KV cache spec is empty");
      }
      if (blockSize <= 0 || pageBytes <= 0) {
        throw UMBPException.invalid(
            "%s has block size %d and page bytes %d, both must be > 0", kind, blockSize, pageBytes);
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
   * @param spec what the layers have in common
   * @param layers names, at least one, each in one group only; copied
   * @param transfer whether the group's blocks are stored and loaded
   */
  public record Group(Spec spec, List<String> layers, Transfer transfer) {
    /** Checks that there are layers. */
    public Group {
      layers = List.copyOf(layers);
      if (layers.isEmpty()) {
        throw UMBPException.invalid("a %s group has no layers", spec.kind());
      }
    }
  }

  /**
   * One buffer that holds the pages of one or more layers.
   *
   * @param layers names in the order of their pages, at least one; copied
   * @param blockStride bytes from one block's start to the next, above 0
   */
  public record Tensor(List<String> layers, long blockStride) {
    /** Checks the bounds. */
    public Tensor {
      layers = List.copyOf(layers);
      if (layers.isEmpty()) {
        throw UMBPException.invalid("a KV tensor has no layers");
      }
      if (blockStride <= 0) {
        throw UMBPException.invalid(
            "layer '%s': block stride %d must be > 0", layers.get(0), blockStride);
      }
    }
  }

  /** Checks that groups and tensors name the same layers, each once. */
  public KVCacheConfig {
    groups = List.copyOf(groups);
    tensors = List.copyOf(tensors);
    Map<String, Integer> groupOfLayer = new HashMap<>();
    for (int id = 0; id < groups.size(); id++) {
      for (String layer : groups.get(id).layers()) {
        Integer other = groupOfLayer.putIfAbsent(layer, id);
        if (other != null) {
          throw UMBPException.invalid(
              "layer '%s' is in group %d and again in group %d", layer, other, id);
        }
      }
    }
    Set<String> placed = new HashSet<>();
    for (Tensor tensor : tensors) {
      for (String layer : tensor.layers()) {
        if (!groupOfLayer.containsKey(layer)) {
          throw UMBPException.invalid("layer '%s' of a KV tensor is in no group", layer);
        }
        if (!placed.add(layer)) {
          throw UMBPException.invalid("layer '%s' is in more than one KV tensor", layer);
        }
      }
    }
    if (placed.size() < groupOfLayer.size()) {
      throw UMBPException.invalid(
          "layers %s are in no KV tensor",
          groupOfLayer.keySet().stream()
              .filter(layer -> !placed.contains(layer))
              .sorted()
              .toList());
    }
  }

  /**
   * Returns the group of a layer.
   *
   * @param layerName a layer of some group
   * @return the group's id
   */
  public int groupOf(String layerName) {
    for (int id = 0; id < groups.size(); id++) {
      if (groups.get(id).layers().contains(layerName)) {
        return id;
      }
    }
    throw UMBPException.invalid("layer '%s' is in no group", layerName);
  }
}
