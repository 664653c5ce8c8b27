package io.umbp.cuda;

/**
 * S.
 *
 * @param kernelBelowBytes s
 * @param kernelMinRanges s
 * @param stagingBytes s
 * @param inFlightBytes s
 * @param tableRanges s
 */
public record CudaCopySettings(
    long kernelBelowBytes,
    int kernelMinRanges,
    long stagingBytes,
    long inFlightBytes,
    int tableRanges) {
  static final class Builder {
    CudaCopySettings build() {
      return new CudaCopySettings(28 << 10, 16, 0, 256 << 20, 4096);
    }
  }

  static Builder builder() {
    return new Builder();
  }
}
