package io.umbp.core.connector;

import io.umbp.api.UMBPException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/** What a {@link SchedulerConnector} does and how. Immutable. */
public final class ConnectorSettings {
  /** The null block of an engine that has none. */
  static final int NO_NULL_BLOCK = -1;

  final Role role;
  final StorePolicy stores;
  final Map<Integer, HitWindow> hitWindows;
  final int nullBlock;
  final TailPolicy tails;
  final @Nullable Duration holdLimit;
  final @Nullable Executor executor;
  final Duration lookupBudget;
  final Duration quarantine;
  final BlockPins pins;
  final EventPolicy events;
  final LongSupplier nanoTime;

  /** What an engine wants of the store. */
  public enum Role {
    /** It loads and stores. */
    BOTH,
    /** It only loads: nothing is ever stored. */
    CONSUMER,
    /** It only stores: every lookup is a miss. */
    PRODUCER
  }

  /** Which blocks are stored, and when. */
  public enum StorePolicy {
    /** Blocks of prompt and answer, as soon as they are full. */
    EAGER,
    /** Blocks of the prompt only, as soon as they are full. */
    EAGER_PROMPT,
    /**
     * Only blocks that the engine is about to evict from its own cache and names ({@link
     * SchedulerConnector#storeBeforeEviction}).
     */
    LAZY
  }

  /** Whether the last, partly filled block of a request is stored and hit. */
  public enum TailPolicy {
    /** Only full blocks are. */
    FULL_BLOCKS,
    /** The last block too, under the hash of the boundary at which the request ended. */
    PARTIAL_TAILS
  }

  /** Whether what changes in the store is noted for {@link SchedulerConnector#takeEvents}. */
  public enum EventPolicy {
    /** Nothing is noted. */
    OFF,
    /** All changes of this namespace that this scheduler can see are. */
    ON
  }

  private ConnectorSettings(Builder builder) {
    role = builder.role;
    stores = builder.stores;
    hitWindows = builder.hitWindows;
    nullBlock = builder.nullBlock;
    tails = builder.tails;
    holdLimit = builder.holdLimit;
    executor = builder.executor;
    lookupBudget = builder.lookupBudget;
    quarantine = builder.quarantine;
    pins = builder.pins;
    events = builder.events;
    nanoTime = builder.nanoTime;
  }

  /**
   * Returns the settings of an engine that loads and stores full blocks of full attention, and asks
   * the store on its own thread.
   *
   * @return all defaults
   */
  public static ConnectorSettings defaults() {
    return builder().build();
  }

  /**
   * Starts from the defaults.
   *
   * @return a new builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /** Collects settings. Thread-confined. */
  public static final class Builder {
    private Role role = Role.BOTH;
    private StorePolicy stores = StorePolicy.EAGER;
    private Map<Integer, HitWindow> hitWindows = Map.of();
    private int nullBlock = NO_NULL_BLOCK;
    private TailPolicy tails = TailPolicy.FULL_BLOCKS;
    private @Nullable Duration holdLimit;
    private @Nullable Executor executor;
    private Duration lookupBudget = Duration.ofMillis(100);
    private Duration quarantine = Duration.ofSeconds(1);
    private BlockPins pins = BlockPins.NONE;
    private EventPolicy events = EventPolicy.OFF;
    private LongSupplier nanoTime = System::nanoTime;

    private Builder() {}

    /**
     * Sets whether the engine loads, stores or both; both unless set.
     *
     * @param value the role
     * @return this
     */
    public Builder role(Role value) {
      role = value;
      return this;
    }

    /**
     * Sets which blocks are stored; {@link StorePolicy#EAGER} unless set.
     *
     * @param value the policy
     * @return this
     */
    public Builder stores(StorePolicy value) {
      stores = value;
      return this;
    }

    /**
     * Sets what the groups need of a prefix; a group that is left out needs all of it.
     *
     * @param byGroup windows by group id, such as {@link HitWindow#of}; copied. An id that the
     *     layout does not have is refused at the adoption
     * @return this
     */
    public Builder hitWindows(Map<Integer, HitWindow> byGroup) {
      hitWindows = Map.copyOf(byGroup);
      return this;
    }

    /**
     * Sets the block id that stands in a block table where the group has no block, as sliding
     * windows and states have it. Such a place is never stored, and nothing is loaded to it. Unless
     * set every id is a block.
     *
     * @param blockId at least 0
     * @return this
     */
    public Builder nullBlock(int blockId) {
      if (blockId < 0) {
        throw UMBPException.invalid("the null block %d must be >= 0", blockId);
      }
      nullBlock = blockId;
      return this;
    }

    /**
     * Sets whether partly filled blocks are stored and hit; only full ones unless set.
     *
     * @param value the policy
     * @return this
     */
    public Builder tails(TailPolicy value) {
      tails = value;
      return this;
    }

    /**
     * Lets lookups hold what they find, so that it is not evicted before it is loaded. The hold of
     * a request ends with its load, with {@link SchedulerConnector#finish} or {@link
     * SchedulerConnector#preempt}, with its next lookup, at the limit, or when the namespace is
     * cleared; what is admitted to be left out is let go at once. The runtime must be able to hold,
     * or else the adoption is refused.
     *
     * @param limit longest time from a lookup to the start of its load, above zero
     * @return this
     */
    public Builder holdHits(Duration limit) {
      holdLimit = positive("limit of a hold", limit);
      return this;
    }

    /**
     * Lets lookups run on an executor, so that a slow store never holds the scheduler up: the first
     * call of a lookup answers "ask again". Without one they run in the call.
     *
     * @param executor shared; must not wait for the scheduler's thread
     * @param budget time from the first call until a lookup without an answer is a miss, above zero
     * @return this
     */
    public Builder lookUpOn(Executor executor, Duration budget) {
      this.executor = executor;
      lookupBudget = positive("budget of a lookup", budget);
      return this;
    }

    /**
     * Sets for how long an object whose load has failed is no hit; 1 s unless set. A short time is
     * enough to keep requests from failing one after the other; a long one keeps a prefix that many
     * requests share from all of them.
     *
     * @param time above zero
     * @return this
     */
    public Builder quarantine(Duration time) {
      quarantine = positive("time of a quarantine", time);
      return this;
    }

    /**
     * Sets what keeps blocks from being given away while copies use them; {@link BlockPins#NONE}
     * unless set.
     *
     * @param value the engine's block pool
     * @return this
     */
    public Builder pins(BlockPins value) {
      pins = value;
      return this;
    }

    /**
     * Sets whether changes are noted for routers; they are not unless set.
     *
     * @param value the policy
     * @return this
     */
    public Builder events(EventPolicy value) {
      events = value;
      return this;
    }

    /**
     * Sets the clock for budgets and quarantines; {@link System#nanoTime()} unless set.
     *
     * @param clock nanoseconds from any origin, never going back
     * @return this
     */
    public Builder nanoTime(LongSupplier clock) {
      nanoTime = clock;
      return this;
    }

    private static Duration positive(String what, Duration time) {
      if (time.isZero() || time.isNegative()) {
        throw UMBPException.invalid("the %s, %s, must be > 0", what, time);
      }
      return time;
    }

    /**
     * Ends the collection.
     *
     * @return the settings
     */
    public ConnectorSettings build() {
      return new ConnectorSettings(this);
    }
  }
}
