package io.umbp.api;

/**
 * The scheduler's decision for one externally stored prefix. Immutable.
 *
 * @param localTokens leading tokens that the engine already has, at least 0
 * @param externalTokens end of the prefix that the store has, counted from the first token, at
 *     least 0
 */
public record LoadSpec(int localTokens, int externalTokens) {
  /** Checks the signs. */
  public LoadSpec {
    if (localTokens < 0 || externalTokens < 0) {
      throw UMBPException.invalid(
          "token counts must be >= 0, but are local %d, external %d", localTokens, externalTokens);
    }
  }

  /**
   * Returns how many tokens are to be loaded.
   *
   * @return {@code max(externalTokens - localTokens, 0)}
   */
  public int tokensToLoad() {
    return Math.max(externalTokens - localTokens, 0);
  }
}
