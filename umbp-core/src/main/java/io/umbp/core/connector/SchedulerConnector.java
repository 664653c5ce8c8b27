package io.umbp.core.connector;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.ClearResult;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadResult;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.SupportsHold;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.core.connector.ConnectorSettings.Role;
import io.umbp.core.connector.ConnectorSettings.StorePolicy;
import io.umbp.core.connector.ConnectorSettings.TailPolicy;
import io.umbp.core.connector.ConnectorUpdate.LoadedPrefix;
import io.umbp.core.connector.HitExplanation.MissReason;
import io.umbp.core.connector.HitExplanation.MissingBlock;
import io.umbp.core.connector.PrefixLookup.Found;
import io.umbp.core.connector.PrefixLookup.Missing;
import io.umbp.core.connector.ScheduledRequest.Load;
import io.umbp.core.connector.StoreEvents.Planned;
import io.umbp.core.request.RequestTracker;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import org.jspecify.annotations.Nullable;

/**
 * The scheduler's front door: decides for each request which blocks to load and which to store, and
 * learns from the workers how that ended. Single-writer; only lookups may run elsewhere, on the
 * executor of the {@link ConnectorSettings}.
 *
 * <p>Namespace and layout come from the workers ({@link #adopt}). An engine may start before: until
 * then every lookup is a miss, nothing is loaded or stored, and the blocks that requests are given
 * are only noted. What they have computed by then is stored with the first {@link #planStores}
 * after the adoption.
 *
 * <p>The way of a request: {@link #lookup}, then {@link #admit} with its blocks; {@link
 * #planStores} as its tokens are computed; one {@link #takeStep} an engine step, whose result every
 * worker gets; {@link #update} with what the workers report; {@link #touch} when the request is
 * done with its prefix, and {@link #finish}. A request that loses its blocks is {@link #preempt}ed,
 * and begins again with a lookup.
 *
 * <p>The blocks of a load must not be given away until every rank has reported it, and those of a
 * store until its event has ended, also when the request is finished before: {@link BlockPins} see
 * to that.
 */
public final class SchedulerConnector implements AutoCloseable {
  private final UMBPRuntime runtime;
  private final RankTopology topology;
  private final int hashUnit;
  private final ConnectorSettings settings;
  private final Map<String, ScheduledRequest> requests = new HashMap<>();
  private final Map<String, Load> dueLoads = new LinkedHashMap<>();
  private final Map<String, ScheduledRequest> dueStores = new LinkedHashMap<>();
  private final Set<String> preempted = new HashSet<>();

  /** Loads that run for requests which have lost their blocks. */
  private final Map<String, Load> orphans = new HashMap<>();

  private final StoreEvents stores;
  private final Quarantine quarantine;
  private final KVEventLog events;
  private final CachedBlocks cached = new CachedBlocks();
  private @Nullable Adopted adopted;
  private boolean isClosed;
  private boolean isDraining;
  private long ownBatches;

  /** What the workers agree on, and the store that has it. */
  private record Adopted(Handshake handshake, UMBPSchedulerHandle handle, CacheGroups groups) {}

  /**
   * Creates the connector of one scheduler, which waits for its workers.
   *
   * @param runtime the store; borrowed, closed by the caller
   * @param topology the scheduler's own place; its sizes say which ranks there are
   * @param hashUnit tokens of one block hash, above 0; must divide every block size
   * @param settings what it does and how
   */
  public SchedulerConnector(
      UMBPRuntime runtime, RankTopology topology, int hashUnit, ConnectorSettings settings) {
    if (hashUnit <= 0) {
      throw UMBPException.invalid("the hash unit of %d tokens must be > 0", hashUnit);
    }
    this.runtime = runtime;
    this.topology = topology;
    this.hashUnit = hashUnit;
    this.settings = settings;
    this.stores = new StoreEvents(settings.pins, topology.rankCount());
    this.quarantine = new Quarantine(settings.quarantine, settings.nanoTime);
    this.events = new KVEventLog(settings.events);
  }

