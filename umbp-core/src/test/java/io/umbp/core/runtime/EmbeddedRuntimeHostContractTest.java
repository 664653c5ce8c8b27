package io.umbp.core.runtime;

import io.umbp.testkit.RuntimeFixture;
import io.umbp.testkit.UMBPRuntimeContract;

/** The nine rules over {@link EmbeddedRuntime} on host memory, purely polled. */
class EmbeddedRuntimeHostContractTest extends UMBPRuntimeContract {
  @Override
  protected RuntimeFixture open(RuntimeFixture.Setup setup) {
    return HostFixture.inline(setup);
  }
}
