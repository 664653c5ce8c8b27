package io.umbp.testkit;

class AsynchronousFakeGpuContractTest extends KVCopyEngineContract {
  @Override
  protected Fixture open() {
    FakeGpu gpu = FakeGpu.asynchronous(2);
    return new FakeGpuFixture(gpu, gpu.copyEngine());
  }
}
