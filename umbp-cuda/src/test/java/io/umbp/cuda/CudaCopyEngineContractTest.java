package io.umbp.cuda;

import io.umbp.testkit.KVCopyEngineContract;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Nested;

/** The contract by each path that rows can take, and on a context of the serving engine's own. */
class CudaCopyEngineContractTest {
  private static CudaFixture fixture(UnaryOperator<CudaCopySettings.Builder> settings) {
    return new CudaFixture(
        () ->
            CudaCopyEngine.builder()
                .device(0)
                .device(1)
                .settings(settings.apply(CudaCopySettings.builder()).build())
                .open());
  }

  @Nested
  @DisplayName("default settings")
  class Defaults extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return new CudaFixture(() -> CudaCopyEngine.open(0, 1));
    }
  }

  @Nested
  @DisplayName("one copy a range")
  class PerRange extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return fixture(s -> s.kernelBelowBytes(0).stridedMinRanges(Integer.MAX_VALUE));
    }
  }

  @Nested
  @DisplayName("strided copies from two ranges on")
  class Strided extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return fixture(s -> s.kernelBelowBytes(0).stridedMinRanges(2).stridedMinBytes(1));
    }
  }

  @Nested
  @DisplayName("the kernel for every range, straight to pinned memory")
  class Kernel extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return fixture(
          s ->
              s.kernelBelowBytes(1 << 30)
                  .kernelMinRanges(1)
                  .stridedMinRanges(Integer.MAX_VALUE)
                  .tableRanges(3));
    }
  }

  @Nested
  @DisplayName("the kernel for every range, through a staging buffer")
  class Staged extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return fixture(
          s ->
              s.kernelBelowBytes(20_000)
                  .kernelMinRanges(1)
                  .stridedMinRanges(Integer.MAX_VALUE)
                  .stagingBytes(32_768));
    }
  }

  @Nested
  @DisplayName("few bytes in flight")
  class FewInFlight extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return fixture(s -> s.inFlightBytes(4096));
    }
  }
}
