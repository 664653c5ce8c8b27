package io.umbp.core.identity;

import static io.umbp.core.identity.BlockHasher.HASH_LENGTH;

import io.umbp.core.identity.BlockHasher.Extras;
import io.umbp.core.identity.BlockHasher.Media;
import java.util.Arrays;

/**
 * Writes the extra keys of one sequence's blocks as CBOR, in vLLM's order: LoRA name, media, salt,
 * prompt embeddings. Thread-confined. Blocks are written in order, and writing allocates nothing.
 *
 * <p>In the strict form each key is an array that starts with its kind and holds all that tells it
 * from another key of that kind, so that the keys of a block can be read back from their bytes.
 */
final class ExtraKeys {
  private static final int LORA = 1;
  private static final int MEDIA = 2;
  private static final int SALT = 3;
  private static final int EMBEDDINGS = 4;

  /** Most heads that a key has beside its text or digest: array, kind, offset and length. */
  private static final int HEADS = 4;

  private final Extras extras;
  private final boolean strict;
  private final int blockSize;

  /** The number of first blocks that may have other keys than all blocks after them. */
  private final int ownKeys;

  private final byte[] laterKeys;

  /** Media before this one end before the block that is written next. */
  private int firstMedia;

  ExtraKeys(Extras extras, boolean strict, int blockSize) {
    this.extras = extras;
    this.strict = strict;
    this.blockSize = blockSize;
    int tokens = Math.max(extras.embeddings.tokens(), extras.cacheSalt.length == 0 ? 0 : 1);
    for (Media media : extras.media) {
      tokens = Math.max(tokens, media.end());
    }
    this.ownKeys = (int) (((long) tokens + blockSize - 1) / blockSize);
    byte[] later = new byte[maxBytes()];
    this.laterKeys = Arrays.copyOf(later, putKeys(later, 0, ownKeys));
    this.firstMedia = 0;
  }

  /** Returns how many bytes must be free where a block's keys are put. */
  int maxBytes() {
    int heads = 1 + HEADS * (3 + extras.media.size());
    int bytes = extras.loraName.length + extras.cacheSalt.length + extras.identifierBytes;
    return heads * CanonicalCbor.MAX_HEAD + bytes + HASH_LENGTH + CanonicalCbor.ROOM;
  }

  /**
   * Puts the keys of the next block, or null when it has none.
   *
   * @return the index behind them
   */
  int put(byte[] target, int at, int block) {
    if (block < ownKeys) {
      return putKeys(target, at, block);
    }
    System.arraycopy(laterKeys, 0, target, at, laterKeys.length);
    return at + laterKeys.length;
  }

  private int putKeys(byte[] target, int at, int block) {
    long start = (long) block * blockSize;
    boolean adapted = extras.loraName.length > 0;
    boolean salted = block == 0 && extras.cacheSalt.length > 0;
    boolean embedded = extras.embeddings.tokens() > 0;
    int media = countMedia(start);
    int keys = media + (adapted ? 1 : 0) + (salted ? 1 : 0) + (embedded ? 1 : 0);
    if (keys == 0) {
      target[at] = CanonicalCbor.NULL;
      return at + 1;
    }
    int next = CanonicalCbor.putArrayHead(target, at, keys);
    if (adapted) {
      next = putText(target, next, LORA, extras.loraName);
    }
    if (media > 0) {
      next = putMedia(target, next, start);
    }
    if (salted) {
      next = putText(target, next, SALT, extras.cacheSalt);
    }
    return embedded ? putEmbeddings(target, next, block) : next;
  }

  private int putText(byte[] target, int at, int kind, byte[] text) {
    int next = strict ? putKind(target, at, 2, kind) : at;
    return putItem(target, next, text);
  }

  private int countMedia(long start) {
    while (firstMedia < extras.media.size() && extras.media.get(firstMedia).end() <= start) {
      firstMedia++;
    }
    int count = 0;
    for (int i = firstMedia; i < extras.media.size(); i++) {
      Media media = extras.media.get(i);
      if (media.offset() >= start + blockSize) {
        break;
      }
      count += media.end() > start ? 1 : 0;
    }
    return count;
  }

  private int putMedia(byte[] target, int at, long start) {
    int next = at;
    for (int i = firstMedia; i < extras.media.size(); i++) {
      Media media = extras.media.get(i);
      if (media.offset() >= start + blockSize) {
        break;
      }
      if (media.end() > start) {
        next =
            strict ? putKind(target, next, 4, MEDIA) : CanonicalCbor.putArrayHead(target, next, 2);
        next = putItem(target, next, extras.identifiers[i]);
        next = CanonicalCbor.putInteger(target, next, (int) (media.offset() - start));
        if (strict) {
          next = CanonicalCbor.putUnsigned(target, next, media.length());
        }
      }
    }
    return next;
  }

  private int putEmbeddings(byte[] target, int at, int block) {
    int next = strict ? putKind(target, at, 3, EMBEDDINGS) : at;
    next = CanonicalCbor.putBytesHead(target, next, HASH_LENGTH);
    next = extras.embeddings.putDigest(target, next, block);
    return strict
        ? CanonicalCbor.putUnsigned(target, next, extras.embeddings.tokensInBlock(block))
        : next;
  }

  private static int putKind(byte[] target, int at, int items, int kind) {
    return CanonicalCbor.putUnsigned(target, CanonicalCbor.putArrayHead(target, at, items), kind);
  }

  private static int putItem(byte[] target, int at, byte[] item) {
    System.arraycopy(item, 0, target, at, item.length);
    return at + item.length;
  }
}
