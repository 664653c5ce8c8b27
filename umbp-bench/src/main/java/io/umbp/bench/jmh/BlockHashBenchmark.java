package io.umbp.bench.jmh;

import io.umbp.api.BlockHashes;
import io.umbp.core.identity.BlockHasher;
import java.security.DigestException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;

/**
 * Prefix hashes of 16-token blocks, and SHA-256 alone over as many bytes, each digest a part of the
 * next block as there; one operation is one block.
 */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class BlockHashBenchmark {
  private static final int BLOCKS = 1_000;
  private static final int BLOCK_SIZE = 16;
  private static final int VOCABULARY = 152_000;

  /** Bytes of a block around its tokens: heads, parent, and null for the extras. */
  private static final int FRAME = 1 + 2 + 32 + 1 + 1;

  /** Tokens from the start of one image to the start of the next, and of the image itself. */
  private static final int IMAGE_EVERY = 800;

  private static final int IMAGE_TOKENS = 576;

  private final BlockHasher hasher = BlockHasher.compatible("0", BLOCK_SIZE);
  private final BlockHasher strictHasher = BlockHasher.strict("0", BLOCK_SIZE);
  private BlockHasher.Extras images = BlockHasher.Extras.none();
  private final int[] tokens = new int[BLOCKS * BLOCK_SIZE];
  private final int[] blockBytes = new int[BLOCKS];
  private final byte[] block = new byte[FRAME + 5 * BLOCK_SIZE];
  private MessageDigest sha256;

  @Setup
  public void setUp() throws NoSuchAlgorithmException {
    sha256 = MessageDigest.getInstance("SHA-256");
    SplittableRandom random = new SplittableRandom(1);
    random.nextBytes(block);
    for (int i = 0; i < tokens.length; i++) {
      tokens[i] = random.nextInt(VOCABULARY);
    }
    List<BlockHasher.Media> media = new ArrayList<>();
    for (int at = 0; at < tokens.length; at += IMAGE_EVERY) {
      media.add(new BlockHasher.Media(String.format("%064x", at), at, IMAGE_TOKENS));
    }
    images = BlockHasher.Extras.none().withMedia(media);
    for (int i = 0; i < BLOCKS; i++) {
      blockBytes[i] = FRAME;
      for (int k = 0; k < BLOCK_SIZE; k++) {
        blockBytes[i] += cborBytes(tokens[i * BLOCK_SIZE + k]);
      }
    }
  }

  private static int cborBytes(int token) {
    if (token < 24) {
      return 1;
    }
    if (token < 256) {
      return 2;
    }
    return token < 65_536 ? 3 : 5;
  }

  /** A prompt of 16,000 tokens to its hashes. */
  @Benchmark
  @OperationsPerInvocation(BLOCKS)
  public BlockHashes hash() {
    return hasher.hash(tokens, BlockHasher.Extras.none());
  }

  /** The same prompt with 20 images, in strict form: 80 to 150 bytes more in most blocks. */
  @Benchmark
  @OperationsPerInvocation(BLOCKS)
  public BlockHashes hashImages() {
    return strictHasher.hash(tokens, images);
  }

  /** SHA-256 over blocks of the same lengths. */
  @Benchmark
  @OperationsPerInvocation(BLOCKS)
  public byte[] sha256Alone() throws DigestException {
    for (int bytes : blockBytes) {
      sha256.update(block, 0, bytes);
      sha256.digest(block, 3, 32);
    }
    return block;
  }
}
