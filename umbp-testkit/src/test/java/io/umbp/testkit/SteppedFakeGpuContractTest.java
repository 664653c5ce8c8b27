package io.umbp.testkit;

class SteppedFakeGpuContractTest extends KVCopyEngineContract {
  @Override
  protected Fixture open() {
    FakeGpu gpu = FakeGpu.stepped(2);
    return new FakeGpuFixture(gpu, new SteppingEngine(gpu));
  }
}
