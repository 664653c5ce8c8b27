package io.umbp.core.identity;

import static io.umbp.core.identity.BlockHasher.HASH_LENGTH;

import com.google.common.hash.Hashing;
import io.umbp.api.UMBPException;
import java.nio.ByteBuffer;
import java.security.MessageDigest;

/**
 * A SHA-256 digest a block of the embeddings that a prompt has in place of tokens. Immutable.
 * Blocks behind the last embedding have the digest of no bytes.
 */
final class PromptEmbeddings {
  static final PromptEmbeddings NONE = new PromptEmbeddings(0, 1, new byte[0]);

  private static final byte[] DIGEST_OF_NOTHING = Hashing.sha256().hashBytes(new byte[0]).asBytes();

  private final int tokens;
  private final int blockSize;
  private final byte[] digests;

  private PromptEmbeddings(int tokens, int blockSize, byte[] digests) {
    this.tokens = tokens;
    this.blockSize = blockSize;
    this.digests = digests;
  }

  /** Digests the remaining bytes of a buffer, whose position stays. */
  static PromptEmbeddings of(ByteBuffer embeddings, int bytesPerToken, int blockSize) {
    int bytes = embeddings.remaining();
    if (bytesPerToken < 1) {
      throw UMBPException.invalid("%d embedding bytes a token must be >= 1", bytesPerToken);
    }
    if (bytes == 0) {
      throw UMBPException.invalid("prompt embeddings are empty; null means none");
    }
    if (bytes % bytesPerToken != 0) {
      throw UMBPException.invalid(
          "%d bytes of prompt embeddings are no multiple of %d bytes a token",
          bytes, bytesPerToken);
    }
    int tokens = bytes / bytesPerToken;
    int blocks = (int) (((long) tokens + blockSize - 1) / blockSize);
    BlockHasher.checkBlocks(blocks);
    byte[] digests = new byte[blocks * HASH_LENGTH];
    MessageDigest sha256 = BlockHasher.newSha256();
    ByteBuffer rest = embeddings.duplicate();
    int end = rest.limit();
    for (int block = 0; block < blocks; block++) {
      long blockEnd = rest.position() + (long) blockSize * bytesPerToken;
      sha256.update(rest.limit((int) Math.min(end, blockEnd)));
      BlockHasher.digest(sha256, digests, block * HASH_LENGTH);
      rest.limit(end);
    }
    return new PromptEmbeddings(tokens, blockSize, digests);
  }

  int tokens() {
    return tokens;
  }

  void checkBlockSize(int hashed) {
    if (tokens > 0 && hashed != blockSize) {
      throw UMBPException.invalid(
          "prompt embeddings were digested for blocks of %d tokens, the hasher's have %d",
          blockSize, hashed);
    }
  }

  int tokensInBlock(int block) {
    long before = (long) block * blockSize;
    return (int) Math.max(0, Math.min(blockSize, tokens - before));
  }

  int putDigest(byte[] target, int at, int block) {
    if (block * (long) HASH_LENGTH < digests.length) {
      System.arraycopy(digests, block * HASH_LENGTH, target, at, HASH_LENGTH);
    } else {
      System.arraycopy(DIGEST_OF_NOTHING, 0, target, at, HASH_LENGTH);
    }
    return at + HASH_LENGTH;
  }
}
