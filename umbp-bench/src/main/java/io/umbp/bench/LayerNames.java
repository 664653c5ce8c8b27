package io.umbp.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Names of layers that differ in their number only. Immutable.
 *
 * @param prefix what stands before the number
 * @param numbers the numbers, ascending; copied
 * @param suffix what stands behind it
 */
record LayerNames(String prefix, List<Integer> numbers, String suffix) {
  private static final int MOST_LISTED = 4;

  LayerNames {
    numbers = List.copyOf(numbers);
  }

  /** Finds the first number in a name; a name without one stands alone. */
  static LayerNames of(String name) {
    int from = 0;
    while (from < name.length() && !Character.isDigit(name.charAt(from))) {
      from++;
    }
    int to = from;
    while (to < name.length() && Character.isDigit(name.charAt(to))) {
      to++;
    }
    return from == to
        ? new LayerNames(name, List.of(), "")
        : new LayerNames(
            name.substring(0, from),
            List.of(Integer.parseInt(name.substring(from, to))),
            name.substring(to));
  }

  LayerNames plus(LayerNames other) {
    List<Integer> all = new ArrayList<>(numbers);
    all.addAll(other.numbers);
    return new LayerNames(prefix, all, suffix);
  }

  /** The name with all numbers in it: a range, a range with a step, or a list. */
  @Override
  public String toString() {
    return numbers.size() < 2
        ? prefix + numbers.stream().map(String::valueOf).collect(Collectors.joining()) + suffix
        : prefix + "{" + ranges() + "}" + suffix;
  }

  private String ranges() {
    int first = numbers.get(0);
    int last = numbers.get(numbers.size() - 1);
    int step = numbers.get(1) - first;
    for (int i = 1; i < numbers.size(); i++) {
      if (numbers.get(i) - numbers.get(i - 1) != step) {
        return list();
      }
    }
    return first + ".." + last + (step == 1 ? "" : " by " + step);
  }

  private String list() {
    List<String> shown = new ArrayList<>();
    for (int i = 0; i < numbers.size(); i++) {
      if (numbers.size() <= MOST_LISTED || i < MOST_LISTED - 1 || i == numbers.size() - 1) {
        shown.add(String.valueOf(numbers.get(i)));
      } else if (i == MOST_LISTED - 1) {
        shown.add("..");
      }
    }
    return String.join(",", shown);
  }
}
