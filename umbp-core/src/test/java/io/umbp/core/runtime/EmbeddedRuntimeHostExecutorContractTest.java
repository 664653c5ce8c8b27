package io.umbp.core.runtime;

import io.umbp.testkit.RuntimeFixture;
import io.umbp.testkit.UMBPRuntimeContract;

/** The nine rules over {@link EmbeddedRuntime} on host memory, with an executor. */
class EmbeddedRuntimeHostExecutorContractTest extends UMBPRuntimeContract {
  @Override
  protected RuntimeFixture open(RuntimeFixture.Setup setup) {
    return HostFixture.onExecutor(setup);
  }
}