  /**
   * Takes over the namespace and the layout that the workers have derived, and from then on looks
   * up, loads and stores under them. A manifest among the reports is kept at the runtime. The ranks
   * must agree in namespace, manifest, format, KV cache groups, their block sizes and which of them
   * are replicated; those of one pipeline stage also in names, groups, sizes and shapes of their
   * layers' pages. Strides and page segments are each rank's own.
   *
   * <p>May be repeated when a worker was restarted: the same reports change nothing.
   *
   * @param reports one of each rank ({@link WorkerConnector#handshake}), in any order
   * @throws UMBPException INVALID_ARGUMENT when a rank is missing, there twice, or of an engine of
   *     other sizes; when two ranks disagree, naming them, the field and both values; when the
   *     reports differ from those adopted; when the hash unit does not divide every block size, or
   *     a hit window is of no group; or when the runtime refuses the layout or the manifest.
   *     UNSUPPORTED when hits are to be held and the runtime can't. CLOSED when this connector or
   *     the runtime is. Nothing was adopted
   */
  public void adopt(Collection<UMBPHandshakeMetadata> reports) {
    checkOpen();
    Handshake handshake = Handshake.of(topology, reports);
    if (adopted != null) {
      adopted.handshake.checkSame(handshake);
      return;
    }
    UMBPHandshakeMetadata own = handshake.report(topology.localNamespace());
    CacheGroups groups =
        new CacheGroups(own.namespace(), own.layout(), hashUnit, settings.hitWindows);
    if (!handshake.manifest().isEmpty()) {
      runtime.describeNamespace(own.namespace(), handshake.manifest());
    }
    UMBPSchedulerHandle handle =
        runtime.createSchedulerHandle(own.namespace(), topology, own.layout());
    if (settings.holdLimit != null && !(handle instanceof SupportsHold)) {
      handle.close();
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED, "this runtime can't hold what a lookup found");
    }
    adopted = new Adopted(handshake, handle, groups);
  }

  /**
   * Tells whether the workers' namespace and layout were adopted.
   *
   * @return false until the first {@link #adopt} that was not refused
   */
  public boolean isAdopted() {
    return adopted != null;
  }

  /**
   * Explains a hit rate of 0: says in what the manifest of this engine's namespace differs from
   * those of the other namespaces that the runtime keeps.
   *
   * @return one line for each field that differs, ordered by namespace; empty before the adoption
   *     and when there is no other namespace
   * @throws UMBPException CLOSED when the runtime is closed
   */
  public List<String> explainNamespace() {
    return adopted == null ? List.of() : adopted.handshake.explain(runtime.manifests());
  }

  /**
   * Looks how far the store continues a request's prefix: up to the last token before which every
   * group has, on all ranks, the blocks of its {@link HitWindow}. Hits end where blocks of all
   * groups end, or with {@link TailPolicy#PARTIAL_TAILS} where a stored tail does, and leave at
   * least the last token to compute. May be repeated until the request is admitted. There is
   * nothing to load before the adoption, for a {@link Role#PRODUCER}, while draining, nor while a
   * load of an earlier request of the same id is under way. A store that fails or does not answer
   * has nothing.
   *
   * @param request the request as it is now; kept until the next view of it
   * @param localTokens leading tokens that the engine already has, at least 0; unless they are
   *     aligned to all block sizes nothing is loaded
   * @return the hit's end as external tokens, equal to the local tokens when there is nothing to
   *     load; empty to ask again, when lookups run on an executor. A question with another token
   *     count, other hashes or other local tokens begins a new lookup
   * @throws UMBPException INVALID_ARGUMENT when a load of the request is still running; CLOSED
   */
  public Optional<LoadSpec> lookup(RequestView request, int localTokens) {
    if (localTokens < 0) {
      throw UMBPException.invalid(
          "request '%s' has %d local tokens; must be >= 0", request.id(), localTokens);
    }
    checkOpen();
    ScheduledRequest known = requests.get(request.id());
    if (known == null) {
      known = new ScheduledRequest(request);
      requests.put(request.id(), known);
    } else if (known.load != null) {
      throw UMBPException.invalid("request '%s' still loads blocks", request.id());
    }
    see(known, request);
    Found found = find(known, localTokens);
    if (found == null) {
      return Optional.empty();
    }
    known.found = found;
    LoadSpec spec = new LoadSpec(localTokens, found.endTokens);
    known.tracker.planLoad(spec);
    return Optional.of(spec);
  }

  private void see(ScheduledRequest known, RequestView request) {
    known.view = request;
    known.storeTo = Math.min(known.storeTo, hashedTokens(request));
  }

  /** Asks a running lookup, or begins one; null as long as it has no answer. */
  private @Nullable Found find(ScheduledRequest request, int localTokens) {
    PrefixLookup running = request.lookup;
    if (running == null || !running.isFor(request.view, localTokens)) {
      request.dropLookup();
      int usable = Math.max(0, Math.min(request.view.tokenCount() - 1, hashedTokens(request.view)));
      usable -= usable % hashUnit;
      Adopted agreed = adopted;
      String obstacle = agreed == null ? "no layout was adopted" : obstacle(request, localTokens);
      if (agreed == null || !obstacle.isEmpty()) {
        return Found.nothing(localTokens, usable, obstacle);
      }
      if (usable <= localTokens) {
        return Found.nothing(localTokens, usable, "");
      }
      running =
          new PrefixLookup(
              agreed.handle,
              agreed.groups,
              request.view,
              localTokens,
              usable,
              settings,
              quarantine.current());
      if (settings.executor == null) {
        running.run();
        return Objects.requireNonNull(running.take(), "a lookup without an answer");
      }
      request.lookup = running;
      request.lookupStart = settings.nanoTime.getAsLong();
      try {
        settings.executor.execute(running);
      } catch (RejectedExecutionException e) {
        request.dropLookup();
        return Found.nothing(localTokens, usable, "the executor of the lookups refuses them");
      }
    }
    Found found = running.take();
    if (found != null) {
      request.lookup = null;
      return found;
    }
    if (settings.nanoTime.getAsLong() - request.lookupStart < settings.lookupBudget.toNanos()) {
      return null;
    }
    request.dropLookup();
    return Found.nothing(
        localTokens,
        running.usableTokens(),
        "the store gave no answer within " + settings.lookupBudget);
  }

  /** Why nothing is looked up, empty when it is. */
  private String obstacle(ScheduledRequest request, int localTokens) {
    int alignment = agreed().groups.alignment();
    if (settings.role == Role.PRODUCER) {
      return "this engine only stores";
    }
    if (isDraining) {
      return "the connector drains";
    }
    if (orphans.containsKey(request.id)) {
      return "a load of an earlier request of this id is under way";
    }
    if (localTokens % alignment != 0) {
      return String.format(
          "%d local tokens do not end where blocks of all groups do, every %d tokens",
          localTokens, alignment);
    }
    return "";
  }

  /** Tokens that the hashes of a request cover. */
  private int hashedTokens(RequestView request) {
    return (int) Math.min(Integer.MAX_VALUE, (long) request.hashes().size() * hashUnit);
  }

  /**
   * Explains the last lookup of a request.
   *
   * @param requestId a request that was looked up
   * @return what was hit, and the first block that was missing, with the reason as far as it is
   *     known now
   * @throws UMBPException INVALID_ARGUMENT when the request is unknown or its lookup has no answer
   */
  public HitExplanation explain(String requestId) {
    Found found = known(requestId).found;
    if (found == null) {
      throw UMBPException.invalid("the lookup of request '%s' has no answer yet", requestId);
    }
    String hit =
        String.format(
            "request '%s' hits %d of %d tokens", requestId, found.endTokens, found.usableTokens);
    Missing missing = found.missing;
    if (missing == null) {
      String why = found.problem.isEmpty() ? "" : ": " + found.problem;
      return new HitExplanation(found.endTokens, found.usableTokens, Optional.empty(), hit + why);
    }
    MissingBlock block =
        new MissingBlock(
            missing.groupId(),
            missing.startTokens(),
            missing.rank(),
            missing.hash(),
            reason(missing));
    return new HitExplanation(
        found.endTokens,
        found.usableTokens,
        Optional.of(block),
        String.format(
            "%s: the block of group %d that begins at token %d is missing on rank %s; %s",
            hit, block.groupId(), block.startTokens(), block.rank(), block.reason()));
  }

  private MissReason reason(Missing missing) {
    Adopted agreed = agreed();
    StoredObject object = new StoredObject(missing.groupId(), missing.hash());
    if (missing.isQuarantined()) {
      return MissReason.QUARANTINED;
    }
    if (stores.isInFlight(object)) {
      return MissReason.IN_FLIGHT;
    }
    if (!isClosed && events.wasEvicted(agreed.handle, agreed.groups, object)) {
      return MissReason.EVICTED;
    }
    return explainNamespace().isEmpty() ? MissReason.NEVER_STORED : MissReason.NAMESPACE_DIFFERS;
  }

  /**
   * Gives a request its blocks and makes its load due, whose blocks are pinned. The store watermark
   * starts anew.
   *
   * @param requestId a request that was looked up
   * @param loadTokens tokens to load behind the local ones, at most what the lookup found; 0 to
   *     load nothing. When fewer are loaded than were found, they end where blocks of all groups
   *     do, and where each group has its window: what is over is left out
   * @param blockIdsByGroup the request's blocks in each group of the layout, ascending by group id,
   *     those of the local tokens first; copied. Before the adoption they are not yet checked
   * @return what is really loaded: the engine computes from the external tokens on
   * @throws UMBPException INVALID_ARGUMENT, also when a block that is loaded is the null block;
   *     nothing was changed
   */
  public LoadSpec admit(String requestId, int loadTokens, int[]... blockIdsByGroup) {
    ScheduledRequest request = known(requestId);
    LoadSpec spec = request.tracker.loadSpec();
    Found found = request.found;
    if (spec == null || found == null) {
      throw UMBPException.invalid("request '%s' is admitted without a lookup", requestId);
    }
    if (loadTokens < 0 || loadTokens > spec.tokensToLoad()) {
      throw UMBPException.invalid(
          "request '%s' loads %d tokens; the lookup found %d",
          requestId, loadTokens, spec.tokensToLoad());
    }
    int local = spec.localTokens();
    int end = loadTokens == 0 ? local : found.endWithin(local + loadTokens);
    RequestTracker tables = new RequestTracker();
    tables.replaceBlocks(blockIdsByGroup);
    Adopted agreed = adopted;
    if (agreed != null) {
      agreed.groups.checkCount(requestId, blockIdsByGroup.length);
      agreed.groups.checkTables(requestId, local, tables::blockCount);
      forgetCached(agreed.groups, local, tables);
    }
    if (agreed != null && end > local) {
      BlockRows rows = agreed.groups.needed(local, end);
      agreed.groups.checkDestinations(requestId, rows, tables, settings.nullBlock);
      BlockKeys keys = rows.localKeys(request.view.hashes());
      BlockLoadBatch batch = BlockLoadBatch.of(requestId, keys, rows.blockIds(tables));
      Load load = new Load(agreed.groups, request.view, local, end, rows, batch);
      settings.pins.pin(load.places);
      request.load = load;
      dueLoads.put(requestId, load);
    }
    found.keepWithin(end);
    request.tracker.replaceBlocks(blockIdsByGroup);
    request.tracker.dropLoad();
    request.restartStores();
    dueStores.remove(requestId);
    return new LoadSpec(local, end);
  }

  /** Blocks behind the local tokens are new: what they held before is gone. */
  private void forgetCached(CacheGroups groups, int localTokens, RequestTracker tables) {
    if (settings.stores != StorePolicy.LAZY) {
      return;
    }
    for (int group = 0; group < groups.count(); group++) {
      for (int i = localTokens / groups.blockSize(group); i < tables.blockCount(group); i++) {
        cached.forget(new GroupBlock(groups.id(group), tables.blockId(group, i)));
      }
    }
  }

  /**
   * Takes the request as it is now: with more tokens and hashes than before.
   *
   * @param request a request that was looked up
   */
  public void extend(RequestView request) {
    see(known(request.id()), request);
  }

  /**
   * Adds what the engine says of a request's blocks: whole tables or new blocks only.
   *
   * @param requestId an admitted request
   * @param blockIdsByGroup as for {@link RequestTracker#updateBlocks}; copied
   */
  public void updateBlocks(String requestId, int[]... blockIdsByGroup) {
    ScheduledRequest request = known(requestId);
    int[] before = tableSizes(request.tracker);
    if (adopted != null) {
      adopted.groups.checkCount(requestId, blockIdsByGroup.length);
    }
    request.tracker.updateBlocks(blockIdsByGroup);
    if (adopted != null && settings.stores == StorePolicy.LAZY) {
      for (int group = 0; group < request.tracker.groupCount(); group++) {
        int from = group < before.length ? before[group] : 0;
        for (int i = from; i < request.tracker.blockCount(group); i++) {
          int blockId = request.tracker.blockId(group, i);
          cached.forget(new GroupBlock(adopted.groups.id(group), blockId));
        }
      }
    }
  }

  private static int[] tableSizes(RequestTracker tracker) {
    int[] sizes = new int[tracker.groupCount()];
    for (int group = 0; group < sizes.length; group++) {
      sizes[group] = tracker.blockCount(group);
    }
    return sizes;
  }

  /**
   * Takes a request's whole block tables as they are now, with the null block where a block was
   * freed, as behind a sliding window. What the request has stored stays as it is.
   *
   * @param requestId an admitted request
   * @param blockIdsByGroup all of the request's blocks in each group; copied
   * @throws UMBPException INVALID_ARGUMENT when a table has become shorter; nothing was changed
   */
  public void setBlocks(String requestId, int[]... blockIdsByGroup) {
    ScheduledRequest request = known(requestId);
    if (adopted != null) {
      adopted.groups.checkCount(requestId, blockIdsByGroup.length);
    }
    int[][] before = new int[request.tracker.groupCount()][];
    for (int group = 0; group < before.length; group++) {
      before[group] = request.tracker.blockIds(group);
    }
    request.tracker.setBlocks(blockIdsByGroup);
    if (adopted != null && settings.stores == StorePolicy.LAZY) {
      for (int group = 0; group < blockIdsByGroup.length; group++) {
        for (int i = 0; i < blockIdsByGroup[group].length; i++) {
          int blockId = blockIdsByGroup[group][i];
          boolean isNew =
              group >= before.length || i >= before[group].length || before[group][i] != blockId;
          if (isNew && blockId != settings.nullBlock) {
            cached.forget(new GroupBlock(adopted.groups.id(group), blockId));
          }
        }
      }
    }
  }

  /**
   * Makes the stores of a request due: its full blocks up to a token count that were neither loaded
   * nor stored yet, nor are stored by another request now. Places with the null block are left out.
   * While a load of the request runs they wait for its end; when it fails they are dropped, to be
   * planned again once the lost tokens are computed. Before the adoption, for a {@link
   * Role#CONSUMER} and while draining nothing becomes due. With {@link StorePolicy#LAZY} the
   * contents of the blocks are only noted.
   *
   * @param requestId an admitted request
   * @param computedTokens tokens whose KV is written once this step's work is done, at least 0;
   *     those without a hash are left out
   * @throws UMBPException INVALID_ARGUMENT when the request has not as many blocks, or blocks of
   *     other groups than the layout
   */
  public void planStores(String requestId, int computedTokens) {
    ScheduledRequest request = known(requestId);
    if (computedTokens < 0) {
      throw UMBPException.invalid(
          "request '%s' has computed %d tokens; must be >= 0", requestId, computedTokens);
    }
    if (adopted == null || settings.role == Role.CONSUMER || isDraining) {
      return;
    }
    int target = Math.min(computedTokens, hashedTokens(request.view));
    if (settings.stores == StorePolicy.EAGER_PROMPT) {
      target = Math.min(target, request.view.promptTokens());
    }
    checkComputed(adopted.groups, request, target);
    request.storeTo = Math.max(request.storeTo, target);
    dueStores.put(requestId, request);
  }

  private static void checkComputed(CacheGroups groups, ScheduledRequest request, int tokens) {
    RequestTracker tracker = request.tracker;
    int tables = tracker.groupCount();
    if (tables > 0) {
      groups.checkCount(request.id, tables);
    }
    groups.checkTables(request.id, tokens, group -> tables == 0 ? 0 : tracker.blockCount(group));
  }

  /**
   * Plans the store of the last, partly filled blocks of a request that ends, before {@link
   * #finish}. They are pinned at once and stored with the next step. Nothing is planned without
   * {@link TailPolicy#PARTIAL_TAILS}, where {@link #planStores} would plan nothing, while a load of
   * the request runs, when the tokens do not end with a hash, or when they end a block.
   *
   * @param requestId an admitted request
   * @param computedTokens tokens whose KV is written, at least 0
   * @return whether a tail is stored
   * @throws UMBPException INVALID_ARGUMENT when the request has not as many blocks
   */
  public boolean storeTail(String requestId, int computedTokens) {
    ScheduledRequest request = known(requestId);
    if (computedTokens < 0) {
      throw UMBPException.invalid(
          "request '%s' has computed %d tokens; must be >= 0", requestId, computedTokens);
    }
    if (settings.tails != TailPolicy.PARTIAL_TAILS
        || adopted == null
        || settings.role == Role.CONSUMER
        || isDraining
        || request.load != null
        || computedTokens % hashUnit != 0
        || computedTokens > hashedTokens(request.view)) {
      return false;
    }
    BlockRows tails = adopted.groups.tails(computedTokens);
    for (int row = 0; row < tails.count(); row++) {
      int given =
          request.tracker.groupCount() == 0 ? 0 : request.tracker.blockCount(tails.group(row));
      if (tails.block(row) >= given) {
        throw UMBPException.invalid(
            "request '%s' has %d blocks in group %d, a tail of %d tokens needs %d",
            requestId,
            given,
            adopted.groups.id(tails.group(row)),
            computedTokens,
            tails.block(row) + 1);
      }
    }
    BlockRows rows = stores.notInFlight(request, withoutNull(tails, request.tracker));
    if (rows.count() == 0) {
      return false;
    }
    stores.queue(planned(ownBatch(), null, request, rows, computedTokens));
    return true;
  }

  /**
   * Plans the stores of blocks that the engine is about to evict from its own cache, with the
   * blocks of their prefixes. They are pinned at once and stored with the next step. Blocks whose
   * content was never noted by {@link #planStores}, or is in the store or on its way there, are
   * left out.
   *
   * @param blocks blocks without a user, the first to be evicted first
   * @return how many blocks are stored
   * @throws UMBPException UNSUPPORTED unless stores are {@link StorePolicy#LAZY}; CLOSED
   */
  public int storeBeforeEviction(Collection<GroupBlock> blocks) {
    if (settings.stores != StorePolicy.LAZY) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED,
          "blocks are stored before their eviction only when the store policy is LAZY, it is "
              + settings.stores);
    }
    checkOpen();
    if (adopted == null || isDraining) {
      return 0;
    }
    Adopted agreed = adopted;
    int stored = 0;
    for (GroupBlock block : blocks) {
      Planned store =
          cached.plan(ownBatch(), block, agreed.groups, wanted -> missing(agreed, wanted));
      if (store != null) {
        stores.queue(store);
        stored += store.rows().count();
      }
    }
    return stored;
  }

  /** Of some objects those that are neither in the store nor on their way there. */
  private Set<StoredObject> missing(Adopted agreed, List<StoredObject> objects) {
    Set<StoredObject> missing = new HashSet<>(objects);
    missing.removeIf(stores::isInFlight);
    missing.removeAll(agreed.groups.present(agreed.handle, List.copyOf(missing)));
    return missing;
  }

  /** A name for stores that no request waits for. */
  private String ownBatch() {
    return RequestView.OWN_PREFIX + ownBatches++;
  }

  private BlockRows withoutNull(BlockRows rows, RequestTracker tables) {
    if (settings.nullBlock == ConnectorSettings.NO_NULL_BLOCK) {
      return rows;
    }
    return rows.where(
        row -> tables.blockId(rows.group(row), rows.block(row)) != settings.nullBlock);
  }

  private static Planned planned(
      String batchId,
      @Nullable ScheduledRequest owner,
      ScheduledRequest request,
      BlockRows rows,
      int endTokens) {
    BlockStoreBatch batch =
        BlockStoreBatch.of(
            batchId, rows.localKeys(request.view.hashes()), rows.blockIds(request.tracker));
    return new Planned(owner, request.view, rows, batch, endTokens);
  }

  /**
   * Ends the planning of an engine step. The blocks of its stores are pinned, each once.
   *
   * @return what became due, for every worker
   */
  public UMBPConnectorMetadata takeStep() {
    List<ScheduledRequest> ready = new ArrayList<>();
    List<Planned> planned = new ArrayList<>();
    for (ScheduledRequest request : dueStores.values()) {
      if (request.load == null) {
        ready.add(request);
        BlockRows rows = dueRows(request);
        if (settings.stores == StorePolicy.LAZY) {
          cached.note(request.view, rows, request.tracker);
        } else {
          rows = stores.notInFlight(request, rows);
          if (rows.count() > 0) {
            Planned store = planned(request.id, request, request, rows, request.storeTo);
            stores.note(store);
            planned.add(store);
          }
        }
      }
    }
    List<GroupBlock> pinned = stores.pin(planned);
    for (ScheduledRequest request : ready) {
      dueStores.remove(request.id);
      request.tracker.markSaved(request.storeTo, agreed().groups.step());
      request.retryFrom = Integer.MAX_VALUE;
    }
    Map<String, BlockLoadBatch> loads = new LinkedHashMap<>();
    dueLoads.forEach((requestId, load) -> loads.put(requestId, load.batch));
    dueLoads.clear();
    Map<String, BlockStoreBatch> batches = new LinkedHashMap<>();
    for (Planned store : stores.queued()) {
      batches.put(store.batch().requestId(), store.batch());
    }
    for (Planned store : planned) {
      batches.put(store.batch().requestId(), store.batch());
    }
    Set<String> gone = Set.copyOf(preempted);
    preempted.clear();
    long event = batches.isEmpty() ? UMBPConnectorMetadata.NO_EVENT : stores.begin(planned, pinned);
    return new UMBPConnectorMetadata(gone, loads, batches, event);
  }

  /** The blocks between a request's watermark and what it has computed. */
  private BlockRows dueRows(ScheduledRequest request) {
    int from = Math.min(request.tracker.savedTokens(), request.retryFrom);
    BlockRows rows = agreed().groups.between(from, request.storeTo);
    if (request.loadedFrom < request.loadedTo) {
      BlockRows all = rows;
      rows =
          all.where(
              row ->
                  all.endTokens(row) <= request.loadedFrom
                      || all.endTokens(row) > request.loadedTo);
    }
    return withoutNull(rows, request.tracker);
  }

  /**
   * Takes the workers' reports. A load ends when all ranks have reported it: its blocks are
   * unpinned, and objects whose copy failed are no hits for a while; reports of requests that are
   * gone are not returned. A store event ends when all ranks have reported it: its blocks are
   * unpinned, and the prefix of each of its requests is touched, so that its head outlives its
   * tail. Blocks that failed on any rank are offered again at the next {@link #planStores} of the
   * requests that have them.
   *
   * @param reports reports of any ranks, each once; events that have ended are ignored
   * @return what ended by this
   * @throws UMBPException INVALID_ARGUMENT when a report names a block that is not loaded
   */
  public ConnectorUpdate update(UMBPConnectorWorkerMetadata reports) {
    List<GroupBlock> unpinned = new ArrayList<>();
    Map<String, LoadedPrefix> loads = new LinkedHashMap<>();
    for (Map.Entry<String, LoadResult> report : reports.loads().entrySet()) {
      LoadedPrefix prefix = loadReported(report.getKey(), report.getValue(), unpinned);
      if (prefix != null) {
        loads.put(report.getKey(), prefix);
      }
    }
    Map<Long, StoreEventResult> ended = new LinkedHashMap<>();
    for (Map.Entry<Long, StoreEventResult> report : reports.storeEvents().entrySet()) {
      StoreEvents.Ended event = stores.report(report.getKey(), report.getValue(), unpinned);
      if (event != null) {
        ended.put(report.getKey(), event.result());
        if (!isClosed) {
          event.stores().forEach(store -> storeEnded(store, event));
        }
      }
    }
    if (!unpinned.isEmpty()) {
      settings.pins.unpin(unpinned);
    }
    return new ConnectorUpdate(loads, ended);
  }

  private @Nullable LoadedPrefix loadReported(
      String requestId, LoadResult result, List<GroupBlock> unpinned) {
    Load orphan = orphans.get(requestId);
    if (orphan != null) {
      if (orphan.add(result, topology.rankCount())) {
        orphans.remove(requestId);
        addReversed(orphan.places, unpinned);
      }
      return null;
    }
    ScheduledRequest request = requests.get(requestId);
    Load load = request == null ? null : request.load;
    if (request == null || load == null) {
      return null;
    }
    boolean hasEnded = load.add(result, topology.rankCount());
    for (int row = 0; row < load.places.size(); row++) {
      if (result.failedBlocks().contains(load.places.get(row))) {
        quarantine.add(load.rows.object(load.view.hashes(), row));
      }
    }
    if (!hasEnded) {
      return null;
    }
    int valid = load.validTokens();
    request.load = null;
    request.loadedFrom = load.localTokens;
    request.loadedTo = valid;
    request.dropLookup();
    addReversed(load.places, unpinned);
    if (valid < load.endTokens) {
      request.storeTo = 0;
      dueStores.remove(request.id);
    }
    return new LoadedPrefix(valid, load.invalidBlocks(valid));
  }

  private static void addReversed(List<GroupBlock> blocks, List<GroupBlock> target) {
    for (int i = blocks.size() - 1; i >= 0; i--) {
      target.add(blocks.get(i));
    }
  }

  private void storeEnded(Planned store, StoreEvents.Ended event) {
    touch(store.hashes(), store.endTokens());
    if (!event.isCleared()) {
      events.stored(store, event.result().failedObjects());
    }
  }

  /**
   * Takes what changed in the store since the last call, for routers: what this engine stored, and
   * what was evicted of it. An object is stored and removed in turn, never twice the same.
   *
   * @return the events in order; none unless {@link ConnectorSettings.EventPolicy#ON}, and none
   *     before the adoption
   * @throws UMBPException CLOSED
   */
  public List<KVEvent> takeEvents() {
    checkOpen();
    return adopted == null ? List.of() : events.take(adopted.handle, adopted.groups);
  }

  /**
   * Marks a request's prefix as recently used, from its last full block to its first.
   *
   * @param requestId a request that was looked up
   * @param tokens tokens from the first on, at least 0; those without a hash are left out
   * @throws UMBPException CLOSED
   */
  public void touch(String requestId, int tokens) {
    ScheduledRequest request = known(requestId);
    if (tokens < 0) {
      throw UMBPException.invalid(
          "request '%s' touches %d tokens; must be >= 0", requestId, tokens);
    }
    checkOpen();
    if (adopted != null) {
      touch(request.view.hashes(), Math.min(tokens, hashedTokens(request.view)));
    }
  }

  private void touch(BlockHashes hashes, int endTokens) {
    Adopted agreed = agreed();
    agreed.handle.touch(agreed.groups.between(0, endTokens).allRankKeys(hashes));
  }

  /**
   * Takes the blocks away from a request that goes on later. Its running load and stores are
   * cancelled by the workers with the next step; their blocks stay pinned until the copies have
   * ended. The request begins again with a lookup; while its old load runs there is nothing to load
   * for it.
   *
   * @param requestId a request that was looked up
   */
  public void preempt(String requestId) {
    ScheduledRequest request = known(requestId);
    preempted.add(requestId);
    dropBlocks(request);
    request.tracker.reset();
    request.restartStores();
  }

  /**
   * Forgets a request that has ended or was aborted. A store that is under way goes on; a running
   * load is cancelled by the workers with the next step, and its reports are not returned. The
   * blocks of both stay pinned until the copies have ended. A load that is only due is dropped.
   *
   * @param requestId the request; ignored when unknown
   */
  public void finish(String requestId) {
    ScheduledRequest request = requests.remove(requestId);
    if (request != null) {
      dropBlocks(request);
    }
  }

  private void dropBlocks(ScheduledRequest request) {
    request.dropLookup();
    dueStores.remove(request.id);
    Load load = request.load;
    request.load = null;
    if (load == null) {
      return;
    }
    if (dueLoads.remove(request.id) == null) {
      preempted.add(request.id);
      orphans.put(request.id, load);
    } else {
      List<GroupBlock> unpinned = new ArrayList<>();
      addReversed(load.places, unpinned);
      settings.pins.unpin(unpinned);
    }
  }

  /**
   * Removes all that is stored in the namespace of this engine. Loads that are under way go on or
   * miss; stores that are under way never become visible, and are offered again, as is all that
   * requests had stored, at their next {@link #planStores}.
   *
   * @return what was removed and what still holds memory; nothing before the adoption
   * @throws UMBPException CLOSED
   */
  public ClearResult clear() {
    checkOpen();
    if (adopted == null) {
      return ClearResult.NOTHING;
    }
    ClearResult result = adopted.handle.clear();
    stores.cleared();
    quarantine.clear();
    requests.values().forEach(request -> request.forgetStored());
    events.cleared(adopted.handle);
    return result;
  }

  /**
   * Begins to end the work: from now on nothing is looked up, loaded or stored that is not under
   * way or due. The engine keeps stepping until there is no {@link #hasPendingWork}.
   */
  public void drain() {
    isDraining = true;
  }

  /**
   * Tells whether the engine must keep stepping, also when it has nothing to compute, because a
   * lookup, a load or a store is due or under way.
   *
   * @return whether something has not come to its end
   */
  public boolean hasPendingWork() {
    return !dueStores.isEmpty()
        || !preempted.isEmpty()
        || !orphans.isEmpty()
        || !stores.isEmpty()
        || requests.values().stream()
            .anyMatch(request -> request.load != null || request.lookup != null);
  }

  /**
   * Returns how many requests are known.
   *
   * @return requests looked up and not finished
   */
  public int requestCount() {
    return requests.size();
  }

  /**
   * Returns how many store events run.
   *
   * @return events that some rank has not reported
   */
  public int storeEventCount() {
    return stores.count();
  }

  /** What was adopted, for what can exist only after that. */
  private Adopted agreed() {
    return Objects.requireNonNull(adopted, "adopted");
  }

  private void checkOpen() {
    if (isClosed) {
      throw UMBPException.closed("scheduler connector");
    }
  }

  /**
   * Closes the handle that was made at the adoption. Reports of loads and stores that are under way
   * may still come, and unpin their blocks; lookups and adoptions are refused. Idempotent.
   */
  @Override
  public void close() {
    isClosed = true;
    requests.values().forEach(ScheduledRequest::dropLookup);
    if (adopted != null) {
      adopted.handle.close();
    }
  }

  private ScheduledRequest known(String requestId) {
    ScheduledRequest request = requests.get(requestId);
    if (request == null) {
      throw UMBPException.invalid("request '%s' is unknown; look it up first", requestId);
    }
    return request;
  }
}
