package io.umbp.core.runtime;

import io.umbp.testkit.RuntimeFixture;
import io.umbp.testkit.UMBPRuntimeContract;
import java.util.function.UnaryOperator;

/** The nine rules over {@link EmbeddedRuntime} on a fake GPU. */
class EmbeddedRuntimeFakeGpuContractTest extends UMBPRuntimeContract {
  @Override
  protected RuntimeFixture open(RuntimeFixture.Setup setup) {
    return new FakeGpuFixture(setup, UnaryOperator.identity());
  }
}
