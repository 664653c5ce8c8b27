package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.UMBPException;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/** What the connector needs to know of an engine's request at some moment. Immutable. */
public final class RequestView {
  /** How the names of batches begin that no request waits for. */
  static final String OWN_PREFIX = "umbp:";

  private final String id;
  private final int tokenCount;
  private final int promptTokens;
  private final BlockHashes hashes;
  private final int @Nullable [] tokenIds;

  private RequestView(
      String id, int tokenCount, int promptTokens, BlockHashes hashes, int @Nullable [] tokenIds) {
    this.id = Objects.requireNonNull(id, "id");
    this.tokenCount = tokenCount;
    this.promptTokens = promptTokens;
    this.hashes = Objects.requireNonNull(hashes, "hashes");
    this.tokenIds = tokenIds;
  }

  /**
   * Returns the view of a request that has its prompt.
   *
   * @param id the request, unique among those that have not finished; names that begin with "umbp:"
   *     are the connector's own
   * @param tokenCount its tokens, at least 0
   * @param hashes chained hashes of its full hash units from the first token on: each stands for
   *     all tokens before it too. Tokens that a speculative decoder has only proposed have none
   * @return the view
   */
  public static RequestView of(String id, int tokenCount, BlockHashes hashes) {
    if (id.startsWith(OWN_PREFIX)) {
      throw UMBPException.invalid(
          "request '%s': names that begin with '%s' are the connector's own", id, OWN_PREFIX);
    }
    if (tokenCount < 0) {
      throw UMBPException.invalid("request '%s' has %d tokens; must be >= 0", id, tokenCount);
    }
    return new RequestView(id, tokenCount, tokenCount, hashes, null);
  }

  /**
   * Says how many of the tokens are the prompt; all of them unless said.
   *
   * @param count leading tokens, 0 to the request's
   * @return the view with that prompt
   */
  public RequestView withPrompt(int count) {
    if (count < 0 || count > tokenCount) {
      throw UMBPException.invalid(
          "request '%s' has a prompt of %d tokens, allowed are 0 to %d", id, count, tokenCount);
    }
    return new RequestView(id, tokenCount, count, hashes, tokenIds);
  }

  /**
   * Adds the tokens themselves, which {@link KVEvent}s carry on to routers. Nothing else looks at
   * them.
   *
   * @param ids the request's tokens; copied
   * @return the view with tokens
   */
  public RequestView withTokenIds(int... ids) {
    if (ids.length != tokenCount) {
      throw UMBPException.invalid(
          "request '%s' has %d tokens, but %d token ids", id, tokenCount, ids.length);
    }
    return new RequestView(id, tokenCount, promptTokens, hashes, ids.clone());
  }

  /**
   * Returns the request's id.
   *
   * @return as given
   */
  public String id() {
    return id;
  }

  /**
   * Returns the number of tokens.
   *
   * @return at least 0
   */
  public int tokenCount() {
    return tokenCount;
  }

  /**
   * Returns the number of tokens of the prompt.
   *
   * @return 0 to the number of tokens
   */
  public int promptTokens() {
    return promptTokens;
  }

  /**
   * Returns the hashes.
   *
   * @return one for each full hash unit that is known
   */
  public BlockHashes hashes() {
    return hashes;
  }

  /** Tokens of a range, none unless the view has the ids of all of them. */
  List<Integer> tokenIds(int from, int to) {
    if (tokenIds == null || to > tokenIds.length) {
      return List.of();
    }
    return Arrays.stream(tokenIds, from, to).boxed().collect(Collectors.toUnmodifiableList());
  }

  /** Tells whether another view's hashes are the same; the last stands for those before it. */
  boolean hasSameHashes(RequestView other) {
    int size = hashes.size();
    if (hashes == other.hashes || size == 0) {
      return size == other.hashes.size();
    }
    return size == other.hashes.size() && hashes.get(size - 1).equals(other.hashes.get(size - 1));
  }
}
