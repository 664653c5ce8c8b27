package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.RankNamespace;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.SupportsHold;
import io.umbp.api.UMBPSchedulerHandle;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One lookup of a request's prefix. It may run on any thread; what it found belongs to whoever
 * takes it, and is let go of when nobody does.
 */
final class PrefixLookup implements Runnable {
  private static final Logger log = LoggerFactory.getLogger(PrefixLookup.class);
  private static final Found DROPPED = Found.nothing(0, 0, "dropped");

  private final UMBPSchedulerHandle handle;
  private final CacheGroups groups;
  private final RequestView request;
  private final int localTokens;
  private final int usableTokens;
  private final boolean withTails;
  private final @Nullable Duration holdLimit;
  private final Set<StoredObject> quarantined;

  /** What was found, or {@link #DROPPED}; null as long as there is neither. */
  private final AtomicReference<@Nullable Found> answer = new AtomicReference<>();

  /**
   * The block at which a hit ended.
   *
   * @param isQuarantined whether it was there, and was not taken
   */
  record Missing(
      int groupId, int startTokens, RankNamespace rank, BlockHash hash, boolean isQuarantined) {}

  /** What a lookup found. Thread-confined. */
  static final class Found {
    final int localTokens;
    final int usableTokens;
    final int endTokens;
    final @Nullable Missing missing;

    /** Why there is nothing, when no key was looked up or no answer came. */
    final String problem;

    private final @Nullable BlockRows rows;
    private final @Nullable PrefixRuns runs;
    private final SupportsHold.@Nullable Hold hold;
    private final SupportsHold.@Nullable Hold tailHold;

    private Found(
        PrefixLookup lookup,
        int endTokens,
        @Nullable Missing missing,
        BlockRows rows,
        PrefixRuns runs,
        SupportsHold.@Nullable Hold hold,
        SupportsHold.@Nullable Hold tailHold) {
      this.localTokens = lookup.localTokens;
      this.usableTokens = lookup.usableTokens;
      this.endTokens = endTokens;
      this.missing = missing;
      this.problem = "";
      this.rows = rows;
      this.runs = runs;
      this.hold = hold;
      this.tailHold = tailHold;
    }

    private Found(int localTokens, int usableTokens, String problem) {
      this.localTokens = localTokens;
      this.usableTokens = usableTokens;
      this.endTokens = localTokens;
      this.missing = null;
      this.problem = problem;
      this.rows = null;
      this.runs = null;
      this.hold = null;
      this.tailHold = null;
    }

    static Found nothing(int localTokens, int usableTokens, String problem) {
      return new Found(localTokens, usableTokens, problem);
    }

    /** The largest end that can be loaded, not behind a limit. */
    int endWithin(int limitTokens) {
      return limitTokens >= endTokens || runs == null ? endTokens : runs.longestEnd(limitTokens);
    }

    /** Lets go of what a load that ends so does not need. */
    void keepWithin(int tokens) {
      if (hold != null && rows != null) {
        if (tokens <= localTokens) {
          hold.close();
        } else {
          hold.keepFirst(rows.keysWithin(tokens));
        }
      }
      if (tailHold != null && tokens < endTokens) {
        tailHold.close();
      }
    }

    void release() {
      if (hold != null) {
        hold.close();
      }
      if (tailHold != null) {
        tailHold.close();
      }
    }
  }

  /**
   * Prepares a lookup.
   *
   * @param localTokens aligned to all block sizes
   * @param usableTokens tokens that may be hit at most, a multiple of the hash unit
   * @param settings how far to look, and whether to hold
   * @param quarantined objects that are not taken
   */
  PrefixLookup(
      UMBPSchedulerHandle handle,
      CacheGroups groups,
      RequestView request,
      int localTokens,
      int usableTokens,
      ConnectorSettings settings,
      Set<StoredObject> quarantined) {
    this.handle = handle;
    this.groups = groups;
    this.request = request;
    this.localTokens = localTokens;
    this.usableTokens = usableTokens;
    this.withTails = settings.tails == ConnectorSettings.TailPolicy.PARTIAL_TAILS;
    this.holdLimit = settings.holdLimit;
    this.quarantined = quarantined;
  }

  /** Tells whether this lookup still answers what is asked. */
  boolean isFor(RequestView asked, int local) {
    return local == localTokens
        && asked.tokenCount() == request.tokenCount()
        && asked.hasSameHashes(request);
  }

  int usableTokens() {
    return usableTokens;
  }

  /** Takes what was found, once; null as long as there is no answer. */
  @Nullable Found take() {
    return answer.get();
  }

