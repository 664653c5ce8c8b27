package io.umbp.testkit;

/**
 * The nine rules that every {@link io.umbp.api.UMBPRuntime} keeps, as JUnit tests. An implementer
 * extends this class and says how to open a runtime; each test's display name begins with the
 * number of the rule that it checks, as the runtime authors' guide has them. Each test opens
 * runtimes of its own and afterwards checks the balance: no lease, nothing in flight, and used
 * bytes that are those of the visible objects.
 *
 * <p>No test reads the wall clock. Tests that need a copy to be held, or a stream, are skipped
 * where the fixture has none. The seed of random tests is the system property {@code
 * umbp.testkit.seed}.
 */
public abstract class UMBPRuntimeContract extends RuntimeDoorRules {
  /** For subclasses; JUnit makes one instance for each test. */
  protected UMBPRuntimeContract() {}

  /**
   * Opens a fresh runtime and its surroundings.
   *
   * @param setup what the test wants
   * @return a fixture that the test closes
   */
  @Override
  protected abstract RuntimeFixture open(RuntimeFixture.Setup setup);
}
