package io.umbp.core.identity;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Makes and reads the keys of one engine: what a scheduler probes and what the workers of all ranks
 * write come from here, so that they are the same. Immutable.
 *
 * <p>Keys are columns over the hashes handed in; nothing is derived from tokens, and no text is
 * built until someone asks for it.
 */
public final class BlockIdentityCodec {
  private final UMBPNamespace namespace;
  private final RankTopology topology;
  private final RankNamespace localRank;
  private final List<RankNamespace> allRanks;
  private final Set<Integer> replicatedGroups;
  private final String textStart;

  /**
   * Creates the codec of one rank, none of whose groups are replicated.
   *
   * @param namespace the engine's compatibility namespace
   * @param topology the rank's place; its sizes say which ranks exist
   */
  public BlockIdentityCodec(UMBPNamespace namespace, RankTopology topology) {
    this(namespace, topology, Set.of());
  }

  /**
   * Creates the codec of the rank that a layout belongs to.
   *
   * @param namespace the engine's compatibility namespace
   * @param layout the layout, which says where the rank stands and which groups are replicated
   */
  public BlockIdentityCodec(UMBPNamespace namespace, KVLayoutDescriptor layout) {
    this(namespace, layout.topology(), layout.replicatedGroups());
  }

  private BlockIdentityCodec(
      UMBPNamespace namespace, RankTopology topology, Set<Integer> replicatedGroups) {
    this.namespace = namespace;
    this.topology = topology;
    this.localRank = topology.localNamespace();
    this.allRanks = topology.allNamespaces();
    this.replicatedGroups = replicatedGroups;
    this.textStart = "umbp:vllm:v1:" + namespace.value() + ':';
  }

  /**
   * Returns the namespace of all keys made here.
   *
   * @return the compatibility namespace
   */
  public UMBPNamespace namespace() {
    return namespace;
  }

  /**
   * Returns the place of the rank whose local keys are made here.
   *
   * @return the topology
   */
  public RankTopology topology() {
    return topology;
  }

  /**
   * Returns how many keys one logical block of a group has: it is present only when all of them
   * are.
   *
   * @param groupId the KV cache group, at least 0
   * @return the number of ranks, or of pipeline stages when the group is replicated
   */
  public int keysPerObject(int groupId) {
    if (groupId < 0) {
      throw UMBPException.invalid("group id %d must be >= 0", groupId);
    }
    return replicatedGroups.contains(groupId) ? topology.ppSize() : allRanks.size();
  }

  /**
   * Returns the key of one block on this rank.
   *
   * @param groupId the KV cache group, at least 0
   * @param hash the block's content hash
   * @return the key
   */
  public BlockKey localKey(int groupId, BlockHash hash) {
    RankNamespace rank = replicatedGroups.contains(groupId) ? localRank.replicated() : localRank;
    return new BlockKey(namespace, rank, groupId, hash);
  }

  /**
   * Returns the keys of one group's blocks on this rank.
   *
   * @param groupId the KV cache group, at least 0
   * @param hashes content hash of each block
   * @return one key a hash, in order
   */
  public BlockKeys localKeys(int groupId, BlockHashes hashes) {
    return BlockKeys.of(namespace, localRank, groupId, hashes).replicating(replicatedGroups);
  }

  /**
   * Returns the keys of blocks of several groups on this rank.
   *
   * @param groupIds group of each block, at least 0; copied
   * @param hashes content hash of each block, as many as groupIds
   * @return one key a hash, in order
   */
  public BlockKeys localKeys(int[] groupIds, BlockHashes hashes) {
    return BlockKeys.of(namespace, localRank, groupIds, hashes).replicating(replicatedGroups);
  }

  /**
   * Returns the keys of one group's blocks on every rank.
   *
   * @param groupId the KV cache group, at least 0
   * @param hashes content hash of each block
   * @return {@link #keysPerObject} keys a hash, all keys of a block together, ranks in the order of
   *     {@link RankTopology#allNamespaces()}
   */
  public BlockKeys allRankKeys(int groupId, BlockHashes hashes) {
    return localKeys(groupId, hashes).onRanks(allRanks);
  }

  /**
   * Returns the keys of blocks of several groups on every rank.
   *
   * @param groupIds group of each block, at least 0; copied
   * @param hashes content hash of each block, as many as groupIds
   * @return as {@link #allRankKeys(int, BlockHashes)}
   */
  public BlockKeys allRankKeys(int[] groupIds, BlockHashes hashes) {
    return localKeys(groupIds, hashes).onRanks(allRanks);
  }

  /**
   * Parses a key of this namespace, of any rank.
   *
   * @param text a key as {@link BlockKey#toString()} writes it
   * @return its parts
   * @throws UMBPException INVALID_ARGUMENT when the text is no such key or names another namespace
   */
  public BlockKey parse(String text) {
    BlockKey key = BlockKey.parse(text);
    if (!key.namespace().equals(namespace)) {
      throw UMBPException.invalid("key '%s' is not of namespace '%s'", text, namespace);
    }
    return key;
  }

  /**
   * Parses text that may come from elsewhere: an older format, another namespace or another
   * program.
   *
   * @param text any text
   * @return the parts of a key that {@link #parse} accepts, else empty
   */
  public Optional<BlockKey> tryParse(String text) {
    if (!text.startsWith(textStart)) {
      return Optional.empty();
    }
    try {
      return Optional.of(parse(text));
    } catch (UMBPException e) {
      return Optional.empty();
    }
  }

  @Override
  public String toString() {
    return "BlockIdentityCodec[" + namespace + ", " + topology + "]";
  }
}
