package io.umbp.bench.sim;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;

/**
 * Makes a failing script of decisions small: takes out engine steps, then decisions, and makes the
 * others less eventful, as long as it still fails. Thread-confined.
 */
final class Shrinker {
  private static final int MOST_RUNS = 4_000;

  private final Predicate<List<List<Integer>>> fails;
  private List<List<Integer>> best;
  private int runs;

  private Shrinker(List<List<Integer>> script, Predicate<List<List<Integer>>> fails) {
    this.best = trimmed(script);
    this.fails = fails;
  }

  /**
   * Returns the smallest failing script that was found.
   *
   * @param script one that fails
   * @param fails runs a script and tells whether it fails
   */
  static List<List<Integer>> shrink(
      List<List<Integer>> script, Predicate<List<List<Integer>>> fails) {
    Shrinker shrinker = new Shrinker(script, fails);
    boolean hasShrunk = true;
    while (hasShrunk && shrinker.runs < MOST_RUNS) {
      hasShrunk = shrinker.dropSteps();
      hasShrunk |= shrinker.emptySteps();
      hasShrunk |= shrinker.simplifySteps();
    }
    return shrinker.best;
  }

  /** Takes a script if it differs from the best one and fails too. */
  private boolean take(List<List<Integer>> script) {
    List<List<Integer>> candidate = trimmed(script);
    if (candidate.equals(best) || runs++ >= MOST_RUNS || !fails.test(candidate)) {
      return false;
    }
    best = candidate;
    return true;
  }

  private boolean dropSteps() {
    boolean hasShrunk = false;
    for (int piece = Math.max(1, best.size() / 2); piece > 0; piece /= 2) {
      for (int at = 1; at < best.size(); ) {
        List<List<Integer>> without = new ArrayList<>(best);
        without.subList(at, Math.min(best.size(), at + piece)).clear();
        if (take(without)) {
          hasShrunk = true;
        } else {
          at += piece;
        }
      }
    }
    return hasShrunk;
  }

  private boolean emptySteps() {
    boolean hasShrunk = false;
    for (int at = 0; at < best.size(); at++) {
      hasShrunk |= !best.get(at).isEmpty() && takeWithStep(at, List.of());
    }
    return hasShrunk;
  }

  private boolean simplifySteps() {
    boolean hasShrunk = false;
    for (int at = 0; at < best.size(); at++) {
      for (int i = 0; at < best.size() && i < best.get(at).size(); i++) {
        hasShrunk |= simplify(at, i);
      }
    }
    return hasShrunk;
  }

  private boolean simplify(int at, int i) {
    List<Integer> shorter = new ArrayList<>(best.get(at));
    int value = shorter.remove(i);
    if (takeWithStep(at, shorter)) {
      return true;
    }
    for (int lower : new int[] {0, value / 2, value - 1}) {
      if (lower >= 0 && lower < value) {
        List<Integer> simpler = new ArrayList<>(best.get(at));
        simpler.set(i, lower);
        if (takeWithStep(at, simpler)) {
          return true;
        }
      }
    }
    return false;
  }

  private boolean takeWithStep(int at, List<Integer> step) {
    List<List<Integer>> changed = new ArrayList<>(best);
    changed.set(at, List.copyOf(step));
    return take(changed);
  }

  /** Without the zeros and the empty steps at the end, which a script has anyway. */
  private static List<List<Integer>> trimmed(List<List<Integer>> script) {
    List<List<Integer>> trimmed = new ArrayList<>();
    for (List<Integer> step : script) {
      int length = step.size();
      while (length > 0 && step.get(length - 1) == 0) {
        length--;
      }
      trimmed.add(List.copyOf(step.subList(0, length)));
    }
    while (!trimmed.isEmpty() && trimmed.get(trimmed.size() - 1).isEmpty()) {
      trimmed.remove(trimmed.size() - 1);
    }
    return trimmed;
  }
}
