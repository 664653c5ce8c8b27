package io.umbp.api;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Objects that an engine of another tensor-parallel size stored, and which of their bytes make the
 * objects of this rank. Immutable.
 *
 * @param namespace the namespace of the engine that stored
 * @param groups how each group is put together, each group once; copied
 */
public record ShardedSource(UMBPNamespace namespace, List<Group> groups) {

  /**
   * How one group's objects are put together.
   *
   * @param groupId the KV cache group, the same in both engines
   * @param producers ranks of the engine that stored whose objects are read, distinct, at least
   *     one; copied
   * @param producerObjectBytes size of each of their objects
   * @param slices the pieces in the order of this rank's object, without a gap; copied
   */
  public record Group(
      int groupId, List<RankNamespace> producers, long producerObjectBytes, List<Slice> slices) {

    /** Checks that the slices follow each other without a gap and stay inside the objects. */
    public Group {
      BlockKey.checkGroupId(groupId);
      producers = List.copyOf(producers);
      slices = List.copyOf(slices);
      Set<RankNamespace> distinct = new HashSet<>(producers);
      if (producers.isEmpty() || distinct.size() != producers.size()) {
        throw UMBPException.invalid(
            "group %d: producers %s, needed is at least one, each once", groupId, producers);
      }
      long covered = 0;
      for (Slice slice : slices) {
        if (slice.objectOffset != covered) {
          throw UMBPException.invalid(
              "group %d: %s does not continue at byte %d", groupId, slice, covered);
        }
        if (slice.producer >= producers.size()
            || slice.sourceOffset > producerObjectBytes - slice.length) {
          throw UMBPException.invalid(
              "group %d: %s is outside the %d objects of %d bytes",
              groupId, slice, producers.size(), producerObjectBytes);
        }
        covered = Math.addExact(covered, slice.length);
      }
      if (covered == 0) {
        throw UMBPException.invalid("group %d: there are no slices", groupId);
      }
    }

    /**
     * Returns the size of the objects that the slices make.
     *
     * @return bytes
     */
    public long objectBytes() {
      Slice last = slices.get(slices.size() - 1);
      return last.objectOffset + last.length;
    }
  }

  /**
   * One piece.
   *
   * @param producer index of the producer
   * @param sourceOffset bytes before the piece in the producer's object, at least 0
   * @param objectOffset bytes before the piece in this rank's object, at least 0
   * @param length bytes, above 0
   */
  public record Slice(int producer, long sourceOffset, long objectOffset, long length) {
    /** Checks the signs. */
    public Slice {
      if (producer < 0
          || sourceOffset < 0
          || objectOffset < 0
          || length <= 0
          || objectOffset > Long.MAX_VALUE - length) {
        throw UMBPException.invalid(
            "slice of producer %d from %d to %d with %d bytes; length must be > 0, the rest >= 0",
            producer, sourceOffset, objectOffset, length);
      }
    }
  }

  /** Checks that there are groups, each once. */
  public ShardedSource {
    groups = List.copyOf(groups);
    Set<Integer> ids = new HashSet<>();
    for (Group group : groups) {
      if (!ids.add(group.groupId)) {
        throw UMBPException.invalid("group %d occurs twice", group.groupId);
      }
    }
    if (groups.isEmpty()) {
      throw UMBPException.invalid("there are no groups");
    }
  }
}
