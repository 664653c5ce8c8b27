package io.umbp.core.identity;

import com.google.common.hash.Hashing;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.security.DigestException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Makes vLLM's prefix block hashes, so that both engines name a block alike: a block's hash is the
 * SHA-256 over the canonical CBOR of {@code [parent hash, [token ids], extra keys or null]}.
 * Immutable and thread-safe; the {@link Sequence}s that it starts are not.
 *
 * <p>{@link #compatible} hashes as vLLM does. {@link #strict} writes the extra keys with their
 * kind, for deployments that need not share KV with vLLM.
 *
 * <p>The parent of the first block is the SHA-256 over the CBOR text of the hash seed, the value of
 * {@code PYTHONHASHSEED} of the Python engines. Only full blocks have a hash; the last tokens of a
 * sequence wait until their block is full.
 */
public final class BlockHasher {
  /** Length of every hash in bytes. */
  public static final int HASH_LENGTH = 32;

  /** Greatest number of tokens in a block. */
  public static final int MAX_BLOCK_SIZE = 1 << 20;

  /** Greatest number of blocks in a sequence: their hashes fill one array. */
  public static final int MAX_BLOCKS = Integer.MAX_VALUE / HASH_LENGTH;

  private final int blockSize;
  private final byte[] firstParent;
  private final boolean strict;

  private BlockHasher(String hashSeed, int blockSize, boolean strict) {
    if (hashSeed.isEmpty()) {
      throw UMBPException.invalid(
          "hash seed is empty; engines that share KV need one fixed seed, such as \"0\"");
    }
    checkBlockSize(blockSize);
    this.blockSize = blockSize;
    this.firstParent =
        Hashing.sha256().hashBytes(CanonicalCbor.text("hash seed", hashSeed)).asBytes();
    this.strict = strict;
  }

  /**
   * Returns the hasher of a deployment that shares KV with vLLM: its {@code sha256_cbor}.
   *
   * <p>Extra keys go into the hash without their kind, as there: an adapter "x" and a salt "x" give
   * the same first block. Names of adapters must not be used as salts.
   *
   * @param hashSeed the seed that all engines of the deployment share, not empty: an engine without
   *     one draws its first parent at random, and no hash of it is ever found again
   * @param blockSize tokens in a block, 1 to {@value #MAX_BLOCK_SIZE}
   * @return the hasher
   * @throws UMBPException INVALID_ARGUMENT when the seed is empty or has a lone surrogate, or the
   *     block size is out of range
   */
  public static BlockHasher compatible(String hashSeed, int blockSize) {
    return new BlockHasher(hashSeed, blockSize, false);
  }

  /**
   * Returns a hasher under which sequences with different extras never share a hash. Without extras
   * its hashes are those of {@link #compatible}.
   *
   * @param hashSeed the seed that all engines of the deployment share, not empty
   * @param blockSize tokens in a block, 1 to {@value #MAX_BLOCK_SIZE}
   * @return the hasher
   * @throws UMBPException INVALID_ARGUMENT when the seed is empty or has a lone surrogate, or the
   *     block size is out of range
   */
  public static BlockHasher strict(String hashSeed, int blockSize) {
    return new BlockHasher(hashSeed, blockSize, true);
  }

  private static void checkBlockSize(int blockSize) {
    if (blockSize < 1 || blockSize > MAX_BLOCK_SIZE) {
      throw UMBPException.invalid(
          "block size %d is outside [1, %d] tokens", blockSize, MAX_BLOCK_SIZE);
    }
  }

  /**
   * Returns the name of what this hasher computes, for manifests.
   *
   * @return {@code sha256_cbor} or {@code sha256_cbor_strict}
   */
  public String algorithm() {
    return strict ? "sha256_cbor_strict" : "sha256_cbor";
  }

  /**
   * Returns the number of tokens in a block.
   *
   * @return tokens, at least 1
   */
  public int blockSize() {
    return blockSize;
  }

  /**
   * Returns the hash that stands as the parent of each sequence's first block.
   *
   * @return the digest of the hash seed
   */
  public BlockHash firstParent() {
    return BlockHash.of(firstParent);
  }

  /**
   * Starts a sequence without tokens.
   *
   * @param extras what else separates the sequence's KV from that of the same tokens
   * @return a sequence of its own
   * @throws UMBPException INVALID_ARGUMENT when the extras have prompt embeddings that were
   *     digested for another block size
   */
  public Sequence start(Extras extras) {
    return new Sequence(this, extras, 8);
  }

  /**
   * Hashes the full blocks of a whole prompt.
   *
   * @param tokens token ids, each at least 0; borrowed during the call
   * @param extras what else separates the prompt's KV from that of the same tokens
   * @return {@code tokens.length / blockSize} hashes, in prefix order
   * @throws UMBPException INVALID_ARGUMENT when a token id is negative, there are more than {@value
   *     #MAX_BLOCKS} blocks, or the extras have prompt embeddings that were digested for another
   *     block size
   */
  public BlockHashes hash(int[] tokens, Extras extras) {
    int blocks = tokens.length / blockSize;
    checkBlocks(blocks);
    Sequence sequence = new Sequence(this, extras, blocks);
    sequence.append(tokens, 0, tokens.length);
    return sequence.hashes();
  }

  static void checkBlocks(long blocks) {
    if (blocks > MAX_BLOCKS) {
      throw UMBPException.invalid(
          "the tokens make %d blocks, a sequence has at most %d", blocks, MAX_BLOCKS);
    }
  }

  static MessageDigest newSha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException("every Java platform has SHA-256", e);
    }
  }

  static void digest(MessageDigest sha256, byte[] target, int at) {
    try {
      sha256.digest(target, at, HASH_LENGTH);
    } catch (DigestException e) {
      throw new IllegalStateException("a SHA-256 digest has " + HASH_LENGTH + " bytes", e);
    }
  }

  /**
   * A run of a prompt's tokens that stand for something other than text, such as an image.
   * Immutable.
   *
   * @param identifier digest or name of the content and of how it was processed, not empty
   * @param offset the first of the tokens, counted from the start of the prompt, at least 0
   * @param length number of tokens, at least 1; offset + length is at most 2147483647
   */
  public record Media(String identifier, int offset, int length) {

    /** Checks text and range. */
    public Media {
      if (identifier.isEmpty()) {
        throw UMBPException.invalid("media identifier is empty");
      }
      if (offset < 0 || length < 1 || length > Integer.MAX_VALUE - offset) {
        throw UMBPException.invalid(
            "media '%s' has offset %d and length %d; offset must be >= 0, length >= 1 and their sum"
                + " <= %d tokens",
            identifier, offset, length, Integer.MAX_VALUE);
      }
    }

    int end() {
      return offset + length;
    }
  }

  /** What makes KV different although the tokens are the same. Immutable. */
  public static final class Extras {
    /** Greatest number of bytes that the identifiers of one prompt's media have together. */
    public static final int MAX_IDENTIFIER_BYTES = 1 << 24;

    private static final byte[] ABSENT = {};
    private static final Extras NONE =
        new Extras(ABSENT, ABSENT, List.of(), new byte[0][], PromptEmbeddings.NONE);

    /** Text as CBOR, empty when there is none. */
    final byte[] loraName;

    /** Text as CBOR, empty when there is none. */
    final byte[] cacheSalt;

    /** Sorted by offset. */
    final List<Media> media;

    /** The media's identifiers as CBOR, in the same order. */
    final byte[][] identifiers;

    final int identifierBytes;
    final PromptEmbeddings embeddings;

    private Extras(
        byte[] loraName,
        byte[] cacheSalt,
        List<Media> media,
        byte[][] identifiers,
        PromptEmbeddings embeddings) {
      this.loraName = loraName;
      this.cacheSalt = cacheSalt;
      this.media = media;
      this.identifiers = identifiers;
      this.identifierBytes = totalBytes(identifiers);
      this.embeddings = embeddings;
    }

    private static int totalBytes(byte[][] identifiers) {
      long bytes = 0;
      for (byte[] identifier : identifiers) {
        bytes += identifier.length;
      }
      if (bytes > MAX_IDENTIFIER_BYTES) {
        throw UMBPException.invalid(
            "identifiers of %d media have %d bytes, at most %d are allowed",
            identifiers.length, bytes, MAX_IDENTIFIER_BYTES);
      }
      return (int) bytes;
    }

    /**
     * Returns the extras of a plain prompt: base model, shared cache.
     *
     * @return no extra keys
     */
    public static Extras none() {
      return NONE;
    }

    /**
     * Returns these extras with an adapter; it is part of every block's hash.
     *
     * @param name the LoRA adapter's name, not empty; null for the base model
     * @return the extras
     * @throws UMBPException INVALID_ARGUMENT when the name is empty, which could mean an adapter or
     *     none, or has a lone surrogate
     */
    public Extras withLoraName(@Nullable String name) {
      return new Extras(item("LoRA name", name), cacheSalt, media, identifiers, embeddings);
    }

    /**
     * Returns these extras with other media; each is part of the hash of every block that has a
     * token of it.
     *
     * @param media the prompt's media in any order; those of one offset count in the order given;
     *     empty for none; copied
     * @return the extras
     * @throws UMBPException INVALID_ARGUMENT when an identifier has a lone surrogate or they have
     *     more than {@value #MAX_IDENTIFIER_BYTES} bytes together
     */
    public Extras withMedia(List<Media> media) {
      List<Media> sorted = new ArrayList<>(media);
      sorted.sort(Comparator.comparingInt(Media::offset));
      byte[][] identifiers = new byte[sorted.size()][];
      for (int i = 0; i < identifiers.length; i++) {
        identifiers[i] = CanonicalCbor.text("media identifier", sorted.get(i).identifier());
      }
      return new Extras(loraName, cacheSalt, List.copyOf(sorted), identifiers, embeddings);
    }

    /**
     * Returns these extras with a salt; it is part of the first block's hash and, through the
     * parents, separates all blocks after it.
     *
     * @param salt the text that only those who may share KV have in common, not empty; null for
     *     none
     * @return the extras
     * @throws UMBPException INVALID_ARGUMENT when the salt is empty, which could mean a salt or
     *     none, or has a lone surrogate
     */
    public Extras withCacheSalt(@Nullable String salt) {
      return new Extras(loraName, item("cache salt", salt), media, identifiers, embeddings);
    }

    /**
     * Returns these extras with embeddings that the prompt's first tokens have instead of those of
     * their ids; the digest of a block's embeddings is part of its hash.
     *
     * @param embeddings the bytes of one token's embedding after another, from the prompt's start
     *     on, from the buffer's position to its limit; borrowed during the call; null for none
     * @param bytesPerToken bytes of one embedding, at least 1
     * @param blockSize tokens in a block, as the hasher's
     * @return the extras
     * @throws UMBPException INVALID_ARGUMENT when the bytes are none or no multiple of
     *     bytesPerToken, or a size is out of range
     */
    public Extras withPromptEmbeddings(
        @Nullable ByteBuffer embeddings, int bytesPerToken, int blockSize) {
      checkBlockSize(blockSize);
      PromptEmbeddings digests =
          embeddings == null
              ? PromptEmbeddings.NONE
              : PromptEmbeddings.of(embeddings, bytesPerToken, blockSize);
      return new Extras(loraName, cacheSalt, media, identifiers, digests);
    }

    private static byte[] item(String what, @Nullable String text) {
      if (text == null) {
        return ABSENT;
      }
      if (text.isEmpty()) {
        throw UMBPException.invalid("%s is empty; null means none", what);
      }
      return CanonicalCbor.text(what, text);
    }
  }

  /**
   * The growing hashes of one sequence of tokens. Thread-confined. Hashing allocates nothing but
   * the room for the hashes, which doubles when it is full.
   */
  public static final class Sequence {
    private final MessageDigest sha256 = newSha256();
    private final int blockSize;
    private final ExtraKeys extraKeys;

    /** The block being filled, as CBOR: up to parentAt and to tokensAt it is the same each time. */
    private final byte[] block;

    private final int parentAt;
    private final int tokensAt;
    private int blockEnd;
    private int tokensInBlock;

    private final BlockHashes.Builder hashes;

    private Sequence(BlockHasher hasher, Extras extras, int expectedBlocks) {
      this.blockSize = hasher.blockSize;
      extras.embeddings.checkBlockSize(blockSize);
      this.extraKeys = new ExtraKeys(extras, hasher.strict, blockSize);
      this.hashes = new BlockHashes.Builder(HASH_LENGTH, expectedBlocks);
      int heads = 3 * CanonicalCbor.MAX_HEAD;
      int tokenBytes = blockSize * CanonicalCbor.MAX_HEAD;
      this.block = new byte[heads + HASH_LENGTH + tokenBytes + extraKeys.maxBytes()];
      int at = CanonicalCbor.putArrayHead(block, 0, 3);
      this.parentAt = CanonicalCbor.putBytesHead(block, at, HASH_LENGTH);
      System.arraycopy(hasher.firstParent, 0, block, parentAt, HASH_LENGTH);
      this.tokensAt = CanonicalCbor.putArrayHead(block, parentAt + HASH_LENGTH, blockSize);
      this.blockEnd = tokensAt;
    }

    /**
     * Appends tokens and hashes each block that they fill.
     *
     * @param tokens token ids, each at least 0; borrowed during the call
     * @return the number of blocks hashed so far, as {@link #size()}
     * @throws UMBPException INVALID_ARGUMENT when a token id is negative or the sequence would have
     *     more than {@value #MAX_BLOCKS} blocks; nothing is appended then
     */
    public int append(int[] tokens) {
      return append(tokens, 0, tokens.length);
    }

    /**
     * Appends a part of an array of tokens and hashes each block that they fill.
     *
     * @param tokens token ids, each at least 0 in the part; borrowed during the call
     * @param from first token of the part
     * @param to end of the part, exclusive
     * @return the number of blocks hashed so far, as {@link #size()}
     * @throws UMBPException INVALID_ARGUMENT when the part is outside the array, a token id in it
     *     is negative, or the sequence would have more than {@value #MAX_BLOCKS} blocks; nothing is
     *     appended then
     */
    public int append(int[] tokens, int from, int to) {
      if (from < 0 || to < from || to > tokens.length) {
        throw UMBPException.invalid("tokens [%d, %d) are outside [0, %d)", from, to, tokens.length);
      }
      checkBlocks(hashes.size() + ((long) tokensInBlock + to - from) / blockSize);
      checkTokens(tokens, from, to);
      int next = from;
      while (next < to) {
        int end = next + Math.min(blockSize - tokensInBlock, to - next);
        tokensInBlock += end - next;
        int at = blockEnd;
        for (; next < end; next++) {
          at = CanonicalCbor.putUnsigned(block, at, tokens[next]);
        }
        blockEnd = at;
        if (tokensInBlock == blockSize) {
          finishBlock();
        }
      }
      return hashes.size();
    }

    private static void checkTokens(int[] tokens, int from, int to) {
      int allBits = 0;
      for (int i = from; i < to; i++) {
        allBits |= tokens[i];
      }
      if (allBits >= 0) {
        return;
      }
      for (int i = from; i < to; i++) {
        if (tokens[i] < 0) {
          throw UMBPException.invalid("token id %d at index %d must be >= 0", tokens[i], i);
        }
      }
    }

    private void finishBlock() {
      sha256.update(block, 0, extraKeys.put(block, blockEnd, hashes.size()));
      digest(sha256, block, parentAt);
      hashes.append(block, parentAt);
      blockEnd = tokensAt;
      tokensInBlock = 0;
    }

    /**
     * Returns the number of blocks hashed so far.
     *
     * @return full blocks, at least 0
     */
    public int size() {
      return hashes.size();
    }

    /**
     * Returns the hashes of all full blocks.
     *
     * @return {@link #size()} hashes in prefix order, which later tokens do not change
     */
    public BlockHashes hashes() {
      return hashes.column();
    }

    /**
     * Returns the hashes of some full blocks.
     *
     * @param from first block
     * @param to end, exclusive, at most {@link #size()}
     * @return the hashes in prefix order, which later tokens do not change
     * @throws UMBPException INVALID_ARGUMENT when the part is outside the hashed blocks
     */
    public BlockHashes hashes(int from, int to) {
      if (from < 0 || to < from || to > size()) {
        throw UMBPException.invalid("blocks [%d, %d) are outside [0, %d)", from, to, size());
      }
      return hashes.column().slice(from, to);
    }
  }
}
