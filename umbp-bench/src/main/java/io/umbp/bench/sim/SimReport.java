package io.umbp.bench.sim;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** What simulations went through. Thread-confined. */
final class SimReport {
  long seeds;
  long steps;
  long requests;
  long lookups;
  long hitTokens;
  long loads;
  long lostBlocks;
  long storeEvents;
  long failedObjects;
  long evictions;
  long preemptions;
  long aborts;
  long clears;
  long overdue;
  long checkedBytes;

  void add(SimReport other) {
    seeds += other.seeds;
    steps += other.steps;
    requests += other.requests;
    lookups += other.lookups;
    hitTokens += other.hitTokens;
    loads += other.loads;
    lostBlocks += other.lostBlocks;
    storeEvents += other.storeEvents;
    failedObjects += other.failedObjects;
    evictions += other.evictions;
    preemptions += other.preemptions;
    aborts += other.aborts;
    clears += other.clears;
    overdue += other.overdue;
    checkedBytes += other.checkedBytes;
  }

  /** The figures as lines for people. */
  List<String> table() {
    List<String> lines = new ArrayList<>();
    line(lines, "seeds", seeds);
    line(lines, "engine steps", steps);
    line(lines, "requests", requests);
    line(lines, "lookups", lookups);
    line(lines, "hit tokens", hitTokens);
    line(lines, "loads", loads);
    line(lines, "lost blocks", lostBlocks);
    line(lines, "store events", storeEvents);
    line(lines, "failed objects", failedObjects);
    line(lines, "evicted objects", evictions);
    line(lines, "preemptions", preemptions);
    line(lines, "aborts", aborts);
    line(lines, "clears", clears);
    line(lines, "passed deadlines", overdue);
    line(lines, "checked bytes", checkedBytes);
    return lines;
  }

  private static void line(List<String> lines, String name, long value) {
    lines.add(String.format(Locale.ROOT, "  %-16s %,18d", name, value));
  }
}
