package io.umbp.api;

import java.util.EnumSet;
import java.util.List;
import java.util.Set;

/**
 * Where K and V of each head and token lie inside one page as an object holds it: nested axes
 * around the content of one token and head. Immutable.
 *
 * <p>Without the axis {@link Axis#KV} the content is the key followed by the value (fused), or the
 * one latent that both are made of when there are no value bytes. With it there is one such content
 * for the keys and one for the values, of equal size.
 *
 * @param axes the axes outermost first: {@link Axis#HEAD} and {@link Axis#TOKEN}, {@link Axis#KV}
 *     when K and V are separate, {@link Axis#KERNEL_BLOCK} exactly when there are several; copied
 * @param totalHeads KV heads of the layer over all tensor-parallel ranks, at least heads
 * @param heads KV heads in the page, at least 1
 * @param tokens tokens in the page, at least 1
 * @param kernelBlocks (kernel) blocks of the attention kernel in a row that make the page, at least
 *     1; divides tokens
 * @param keyBytes bytes of the key of one token and head, at least 1
 * @param valueBytes bytes of the value of one token and head; 0 when the page has one content
 */
public record KVPageShape(
    List<Axis> axes,
    int totalHeads,
    int heads,
    int tokens,
    int kernelBlocks,
    long keyBytes,
    long valueBytes) {

  /** One level of nesting. */
  public enum Axis {
    /** The kernel blocks of a block. */
    KERNEL_BLOCK,
    /** Key, then value. */
    KV,
    /** The KV heads of this rank. */
    HEAD,
    /** The tokens of a kernel block. */
    TOKEN
  }

  /** Which half of a token's KV. */
  public enum Part {
    /** The key, or the one content of a page without values. */
    KEY,
    /** The value. */
    VALUE
  }

  /** Checks axes and sizes, and that the page's bytes can be counted. */
  public KVPageShape {
    axes = List.copyOf(axes);
    Set<Axis> distinct = EnumSet.noneOf(Axis.class);
    distinct.addAll(axes);
    boolean isSeparate = distinct.contains(Axis.KV);
    if (distinct.size() != axes.size()
        || !distinct.contains(Axis.HEAD)
        || !distinct.contains(Axis.TOKEN)
        || distinct.contains(Axis.KERNEL_BLOCK) != kernelBlocks > 1) {
      throw UMBPException.invalid(
          "page axes %s with %d kernel blocks; needed are HEAD and TOKEN, KERNEL_BLOCK exactly when"
              + " there are several, each axis once",
          axes, kernelBlocks);
    }
    if (heads < 1 || totalHeads < heads || tokens < 1 || kernelBlocks < 1) {
      throw UMBPException.invalid(
          "page with %d of %d heads, %d tokens, %d kernel blocks; all must be >= 1",
          heads, totalHeads, tokens, kernelBlocks);
    }
    if (tokens % kernelBlocks != 0) {
      throw UMBPException.invalid(
          "%d kernel blocks do not divide the %d tokens of a page", kernelBlocks, tokens);
    }
    if (keyBytes < 1 || valueBytes < 0 || (isSeparate && keyBytes != valueBytes)) {
      throw UMBPException.invalid(
          "page with %d key bytes and %d value bytes; key bytes must be >= 1, value bytes >= 0,"
              + " and equal when K and V are separate axes",
          keyBytes, valueBytes);
    }
    long content = keyBytes + valueBytes;
    long slots = (long) heads * tokens;
    if (content < 0 || Math.multiplyHigh(content, slots) != 0 || content * slots < 0) {
      throw UMBPException.invalid(
          "page of %d heads, %d tokens, %d key and %d value bytes has more than %d bytes",
          heads, tokens, keyBytes, valueBytes, Long.MAX_VALUE);
    }
  }

  /**
   * Returns the shape of a page whose inner order is unknown or has neither heads nor tokens, such
   * as the state of a Mamba layer: one content.
   *
   * @param layerName the layer, for the message
   * @param pageBytes bytes of the page, above 0
   * @return the shape
   */
  public static KVPageShape opaque(String layerName, long pageBytes) {
    if (pageBytes <= 0) {
      throw UMBPException.invalid("layer '%s': block bytes %d must be > 0", layerName, pageBytes);
    }
    return new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), 1, 1, 1, 1, pageBytes, 0);
  }

  /**
   * Returns the size of the page.
   *
   * @return bytes
   */
  public long pageBytes() {
    return (keyBytes + valueBytes) * heads * tokens;
  }

  /**
   * Tells whether keys and values are two contents that can be told apart.
   *
   * @return false when the page has one content
   */
  public boolean hasValues() {
    return valueBytes > 0;
  }

  /**
   * Returns how many elements an axis has.
   *
   * @param axis any axis
   * @return its size, 1 for an axis that the page does not have
   */
  public int size(Axis axis) {
    return switch (axis) {
      case KERNEL_BLOCK -> kernelBlocks;
      case KV -> axes.contains(Axis.KV) ? 2 : 1;
      case HEAD -> heads;
      case TOKEN -> tokens / kernelBlocks;
    };
  }

  /**
   * Returns the size of the innermost content.
   *
   * @return bytes of the key, or of key and value when they are fused
   */
  public long contentBytes() {
    return axes.contains(Axis.KV) ? keyBytes : keyBytes + valueBytes;
  }

  /**
   * Returns where the key or value of one head and token starts.
   *
   * @param part key or value; a page without values has keys only
   * @param head head in [0, heads)
   * @param token token in [0, tokens)
   * @return bytes from the start of the page
   */
  public long offset(Part part, int head, int token) {
    if (head < 0 || head >= heads || token < 0 || token >= tokens) {
      throw UMBPException.invalid(
          "head %d of %d, token %d of %d is outside the page", head, heads, token, tokens);
    }
    if (part == Part.VALUE && !hasValues()) {
      throw UMBPException.invalid("the page has one content, no values");
    }
    boolean isValue = part == Part.VALUE;
    int kernelTokens = tokens / kernelBlocks;
    long index = 0;
    for (Axis axis : axes) {
      int at =
          switch (axis) {
            case KERNEL_BLOCK -> token / kernelTokens;
            case KV -> isValue ? 1 : 0;
            case HEAD -> head;
            case TOKEN -> token % kernelTokens;
          };
      index = index * size(axis) + at;
    }
    boolean isFusedValue = isValue && !axes.contains(Axis.KV);
    return index * contentBytes() + (isFusedValue ? keyBytes : 0);
  }
}
