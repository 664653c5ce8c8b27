package io.umbp.core.runtime;

import io.umbp.testkit.KVCopyEngineContract;

class HostCopyInlineContractTest extends KVCopyEngineContract {
  @Override
  protected Fixture open() {
    HostCopyEngine engine = new HostCopyEngine();
    return () -> engine;
  }
}
