package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import io.umbp.api.UMBPRuntime;
import io.umbp.testkit.RuntimeFixture;
import io.umbp.testkit.UMBPRuntimeContract;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.platform.engine.FilterResult;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.EngineFilter;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.PostDiscoveryFilter;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

@DisplayName("the runtime contract rejects runtimes that are broken on purpose")
class RuntimeContractSelfTest {
  private static volatile Defect defect;

  /** The contract over a runtime with the defect; not found by the build, run by hand below. */
  static class Broken extends UMBPRuntimeContract {
    @Override
    protected RuntimeFixture open(RuntimeFixture.Setup setup) {
      Defect broken = defect;
      return new FakeGpuFixture(
          BrokenRuntime.setup(broken, setup), engine -> new BrokenEngine(broken, engine)) {
        private final UMBPRuntime runtime = new BrokenRuntime(broken, embedded, this);

        @Override
        public UMBPRuntime runtime() {
          return runtime;
        }
      };
    }
  }

  private record Run(int finished, Set<String> failed) {}

  @ParameterizedTest
  @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "NONE")
  void failsATestOfTheRuleThatIsBroken(Defect broken) {
    Run run = run(broken, "rule " + broken.rule + ":");
    assertTrue(run.finished > 1, "several tests of rule " + broken.rule);
    assertFalse(run.failed.isEmpty(), broken + " passes all tests of rule " + broken.rule);
  }

  @Test
  void threadsFindAPinThatEndsTooEarly() {
    Run run = run(Defect.PIN_ENDS_BEFORE_THE_COPY, "rule 4: under threads");
    assertEquals(1, run.finished);
    assertEquals(1, run.failed.size());
  }

  @Test
  void passesWithoutDefect() {
    assertEquals(Set.of(), run(Defect.NONE, "rule ").failed);
  }

  /** Runs the tests whose display names have a prefix. */
  private static synchronized Run run(Defect broken, String prefix) {
    defect = broken;
    PostDiscoveryFilter ofRule =
        test -> FilterResult.includedIf(!test.isTest() || test.getDisplayName().startsWith(prefix));
    LauncherDiscoveryRequest request =
        LauncherDiscoveryRequestBuilder.request()
            .selectors(selectClass(Broken.class))
            .filters(EngineFilter.includeEngines("junit-jupiter"), ofRule)
            .build();
    Set<String> finished = new HashSet<>();
    Set<String> failed = new HashSet<>();
    LauncherFactory.create()
        .execute(
            request,
            new TestExecutionListener() {
              @Override
              public void executionFinished(TestIdentifier test, TestExecutionResult result) {
                if (test.isTest()) {
                  finished.add(test.getDisplayName());
                }
                if (result.getStatus() == TestExecutionResult.Status.FAILED) {
                  failed.add(test.getDisplayName());
                }
              }
            });
    return new Run(finished.size(), failed);
  }
}
