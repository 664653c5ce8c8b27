package io.umbp.api;

import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/**
 * Runtime-neutral description of one rank's KV objects: which pages, in which order. The object of
 * a block in group {@code g} is the concatenation of the pages of the regions of {@code g} in list
 * order. Immutable.
 *
 * @param regions one region a layer, layer names unique, at least one; copied
 * @param topology the rank whose objects these are
 * @param replicatedGroups groups whose objects are the same on all tensor-parallel ranks and have
 *     one key for all of them; empty with one such rank or with context parallelism; copied
 * @param format label of the byte format, not empty; {@value #RANK_LOCAL} unless an engine says
 *     else
 */
public record KVLayoutDescriptor(
    List<KVRegion> regions, RankTopology topology, Set<Integer> replicatedGroups, String format) {
  /** The default format: pages as they lie on the rank. */
  public static final String RANK_LOCAL = "rank_local";

  /** Checks that there are regions, with unique layer names, and which groups can be replicated. */
  public KVLayoutDescriptor {
    regions = List.copyOf(regions);
    if (regions.isEmpty()) {
      throw UMBPException.invalid("a layout needs at least one region");
    }
    if (format.isEmpty()) {
      throw UMBPException.invalid("the layout's format label is empty");
    }
    Set<String> names = new HashSet<>();
    for (KVRegion region : regions) {
      if (!names.add(region.layerName())) {
        throw UMBPException.invalid("layer '%s' occurs twice in the layout", region.layerName());
      }
    }
    replicatedGroups = Collections.unmodifiableSortedSet(new TreeSet<>(replicatedGroups));
    for (int groupId : replicatedGroups) {
      if (regions.stream().noneMatch(region -> region.groupId() == groupId)) {
        throw UMBPException.invalid("replicated group %d is not in the layout", groupId);
      }
      if (topology.tpSize() == 1 || topology.pcpSize() > 1 || topology.dcpSize() > 1) {
        throw UMBPException.invalid(
            "group %d can't be replicated with tp size %d, pcp size %d, dcp size %d: that needs"
                + " several tp ranks and no context parallelism",
            groupId, topology.tpSize(), topology.pcpSize(), topology.dcpSize());
      }
    }
  }

  /**
   * Creates a layout in the default format, without replicated groups.
   *
   * @param regions one region a layer, layer names unique, at least one
   * @param topology the rank whose objects these are
   */
  public KVLayoutDescriptor(List<KVRegion> regions, RankTopology topology) {
    this(regions, topology, Set.of(), RANK_LOCAL);
  }

  /**
   * Returns the coordinates that a group's objects of this rank have in their keys.
   *
   * @param groupId a KV cache group
   * @return the rank's own, or those of all tensor-parallel ranks when the group is replicated
   */
  public RankNamespace rankOf(int groupId) {
    RankNamespace local = topology.localNamespace();
    return replicatedGroups.contains(groupId) ? local.replicated() : local;
  }

  /**
   * Returns the groups that have at least one region.
   *
   * @return distinct group ids, ascending
   */
  public int[] groupIds() {
    return regions.stream().mapToInt(KVRegion::groupId).distinct().sorted().toArray();
  }

  /**
   * Returns the size of an object of one group.
   *
   * @param groupId a group of this layout
   * @return bytes: the sum of the group's pages
   */
  public long objectBytes(int groupId) {
    long sum = 0;
    for (KVRegion region : regions) {
      if (region.groupId() == groupId) {
        if (region.blockBytes() > Long.MAX_VALUE - sum) {
          throw UMBPException.invalid(
              "group %d: the pages up to layer '%s' add up to more than %d bytes",
              groupId, region.layerName(), Long.MAX_VALUE);
        }
        sum += region.blockBytes();
      }
    }
    if (sum == 0) {
      throw UMBPException.invalid("group %d is not in the layout", groupId);
    }
    return sum;
  }
}
