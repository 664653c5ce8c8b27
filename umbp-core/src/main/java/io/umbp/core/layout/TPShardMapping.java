package io.umbp.core.layout;

import io.umbp.api.UMBPException;
import java.util.ArrayList;
import java.util.List;

/**
 * Where one rank of an engine finds its KV heads when another engine with another tensor-parallel
 * (TP) size stored them. Immutable.
 *
 * <p>An engine of TP size T splits H heads into runs of H/T heads, in rank order. When T exceeds H,
 * each rank has one head, and T/H neighbouring ranks hold the same one: with 2 heads and TP 4 the
 * ranks have the heads 0, 0, 1, 1. One of T and H must therefore divide the other.
 *
 * @param numKVHeads KV heads of the model over all ranks, 1 to {@value #MAX_KV_HEADS}
 * @param producerSize TP size of the engine that stored
 * @param consumerSize TP size of the engine that loads
 * @param consumerRank the rank that loads, in [0, consumerSize)
 * @param slices the producers' heads to read; together the consumer's heads, each once, in order;
 *     copied
 */
public record TPShardMapping(
    int numKVHeads, int producerSize, int consumerSize, int consumerRank, List<HeadSlice> slices) {

  /** Greatest number of KV heads. */
  public static final int MAX_KV_HEADS = 1 << 16;

  /**
   * A run of heads that lie side by side both in a producer's and in the consumer's block.
   *
   * @param producerRank TP rank of the producer
   * @param sourceHead first head, counted in the producer's block
   * @param destinationHead first head, counted in the consumer's block
   * @param numHeads heads in the run, at least 1
   */
  public record HeadSlice(int producerRank, int sourceHead, int destinationHead, int numHeads) {}

  /** Checks sizes and rank, and that the slices are exactly the consumer's heads. */
  public TPShardMapping {
    checkSizes(numKVHeads, producerSize, consumerSize, consumerRank);
    slices = List.copyOf(slices);
    int needed = headsPerRank(numKVHeads, consumerSize);
    int perProducer = headsPerRank(numKVHeads, producerSize);
    int first = firstHead(numKVHeads, consumerSize, consumerRank);
    int covered = 0;
    for (HeadSlice slice : slices) {
      if (slice.producerRank < 0 || slice.producerRank >= producerSize) {
        throw UMBPException.invalid("producer rank of %s is outside [0, %d)", slice, producerSize);
      }
      if (slice.numHeads < 1
          || slice.sourceHead < 0
          || slice.sourceHead > perProducer - slice.numHeads) {
        throw UMBPException.invalid("%s leaves the producer's %d heads", slice, perProducer);
      }
      if (slice.destinationHead != covered || slice.numHeads > needed - covered) {
        throw UMBPException.invalid(
            "%s does not continue at head %d of the consumer's %d", slice, covered, needed);
      }
      int head = firstHead(numKVHeads, producerSize, slice.producerRank) + slice.sourceHead;
      if (head != first + covered) {
        throw UMBPException.invalid(
            "%s is head %d of the model, the consumer's rank %d needs head %d there",
            slice, head, consumerRank, first + covered);
      }
      covered += slice.numHeads;
    }
    if (covered != needed) {
      throw UMBPException.invalid(
          "slices cover %d of the %d heads of consumer rank %d, %d are uncovered",
          covered, needed, consumerRank, needed - covered);
    }
  }

  /**
   * Returns the mapping of one consumer rank. Where several producers hold the same head, consumers
   * of it spread over them in rank order; between equal sizes each rank reads its own objects.
   *
   * @param numKVHeads KV heads of the model over all ranks, 1 to {@value #MAX_KV_HEADS}
   * @param producerSize TP size of the engine that stored
   * @param consumerSize TP size of the engine that loads
   * @param consumerRank the rank that loads, in [0, consumerSize)
   * @return the mapping, one slice a producer rank that is read
   * @throws UMBPException INVALID_ARGUMENT when a size is less than 1, the rank is out of range, or
   *     neither of a TP size and the number of heads divides the other
   */
  public static TPShardMapping of(
      int numKVHeads, int producerSize, int consumerSize, int consumerRank) {
    checkSizes(numKVHeads, producerSize, consumerSize, consumerRank);
    int first = firstHead(numKVHeads, consumerSize, consumerRank);
    int needed = headsPerRank(numKVHeads, consumerSize);
    int perProducer = headsPerRank(numKVHeads, producerSize);
    int producerReplicas = ranksPerHead(numKVHeads, producerSize);
    int consumerReplicas = ranksPerHead(numKVHeads, consumerSize);
    int replica =
        (int) ((long) (consumerRank % consumerReplicas) * producerReplicas / consumerReplicas);
    List<HeadSlice> slices = new ArrayList<>();
    int covered = 0;
    while (covered < needed) {
      int head = first + covered;
      int source = head % perProducer;
      int count = Math.min(perProducer - source, needed - covered);
      int rank = head / perProducer * producerReplicas + replica;
      slices.add(new HeadSlice(rank, source, covered, count));
      covered += count;
    }
    return new TPShardMapping(numKVHeads, producerSize, consumerSize, consumerRank, slices);
  }

  /**
   * Returns how many heads the consumer's rank has.
   *
   * @return heads, at least 1
   */
  public int consumerHeads() {
    return headsPerRank(numKVHeads, consumerSize);
  }

  private static void checkSizes(
      int numKVHeads, int producerSize, int consumerSize, int consumerRank) {
    if (numKVHeads < 1 || numKVHeads > MAX_KV_HEADS) {
      throw UMBPException.invalid("%d KV heads are outside [1, %d]", numKVHeads, MAX_KV_HEADS);
    }
    checkSize("producer", numKVHeads, producerSize);
    checkSize("consumer", numKVHeads, consumerSize);
    if (consumerRank < 0 || consumerRank >= consumerSize) {
      throw UMBPException.invalid(
          "consumer rank %d is outside [0, %d)", consumerRank, consumerSize);
    }
  }

  private static void checkSize(String who, int numKVHeads, int size) {
    if (size < 1) {
      throw UMBPException.invalid("%s tp size %d must be >= 1", who, size);
    }
    if (numKVHeads % size != 0 && size % numKVHeads != 0) {
      throw UMBPException.invalid(
          "%s tp size %d and %d KV heads: one must divide the other", who, size, numKVHeads);
    }
  }

  private static int headsPerRank(int numKVHeads, int size) {
    return Math.max(1, numKVHeads / size);
  }

  private static int ranksPerHead(int numKVHeads, int size) {
    return Math.max(1, size / numKVHeads);
  }

  private static int firstHead(int numKVHeads, int size, int rank) {
    return rank / ranksPerHead(numKVHeads, size) * headsPerRank(numKVHeads, size);
  }
}
