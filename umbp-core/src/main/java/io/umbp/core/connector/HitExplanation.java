package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.RankNamespace;
import java.util.Optional;

/**
 * Why the last lookup of a request found no more than it did. Immutable.
 *
 * @param hitTokens tokens from the first on that the engine has or may load
 * @param usableTokens tokens that could have been hit at most: full units of hashes, without the
 *     last token
 * @param firstMissing the block at which the hit ended; empty when all was hit, when no key was
 *     looked up, and when the store failed or gave no answer
 * @param detail one line for people, which says in these cases why
 */
public record HitExplanation(
    int hitTokens, int usableTokens, Optional<MissingBlock> firstMissing, String detail) {

  /**
   * A block that was not there.
   *
   * @param groupId its KV cache group
   * @param startTokens its first token
   * @param rank the first rank on which it was missing
   * @param hash the hash at its end
   * @param reason why
   */
  public record MissingBlock(
      int groupId, int startTokens, RankNamespace rank, BlockHash hash, MissReason reason) {}

  /** Why a block was not there, as far as this scheduler knows. */
  public enum MissReason {
    /** Nothing is known of such an object, and other namespaces are not kept here. */
    NEVER_STORED("it was never stored"),
    /** A store of it is under way, and not published on all ranks. */
    IN_FLIGHT("its store is under way"),
    /** It was evicted to make room. */
    EVICTED("it was evicted"),
    /** A load of it failed a short time ago. */
    QUARANTINED("a load of it failed, it is left alone for a while"),
    /**
     * Nothing is known of such an object, but the runtime keeps other namespaces: {@link
     * SchedulerConnector#explainNamespace} says in what they differ.
     */
    NAMESPACE_DIFFERS("it was never stored in this namespace, and the runtime keeps others");

    private final String text;

    MissReason(String text) {
      this.text = text;
    }

    @Override
    public String toString() {
      return text;
    }
  }
}