  /** Drops the lookup: what it found, or will find, is let go. */
  void drop() {
    Found found = answer.getAndSet(DROPPED);
    if (found != null) {
      found.release();
    }
  }

  @Override
  public void run() {
    if (answer.get() != null) {
      return;
    }
    Found found;
    try {
      found = find();
    } catch (RuntimeException e) {
      log.debug("The lookup of request '{}' failed; nothing is hit", request.id(), e);
      found = Found.nothing(localTokens, usableTokens, "the store failed: " + e.getMessage());
    }
    if (!answer.compareAndSet(null, found)) {
      found.release();
    }
  }

  private Found find() {
    BlockHashes hashes = request.hashes();
    int alignedEnd = usableTokens / groups.alignment() * groups.alignment();
    int end = withTails ? usableTokens : alignedEnd;
    BlockRows rows = groups.between(localTokens, end);
    BlockKeys keys = rows.allRankKeys(hashes);
    List<SupportsHold.Hold> holds = new ArrayList<>();
    try {
      int[] absent = rows.firstAbsent(lookUp(keys, holds));
      PrefixRuns runs =
          new PrefixRuns(
              groups,
              localTokens,
              end,
              rows,
              row -> absent[row] < 0 && !quarantined.contains(rows.object(hashes, row)));
      int hit = runs.longestEnd(alignedEnd);
      int withTail = withTails ? longestTail(runs, hit, holds) : hit;
      Found found =
          new Found(
              this,
              withTail,
              missing(rows, keys, absent, withTail),
              rows,
              runs,
              holds.isEmpty() ? null : holds.get(0),
              holds.size() < 2 ? null : holds.get(1));
      found.keepWithin(withTail);
      return found;
    } catch (RuntimeException | Error e) {
      holds.forEach(SupportsHold.Hold::close);
      throw e;
    }
  }

  private boolean[] lookUp(BlockKeys keys, List<SupportsHold.Hold> holds) {
    if (holdLimit == null) {
      return handle.lookup(keys);
    }
    SupportsHold.Hold hold = ((SupportsHold) handle).lookupAndHold(keys, holdLimit);
    holds.add(hold);
    return hold.present();
  }

  /** Looks inside the blocks behind a hit for the longest stored tail. */
  private int longestTail(PrefixRuns runs, int hit, List<SupportsHold.Hold> holds) {
    int unit = groups.hashUnit();
    int last = (int) Math.min(usableTokens, (long) hit + groups.alignment() - unit);
    if (last <= hit) {
      return hit;
    }
    BlockRows.Builder tails = new BlockRows.Builder(groups, (last - hit) / unit * groups.count());
    for (int end = last; end > hit; end -= unit) {
      BlockRows ofEnd = groups.tails(end);
      for (int row = 0; row < ofEnd.count(); row++) {
        tails.add(ofEnd.group(row), end);
      }
    }
    BlockRows rows = tails.build();
    BlockHashes hashes = request.hashes();
    int[] absent = rows.firstAbsent(lookUp(rows.allRankKeys(hashes), holds));
    for (int end = last; end > hit; end -= unit) {
      int boundary = end;
      if (runs.mayEndAt(end, group -> isTailThere(rows, absent, group, boundary))) {
        return end;
      }
    }
    return hit;
  }

  private boolean isTailThere(BlockRows rows, int[] absent, int group, int end) {
    for (int row = 0; row < rows.count(); row++) {
      if (rows.group(row) == group && rows.endTokens(row) == end) {
        return absent[row] < 0 && !quarantined.contains(rows.object(request.hashes(), row));
      }
    }
    return false;
  }

  /** The block that ended the hit: first of a group that needs its whole prefix, else of any. */
  private @Nullable Missing missing(BlockRows rows, BlockKeys keys, int[] absent, int hit) {
    Missing ofAny = null;
    for (int row = 0; row < rows.count(); row++) {
      if (rows.endTokens(row) <= hit) {
        continue;
      }
      boolean isQuarantined = quarantined.contains(rows.object(request.hashes(), row));
      if (absent[row] >= 0 || isQuarantined) {
        int groupId = groups.id(rows.group(row));
        BlockHash hash = rows.hash(request.hashes(), row);
        RankNamespace rank =
            absent[row] >= 0 ? keys.rank(absent[row]) : groups.codec().topology().localNamespace();
        Missing missing = new Missing(groupId, rows.startTokens(row), rank, hash, absent[row] < 0);
        if (groups.window(rows.group(row)).equals(HitWindow.FULL)) {
          return missing;
        }
        ofAny = ofAny == null ? missing : ofAny;
      }
    }
    return ofAny;
  }
}
