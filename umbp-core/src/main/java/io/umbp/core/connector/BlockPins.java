package io.umbp.core.connector;

import io.umbp.api.GroupBlock;
import java.util.Collection;

/**
 * The engine's block pool as the connector sees it: blocks that a copy reads or writes must not be
 * given to another request, also when their request has ended. Called on the thread of the {@link
 * SchedulerConnector}, inside its methods; must not call back into it.
 *
 * <p>The connector pins the blocks of a load when it is admitted and those of a store when it is
 * planned, and unpins each of them exactly once for each pin: when all ranks have reported, failed
 * or not, or when the copy will never begin. Several pins of one block may be held at once.
 */
public interface BlockPins {
  /** For an engine that itself waits for the {@link ConnectorUpdate} of its loads and stores. */
  BlockPins NONE =
      new BlockPins() {
        @Override
        public void pin(Collection<GroupBlock> blocks) {}

        @Override
        public void unpin(Collection<GroupBlock> blocks) {}
      };

  /**
   * Keeps blocks from being given away. What this throws is thrown to the caller of the connector,
   * which has then planned nothing.
   *
   * @param blocks distinct blocks in prefix order; borrowed for the call
   */
  void pin(Collection<GroupBlock> blocks);

  /**
   * Takes a pin back.
   *
   * @param blocks blocks as they were pinned, the last first, so that a prefix's tail becomes free
   *     before its head; borrowed for the call
   */
  void unpin(Collection<GroupBlock> blocks);
}
