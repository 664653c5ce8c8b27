package io.umbp.api;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

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
  private static final Pattern TEXT =
      Pattern.compile(
          "umbp:vllm:v1:([A-Za-z0-9._-]+):tp(N|[*]):pcp(N):dcp(N):pp(N):g(N):((?:[0-9a-f]{2})+)"
              .replace("N", "0|[1-9][0-9]{0,9}"));

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
    Matcher matcher = TEXT.matcher(text);
    if (!matcher.matches()) {
      throw UMBPException.invalid(
          "'%s' is no key of the form"
              + " umbp:vllm:v1:<namespace>:tp<T>:pcp<P>:dcp<D>:pp<Q>:g<G>:<lower-case hex hash>",
          text);
    }
    return new BlockKey(
        new UMBPNamespace(matcher.group(1)),
        new RankNamespace(
            matcher.group(2).equals("*") ? RankNamespace.ALL_TP : number(matcher, 2, text),
            number(matcher, 3, text),
            number(matcher, 4, text),
            number(matcher, 5, text)),
        number(matcher, 6, text),
        BlockHash.fromHex(matcher.group(7)));
  }

  private static int number(Matcher matcher, int group, String text) {
    long value = Long.parseLong(matcher.group(group));
    if (value > Integer.MAX_VALUE) {
      throw UMBPException.invalid(
          "key '%s' has the number %d, the limit is %d", text, value, Integer.MAX_VALUE);
    }
    return (int) value;
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
