package io.umbp.core.connector;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
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
import io.umbp.core.connector.BlockRows.Groups;
import io.umbp.core.request.RequestTracker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;

/**
 * The scheduler's front door: decides for each request which blocks to load and which to store, and
 * learns from the workers how that ended. Single-writer.
 *
 * <p>Namespace and layout come from the workers ({@link #adopt}). An engine may start before: until
 * then every lookup is a miss, nothing is loaded or stored, and the blocks that requests are given
 * are only noted. What they have computed by then is stored with the first {@link #planStores}
 * after the adoption.
 *
 * <p>The way of a request: {@link #lookup}, then {@link #admit} with its blocks; {@link
 * #planStores} as its tokens are computed; one {@link #takeStep} an engine step, whose result every
 * worker gets; {@link #loadFinished} and {@link #update} with what the workers report; {@link
 * #touch} when the request is done with its prefix, and {@link #finish}.
 *
 * <p>The engine keeps the blocks of a load until every rank has reported it, and those of a store
 * until its event has ended, also when the request is finished before.
 */
public final class SchedulerConnector implements AutoCloseable {
  private final UMBPRuntime runtime;
  private final RankTopology topology;
  private final int hashUnit;
  private final Map<String, Request> requests = new HashMap<>();
  private final Map<String, Load> dueLoads = new LinkedHashMap<>();
  private final Map<String, Request> dueStores = new LinkedHashMap<>();
  private final Map<String, Load> orphans = new HashMap<>();
  private final Map<Long, StoreEvent> events = new HashMap<>();
  private @Nullable Adopted adopted;
  private @Nullable Duration holdLimit;
  private boolean isClosed;
  private long nextEvent;

  /** What the workers agree on, and the store that has it. */
  private record Adopted(Handshake handshake, UMBPSchedulerHandle handle, Groups groups) {}

  /** What is known of a request from its first lookup to its end. */
  private static final class Request {
    final RequestTracker tracker = new RequestTracker();
    final String id;
    BlockHashes hashes;
    @Nullable Load load;
    SupportsHold.@Nullable Hold hold;
    int loadedFrom;
    int loadedTo;
    int storeTo;
    int retryFrom = Integer.MAX_VALUE;

    Request(String id, BlockHashes hashes) {
      this.id = id;
      this.hashes = hashes;
    }

    void dropHold() {
      if (hold != null) {
        hold.close();
        hold = null;
      }
    }
  }

  /** A load from admission until all ranks have reported it; an orphan when its request is gone. */
  private static final class Load {
    final int fromTokens;
    final int toTokens;
    final BlockRows rows;
    final BlockLoadBatch batch;
    int validTokens;
    int reports;

    Load(int fromTokens, int toTokens, BlockRows rows, BlockLoadBatch batch) {
      this.fromTokens = fromTokens;
      this.toTokens = toTokens;
      this.validTokens = toTokens;
      this.rows = rows;
      this.batch = batch;
    }
  }

  /** The blocks that one request stores in one step. */
  private record PlannedStore(
      Request request, BlockHashes hashes, BlockRows rows, BlockKeys keys, int endTokens) {}

  /** The stores of one step until all ranks have reported them. */
  private static final class StoreEvent {
    final List<PlannedStore> stores = new ArrayList<>();
    @Nullable StoreEventResult sum;
  }

