package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import java.util.List;
import java.util.Optional;

/** What changed in the store, for a router that sends requests where their prefix is. Immutable. */
public sealed interface KVEvent {
  /** Host memory, where an embedded runtime keeps objects. */
  String CPU = "cpu";

  /**
   * Blocks of one group became loadable on all ranks. They follow each other in one prefix.
   *
   * @param groupId the KV cache group
   * @param hashes the hash at the end of each block; copied
   * @param parentHash the hash at the end of the group's block before the first; empty when the
   *     first begins the prefix
   * @param tokenIds tokens of the blocks; empty when the engine does not give them; copied
   * @param blockSize tokens of each block; the last may hold fewer when it is a tail
   * @param medium where the bytes lie
   */
  record BlocksStored(
      int groupId,
      List<BlockHash> hashes,
      Optional<BlockHash> parentHash,
      List<Integer> tokenIds,
      int blockSize,
      String medium)
      implements KVEvent {
    /** Copies the lists. */
    public BlocksStored {
      hashes = List.copyOf(hashes);
      tokenIds = List.copyOf(tokenIds);
    }
  }

  /**
   * Blocks of one group can't be loaded any more, because an object of some rank was evicted.
   *
   * @param groupId the KV cache group
   * @param hashes the hash at the end of each block; copied
   * @param medium where the bytes lay
   */
  record BlocksRemoved(int groupId, List<BlockHash> hashes, String medium) implements KVEvent {
    /** Copies the list. */
    public BlocksRemoved {
      hashes = List.copyOf(hashes);
    }
  }

  /** Nothing of the namespace is left. */
  record AllBlocksCleared() implements KVEvent {}
}
