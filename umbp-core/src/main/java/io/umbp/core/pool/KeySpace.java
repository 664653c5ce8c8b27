package io.umbp.core.pool;

import io.umbp.api.RankNamespace;
import io.umbp.api.UMBPNamespace;

/**
 * What all keys of one group on one rank share. Immutable. Interned by {@link BlockIndex}: compared
 * by identity.
 */
public final class KeySpace {
  private final UMBPNamespace namespace;
  private final RankNamespace rank;
  private final int groupId;
  private final long salt;

  KeySpace(UMBPNamespace namespace, RankNamespace rank, int groupId, int number) {
    this.namespace = namespace;
    this.rank = rank;
    this.groupId = groupId;
    this.salt = (number + 1) * 0xC2B2AE3D27D4EB4FL;
  }

  /**
   * Returns the namespace.
   *
   * @return the compatibility namespace of the keys
   */
  public UMBPNamespace namespace() {
    return namespace;
  }

  /**
   * Returns the rank.
   *
   * @return the rank of the keys
   */
  public RankNamespace rank() {
    return rank;
  }

  /**
   * Returns the group.
   *
   * @return the KV cache group of the keys
   */
  public int groupId() {
    return groupId;
  }

  /** Spreads equal hashes of different spaces over the index. */
  long salt() {
    return salt;
  }
}