  /**
   * Creates the connector of one scheduler, which waits for its workers.
   *
   * @param runtime the store; borrowed, closed by the caller
   * @param topology the scheduler's own place; its sizes say which ranks there are
   * @param hashUnit tokens of one block hash, above 0; must divide every block size
   */
  public SchedulerConnector(UMBPRuntime runtime, RankTopology topology, int hashUnit) {
    if (hashUnit <= 0) {
      throw UMBPException.invalid("the hash unit of %d tokens must be > 0", hashUnit);
    }
    this.runtime = runtime;
    this.topology = topology;
    this.hashUnit = hashUnit;
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
   *     reports differ from those adopted; when the hash unit does not divide every block size; or
   *     when the runtime refuses the layout or the manifest. CLOSED when this connector or the
   *     runtime is. Nothing was adopted
   */
  public void adopt(Collection<UMBPHandshakeMetadata> reports) {
    checkOpen();
    Handshake handshake = Handshake.of(topology, reports);
    if (adopted != null) {
      adopted.handshake.checkSame(handshake);
      return;
    }
    UMBPHandshakeMetadata own = handshake.report(topology.localNamespace());
    Groups groups = new Groups(own.namespace(), own.layout(), hashUnit);
    if (!handshake.manifest().isEmpty()) {
      runtime.describeNamespace(own.namespace(), handshake.manifest());
    }
    UMBPSchedulerHandle handle =
        runtime.createSchedulerHandle(own.namespace(), topology, own.layout());
    try {
      checkHold(handle, holdLimit);
    } catch (UMBPException e) {
      handle.close();
      throw e;
    }
    adopted = new Adopted(handshake, handle, groups);
  }

  /**
   * Lets lookups from now on hold what they find, so that it is not evicted before it is loaded.
   * The hold of a request ends with its load, with {@link #finish}, with its next lookup, at the
   * limit, or when the namespace is cleared; what is admitted to be left out is let go at once.
   *
   * @param limit longest time from a lookup to the start of its load, above zero
   * @throws UMBPException INVALID_ARGUMENT; UNSUPPORTED when the adopted store can't hold, or else
   *     the adoption is refused with that
   */
  public void holdHits(Duration limit) {
    if (limit.isZero() || limit.isNegative()) {
      throw UMBPException.invalid("the limit of a hold, %s, must be > 0", limit);
    }
    if (adopted != null) {
      checkHold(adopted.handle, limit);
    }
    holdLimit = limit;
  }

  private static void checkHold(UMBPSchedulerHandle handle, @Nullable Duration limit) {
    if (limit != null && !(handle instanceof SupportsHold)) {
      throw new UMBPException(
          UMBPException.Reason.UNSUPPORTED, "this runtime can't hold what a lookup found");
    }
  }

  /**
   * Returns the handle under which this connector looks up, for clearing the namespace and for the
   * keys that were evicted.
   *
   * @return the handle, borrowed until {@link #close}; empty before the adoption
   */
  public Optional<UMBPSchedulerHandle> store() {
    return Optional.ofNullable(adopted).map(Adopted::handle);
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
   * Looks how far the store continues a request's prefix: the leading run of blocks that are
   * present in all groups on all ranks. Hits come in the least common multiple of the groups' block
   * sizes and leave at least the last token to compute. May be repeated until the request is
   * admitted. There is nothing to load before the adoption, nor while a load of an earlier request
   * of the same id is under way.
   *
   * @param requestId the request
   * @param tokenCount its tokens, at least 0
   * @param hashes hashes of its full hash units from the first token on
   * @param localTokens leading tokens that the engine already has, at least 0; unless they are
   *     aligned to all block sizes nothing is loaded
   * @return the run's end as external tokens; equal to the local tokens when there is nothing to
   *     load
   * @throws UMBPException INVALID_ARGUMENT when a load of the request is still running; CLOSED
   */
  public LoadSpec lookup(String requestId, int tokenCount, BlockHashes hashes, int localTokens) {
    if (tokenCount < 0 || localTokens < 0) {
      throw UMBPException.invalid(
          "request '%s' has %d tokens, %d of them local; both must be >= 0",
          requestId, tokenCount, localTokens);
    }
    checkOpen();
    Request request = requests.get(requestId);
    if (request == null) {
      request = new Request(requestId, hashes);
      requests.put(requestId, request);
    } else if (request.load != null) {
      throw UMBPException.invalid("request '%s' still loads blocks", requestId);
    }
    request.hashes = hashes;
    request.storeTo = Math.min(request.storeTo, hashedTokens(hashes));
    LoadSpec spec =
        new LoadSpec(localTokens, localTokens + hitTokens(request, tokenCount, localTokens));
    request.tracker.planLoad(spec);
    return spec;
  }

  private int hitTokens(Request request, int tokenCount, int localTokens) {
    request.dropHold();
    Adopted agreed = adopted;
    if (agreed == null || orphans.containsKey(request.id)) {
      return 0;
    }
    int alignment = agreed.groups.alignment();
    int usable = Math.min(tokenCount - 1, hashedTokens(request.hashes));
    int end = usable - usable % alignment;
    if (localTokens % alignment != 0 || end <= localTokens) {
      return 0;
    }
    BlockRows rows = agreed.groups.between(localTokens, end);
    boolean[] present = lookup(agreed.handle, request, rows.allRankKeys(request.hashes));
    int run = 0;
    while (run < present.length && present[run]) {
      run++;
    }
    int hit = agreed.groups.tokensOf(run);
    keepHeld(request, agreed.groups, hit);
    return hit;
  }

  private boolean[] lookup(UMBPSchedulerHandle handle, Request request, BlockKeys keys) {
    Duration limit = holdLimit;
    if (limit == null) {
      return handle.lookup(keys);
    }
    SupportsHold.Hold hold = ((SupportsHold) handle).lookupAndHold(keys, limit);
    request.hold = hold;
    return hold.present();
  }

  /** Lets go of what a request does not load: all but so many tokens behind the local ones. */
  private static void keepHeld(Request request, Groups groups, int tokens) {
    if (tokens == 0) {
      request.dropHold();
    } else if (request.hold != null) {
      request.hold.keepFirst(groups.keysOf(tokens));
    }
  }

  /** Tokens that the given hashes cover. */
  private int hashedTokens(BlockHashes hashes) {
    return (int) Math.min(Integer.MAX_VALUE, (long) hashes.size() * hashUnit);
  }

  /**
   * Gives a request its blocks and makes its load due. The store watermark starts anew.
   *
   * @param requestId a request that was looked up
   * @param loadTokens tokens to load behind the local ones: at most what the lookup found, and a
   *     whole number of blocks of every group; 0 to load nothing
   * @param blockIdsByGroup the request's blocks in each group of the layout, ascending by group id,
   *     those of the local tokens first; copied. Before the adoption they are not yet checked
   * @throws UMBPException INVALID_ARGUMENT; nothing was changed
   */
  public void admit(String requestId, int loadTokens, int[]... blockIdsByGroup) {
    Request request = known(requestId);
    LoadSpec spec = request.tracker.loadSpec();
    if (spec == null) {
      throw UMBPException.invalid("request '%s' is admitted without a lookup", requestId);
    }
    Adopted agreed = adopted;
    int alignment = agreed == null ? hashUnit : agreed.groups.alignment();
    if (loadTokens < 0 || loadTokens > spec.tokensToLoad() || loadTokens % alignment != 0) {
      throw UMBPException.invalid(
          "request '%s' loads %d tokens; the lookup found %d and blocks end every %d tokens",
          requestId, loadTokens, spec.tokensToLoad(), alignment);
    }
    int end = spec.localTokens() + loadTokens;
    if (agreed != null) {
      agreed.groups.checkCount(requestId, blockIdsByGroup.length);
      agreed.groups.checkTables(requestId, end, group -> blockIdsByGroup[group].length);
    }
    request.tracker.replaceBlocks(blockIdsByGroup);
    request.tracker.dropLoad();
    request.loadedFrom = 0;
    request.loadedTo = 0;
    request.storeTo = 0;
    request.retryFrom = Integer.MAX_VALUE;
    dueStores.remove(requestId);
    if (agreed != null) {
      keepHeld(request, agreed.groups, loadTokens);
    }
    if (agreed != null && loadTokens > 0) {
      int from = spec.localTokens();
      BlockRows rows = agreed.groups.between(from, end);
      BlockKeys keys = rows.localKeys(request.hashes);
      BlockLoadBatch batch = BlockLoadBatch.of(requestId, keys, rows.blockIds(request.tracker));
      request.load = new Load(from, end, rows, batch);
      dueLoads.put(requestId, request.load);
    }
  }

  /**
   * Adds what the engine says of a request's blocks: whole tables or new blocks only.
   *
   * @param requestId an admitted request
   * @param blockIdsByGroup as for {@link RequestTracker#updateBlocks}; copied
   */
  public void updateBlocks(String requestId, int[]... blockIdsByGroup) {
    Request request = known(requestId);
    if (adopted != null) {
      adopted.groups.checkCount(requestId, blockIdsByGroup.length);
    }
    request.tracker.updateBlocks(blockIdsByGroup);
  }

  /**
   * Makes the stores of a request due: its full blocks up to a token count that were neither loaded
   * nor stored yet. While a load of the request runs they wait for its end; when it fails they are
   * dropped, to be planned again once the lost tokens are computed. Before the adoption nothing
   * becomes due.
   *
   * @param requestId an admitted request
   * @param computedTokens tokens whose KV is written once this step's work is done, at least 0;
   *     those without a hash are left out
   * @throws UMBPException INVALID_ARGUMENT when the request has not as many blocks, or blocks of
   *     other groups than the layout
   */
  public void planStores(String requestId, int computedTokens) {
    Request request = known(requestId);
    if (computedTokens < 0) {
      throw UMBPException.invalid(
          "request '%s' has computed %d tokens; must be >= 0", requestId, computedTokens);
    }
    if (adopted == null) {
      return;
    }
    int target = Math.min(computedTokens, hashedTokens(request.hashes));
    RequestTracker tracker = request.tracker;
    int tables = tracker.groupCount();
    if (tables > 0) {
      adopted.groups.checkCount(requestId, tables);
    }
    adopted.groups.checkTables(
        requestId, target, group -> tables == 0 ? 0 : tracker.blockCount(group));
    request.storeTo = Math.max(request.storeTo, target);
    dueStores.put(requestId, request);
  }

  /**
   * Ends the planning of an engine step.
   *
   * @return the loads and stores that became due, for every worker
   */
  public UMBPConnectorMetadata takeStep() {
    Map<String, BlockLoadBatch> loads = new HashMap<>();
    dueLoads.forEach((requestId, load) -> loads.put(requestId, load.batch));
    dueLoads.clear();
    Map<String, BlockStoreBatch> stores = new HashMap<>();
    StoreEvent event = new StoreEvent();
    Iterator<Request> due = dueStores.values().iterator();
    while (due.hasNext()) {
      Request request = due.next();
      if (request.load == null) {
        due.remove();
        takeStores(request, event, stores);
      }
    }
    if (stores.isEmpty()) {
      return new UMBPConnectorMetadata(loads, stores, UMBPConnectorMetadata.NO_EVENT);
    }
    long number = nextEvent++;
    events.put(number, event);
    return new UMBPConnectorMetadata(loads, stores, number);
  }

  /** Moves a request's watermark over the blocks that it stores now. */
  private void takeStores(Request request, StoreEvent event, Map<String, BlockStoreBatch> stores) {
    int from = Math.min(request.tracker.savedTokens(), request.retryFrom);
    int to = request.storeTo;
    Groups groups = agreed().groups;
    BlockRows rows = groups.without(from, to, request.loadedFrom, request.loadedTo);
    if (rows.count() > 0) {
      BlockKeys keys = rows.localKeys(request.hashes);
      int[] blockIds = rows.blockIds(request.tracker);
      stores.put(request.id, BlockStoreBatch.of(request.id, keys, blockIds));
      event.stores.add(new PlannedStore(request, request.hashes, rows, keys, to));
    }
    request.tracker.markSaved(to, groups.step());
    request.retryFrom = Integer.MAX_VALUE;
  }

  /**
   * Takes a worker's report that the load of a request has ended on its rank.
   *
   * @param result the report; one a rank. Reports of requests that are gone are ignored
   * @return once all ranks have reported: the tokens from the first on whose KV is there, up to the
   *     first block that failed on any rank; until then empty
   */
  public OptionalInt loadFinished(LoadResult result) {
    Load orphan = orphans.get(result.requestId());
    if (orphan != null) {
      orphan.reports++;
      if (orphan.reports == topology.rankCount()) {
        orphans.remove(result.requestId());
      }
      return OptionalInt.empty();
    }
    Request request = requests.get(result.requestId());
    Load load = request == null ? null : request.load;
    if (request == null || load == null) {
      return OptionalInt.empty();
    }
    for (GroupBlock failed : result.failedBlocks()) {
      load.validTokens = Math.min(load.validTokens, startTokens(load, failed));
    }
    load.reports++;
    if (load.reports < topology.rankCount()) {
      return OptionalInt.empty();
    }
    int valid = load.validTokens - load.validTokens % agreed().groups.alignment();
    request.loadedFrom = load.fromTokens;
    request.loadedTo = valid;
    request.load = null;
    request.dropHold();
    if (valid < load.toTokens) {
      request.storeTo = 0;
      dueStores.remove(request.id);
    }
    return OptionalInt.of(valid);
  }

  private static int startTokens(Load load, GroupBlock failed) {
    BlockLoadBatch batch = load.batch;
    for (int row = 0; row < batch.size(); row++) {
      if (batch.blockId(row) == failed.blockId() && batch.keys().groupId(row) == failed.groupId()) {
        return load.rows.startTokens(row);
      }
    }
    throw UMBPException.invalid(
        "request '%s' does not load block %d of group %d",
        batch.requestId(), failed.blockId(), failed.groupId());
  }

  /**
   * Takes the workers' reports of store events. An event ends when all ranks have reported it: then
   * its blocks may be reused, and the prefix of each of its requests is touched, so that its head
   * outlives its tail. Blocks that failed on any rank are offered again at the request's next
   * {@link #planStores}.
   *
   * @param reports reports of any ranks; events that have ended are ignored
   * @return the events that ended by this, with what failed
   */
  public Map<Long, StoreEventResult> update(UMBPConnectorWorkerMetadata reports) {
    Map<Long, StoreEventResult> ended = new HashMap<>();
    for (Map.Entry<Long, StoreEventResult> report : reports.storeEvents().entrySet()) {
      StoreEvent event = events.get(report.getKey());
      if (event == null) {
        continue;
      }
      event.sum = event.sum == null ? report.getValue() : event.sum.plus(report.getValue());
      if (event.sum.completedWorkers() >= topology.rankCount()) {
        events.remove(report.getKey());
        for (PlannedStore store : event.stores) {
          end(store, event.sum);
        }
        ended.put(report.getKey(), event.sum);
      }
    }
    return ended;
  }

  private void end(PlannedStore store, StoreEventResult result) {
    if (!result.failedObjects().isEmpty()) {
      lowerWatermark(store, result);
    }
    if (!isClosed) {
      touch(store.hashes(), store.endTokens());
    }
  }

  private static void lowerWatermark(PlannedStore store, StoreEventResult result) {
    BlockKeys keys = store.keys();
    for (int row = 0; row < store.rows().count(); row++) {
      BlockHash hash = keys.hashes().get(keys.row(row));
      if (result.failedObjects().contains(new StoredObject(keys.groupId(row), hash))) {
        Request request = store.request();
        request.retryFrom = Math.min(request.retryFrom, store.rows().startTokens(row));
      }
    }
  }

  /**
   * Marks a request's prefix as recently used, from its last full block to its first.
   *
   * @param requestId a request that was looked up
   * @param tokens tokens from the first on, at least 0; those without a hash are left out
   * @throws UMBPException CLOSED
   */
  public void touch(String requestId, int tokens) {
    Request request = known(requestId);
    if (tokens < 0) {
      throw UMBPException.invalid(
          "request '%s' touches %d tokens; must be >= 0", requestId, tokens);
    }
    checkOpen();
    if (adopted != null) {
      touch(request.hashes, Math.min(tokens, hashedTokens(request.hashes)));
    }
  }

  private void touch(BlockHashes hashes, int endTokens) {
    Adopted agreed = agreed();
    agreed.handle.touch(agreed.groups.between(0, endTokens).allRankKeys(hashes));
  }

  /**
   * Forgets a request that has ended or was aborted. A store that is under way goes on; a load that
   * is under way does too, but its reports are ignored. One that is only due is dropped.
   *
   * @param requestId the request; ignored when unknown
   */
  public void finish(String requestId) {
    Request request = requests.remove(requestId);
    boolean isLoadDue = dueLoads.remove(requestId) != null;
    if (request != null) {
      request.dropHold();
    }
    if (request != null && request.load != null && !isLoadDue) {
      orphans.put(requestId, request.load);
    }
    dueStores.remove(requestId);
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
   * Returns how many store events run. While there are any the engine keeps stepping.
   *
   * @return events that some rank has not reported
   */
  public int storeEventCount() {
    return events.size();
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
   * may still come; lookups and adoptions are refused. Idempotent.
   */
  @Override
  public void close() {
    isClosed = true;
    if (adopted != null) {
      adopted.handle.close();
    }
  }

  private Request known(String requestId) {
    Request request = requests.get(requestId);
    if (request == null) {
      throw UMBPException.invalid("request '%s' is unknown; look it up first", requestId);
    }
    return request;
  }
}
