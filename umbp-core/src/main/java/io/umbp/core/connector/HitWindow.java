package io.umbp.core.connector;

import io.umbp.api.UMBPException;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheSpec;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * How many of a prefix's last tokens a KV cache group must have for the engine to go on behind it.
 * Only blocks that hold some of them are needed to hit, and are loaded. Immutable.
 *
 * @param tokens tokens before the end of the hit, at least 0
 */
public record HitWindow(int tokens) {
  /** Full attention: the next token sees the whole prefix. */
  public static final HitWindow FULL = new HitWindow(Integer.MAX_VALUE);

  /**
   * A recurrent state, such as Mamba's: the block that ends with the hit holds the state there, and
   * stands for all tokens before.
   */
  public static final HitWindow CHECKPOINT = new HitWindow(1);

  /** Checks the sign. */
  public HitWindow {
    if (tokens < 0) {
      throw UMBPException.invalid("a hit window of %d tokens must be >= 0", tokens);
    }
  }

  /**
   * Returns the window of sliding-window attention.
   *
   * @param attended tokens that a token attends to, itself included, above 0
   * @return the tokens before it
   */
  public static HitWindow sliding(int attended) {
    if (attended <= 0) {
      throw UMBPException.invalid("a sliding window of %d tokens must be > 0", attended);
    }
    return new HitWindow(attended - 1);
  }

  /**
   * Reads the windows off an engine's cache: for each group the widest that one of its layers
   * needs.
   *
   * @param config the cache
   * @return a window for each group that is stored and loaded, by group id
   */
  public static Map<Integer, HitWindow> of(KVCacheConfig config) {
    Map<Integer, HitWindow> windows = new HashMap<>();
    List<Group> groups = config.groups();
    for (int id = 0; id < groups.size(); id++) {
      if (groups.get(id).transfer() == Transfer.ENABLED) {
        int widest = 0;
        for (Layer layer : groups.get(id).layers()) {
          widest = Math.max(widest, of(layer.spec()).tokens);
        }
        windows.put(id, new HitWindow(widest));
      }
    }
    return windows;
  }

  private static HitWindow of(KVCacheSpec spec) {
    if (spec instanceof KVCacheSpec.Attention attention) {
      return attention.slidingWindow() == 0 ? FULL : sliding(attention.slidingWindow());
    }
    return CHECKPOINT;
  }

  /** The first token that a prefix of so many tokens needs. */
  int firstToken(int end) {
    return Math.max(0, end - tokens);
  }
}
