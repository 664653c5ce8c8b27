package io.umbp.bench.sim;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The decisions of a simulation, one number each, where 0 is the least eventful. They come from a
 * seed, or from a script that has a list for each engine step: what is missing there is 0.
 * Thread-confined.
 */
final class Choices {
  private static final Pattern SEMICOLON = Pattern.compile(";");
  private static final Pattern COMMA = Pattern.compile(",");

  private final @Nullable Random random;
  private final List<List<Integer>> script;
  private final List<List<Integer>> taken = new ArrayList<>();
  private List<Integer> step = new ArrayList<>();

  private Choices(@Nullable Random random, List<List<Integer>> script) {
    this.random = random;
    this.script = script;
    taken.add(step);
  }

  static Choices ofSeed(long seed) {
    return new Choices(new Random(seed), List.of());
  }

  static Choices ofScript(List<List<Integer>> script) {
    return new Choices(null, script);
  }

  /**
   * Reads a script: steps between semicolons, numbers between commas.
   *
   * @throws NumberFormatException when something is no number
   */
  static List<List<Integer>> parse(String text) {
    return SEMICOLON
        .splitAsStream(text.strip())
        .map(
            step ->
                COMMA
                    .splitAsStream(step)
                    .map(String::strip)
                    .filter(number -> !number.isEmpty())
                    .map(Integer::valueOf)
                    .toList())
        .toList();
  }

  static String format(List<List<Integer>> script) {
    return script.stream()
        .map(step -> step.stream().map(String::valueOf).collect(Collectors.joining(",")))
        .collect(Collectors.joining(";"));
  }

  static int count(List<List<Integer>> script) {
    return script.stream().mapToInt(List::size).sum();
  }

  /** Begins the decisions of the next engine step. */
  void nextStep() {
    step = new ArrayList<>();
    taken.add(step);
  }

  private int scripted() {
    int at = taken.size() - 1;
    List<Integer> ofStep = at < script.size() ? script.get(at) : List.of();
    return step.size() < ofStep.size() ? ofStep.get(step.size()) : 0;
  }

  /** Returns a number in [0, bound). */
  int choose(int bound) {
    int value = random == null ? Math.floorMod(scripted(), bound) : random.nextInt(bound);
    step.add(value);
    return value;
  }

  /** Returns true with a probability; a script says 0 or 1. */
  boolean chance(double probability) {
    if (probability <= 0) {
      return false;
    }
    boolean value = random == null ? scripted() != 0 : random.nextDouble() < probability;
    step.add(value ? 1 : 0);
    return value;
  }

  /** All decisions so far. */
  List<List<Integer>> taken() {
    return taken.stream().map(List::copyOf).toList();
  }
}
