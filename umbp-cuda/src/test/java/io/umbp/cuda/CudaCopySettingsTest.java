package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.umbp.api.UMBPException;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

class CudaCopySettingsTest {
  @Test
  void defaultsAreWhatTheDocsSay() {
    assertEquals(
        new CudaCopySettings(28_672, 16, 4, 4096, 0, 268_435_456, 4096),
        CudaCopySettings.defaults());
  }

  @Test
  void aBuilderStartsFromOtherSettings() {
    CudaCopySettings settings =
        new CudaCopySettings(1000, 17, 5, 4097, 2000, 3000, 4095).toBuilder().build();
    assertEquals(new CudaCopySettings(1000, 17, 5, 4097, 2000, 3000, 4095), settings);
  }

  @Test
  void limitsThemselvesAreTaken() {
    long gib = 1L << 30;
    assertEquals(0, new CudaCopySettings(0, 1, 2, 0, 0, 1, 1).kernelBelowBytes());
    assertEquals(
        gib,
        new CudaCopySettings(
                gib, Integer.MAX_VALUE, Integer.MAX_VALUE, gib, gib, Long.MAX_VALUE, 1 << 20)
            .stagingBytes());
  }

  @Test
  void badValuesAreRefusedByName() {
    assertRefused(
        "kernelBelowBytes is -1 bytes, it must be in [0, 1073741824]", b -> b.kernelBelowBytes(-1));
    assertRefused(
        "kernelBelowBytes is 1073741825 bytes, it must be in [0, 1073741824]",
        b -> b.kernelBelowBytes((1L << 30) + 1));
    assertRefused(
        "kernelMinRanges is 0 ranges, it must be in [1, 2147483647]", b -> b.kernelMinRanges(0));
    assertRefused(
        "stridedMinRanges is 1 ranges, it must be in [2, 2147483647]", b -> b.stridedMinRanges(1));
    assertRefused(
        "stridedMinBytes is -1 bytes, it must be in [0, 1073741824]", b -> b.stridedMinBytes(-1));
    assertRefused(
        "stagingBytes is -1 bytes, it must be in [0, 1073741824]", b -> b.stagingBytes(-1));
    assertRefused(
        "stagingBytes is 28671 bytes, it must be 0 or at least kernelBelowBytes, 28672 bytes",
        b -> b.stagingBytes(28_671));
    assertRefused(
        "inFlightBytes is 0 bytes, it must be in [1, 9223372036854775807]",
        b -> b.inFlightBytes(0));
    assertRefused("tableRanges is 0 ranges, it must be in [1, 1048576]", b -> b.tableRanges(0));
    assertRefused(
        "tableRanges is 1048577 ranges, it must be in [1, 1048576]", b -> b.tableRanges(1_048_577));
  }

  private static void assertRefused(
      String message, UnaryOperator<CudaCopySettings.Builder> change) {
    CudaCopySettings.Builder builder = change.apply(CudaCopySettings.builder());
    UMBPException e = assertThrows(UMBPException.class, builder::build);
    assertEquals(message, e.getMessage());
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
  }
}
