package io.umbp.api;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.AbstractList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.RandomAccess;
import java.util.Set;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * Keys of many blocks as columns, and a list of their texts for those who want text. A runtime that
 * knows this class works on hash bytes and builds no string. Immutable.
 *
 * <p>A column names {@code rows} (block, group) pairs and one or more ranks. A row has one key for
 * each rank, in their order; a row of a replicated group has one for each pipeline stage among them
 * instead, that of all its tensor-parallel ranks. All keys of a row stand together, in prefix order
 * when the rows do.
 */
public final class BlockKeys extends AbstractList<String> implements RandomAccess {
  private static final VarHandle PREFIX = MethodHandles.arrayElementVarHandle(byte[][].class);

  private final UMBPNamespace namespace;
  private final List<RankNamespace> ranks;

  /** The distinct coordinates of the ranks' shared objects. */
  private final List<RankNamespace> replicas;

  private final Set<Integer> replicatedGroups;
  private final BlockHashes hashes;
  private final int[] groupIds;
  private final int size;

  /** Keys of each row when all have as many, else 0 and {@link #firstKeys} tells. */
  private final int keysPerRow;

  /** The first key of each row and, at the end, the number of keys. */
  private final int[] firstKeys;

  private final byte[] @Nullable [] prefixes;

  private BlockKeys(
      UMBPNamespace namespace,
      List<RankNamespace> ranks,
      Set<Integer> replicatedGroups,
      BlockHashes hashes,
      int[] groupIds) {
    this.namespace = namespace;
    this.ranks = ranks;
    this.replicatedGroups = replicatedGroups;
    this.hashes = hashes;
    this.groupIds = groupIds;
    replicas =
        replicatedGroups.isEmpty()
            ? List.of()
            : ranks.stream().map(RankNamespace::replicated).distinct().toList();
    int replicatedRows = 0;
    for (int groupId : groupIds) {
      if (isReplicated(groupId)) {
        replicatedRows++;
      }
    }
    int plainRows = groupIds.length - replicatedRows;
    long keys = (long) plainRows * ranks.size() + (long) replicatedRows * replicas.size();
    if (keys > Integer.MAX_VALUE) {
      throw UMBPException.invalid(
          "%d rows on %d ranks exceed the limit of %d keys",
          groupIds.length, ranks.size(), Integer.MAX_VALUE);
    }
    size = (int) keys;
    if (replicatedRows == 0) {
      keysPerRow = ranks.size();
    } else if (plainRows == 0 || ranks.size() == replicas.size()) {
      keysPerRow = replicas.size();
    } else {
      keysPerRow = 0;
    }
    firstKeys = keysPerRow == 0 ? firstKeys() : new int[0];
    prefixes = new byte[ranks.size() + replicas.size()][];
  }

  private int[] firstKeys() {
    int[] first = new int[groupIds.length + 1];
    for (int row = 0; row < groupIds.length; row++) {
      first[row + 1] = first[row] + ranksOf(row).size();
    }
    return first;
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
    checkSingleRank(rank);
    return new BlockKeys(namespace, List.of(rank), Set.of(), hashes, groupIds.clone());
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
   * @param ranks the ranks, at least one, none of them replicated; copied
   * @return the keys
   */
  public BlockKeys onRanks(List<RankNamespace> ranks) {
    if (ranks.isEmpty()) {
      throw UMBPException.invalid("keys need at least one rank");
    }
    ranks.forEach(BlockKeys::checkSingleRank);
    return new BlockKeys(namespace, List.copyOf(ranks), replicatedGroups, hashes, groupIds);
  }

  /**
   * Returns the same rows where some groups have one key for all tensor-parallel ranks. Shares the
   * columns.
   *
   * @param replicatedGroups those groups, whether rows name them or not; copied
   * @return the keys
   */
  public BlockKeys replicating(Set<Integer> replicatedGroups) {
    return new BlockKeys(
        namespace,
        ranks,
        Collections.unmodifiableSortedSet(new TreeSet<>(replicatedGroups)),
        hashes,
        groupIds);
  }

  private static void checkSingleRank(RankNamespace rank) {
    if (rank.isReplicated()) {
      throw UMBPException.invalid(
          "%s are all tp ranks; name one, and replicate its groups instead", rank);
    }
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
   * Returns the groups that have one key for all tensor-parallel ranks.
   *
   * @return group ids, ascending, unmodifiable
   */
  public Set<Integer> replicatedGroups() {
    return replicatedGroups;
  }

  /**
   * Returns the coordinates with which each row of a replicated group is named.
   *
   * @return one for each pipeline stage among the ranks, empty when no group is replicated;
   *     unmodifiable
   */
  public List<RankNamespace> replicas() {
    return replicas;
  }

  private List<RankNamespace> ranksOf(int row) {
    return isReplicated(groupIds[row]) ? replicas : ranks;
  }

  private boolean isReplicated(int groupId) {
    return !replicatedGroups.isEmpty() && replicatedGroups.contains(groupId);
  }

  /**
   * Returns the group of a row.
   *
   * @param row row in [0, rows)
   * @return its KV cache group
   */
  public int groupIdOf(int row) {
    return groupIds[row];
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
    return rowOf(checked(index));
  }

  private int rowOf(int index) {
    if (keysPerRow > 0) {
      return index / keysPerRow;
    }
    int found = Arrays.binarySearch(firstKeys, index);
    return found >= 0 ? found : -found - 2;
  }

  private int keyInRow(int index, int row) {
    return keysPerRow > 0 ? index - row * keysPerRow : index - firstKeys[row];
  }

  /**
   * Returns the rank of a key.
   *
   * @param index key in [0, size)
   * @return its rank
   */
  public RankNamespace rank(int index) {
    int row = row(index);
    return ranksOf(row).get(keyInRow(index, row));
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
    int row = rowOf(Objects.checkIndex(index, size));
    int groupId = groupIds[row];
    int inRow = keyInRow(index, row);
    byte[] prefix = prefixOf(isReplicated(groupId) ? ranks.size() + inRow : inRow);
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
  private byte[] prefixOf(int number) {
    byte[] prefix = (byte[]) PREFIX.getAcquire(prefixes, number);
    if (prefix == null) {
      int plain = ranks.size();
      RankNamespace rank = number < plain ? ranks.get(number) : replicas.get(number - plain);
      prefix = prefix(namespace, rank).getBytes(ISO_8859_1);
      PREFIX.setRelease(prefixes, number, prefix);
    }
    return prefix;
  }

  /** The text of a key up to and including the 'g' of the group. */
  static String prefix(UMBPNamespace namespace, RankNamespace rank) {
    return "umbp:vllm:v1:" + namespace + ':' + rank + ":g";
  }
}
