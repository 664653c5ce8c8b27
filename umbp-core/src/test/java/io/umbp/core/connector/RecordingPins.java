package io.umbp.core.connector;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.GroupBlock;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** An engine's block pool that counts pins, and refuses to take back more than it gave. */
final class RecordingPins implements BlockPins {
  final List<List<GroupBlock>> pinned = new ArrayList<>();
  final List<List<GroupBlock>> unpinned = new ArrayList<>();
  final Map<GroupBlock, Integer> counts = new HashMap<>();
  @Nullable RuntimeException refusal;

  @Override
  public void pin(Collection<GroupBlock> blocks) {
    if (refusal != null) {
      throw refusal;
    }
    pinned.add(List.copyOf(blocks));
    blocks.forEach(block -> counts.merge(block, 1, Integer::sum));
  }

  @Override
  public void unpin(Collection<GroupBlock> blocks) {
    unpinned.add(List.copyOf(blocks));
    for (GroupBlock block : blocks) {
      assertTrue(counts.containsKey(block), "unpinned without a pin: " + block);
      counts.computeIfPresent(block, (same, count) -> count == 1 ? null : count - 1);
    }
  }
}
