package io.umbp.api;

/** The number format of KV elements. */
public enum ElementType {
  /** 32-bit IEEE 754. */
  F32(4),
  /** 16-bit IEEE 754. */
  F16(2),
  /** bfloat16. */
  BF16(2),
  /** 8-bit float, 4 exponent bits. */
  F8_E4M3(1),
  /** 8-bit float, 5 exponent bits. */
  F8_E5M2(1),
  /** Signed byte (quantised). */
  I8(1),
  /** Bytes of no stated format (packed or mixed pages). */
  U8(1);

  private final int sizeBytes;

  ElementType(int sizeBytes) {
    this.sizeBytes = sizeBytes;
  }

  /**
   * Returns the size of one element.
   *
   * @return size in bytes
   */
  public int sizeBytes() {
    return sizeBytes;
  }
}
