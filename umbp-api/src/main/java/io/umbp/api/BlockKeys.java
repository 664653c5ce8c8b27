package io.umbp.api;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.AbstractList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.RandomAccess;
import org.jspecify.annotations.Nullable;

/**
 * Keys of many blocks as columns, and a list of their texts for those who want text. A runtime that
 * knows this class works on hash bytes and builds no string. Immutable.
 *
 * <p>A column names {@code rows} (block, group) pairs and one or more ranks; element {@code i} is
 * row {@code i / ranks} on rank {@code i % ranks}, so that all ranks of one block stand together,
 * in prefix order when the rows do.
 */
public final class BlockKeys extends AbstractList<String> implements RandomAccess {
  private static final VarHandle PREFIX = MethodHandles.arrayElementVarHandle(byte[][].class);

  private final UMBPNamespace namespace;
  private final List<RankNamespace> ranks;
  private final BlockHashes hashes;
  private final int[] groupIds;
  private final int size;
  private final byte[] @Nullable [] prefixes;

  private BlockKeys(
      UMBPNamespace namespace, List<RankNamespace> ranks, BlockHashes hashes, int[] groupIds) {
    this.namespace = namespace;
    this.ranks = ranks;
    this.hashes = hashes;
    this.groupIds = groupIds;
    long keys = (long) groupIds.length * ranks.size();
    if (keys > Integer.MAX_VALUE) {
      throw UMBPException.invalid(
          "%d rows on %d ranks exceed the limit of %d keys",
          groupIds.length, ranks.size(), Integer.MAX_VALUE);
    }
    this.size = (int) keys;
    this.prefixes = new byte[ranks.size()][];
  }

  /**
   * Returns keys of one rank, each row with its own group.
   *
   * @param namespace the compatibility namespace
   * @param rank the rank that holds the objects
   * @param groupIds group of each row, at least 0; copied
   * @param hashes hash of each row, as many as groupIds
   * @return the keys
   */
  public static BlockKeys of(
      UMBPNamespace namespace, RankNamespace rank, int[] groupIds, BlockHashes hashes) {
    if (groupIds.length != hashes.size()) {
      throw UMBPException.invalid(
          "%d group ids do not match %d block hashes", groupIds.length, hashes.size());
    }
    for (int groupId : groupIds) {
      BlockKey.checkGroupId(groupId);
    }
    return new BlockKeys(namespace, List.of(rank), hashes, groupIds.clone());
  }

  /**
   * Returns keys of one rank and one group.
   *
   * @param namespace the compatibility namespace
   * @param rank the rank that holds the objects
   * @param groupId the KV cache group of all rows, at least 0
   * @param hashes hash of each row
   * @return the keys
   */
  public static BlockKeys of(
      UMBPNamespace namespace, RankNamespace rank, int groupId, BlockHashes hashes) {
    int[] groupIds = new int[hashes.size()];
    Arrays.fill(groupIds, groupId);
    return of(namespace, rank, groupIds, hashes);
  }

  /**
   * Returns the same rows on other ranks. Shares the columns.
   *
   * @param ranks the ranks, at least one; copied
   * @return the keys
   */
  public BlockKeys onRanks(List<RankNamespace> ranks) {
    if (ranks.isEmpty()) {
      throw UMBPException.invalid("keys need at least one rank");
    }
    return new BlockKeys(namespace, List.copyOf(ranks), hashes, groupIds);
  }

  /**
   * Returns the namespace of all keys.
   *
   * @return the compatibility namespace
   */
  public UMBPNamespace namespace() {
    return namespace;
  }

  /**
   * Returns the ranks on which each row is named.
   *
   * @return at least one rank, unmodifiable
   */
  public List<RankNamespace> ranks() {
    return ranks;
  }

  /**
   * Returns the hash column.
   *
   * @return the hash of each row; key {@code i} has the hash at {@link #row row(i)}
   */
  public BlockHashes hashes() {
    return hashes;
  }

  /**
   * Returns the number of rows.
   *
   * @return count of (block, group) pairs
   */
  public int rows() {
    return groupIds.length;
  }

  /**
   * Returns the row of a key.
   *
   * @param index key in [0, size)
   * @return row in [0, rows)
   */
  public int row(int index) {
    return checked(index) / ranks.size();
  }

  /**
   * Returns the rank of a key.
   *
   * @param index key in [0, size)
   * @return its rank
   */
  public RankNamespace rank(int index) {
    return ranks.get(checked(index) % ranks.size());
  }

  /**
   * Returns the group of a key.
   *
   * @param index key in [0, size)
   * @return its KV cache group
   */
  public int groupId(int index) {
    return groupIds[row(index)];
  }

  /**
   * Returns one key as a value.
   *
   * @param index key in [0, size)
   * @return a new value
   */
  public BlockKey key(int index) {
    return new BlockKey(namespace, rank(index), groupId(index), hashes.get(row(index)));
  }

  /**
   * Returns the text of one key.
   *
   * @param index key in [0, size)
   * @return the text, built anew at each call
   * @throws IndexOutOfBoundsException when there is no such key, as in every list
   */
  @Override
  public String get(int index) {
    int row = Objects.checkIndex(index, size) / ranks.size();
    byte[] prefix = prefixOf(index % ranks.size());
    int groupId = groupIds[row];
    int digits = 1;
    for (int rest = groupId / 10; rest > 0; rest /= 10) {
      digits++;
    }
    int hashAt = prefix.length + digits + 1;
    byte[] text = new byte[hashAt + 2 * hashes.hashLength()];
    System.arraycopy(prefix, 0, text, 0, prefix.length);
    for (int at = prefix.length + digits - 1, rest = groupId; at >= prefix.length; at--) {
      text[at] = (byte) ('0' + rest % 10);
      rest /= 10;
    }
    text[hashAt - 1] = ':';
    hashes.copyHexTo(row, text, hashAt);
    return new String(text, ISO_8859_1);
  }

  @Override
  public int size() {
    return size;
  }

  private int checked(int index) {
    if (index < 0 || index >= size) {
      throw UMBPException.invalid("key index %d is outside [0, %d)", index, size);
    }
    return index;
  }

  /** Built on first use; racing threads build equal arrays, and release them only when filled. */
  private byte[] prefixOf(int rankIndex) {
    byte[] prefix = (byte[]) PREFIX.getAcquire(prefixes, rankIndex);
    if (prefix == null) {
      prefix = prefix(namespace, ranks.get(rankIndex)).getBytes(ISO_8859_1);
      PREFIX.setRelease(prefixes, rankIndex, prefix);
    }
    return prefix;
  }

  /** The text of a key up to and including the 'g' of the group. */
  static String prefix(UMBPNamespace namespace, RankNamespace rank) {
    return "umbp:vllm:v1:" + namespace + ':' + rank + ":g";
  }
}
