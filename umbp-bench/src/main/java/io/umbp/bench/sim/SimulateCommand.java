package io.umbp.bench.sim;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** Simulates engines until one breaks a rule, and makes what broke it small. */
@Command(
    name = "simulate",
    description =
        "Simulates whole engines, each under a seed that decides what happens when, and checks after"
            + " every step what must hold.",
    mixinStandardHelpOptions = true,
    sortOptions = false)
public final class SimulateCommand implements Callable<Integer> {
  private static final int PROGRESS = 10;

  @Spec private CommandSpec spec;

  @Option(
      names = "--seeds",
      paramLabel = "N",
      defaultValue = "2000",
      description = "how many seeds (default: ${DEFAULT-VALUE})")
  private long seeds;

  @Option(
      names = "--seed",
      paramLabel = "S",
      description = "run this seed only; or the first of them with --seeds")
  private @Nullable Long seed;

  @Option(
      names = "--ranks",
      paramLabel = "N",
      description = "tensor-parallel ranks, 1 to 4 (default: 1, 2 and 4 in turn)")
  private @Nullable Integer ranks;

  @Option(
      names = "--groups",
      paramLabel = "N",
      description = "KV cache groups, 1 to 3 (default: all in turn)")
  private @Nullable Integer groups;

  @Option(
      names = "--faults",
      paramLabel = "P",
      description = "probability of a fault, 0 to 1 (default: 0, 0.01 and 0.1 in turn)")
  private @Nullable Double faults;

  @Option(
      names = "--script",
      paramLabel = "FILE",
      description =
          "run the decisions of a file instead of seeds: engine steps between semicolons, numbers"
              + " between commas")
  private @Nullable Path script;

  /** What the simulated engines are made of. */
  SimParts parts = new SimParts();

  /** Creates the command, which picocli fills. */
  public SimulateCommand() {}

  @Override
  public Integer call() {
    checkRange("--ranks", ranks, 4);
    checkRange("--groups", groups, 3);
    if (faults != null && !(faults >= 0 && faults <= 1)) {
      throw refusal("--faults is %s, allowed are 0 to 1", faults);
    }
    if (seeds < 1) {
      throw refusal("--seeds is %d, needed is at least 1", seeds);
    }
    return script == null ? runSeeds() : runScript(script);
  }

  private void checkRange(String option, @Nullable Integer value, int most) {
    if (value != null && (value < 1 || value > most)) {
      throw refusal("%s is %d, allowed are 1 to %d", option, value, most);
    }
  }

  private ParameterException refusal(String format, Object... arguments) {
    return new ParameterException(
        spec.commandLine(), String.format(Locale.ROOT, format, arguments));
  }

  private SimSettings settings(long number) {
    SimSettings inTurn = SimSettings.ofIndex(number);
    return new SimSettings(
        ranks == null ? inTurn.ranks() : ranks,
        groups == null ? inTurn.groups() : groups,
        faults == null ? inTurn.faults() : faults);
  }

  private boolean hasSeedsOption() {
    return spec.commandLine().getParseResult().hasMatchedOption("--seeds");
  }

  private int runSeeds() {
    PrintWriter out = spec.commandLine().getOut();
    PrintWriter err = spec.commandLine().getErr();
    long first = seed == null ? 0 : seed;
    long count = seed != null && !hasSeedsOption() ? 1 : seeds;
    SimReport sum = new SimReport();
    long every = Math.max(1, count / PROGRESS);
    for (long i = 0; i < count; i++) {
      long number = first + i;
      SimSettings settings = settings(number);
      Choices choices = Choices.ofSeed(number);
      try {
        sum.add(Simulation.run(settings, choices, parts));
      } catch (RuntimeException e) {
        report(number, settings, choices.taken(), e);
        return 1;
      }
      if (count > 1 && (i + 1) % every == 0) {
        err.println(String.format(Locale.ROOT, "simulated %,d of %,d seeds", i + 1, count));
        err.flush();
      }
    }
    out.println("umbp simulate: no rule was broken");
    sum.table().forEach(out::println);
    out.flush();
    return 0;
  }

  private void report(
      long number, SimSettings settings, List<List<Integer>> taken, RuntimeException first) {
    PrintWriter err = spec.commandLine().getErr();
    err.println("umbp simulate: seed " + number + ": " + describe(first));
    err.println("  again: umbp simulate --seed " + number + " " + settings.options());
    err.flush();
    List<List<Integer>> small = Shrinker.shrink(taken, some -> failure(settings, some) != null);
    RuntimeException last = failure(settings, small);
    err.println(
        String.format(
            Locale.ROOT,
            "  %d decisions instead of %d: %s",
            Choices.count(small),
            Choices.count(taken),
            last == null ? "the same" : describe(last)));
    err.println("  with --script FILE " + settings.options() + " and in the file:");
    err.println(Choices.format(small));
    err.flush();
  }

  private @Nullable RuntimeException failure(SimSettings settings, List<List<Integer>> some) {
    try {
      Simulation.run(settings, Choices.ofScript(some), parts);
      return null;
    } catch (RuntimeException e) {
      return e;
    }
  }

  private static String describe(RuntimeException e) {
    StackTraceElement[] stack = e.getStackTrace();
    return e instanceof SimViolation
        ? String.valueOf(e.getMessage())
        : e + (stack.length == 0 ? "" : " at " + stack[0]);
  }

  private int runScript(Path file) {
    List<List<Integer>> decisions;
    try {
      decisions = Choices.parse(Files.readString(file));
    } catch (IOException e) {
      throw refusal("--script %s: cannot be read: %s", file, e);
    } catch (NumberFormatException e) {
      throw refusal("--script %s: no decision: %s", file, String.valueOf(e.getMessage()));
    }
    RuntimeException failure = failure(settings(0), decisions);
    if (failure == null) {
      spec.commandLine().getOut().println("umbp simulate: no rule was broken");
      spec.commandLine().getOut().flush();
      return 0;
    }
    List.of("umbp simulate: " + describe(failure)).forEach(spec.commandLine().getErr()::println);
    spec.commandLine().getErr().flush();
    return 1;
  }
}
