package io.umbp.api;

import java.util.Arrays;

/**
 * The identity of one stored object: one block of one KV cache group on one rank. Immutable. Many
 * keys at once travel as {@link BlockKeys}.
 *
 * <p>The text form is {@code umbp:vllm:v1:<namespace>:tp<T>:pcp<P>:dcp<D>:pp<Q>:g<G>:<hash>} with
 * decimal ranks ({@code tp*} for an object that all tensor-parallel ranks share) and a lower-case
 * hexadecimal hash; {@code docs/key-format.md} is normative.
 *
 * @param namespace the compatibility namespace
 * @param rank the rank that holds the object
 * @param groupId the KV cache group, at least 0
 * @param hash the block's content hash
 */
public record BlockKey(UMBPNamespace namespace, RankNamespace rank, int groupId, BlockHash hash) {
  private static final int QUOTED_CHARACTERS = 200;

  /** Checks the group id. */
  public BlockKey {
    checkGroupId(groupId);
  }

  static void checkGroupId(int groupId) {
    if (groupId < 0) {
      throw UMBPException.invalid("group id %d must be >= 0", groupId);
    }
  }

  /**
   * Parses the text form. Only text that {@link #toString()} could have written is accepted, so two
   * different texts never name one object.
   *
   * @param text a key
   * @return its parts
   */
  public static BlockKey parse(String text) {
    return new Parser(text).key();
  }

  /** Returns text in quotes for a message, cut where it is longer than any use of it. */
  static String quote(String text) {
    return text.length() <= QUOTED_CHARACTERS
        ? "'" + text + "'"
        : "'" + text.substring(0, QUOTED_CHARACTERS) + "...' (" + text.length() + " characters)";
  }

  /** Reads a key from left to right. */
  private static final class Parser {
    private static final int MAX_DIGITS = 10;

    /** Value of each lower-case hexadecimal digit by its character, -1 for other characters. */
    private static final byte[] DIGIT_VALUES = new byte[128];

    static {
      Arrays.fill(DIGIT_VALUES, (byte) -1);
      for (int value = 0; value < 16; value++) {
        DIGIT_VALUES[Character.forDigit(value, 16)] = (byte) value;
      }
    }

    private final String text;
    private int at;

    Parser(String text) {
      this.text = text;
    }

    BlockKey key() {
      skip("umbp:vllm:v1:");
      UMBPNamespace namespace = namespace();
      skip(":tp");
      int tp = tensorParallelRank();
      skip(":pcp");
      int pcp = number();
      skip(":dcp");
      int dcp = number();
      skip(":pp");
      int pp = number();
      skip(":g");
      int groupId = number();
      skip(":");
      return new BlockKey(namespace, new RankNamespace(tp, pcp, dcp, pp), groupId, hash());
    }

    private void skip(String expected) {
      if (!text.startsWith(expected, at)) {
        throw malformed();
      }
      at += expected.length();
    }

    private UMBPNamespace namespace() {
      int start = at;
      while (at < text.length() && UMBPNamespace.isAllowed(text.charAt(at))) {
        at++;
      }
      if (at == start) {
        throw malformed();
      }
      return new UMBPNamespace(text.substring(start, at));
    }

    private int tensorParallelRank() {
      if (text.startsWith("*", at)) {
        at++;
        return RankNamespace.ALL_TP;
      }
      return number();
    }

    private int number() {
      int start = at;
      long value = 0;
      while (at < text.length() && at - start <= MAX_DIGITS) {
        int digit = text.charAt(at) - '0';
        if (digit < 0 || digit > 9) {
          break;
        }
        value = value * 10 + digit;
        at++;
      }
      int digits = at - start;
      if (digits == 0 || digits > MAX_DIGITS || (digits > 1 && text.charAt(start) == '0')) {
        throw malformed();
      }
      if (value > Integer.MAX_VALUE) {
        throw UMBPException.invalid(
            "key %s has the number %d, the limit is %d", quote(text), value, Integer.MAX_VALUE);
      }
      return (int) value;
    }

    private BlockHash hash() {
      int digits = text.length() - at;
      if (digits == 0 || digits % 2 != 0) {
        throw malformed();
      }
      BlockHash.checkLength(digits / 2);
      byte[] bytes = new byte[digits / 2];
      for (int i = 0; i < bytes.length; i++) {
        bytes[i] = (byte) (hexDigit() << 4 | hexDigit());
      }
      return BlockHash.wrap(bytes);
    }

    private int hexDigit() {
      char c = text.charAt(at++);
      int value = c < DIGIT_VALUES.length ? DIGIT_VALUES[c] : -1;
      if (value < 0) {
        throw malformed();
      }
      return value;
    }

    private UMBPException malformed() {
      return UMBPException.invalid(
          "%s is no key of the form"
              + " umbp:vllm:v1:<namespace>:tp<T>:pcp<P>:dcp<D>:pp<Q>:g<G>:<lower-case hex hash>",
          quote(text));
    }
  }

  /**
   * Returns the text form.
   *
   * @return the key as it is exchanged with other engines
   */
  @Override
  public String toString() {
    return BlockKeys.prefix(namespace, rank) + groupId + ':' + hash;
  }
}
