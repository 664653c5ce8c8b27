package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;

class KVPatternTest {
  private static byte[] page(int bytes, int rank, int layer, long hash) {
    byte[] page = new byte[bytes];
    KVPattern.fill(page, bytes, rank, layer, hash);
    return page;
  }

  @Test
  void everyEightBytesOfEveryPlaceDiffer() {
    Set<Long> seen = new HashSet<>();
    int count = 0;
    for (int rank = 0; rank < 3; rank++) {
      for (int layer = 0; layer < 3; layer++) {
        for (long hash = 0; hash < 3; hash++) {
          byte[] page = page(1024, rank, layer, hash);
          for (int at = 0; at < page.length; at += 8) {
            seen.add(java.nio.ByteBuffer.wrap(page).getLong(at));
            count++;
          }
        }
      }
    }
    assertEquals(count, seen.size());
  }

  @Test
  void theSamePlaceHasTheSameBytesAtAnyLength() {
    byte[] whole = page(64, 1, 2, 3);
    for (int length = 1; length < 64; length++) {
      byte[] part = page(length, 1, 2, 3);
      assertEquals(-1, Arrays.mismatch(part, Arrays.copyOf(whole, length)), "length " + length);
    }
  }
}
