package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.UMBPException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.Example;
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

  /** Two strips, with gaps so wide that they often run through each other without a touch. */
  @Property(tries = 3000)
  void twoStripsOverlapExactlyWhenTheyShareAByteAtAnyScale(
      @ForAll @IntRange(min = 2, max = 60) int stride,
      @ForAll @IntRange(min = 2, max = 60) int otherStride,
      @ForAll @IntRange(max = 300) int start,
      @ForAll @IntRange(min = 1, max = 40) int count,
      @ForAll @IntRange(min = 1, max = 40) int otherCount,
      @ForAll @IntRange(min = 1, max = 4) int length,
      @ForAll @IntRange(min = 1, max = 4) int otherLength,
      @ForAll @IntRange(max = 50) int scaleBits) {
    MemoryStrip one = new MemoryStrip("a", 0, start, stride, count, Math.min(length, stride));
    MemoryStrip other =
        new MemoryStrip("b", 0, 150, otherStride, otherCount, Math.min(otherLength, otherStride));
    boolean isShared = !Collections.disjoint(bytes(one), bytes(other));
    assertEquals(isShared, isRefused(List.of(scaled(one, scaleBits), scaled(other, scaleBits))));
  }

  private static MemoryStrip scaled(MemoryStrip strip, int bits) {
    return new MemoryStrip(
        strip.layerName(),
        strip.space(),
        strip.start() << bits,
        strip.stride() << bits,
        strip.count(),
        strip.length() << bits);
  }

  private static boolean isRefused(List<MemoryStrip> strips) {
    try {
      MemoryStrip.checkDisjoint(0, new ArrayList<>(strips));
      return false;
    } catch (UMBPException e) {
      return true;
    }
  }

  @Property(tries = 500)
  void manyStripsWithOneStrideAreRefusedExactlyWhenTwoShareAByte(
      @ForAll Random random, @ForAll @IntRange(min = 1, max = 60) int strips) {
    List<MemoryStrip> all = new ArrayList<>();
    Set<Long> seen = new HashSet<>();
    boolean isShared = false;
    for (int i = 0; i < strips; i++) {
      int count = 1 + random.nextInt(6);
      int length = count == 1 ? 1 + random.nextInt(600) : 1 + random.nextInt(3);
      MemoryStrip strip =
          new MemoryStrip("layer" + i, 0, random.nextInt(20_000), 200, count, length);
      all.add(strip);
      for (long address : bytes(strip)) {
        isShared |= !seen.add(address);
      }
    }
    assertEquals(isShared, isRefused(all));
  }

  /** Comparing all pairs of these would take minutes. */
  @Example
  void manyHeadsInsideOfBlocksAreChecked() {
    int heads = 200_000;
    long stride = 4L * heads;
    List<MemoryStrip> strips = new ArrayList<>();
    for (int head = 0; head < heads; head++) {
      strips.add(new MemoryStrip("a", 0, 4L * head, stride, 1_000, 4));
    }
    assertFalse(isRefused(strips));
    strips.add(new MemoryStrip("b", 0, stride * 999 + 4L * 777, stride, 2, 1));
    assertTrue(isRefused(strips));
  }

  /** A billion blocks are not walked through. */
  @Example
  void manyBlocksOfDifferentStridesAreChecked() {
    MemoryStrip even = new MemoryStrip("a", 0, 0, 4, 1_000_000_000, 1);
    MemoryStrip odd = new MemoryStrip("b", 0, 1, 6, 600_000_000, 1);
    assertFalse(isRefused(List.of(even, odd)));
    MemoryStrip farTouch = new MemoryStrip("b", 0, 999_999_999, 999_999_999, 5, 1);
    assertTrue(isRefused(List.of(even, farTouch)));
  }

  @Example
  void tooManyPiecesOfDifferentStridesAreRefused() {
    List<MemoryStrip> strips = new ArrayList<>();
    for (int i = 0; i < 3_000; i++) {
      strips.add(new MemoryStrip("a", 0, 4L * i, 12_000, 50, 1));
      strips.add(new MemoryStrip("b", 0, 4L * i + 2, 24_000, 25, 1));
    }
    UMBPException e = assertThrows(UMBPException.class, () -> MemoryStrip.checkDisjoint(0, strips));
    assertTrue(e.getMessage().contains("in more pieces than can be checked for overlap"));
  }

  @Example
  void stripsOfHalfTheAddressSpaceAreChecked() {
    long half = (1L << 62) + 10;
    MemoryStrip one = new MemoryStrip("a", 0, 1, half, 1, half);
    assertTrue(isRefused(List.of(one, new MemoryStrip("b", 0, 5, half, 1, half))));
    assertTrue(isRefused(List.of(one, new MemoryStrip("b", 0, half, half, 1, 100))));
    assertFalse(isRefused(List.of(one, new MemoryStrip("b", 0, half + 1, 100, 1, 100))));
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
