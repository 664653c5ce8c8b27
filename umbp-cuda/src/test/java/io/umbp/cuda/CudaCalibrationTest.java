package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.cuda.CudaCalibration.Measurement;
import io.umbp.cuda.CudaCalibration.Way;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class CudaCalibrationTest {
  private static final long[] SIZES = {4096, 16_384, 28_672, 65_536, 262_144, 1_048_576};

  /** Measurements in which each way takes a time for each size, in microseconds a mebibyte. */
  private static List<Measurement> measured(
      double[] single, double[] strided, double[] kernel, double[] staged) {
    List<Measurement> all = new ArrayList<>();
    double[][] times = {single, strided, kernel, staged};
    for (int i = 0; i < SIZES.length; i++) {
      for (Way way : Way.values()) {
        double micros =
            switch (way) {
              case SINGLE -> times[0][i];
              case STRIDED -> times[1][i];
              case KERNEL -> times[2][i];
              case STAGED -> times[3][i];
            };
        for (TransferDirection direction : TransferDirection.values()) {
          all.add(new Measurement(SIZES[i], direction, way, (1 << 20) * 1e6 / micros));
        }
      }
    }
    return all;
  }

  private static double[] times(double... times) {
    return times;
  }

  @Test
  void theKernelIsTakenUpToTheLastSizeWhereItWins() {
    CudaCopySettings chosen =
        CudaCalibration.choose(
            measured(
                times(900, 230, 130, 60, 45, 40),
                times(300, 90, 70, 50, 42, 40),
                times(80, 70, 65, 65, 65, 65),
                times(100, 90, 85, 85, 85, 85)));
    assertEquals(28_673, chosen.kernelBelowBytes());
    assertEquals(65_536, chosen.stridedMinBytes());
    assertEquals(0, chosen.stagingBytes());
  }

  @Test
  void aStagingBufferIsTakenWhereItPays() {
    CudaCopySettings chosen =
        CudaCalibration.choose(
            measured(
                times(900, 230, 130, 60, 45, 40),
                times(900, 900, 900, 900, 900, 900),
                times(80, 70, 65, 65, 65, 65),
                times(50, 50, 50, 50, 50, 50)));
    assertEquals(65_537, chosen.kernelBelowBytes());
    assertTrue(chosen.stagingBytes() >= chosen.kernelBelowBytes());
    assertEquals(2 << 20, chosen.stridedMinBytes(), "never");
  }

  @Test
  void withoutAFasterKernelNothingGoesToIt() {
    double[] slow = times(99, 99, 99, 99, 99, 99);
    double[] fast = times(40, 40, 40, 40, 40, 40);
    CudaCopySettings chosen = CudaCalibration.choose(measured(fast, fast, slow, slow));
    assertEquals(0, chosen.kernelBelowBytes());
    assertEquals(4096, chosen.stridedMinBytes());
  }

  @Test
  void everyWayIsMeasuredBothWaysAndNothingIsLeft() {
    CudaRig rig = new CudaRig(1);
    CudaCalibration measured = CudaCalibration.measure(0, 1 << 20, 2);
    assertEquals(SIZES.length * Way.values().length * 2, measured.measurements().size());
    assertTrue(measured.largeLoad() > 0);
    assertTrue(measured.largeStore() > 0);
    for (Measurement each : measured.measurements()) {
      assertTrue(each.bytesPerSecond() > 0, each.toString());
    }
    assertEquals(4096, measured.measurements().get(0).rangeBytes());
    assertTrue(rig.driver.calls("cuLaunchKernel") > 0);
    assertTrue(rig.driver.calls("cuMemcpy2DAsync") > 0);
    rig.close();
    rig.assertNothingLeft();
  }

  @Test
  void badSizesAreRefused() {
    assertThrows(UMBPException.class, () -> CudaCalibration.measure(0, 4096, 1));
    assertThrows(UMBPException.class, () -> CudaCalibration.measure(0, (1L << 30) + 1, 1));
    assertThrows(UMBPException.class, () -> CudaCalibration.measure(0, 1 << 20, 0));
  }
}
