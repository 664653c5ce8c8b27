package io.umbp.core.connector;

import io.umbp.api.BlockLoadBatch;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadResult;
import io.umbp.api.UMBPException;
import io.umbp.core.connector.PrefixLookup.Found;
import io.umbp.core.request.RequestTracker;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** What the scheduler knows of a request from its first lookup to its end. Single-writer. */
final class ScheduledRequest {
  final String id;
  final RequestTracker tracker = new RequestTracker();
  RequestView view;

  /** The lookup that runs, if any. */
  @Nullable PrefixLookup lookup;

  long lookupStart;

  /** What the last lookup found. */
  @Nullable Found found;

  @Nullable Load load;

  /** Tokens behind these and up to {@link #loadedTo} came by a load: they are in the store. */
  int loadedFrom;

  int loadedTo;
  int storeTo;

  /** Start of the first block whose store failed since the last plan. */
  int retryFrom = Integer.MAX_VALUE;

  /** A load from its admission until all ranks have reported it. */
  static final class Load {
    final int localTokens;
    final int endTokens;
    final BlockLoadBatch batch;

    /** The destination of each row. */
    final List<GroupBlock> places;

    final BlockRows rows;
    final RequestView view;
    private final CacheGroups groups;
    private final Set<GroupBlock> lost = new HashSet<>();
    private int reports;

    Load(
        CacheGroups groups,
        RequestView view,
        int localTokens,
        int endTokens,
        BlockRows rows,
        BlockLoadBatch batch) {
      this.groups = groups;
      this.view = view;
      this.localTokens = localTokens;
      this.rows = rows;
      this.endTokens = endTokens;
      this.batch = batch;
      int[] blockIds = batch.blockIds();
      places = IntStream.range(0, rows.count()).mapToObj(row -> rows.place(blockIds, row)).toList();
    }

    /** Takes reports; tells whether all of so many ranks have reported now. */
    boolean add(LoadResult result, int ranks) {
      Set<GroupBlock> reported = result.lostBlocks();
      Set<GroupBlock> known = reported.isEmpty() ? Set.of() : new HashSet<>(places);
      for (GroupBlock block : reported) {
        if (!known.contains(block)) {
          throw UMBPException.invalid(
              "request '%s' does not load block %d of group %d",
              batch.requestId(), block.blockId(), block.groupId());
        }
      }
      lost.addAll(reported);
      reports += result.completedWorkers();
      return reports >= ranks;
    }

    /** Tokens from the first on that the engine may use. */
    int validTokens() {
      if (lost.isEmpty()) {
        return endTokens;
      }
      return new PrefixRuns(
              groups, localTokens, endTokens, rows, row -> !lost.contains(places.get(row)))
          .longestEnd(endTokens);
    }

    /** The blocks that hold tokens behind the valid ones. */
    Set<GroupBlock> invalidBlocks(int validTokens) {
      Set<GroupBlock> invalid = new HashSet<>();
      for (int row = 0; row < places.size(); row++) {
        if (rows.endTokens(row) > validTokens) {
          invalid.add(places.get(row));
        }
      }
      return invalid;
    }
  }

  ScheduledRequest(RequestView view) {
    this.id = view.id();
    this.view = view;
  }

  /** Ends a running lookup and lets go of what the last one found. */
  void dropLookup() {
    if (lookup != null) {
      lookup.drop();
      lookup = null;
    }
    if (found != null) {
      found.release();
    }
  }

  /** Begins the stores of new blocks. */
  void restartStores() {
    loadedFrom = 0;
    loadedTo = 0;
    storeTo = 0;
    retryFrom = Integer.MAX_VALUE;
  }

  /** All that was stored or loaded is not in the store any more. */
  void forgetStored() {
    loadedTo = loadedFrom;
    retryFrom = 0;
  }

  void retryFrom(int tokens) {
    retryFrom = Math.min(retryFrom, tokens);
  }
}
