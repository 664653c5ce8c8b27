package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.UMBPException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.ForAll;
import net.jqwik.api.From;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.Size;

class MemoryStripProperties {
  @Provide
  Arbitrary<MemoryStrip> strips() {
    return Combinators.combine(
            Arbitraries.of("a", "b", "c"),
            Arbitraries.integers().between(0, 1),
            Arbitraries.integers().between(0, 120),
            Arbitraries.of(5, 8, 12, 16),
            Arbitraries.integers().between(1, 9),
            Arbitraries.integers().between(1, 10))
        .as(
            (layer, space, start, stride, count, length) ->
                new MemoryStrip(layer, space, start, stride, count, Math.min(length, stride + 1)));
  }

  private static List<Long> bytes(MemoryStrip strip) {
    List<Long> bytes = new ArrayList<>();
    for (int i = 0; i < strip.count(); i++) {
      for (int k = 0; k < strip.length(); k++) {
        bytes.add(strip.start() + i * strip.stride() + k);
      }
    }
    return bytes;
  }

  @Property
  void stripsAreRefusedExactlyWhenAByteIsNamedTwice(
      @ForAll @Size(min = 1, max = 4) List<@From("strips") MemoryStrip> strips) {
    boolean disjoint = true;
    Map<Integer, Set<Long>> seen = new HashMap<>();
    for (MemoryStrip strip : strips) {
      for (long address : bytes(strip)) {
        disjoint &= seen.computeIfAbsent(strip.space(), s -> new HashSet<>()).add(address);
      }
    }
    boolean accepted = true;
    try {
      MemoryStrip.checkDisjoint(0, new ArrayList<>(strips));
    } catch (UMBPException e) {
      accepted = false;
    }
    assertEquals(disjoint, accepted);
  }

  @Property
  void clippingKeepsExactlyTheBytesInside(
      @ForAll("strips") MemoryStrip strip,
      @ForAll @IntRange(max = 150) int low,
      @ForAll @IntRange(min = 1, max = 100) int size) {
    List<MemoryStrip> parts = new ArrayList<>();
    strip.clip(low, low + size, 7, 1000, parts);
    List<Long> expected =
        bytes(strip).stream()
            .filter(address -> address >= low && address < low + size)
            .map(address -> address + 1000)
            .sorted()
            .toList();
    List<Long> actual = new ArrayList<>();
    for (MemoryStrip part : parts) {
      assertEquals(7, part.space());
      actual.addAll(bytes(part));
    }
    actual.sort(null);
    assertEquals(expected, actual);
  }
}
