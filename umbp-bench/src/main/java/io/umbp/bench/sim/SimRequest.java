package io.umbp.bench.sim;

import io.umbp.core.connector.RequestView;
import java.util.Arrays;

/** One request of a simulated engine. Thread-confined. */
final class SimRequest {
  final String id;

  /** The hash of the prefix at the end of each unit, for all that it will ever have. */
  final long[] chain;

  final int promptUnits;

  /** The block of each place, the null block where there is none. */
  int[][] tables;

  State state = State.WAITING;

  /** Units whose tokens are known. */
  int knownUnits;

  /** Units whose KV is computed, or loaded. */
  int computedUnits;

  /** Units that a load under way brings, at most. */
  int loadingUnits;

  /** Where a request stands. */
  enum State {
    /** It has no blocks. */
    WAITING,
    /** It has blocks that are being loaded. */
    LOADING,
    /** It computes. */
    RUNNING,
    /** It is done. */
    DONE
  }

  SimRequest(String id, long[] chain, int promptUnits, int groups) {
    this.id = id;
    this.chain = chain;
    this.promptUnits = promptUnits;
    this.knownUnits = promptUnits;
    tables = new int[groups][0];
  }

  RequestView view() {
    return RequestView.of(id, knownUnits * SimTruth.UNIT_TOKENS, SimTruth.hashes(chain, knownUnits))
        .withPrompt(promptUnits * SimTruth.UNIT_TOKENS);
  }

  void reset(int groups) {
    tables = new int[groups][0];
    computedUnits = 0;
    loadingUnits = 0;
    state = State.WAITING;
  }

  /** Makes room in a group's table for so many places. */
  void grow(int group, int places) {
    if (tables[group].length < places) {
      tables[group] = Arrays.copyOf(tables[group], places);
    }
  }
}
