package io.umbp.core.runtime;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVRegion;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * The places of one group that a trial looks at, and the values that it puts there. Immutable.
 *
 * <p>A layout of more than {@link #MAX_PLACES} places is sampled: of each layer, part and kernel
 * block some tokens and heads are tried, the first, the last and some between.
 *
 * <p>Each place has an endless stream of bytes of its own, and the rounds of a trial take their
 * values from it one after another. The first eight bytes of the streams are all different;
 * contents of fewer bytes need {@linkplain #rounds() several rounds} until every place is told from
 * every other. Bit 6 of each byte is clear ({@link #NEVER} has it): so an element of any float
 * format is a finite number, which a probe may take through a float without harm.
 */
final class TrialPlaces {
  /** How many places of a group are tried at most, both blocks together. */
  static final long MAX_PLACES = 1_000_000;

  /** A byte that no value has. */
  static final byte NEVER = 0x40;

  private static final int FEWEST_OF_AN_AXIS = 3;
  private static final int DISTINCT_BYTES = 8;
  private static final long MASK_56 = (1L << 56) - 1;
  private static final VarHandle WORDS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  private final List<Page> pages = new ArrayList<>();
  private final long count;
  private final int rounds;
  private final long salt;

  /** One layer's page in the object. */
  static final class Page {
    private final KVRegion region;
    private final long objectOffset;
    private final int[] heads;
    private final int[] tokens;
    private final long firstId;

    private Page(KVRegion region, long objectOffset, long firstId, long budget) {
      this.region = region;
      this.objectOffset = objectOffset;
      this.firstId = firstId;
      KVPageShape shape = region.shape();
      int headCount = shape.heads();
      int tokenCount = shape.size(Axis.TOKEN);
      long always = (long) parts() * shape.kernelBlocks();
      while (always * headCount * tokenCount > budget
          && Math.max(headCount, tokenCount) > FEWEST_OF_AN_AXIS) {
        if (headCount >= tokenCount) {
          headCount = Math.max(FEWEST_OF_AN_AXIS, headCount / 2);
        } else {
          tokenCount = Math.max(FEWEST_OF_AN_AXIS, tokenCount / 2);
        }
      }
      heads = spread(headCount, shape.heads(), 1);
      tokens = spread(tokenCount, shape.size(Axis.TOKEN), shape.kernelBlocks());
    }

    /** Returns evenly spread numbers of [0, size), first and last included, in each repetition. */
    private static int[] spread(int count, int size, int repetitions) {
      int[] numbers = new int[count * repetitions];
      for (int i = 0; i < numbers.length; i++) {
        long within = count == 1 ? 0 : (long) (i % count) * (size - 1) / (count - 1);
        numbers[i] = i / count * size + (int) within;
      }
      return numbers;
    }

    private int parts() {
      return TrialPlaces.parts(region);
    }

    private long placeCount() {
      return (long) parts() * heads.length * tokens.length;
    }

    String layerName() {
      return region.layerName();
    }

    /** Returns the bytes of one place. */
    int sizeBytes(Part part) {
      KVPageShape shape = region.shape();
      return Math.toIntExact(part == Part.KEY ? shape.keyBytes() : shape.valueBytes());
    }

    /** Returns where a place starts in the object. */
    int offset(Part part, int head, int token) {
      return Math.toIntExact(objectOffset + region.shape().offset(part, head, token));
    }

    /** Names a place for people. */
    String describe(int blockId, Part part, int head, int token) {
      KVPageShape shape = region.shape();
      String block = "'" + region.layerName() + "' block " + blockId;
      return parts() * shape.heads() * shape.tokens() == 1
          ? block + " content"
          : String.format(
              "%s %s head %d token %d", block, part == Part.KEY ? "key" : "value", head, token);
    }

    private void visitSampled(Visitor visitor) {
      long id = firstId;
      for (int part = 0; part < parts(); part++) {
        for (int head : heads) {
          for (int token : tokens) {
            visitor.visit(this, part == 0 ? Part.KEY : Part.VALUE, head, token, id++);
          }
        }
      }
    }

    private void visitAll(Visitor visitor) {
      for (int part = 0; part < parts(); part++) {
        for (int head = 0; head < region.shape().heads(); head++) {
          for (int token = 0; token < region.shape().tokens(); token++) {
            visitor.visit(this, part == 0 ? Part.KEY : Part.VALUE, head, token, -1);
          }
        }
      }
    }
  }

  /** Sees places. */
  @FunctionalInterface
  interface Visitor {
    /**
     * Sees one place.
     *
     * @param id number of the place among those that are tried; it is the same for both blocks
     */
    void visit(Page page, Part part, int head, int token, long id);
  }

  /**
   * Chooses the places.
   *
   * @param layout the layout
   * @param groupId the group whose places these are
   * @param trialNumber trials of other numbers put other values
   */
  TrialPlaces(KVLayoutDescriptor layout, int groupId, long trialNumber) {
    salt = mix(trialNumber);
    List<KVRegion> regions =
        layout.regions().stream().filter(region -> region.groupId() == groupId).toList();
    long all = 0;
    for (KVRegion region : regions) {
      all += (long) parts(region) * region.shape().heads() * region.shape().tokens();
    }
    long budget = 2 * all <= MAX_PLACES ? all : MAX_PLACES / 2 / regions.size();
    long objectOffset = 0;
    long places = 0;
    long smallest = DISTINCT_BYTES;
    for (KVRegion region : regions) {
      Page page = new Page(region, objectOffset, places, budget);
      pages.add(page);
      places += page.placeCount();
      objectOffset += region.blockBytes();
      smallest = Math.min(smallest, page.sizeBytes(Part.KEY));
      if (region.shape().hasValues()) {
        smallest = Math.min(smallest, page.sizeBytes(Part.VALUE));
      }
    }
    count = places;
    rounds = (int) -Math.floorDiv(-DISTINCT_BYTES, smallest);
  }

  private static int parts(KVRegion region) {
    return region.shape().hasValues() ? 2 : 1;
  }

  /** Returns how many places of a block are tried. */
  long count() {
    return count;
  }

  /** Returns how many values a place gets, one after another. */
  int rounds() {
    return rounds;
  }

  void forEach(Visitor visitor) {
    pages.forEach(page -> page.visitSampled(visitor));
  }

  /** Tells which place an object has at an offset, and how far into it the offset lies. */
  String describeAt(int objectOffset, int blockId) {
    String[] found = {"where nothing was expected"};
    for (Page page : pages) {
      long within = objectOffset - page.objectOffset;
      if (within >= 0 && within < page.region.blockBytes()) {
        page.visitAll(
            (unused, part, head, token, id) -> {
              int into = objectOffset - page.offset(part, head, token);
              if (into >= 0 && into < page.sizeBytes(part)) {
                String place = page.describe(blockId, part, head, token);
                found[0] =
                    (into == 0 ? "" : into + " bytes behind ") + "where " + place + " was expected";
              }
            });
      }
    }
    return found[0];
  }

  /**
   * Fills in what a place holds.
   *
   * @param value receives the bytes, as many as the place has
   * @param id number of the place
   * @param isSecond whether in the second block
   * @param round the round, from 0
   */
  void fill(byte[] value, long id, boolean isSecond, int round) {
    long stream = ((id << 1) | (isSecond ? 1 : 0)) << 28;
    long at = (long) round * value.length;
    int i = 0;
    while (i < value.length) {
      long word = spread(mix(salt ^ stream ^ (at >>> 3)));
      if ((at & 7) == 0 && value.length - i >= Long.BYTES) {
        WORDS.set(value, i, word);
        i += Long.BYTES;
        at += Long.BYTES;
      } else {
        value[i++] = (byte) (word >>> (8 * (at++ & 7)));
      }
    }
  }

  /** Makes eight bytes of 56 bits: seven in each, around a bit 6 that is clear. */
  private static long spread(long bits) {
    long wide = (bits & 0xFFF_FFFFL) | ((bits & 0xFF_FFFF_F000_0000L) << 4);
    wide = (wide & 0x3FFF_0000_3FFFL) | ((wide & 0x0FFF_C000_0FFF_C000L) << 2);
    wide = (wide & 0x007F_007F_007F_007FL) | ((wide & 0x3F80_3F80_3F80_3F80L) << 1);
    return (wide & 0x3F3F_3F3F_3F3F_3F3FL) | ((wide & 0x4040_4040_4040_4040L) << 1);
  }

  /** Maps the numbers below 2^56 to each other without a system that a stride could meet. */
  private static long mix(long number) {
    long mixed = number & MASK_56;
    mixed = ((mixed ^ (mixed >>> 27)) * 0x3C79AC492BA7B653L) & MASK_56;
    mixed = ((mixed ^ (mixed >>> 25)) * 0x1C69B3F74AC4AE35L) & MASK_56;
    return mixed ^ (mixed >>> 28);
  }
}
