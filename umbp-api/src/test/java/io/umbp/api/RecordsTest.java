package io.umbp.api;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;

/** The rules of the small records. */
class RecordsTest {
  @Test
  void tokensToLoadAreNeverNegative() {
    assertEquals(32, new LoadSpec(16, 48).tokensToLoad());
    assertEquals(0, new LoadSpec(48, 16).tokensToLoad());
    assertEquals(Integer.MAX_VALUE, new LoadSpec(0, Integer.MAX_VALUE).tokensToLoad());
    assertThrows(UMBPException.class, () -> new LoadSpec(-1, 0));
    assertThrows(UMBPException.class, () -> new LoadSpec(0, -1));
  }
}
