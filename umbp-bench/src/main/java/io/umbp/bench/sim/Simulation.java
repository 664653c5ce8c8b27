package io.umbp.bench.sim;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.CloseResult;
import io.umbp.api.GroupBlock;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.bench.sim.SimRequest.State;
import io.umbp.core.connector.ConnectorSettings;
import io.umbp.core.connector.ConnectorSettings.EventPolicy;
import io.umbp.core.connector.ConnectorSettings.StorePolicy;
import io.umbp.core.connector.ConnectorSettings.TailPolicy;
import io.umbp.core.connector.ConnectorUpdate;
import io.umbp.core.connector.ConnectorUpdate.LoadedPrefix;
import io.umbp.core.connector.HitWindow;
import io.umbp.core.connector.KVEvent;
import io.umbp.core.connector.KVEvent.BlocksRemoved;
import io.umbp.core.connector.KVEvent.BlocksStored;
import io.umbp.core.connector.SchedulerConnector;
import io.umbp.core.pool.PoolStats;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeGpuCopyEngine;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * A whole engine in one thread: scheduler, ranks, block pool, preemption, aborts, prefix sharing,
 * chunked prefill, speculative decoding and hybrid groups, over a stepped GPU and an embedded
 * runtime. {@link Choices} decide at each moment what happens next; after each step everything that
 * must hold is checked. Thread-confined.
 */
final class Simulation {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("sim");
  private static final Duration TIMEOUT = Duration.ofSeconds(1);
  private static final int ENGINE_BLOCKS = 32;
  private static final int MOST_STEPS = 90;

  /** Steps within which all ends once nothing goes wrong any more. */
  private static final int BOUND = 400;

  private static final int[] BLOCK_UNITS = {2, 4, 1};

  private final SimSettings settings;
  private final Choices choices;
  private final SimParts parts;
  private final SimReport report = new SimReport();
  private final ManualClock clock = new ManualClock();
  private final FakeGpu gpu;
  private final FakeGpuCopyEngine copies;
  private final WatchedCopies watched;
  private final EmbeddedRuntime embedded;
  private final SchedulerConnector scheduler;
  private final List<SimRank> ranks = new ArrayList<>();
  private final SimBlocks blocks;
  private final int[] blockUnits;
  private final int[] windows;
  private final boolean[] isState;
  private final boolean isPlain;
  private final int alignmentUnits;
  private final boolean withTails;
  private final boolean isLazy;
  private final Deque<Runnable> lookups = new ArrayDeque<>();
  private final List<SimRequest> requests = new ArrayList<>();
  private final Map<Long, Event> events = new HashMap<>();
  private final Map<String, Integer> loadReports = new HashMap<>();
  private final Set<StoredObject> routed = new HashSet<>();
  private final UMBPSchedulerHandle oracle;
  private final Set<Integer> replicated;
  private boolean isEnding;
  private int toArrive;
  private int nextId;
  private double faults;

  /** The stores of one step. */
  private static final class Event {
    final List<StoredObject> objects;
    final long losses;
    int reports;

    Event(List<StoredObject> objects, long losses) {
      this.objects = objects;
      this.losses = losses;
    }
  }

  private Simulation(SimSettings settings, Choices choices, SimParts parts) {
    this.settings = settings;
    this.choices = choices;
    this.parts = parts;
    faults = settings.faults();
    int groups = settings.groups();
    blockUnits = new int[groups];
    windows = new int[groups];
    isState = new boolean[groups];
    Map<Integer, HitWindow> hitWindows = new HashMap<>();
    int alignment = 1;
    for (int group = 0; group < groups; group++) {
      blockUnits[group] = BLOCK_UNITS[(group + choices.choose(3)) % 3];
      alignment = Math.max(alignment, blockUnits[group]);
      HitWindow window = window(group);
      windows[group] = window.tokens();
      isState[group] = window.equals(HitWindow.CHECKPOINT);
      if (!window.equals(HitWindow.FULL)) {
        hitWindows.put(group, window);
      }
    }
    alignmentUnits = alignment;
    isPlain = hitWindows.isEmpty();
    withTails = choices.choose(3) == 1;
    isLazy = isPlain && choices.choose(4) == 1;
    boolean isReplicated = groups > 1 && settings.ranks() > 1 && choices.choose(3) == 1;
    replicated = isReplicated ? Set.of(1) : Set.of();
    gpu = FakeGpu.stepped(settings.ranks());
    copies = gpu.copyEngine();
    watched = new WatchedCopies(parts.copies(copies));
    embedded =
        EmbeddedRuntime.builder()
            .capacityBytes((10L + 12L * choices.choose(12)) * settings.ranks() * 32)
            .slabBytes(4096)
            .copyEngine(() -> watched)
            .transferTimeout(TIMEOUT)
            .nanoTime(clock)
            .build();
    WatchedRuntime runtime = new WatchedRuntime(embedded, parts);
    for (int rank = 0; rank < settings.ranks(); rank++) {
      KVLayoutDescriptor layout = layout(rank);
      ranks.add(new SimRank(gpu, runtime, NAMESPACE, layout, ENGINE_BLOCKS, isState));
    }
    blocks = new SimBlocks(groups, ENGINE_BLOCKS, this::isCopied);
    scheduler =
        new SchedulerConnector(
            runtime,
            RankTopology.tensorParallel(0, settings.ranks()),
            SimTruth.UNIT_TOKENS,
            connectorSettings(hitWindows));
    scheduler.adopt(ranks.stream().map(rank -> rank.connector().handshake()).toList());
    oracle =
        embedded.createSchedulerHandle(
            NAMESPACE, RankTopology.tensorParallel(0, settings.ranks()), layout(0));
    toArrive = 4 + choices.choose(12);
  }

  private HitWindow window(int group) {
    if (group == 0) {
      return HitWindow.FULL;
    }
    return switch (choices.choose(4)) {
      case 1 -> HitWindow.sliding(1 + choices.choose(20));
      case 2 -> HitWindow.CHECKPOINT;
      default -> HitWindow.FULL;
    };
  }

  private ConnectorSettings connectorSettings(Map<Integer, HitWindow> hitWindows) {
    ConnectorSettings.Builder builder =
        ConnectorSettings.builder()
            .hitWindows(hitWindows)
            .nullBlock(SimBlocks.NULL)
            .pins(parts.pins(blocks))
            .quarantine(Duration.ofMillis(1 + choices.choose(50)))
            .nanoTime(clock);
    if (withTails) {
      builder.tails(TailPolicy.PARTIAL_TAILS);
    }
    if (choices.choose(2) == 1) {
      builder.holdHits(Duration.ofMillis(20));
    }
    if (choices.choose(3) == 1) {
      builder.lookUpOn(lookups::add, Duration.ofMillis(10));
    }
    if (choices.choose(2) == 1) {
      builder.events(EventPolicy.ON);
    }
    if (isLazy) {
      builder.stores(StorePolicy.LAZY);
    } else if (choices.choose(3) == 1) {
      builder.stores(StorePolicy.EAGER_PROMPT);
    }
    return builder.build();
  }

  private KVLayoutDescriptor layout(int rank) {
    List<KVRegion> regions = new ArrayList<>();
    for (int group = 0; group < blockUnits.length; group++) {
      long bytes = (long) blockUnits[group] * SimTruth.UNIT_BYTES;
      regions.add(
          new KVRegion(
              "layer" + group, group, bytes, bytes, 0, blockUnits[group] * SimTruth.UNIT_TOKENS));
    }
    return new KVLayoutDescriptor(
        regions,
        RankTopology.tensorParallel(rank, settings.ranks()),
        replicated,
        KVLayoutDescriptor.RANK_LOCAL);
  }

  private boolean isCopied(GroupBlock block) {
    for (int rank = 0; rank < ranks.size(); rank++) {
      SimRank of = ranks.get(rank);
      long address = of.address(block.groupId(), block.blockId());
      if (watched.uses(rank, address, of.blockBytes(block.groupId()))) {
        return true;
      }
    }
    return false;
  }

  /**
   * Runs one simulation.
   *
   * @throws SimViolation when something does not hold
   */
  static SimReport run(SimSettings settings, Choices choices, SimParts parts) {
    Simulation simulation = new Simulation(settings, choices, parts);
    try {
      return simulation.run();
    } finally {
      simulation.gpu.close();
    }
  }

  private SimReport run() {
    int steps = MOST_STEPS - choices.choose(MOST_STEPS / 2);
    boolean closesEarly = choices.choose(6) == 1;
    for (int step = 0; step < steps; step++) {
      step();
    }
    if (closesEarly) {
      closeEarly();
    } else {
      end();
    }
    report.seeds = 1;
    report.evictions = embedded.stats().evictedObjects();
    ranks.forEach(rank -> report.checkedBytes += rank.checkedBytes());
    return report;
  }

  /** One engine step. */
  private void step() {
    report.steps++;
    choices.nextStep();
    clock.advance(Duration.ofMillis(1));
    if (!isEnding) {
      mishaps();
      arrive();
    }
    List<Work> planned = schedule();
    UMBPConnectorMetadata metadata = scheduler.takeStep();
    noteStarted(metadata);
    for (int rank = 0; rank < ranks.size(); rank++) {
      SimRank of = ranks.get(rank);
      of.connector().startLoads(parts.toWorker(rank, metadata), parts.loadFence(of.computed()));
      planned.forEach(work -> work.enqueue(of));
      of.connector().startStores(parts.toWorker(rank, metadata), parts.storeFence(of.computed()));
    }
    int pieces = isEnding ? Integer.MAX_VALUE : choices.choose(20 * ranks.size());
    for (int i = 0; i < pieces && gpu.step(); i++) {
      ranks.forEach(SimRank::throwBroken);
    }
    while (!lookups.isEmpty() && (isEnding || choices.choose(2) == 0)) {
      lookups.remove().run();
    }
    poll();
    finishComputed();
    takeEvents();
  }

  /**
   * What a request computes in one step.
   *
   * @param before its prefix
   * @param written the prefix with what is written
   */
  private record Work(
      SimPrefix before, SimPrefix written, int fromUnits, int toUnits, int stateUnits) {
    void enqueue(SimRank rank) {
      rank.compute(before, written, fromUnits, toUnits, stateUnits);
    }
  }

  private void noteStarted(UMBPConnectorMetadata metadata) {
    for (String id : metadata.loads().keySet()) {
      report.loads++;
      if (loadReports.putIfAbsent(id, 0) != null) {
        throw new SimViolation("a load of request '" + id + "' starts while another runs");
      }
    }
    if (metadata.storeEvent() != UMBPConnectorMetadata.NO_EVENT) {
      List<StoredObject> objects = new ArrayList<>();
      for (BlockStoreBatch batch : metadata.stores().values()) {
        for (int i = 0; i < batch.size(); i++) {
          objects.add(new StoredObject(batch.keys().groupId(i), batch.keys().hashes().get(i)));
        }
      }
      events.put(metadata.storeEvent(), new Event(objects, losses()));
    }
  }

  /** What goes wrong now. */
  private void mishaps() {
    if (choices.chance(faults)) {
      int failing = choices.choose(8);
      copies.failNext((row, key) -> row == failing);
    }
    if (choices.chance(faults)) {
      copies.holdNext(1);
    }
    if (choices.chance(faults / 4)) {
      clock.advance(TIMEOUT.multipliedBy(2));
      report.overdue++;
    }
    if (copies.heldBatchCount() > 0 && choices.choose(8) == 1) {
      copies.releaseOldest();
    }
    if (choices.chance(0.01)) {
      scheduler.clear();
      report.clears++;
    }
    if (choices.chance(0.03) && !requests.isEmpty()) {
      SimRequest aborted = requests.get(choices.choose(requests.size()));
      report.aborts++;
      leave(aborted);
      if (choices.choose(2) == 1) {
        // The client comes back at once with the same id and another prompt.
        requests.add(newRequest(aborted.id));
      }
    }
    if (choices.chance(0.03) && !requests.isEmpty()) {
      SimRequest victim = requests.get(choices.choose(requests.size()));
      if (victim.state == State.RUNNING || victim.state == State.LOADING) {
        preempt(victim);
      }
    }
  }

  private void arrive() {
    if (toArrive > 0 && requests.size() < 4 && choices.choose(3) != 0) {
      toArrive--;
      requests.add(newRequest("r" + nextId++));
    }
  }

  /** A prompt that shares a beginning with others, and an answer. */
  private SimRequest newRequest(String id) {
    report.requests++;
    int family = choices.choose(3);
    int shared = choices.choose(9);
    int own = 1 + choices.choose(8);
    int answer = 1 + choices.choose(5);
    int variant = choices.choose(3);
    long[] chain = new long[shared + own + answer];
    long prefix = family;
    for (int i = 0; i < chain.length; i++) {
      prefix = SimTruth.next(prefix, i < shared ? i : 1000L * (variant + 1) + i);
      chain[i] = prefix;
    }
    return new SimRequest(id, chain, shared + own, blockUnits.length);
  }

  /** Admits requests, and plans what the running ones compute in this step. */
  private List<Work> schedule() {
    if (isLazy) {
      scheduler.storeBeforeEviction(blocks.nextEvicted(choices.choose(3)));
    }
    List<Work> planned = new ArrayList<>();
    for (SimRequest request : List.copyOf(requests)) {
      if (request.state == State.WAITING) {
        admit(request);
      }
      if (request.state == State.RUNNING) {
        Work work = plan(request);
        if (work != null) {
          planned.add(work);
        }
      }
    }
    return planned;
  }

  /** Plans a chunk of the prompt, or the last token with some that are speculated. */
  private @Nullable Work plan(SimRequest request) {
    int from = request.computedUnits;
    int known = request.knownUnits;
    int total = request.chain.length;
    int to = from + 1 + choices.choose(Math.min(6, known - from));
    int speculated = 0;
    int accepted = 0;
    if (to == known && known < total) {
      speculated = choices.choose(Math.min(2, total - known) + 1);
      accepted = choices.choose(speculated + 1);
    }
    SimPrefix before = prefix(request, request.chain);
    while (!growTo(request, from, to + speculated, to + accepted)) {
      SimRequest victim = lastWithBlocks();
      preempt(victim);
      if (victim == request) {
        return null;
      }
    }
    scheduler.setBlocks(request.id, request.tables);
    scheduler.planStores(request.id, (to + speculated) * SimTruth.UNIT_TOKENS);
    long[] written = request.chain.clone();
    for (int unit = to + accepted; unit < to + speculated; unit++) {
      written[unit] = SimTruth.mix(unit);
    }
    Work work = new Work(before, prefix(request, written), from, to + speculated, to + accepted);
    request.computedUnits = to + accepted;
    if (to == known && known < total) {
      request.knownUnits = Math.min(total, known + accepted + 1);
      scheduler.extend(request.view());
    }
    if (isPlain) {
      cacheFull(request, from);
    }
    return work;
  }

  private SimPrefix prefix(SimRequest request, long[] chain) {
    return new SimPrefix(request.id, chain, request.tables, windows);
  }

  private SimRequest lastWithBlocks() {
    for (int i = requests.size() - 1; i >= 0; i--) {
      State state = requests.get(i).state;
      if (state == State.RUNNING || state == State.LOADING) {
        return requests.get(i);
      }
    }
    throw new IllegalStateException("no request has blocks");
  }

  /** Gives a request the blocks that a step writes, and takes those that it needs no more. */
  private boolean growTo(SimRequest request, int from, int to, int stateUnits) {
    for (int group = 0; group < blockUnits.length; group++) {
      int size = blockUnits[group];
      request.grow(group, (to + size - 1) / size);
      int firstToken = Math.max(0, from * SimTruth.UNIT_TOKENS - windows[group]);
      if (isState[group]) {
        int running = (from - 1) / size;
        if (from % size != 0 && running != (stateUnits - 1) / size) {
          drop(request, group, running);
        }
        if (!give(request, group, (stateUnits - 1) / size)) {
          return false;
        }
        continue;
      }
      for (int place = 0; (place + 1) * size * SimTruth.UNIT_TOKENS <= firstToken; place++) {
        drop(request, group, place);
      }
      for (int place = from / size; place * size < to; place++) {
        if (!give(request, group, place)) {
          return false;
        }
      }
    }
    return true;
  }

  private boolean give(SimRequest request, int group, int place) {
    if (request.tables[group][place] == SimBlocks.NULL) {
      request.tables[group][place] = blocks.take(group);
    }
    return request.tables[group][place] != SimBlocks.NULL;
  }

  private void drop(SimRequest request, int group, int place) {
    int block = request.tables[group][place];
    if (block != SimBlocks.NULL) {
      request.tables[group][place] = SimBlocks.NULL;
      blocks.release(group, block);
    }
  }

  /** Lets others share the blocks that are full of known tokens now. */
  private void cacheFull(SimRequest request, int from) {
    int end = Math.min(request.computedUnits, request.knownUnits);
    for (int group = 0; group < blockUnits.length; group++) {
      int size = blockUnits[group];
      for (int place = from / size; (place + 1) * size <= end; place++) {
        int last = (place + 1) * size - 1;
        blocks.cache(group, request.tables[group][place], request.chain[last]);
      }
    }
  }

  private void admit(SimRequest request) {
    int local = isPlain ? localUnits(request) : 0;
    Optional<LoadSpec> found = scheduler.lookup(request.view(), local * SimTruth.UNIT_TOKENS);
    report.lookups++;
    if (found.isEmpty()) {
      return;
    }
    LoadSpec spec = found.get();
    boolean isCut = spec.tokensToLoad() > 0 && choices.choose(5) == 1;
    int loadTokens = isCut ? choices.choose(spec.tokensToLoad() + 1) : spec.tokensToLoad();
    int hit = local + loadTokens / SimTruth.UNIT_TOKENS;
    if (!allocate(request, local, hit, isCut)) {
      return;
    }
    LoadSpec loaded = scheduler.admit(request.id, loadTokens, request.tables);
    int end = loaded.externalTokens() / SimTruth.UNIT_TOKENS;
    if (end > hit || end < local) {
      throw new SimViolation("admitted to load up to unit " + end + " of at most " + hit);
    }
    report.hitTokens += loaded.tokensToLoad();
    if (end > local) {
      request.state = State.LOADING;
      request.loadingUnits = end;
      List<GroupBlock> spoiled = new ArrayList<>();
      for (int group = 0; group < blockUnits.length; group++) {
        int[] table = request.tables[group];
        for (int place = local / blockUnits[group]; place < table.length; place++) {
          if (table[place] != SimBlocks.NULL) {
            spoiled.add(new GroupBlock(group, table[place]));
          }
        }
      }
      ranks.forEach(rank -> rank.spoil(spoiled));
    } else {
      request.state = State.RUNNING;
    }
    request.computedUnits = local;
    dropStates(request, end);
  }

  /** Of the states keeps the one at the end of a prefix: others hold nothing. */
  private void dropStates(SimRequest request, int endUnits) {
    for (int group = 0; group < blockUnits.length; group++) {
      for (int place = 0; isState[group] && place < request.tables[group].length; place++) {
        if (endUnits == 0 || place != (endUnits - 1) / blockUnits[group]) {
          drop(request, group, place);
        }
      }
    }
  }

  /** How far the engine's own cache has the prompt, in whole blocks of all groups. */
  private int localUnits(SimRequest request) {
    int usable = request.knownUnits - 1;
    for (int end = usable / alignmentUnits * alignmentUnits; end > 0; end -= alignmentUnits) {
      boolean isThere = true;
      for (int group = 0; group < blockUnits.length && isThere; group++) {
        for (int unit = blockUnits[group]; unit <= end && isThere; unit += blockUnits[group]) {
          isThere = blocks.find(group, request.chain[unit - 1]) != SimBlocks.NULL;
        }
      }
      if (isThere) {
        return end;
      }
    }
    return 0;
  }

  /**
   * Gives a request the blocks of a prefix: those of its own cache are shared.
   *
   * @param isWhole whether also places that no window needs get a block
   */
  private boolean allocate(SimRequest request, int local, int endUnits, boolean isWhole) {
    request.tables = new int[blockUnits.length][0];
    for (int group = 0; group < blockUnits.length; group++) {
      int size = blockUnits[group];
      int places = (endUnits + size - 1) / size;
      request.grow(group, places);
      int firstToken = Math.max(0, endUnits * SimTruth.UNIT_TOKENS - windows[group]);
      int needed = windows[group] == 0 ? places : firstToken / (size * SimTruth.UNIT_TOKENS);
      for (int place = 0; place < places; place++) {
        if ((place + 1) * size <= local) {
          int shared = blocks.find(group, request.chain[(place + 1) * size - 1]);
          blocks.share(group, shared);
          request.tables[group][place] = shared;
        }
      }
      for (int place = local / size; place < places; place++) {
        if (isWhole || place >= needed) {
          int block = blocks.take(group);
          if (block == SimBlocks.NULL) {
            release(request);
            return false;
          }
          request.tables[group][place] = block;
        }
      }
    }
    return true;
  }

  private void release(SimRequest request) {
    for (int group = 0; group < blockUnits.length; group++) {
      int[] table = request.tables[group];
      for (int place = table.length - 1; place >= 0; place--) {
        if (table[place] != SimBlocks.NULL) {
          blocks.release(group, table[place]);
        }
      }
      request.tables[group] = new int[0];
    }
  }

  private void preempt(SimRequest request) {
    report.preemptions++;
    scheduler.preempt(request.id);
    release(request);
    request.reset(blockUnits.length);
  }

  private void leave(SimRequest request) {
    scheduler.finish(request.id);
    release(request);
    request.state = State.DONE;
    requests.remove(request);
  }

  private void poll() {
    Set<String> endedLoads = new HashSet<>();
    UMBPConnectorWorkerMetadata sum = UMBPConnectorWorkerMetadata.NOTHING;
    for (int rank = 0; rank < ranks.size(); rank++) {
      UMBPConnectorWorkerMetadata own = ranks.get(rank).connector().poll();
      own.loads().keySet().forEach(id -> countLoad(id, endedLoads));
      own.storeEvents().keySet().forEach(this::countEvent);
      own.loads().values().forEach(load -> report.lostBlocks += load.lostBlocks().size());
      sum = sum.plus(parts.fromWorker(rank, own));
    }
    ConnectorUpdate update = scheduler.update(sum);
    for (Map.Entry<String, LoadedPrefix> load : update.loads().entrySet()) {
      if (!endedLoads.contains(load.getKey())) {
        throw new SimViolation(
            "the load of '" + load.getKey() + "' ends before all ranks ended it");
      }
      loaded(load.getKey(), load.getValue());
    }
    for (SimRequest request : requests) {
      if (request.state == State.LOADING && endedLoads.contains(request.id)) {
        throw new SimViolation("nobody tells request '" + request.id + "' that its load ended");
      }
    }
    update.storeEvents().forEach(this::stored);
  }

  private void countLoad(String id, Set<String> ended) {
    Integer reports = loadReports.get(id);
    if (reports == null) {
      throw new SimViolation("a load of request '" + id + "' is reported that does not run");
    }
    if (reports + 1 == ranks.size()) {
      loadReports.remove(id);
      ended.add(id);
    } else {
      loadReports.put(id, reports + 1);
    }
  }

  private void countEvent(long number) {
    Event event = events.get(number);
    if (event == null || event.reports == ranks.size()) {
      throw new SimViolation("store event " + number + " is reported once too often");
    }
    event.reports++;
  }

  private void loaded(String id, LoadedPrefix prefix) {
    SimRequest request =
        requests.stream()
            .filter(each -> each.id.equals(id) && each.state == State.LOADING)
            .findFirst()
            .orElseThrow(
                () -> new SimViolation("a load of '" + id + "' ends that nobody waits for"));
    int valid = prefix.validTokens() / SimTruth.UNIT_TOKENS;
    if (valid > request.loadingUnits || valid < request.computedUnits) {
      throw new SimViolation(
          String.format(
              "request '%s' loads units %d to %d, valid are %d",
              id, request.computedUnits, request.loadingUnits, valid));
    }
    if (valid == request.loadingUnits && !prefix.invalidBlocks().isEmpty()) {
      throw new SimViolation("a whole load has invalid blocks: " + prefix.invalidBlocks());
    }
    SimPrefix loaded = prefix(request, request.chain);
    for (SimRank rank : ranks) {
      rank.checkBehind(loaded, request.computedUnits, valid, "after the load");
    }
    int local = request.computedUnits;
    request.computedUnits = valid;
    request.state = State.RUNNING;
    dropStates(request, valid);
    if (isPlain) {
      cacheFull(request, local);
    }
  }

  private void stored(long number, StoreEventResult result) {
    Event event = events.remove(number);
    if (event == null || event.reports != ranks.size()) {
      throw new SimViolation("store event " + number + " ends before all ranks ended it");
    }
    report.storeEvents++;
    report.failedObjects += result.failedObjects().size();
    if (event.losses == losses()) {
      List<StoredObject> whole = new ArrayList<>(event.objects);
      whole.removeAll(result.failedObjects());
      requireThere(whole, "was stored");
    }
  }

  /** How often something happened by which an object that was stored may be gone. */
  private long losses() {
    PoolStats pool = embedded.stats();
    return pool.evictedObjects() + report.clears;
  }

  private void requireThere(Collection<StoredObject> objects, String why) {
    if (objects.isEmpty()) {
      return;
    }
    List<StoredObject> all = List.copyOf(objects);
    BlockKeys keys =
        BlockKeys.of(
                NAMESPACE,
                RankTopology.tensorParallel(0, settings.ranks()).localNamespace(),
                all.stream().mapToInt(StoredObject::groupId).toArray(),
                BlockHashes.of(all.stream().map(StoredObject::hash).toList()))
            .onRanks(RankTopology.tensorParallel(0, settings.ranks()).allNamespaces())
            .replicating(replicated);
    boolean[] there = oracle.lookup(keys);
    for (int i = 0; i < there.length; i++) {
      if (!there[i]) {
        throw new SimViolation(keys.get(i) + " " + why + ", and is not there");
      }
    }
  }

  /** Ends requests that have computed all that they will. */
  private void finishComputed() {
    for (SimRequest request : List.copyOf(requests)) {
      if (request.state == State.RUNNING && request.computedUnits == request.chain.length) {
        int tokens = request.computedUnits * SimTruth.UNIT_TOKENS;
        if (choices.choose(2) == 0) {
          scheduler.storeTail(request.id, tokens);
        }
        scheduler.touch(request.id, tokens);
        leave(request);
      }
    }
  }

  /** What a router is told: stored and removed in turn, and what it knows is there. */
  private void takeEvents() {
    for (KVEvent event : scheduler.takeEvents()) {
      if (event instanceof BlocksStored stored) {
        for (BlockHash hash : stored.hashes()) {
          if (!routed.add(new StoredObject(stored.groupId(), hash))) {
            throw new SimViolation("a router is told twice that " + hash + " was stored");
          }
        }
      } else if (event instanceof BlocksRemoved removed) {
        for (BlockHash hash : removed.hashes()) {
          if (!routed.remove(new StoredObject(removed.groupId(), hash))) {
            throw new SimViolation("a router is told that " + hash + " went, and never knew it");
          }
        }
      } else {
        routed.clear();
      }
    }
    requireThere(routed, "is known to a router");
  }

  /** Closes everything in the middle of it. */
  private void closeEarly() {
    scheduler.close();
    embedded.close(Duration.ZERO);
    copies.releaseCopies();
    gpu.runAll();
    ranks.forEach(SimRank::throwBroken);
    checkMachine();
  }

  /** Lets all come to its end, and checks that nothing is left. */
  private void end() {
    isEnding = true;
    faults = 0;
    toArrive = 0;
    copies.releaseCopies();
    int steps = 0;
    while (!requests.isEmpty()
        || scheduler.hasPendingWork()
        || !events.isEmpty()
        || !loadReports.isEmpty()) {
      if (steps++ == BOUND) {
        throw new SimViolation(
            String.format(
                "no end within %d steps: %d requests, store events %s, loads %s, work pending: %s",
                BOUND,
                requests.size(),
                events.keySet(),
                loadReports.keySet(),
                scheduler.hasPendingWork()));
      }
      step();
    }
    require(scheduler.requestCount() == 0, "the scheduler knows requests that have ended");
    for (SimRank rank : ranks) {
      require(rank.connector().runningCount() == 0, "a worker has loads or events that ended");
    }
    blocks.checkAllFree();
    PoolStats pool = embedded.stats();
    require(pool.leases() == 0, "leases are left: " + pool);
    require(pool.unpublishedObjects() == 0, "unpublished objects are left: " + pool);
    require(pool.doubleReleases() == 0, "leases were released twice: " + pool);
    require(pool.usedBytes() + pool.freeBytes() == pool.capacityBytes(), "bytes are lost: " + pool);
    scheduler.close();
    CloseResult result = embedded.close(Duration.ZERO);
    require(result.isClean(), "not closed cleanly: " + result);
    checkMachine();
  }

  private void checkMachine() {
    require(gpu.useAfterFreeCount() == 0, "freed memory was touched");
    require(copies.liveSlabCount() == 0, copies.liveSlabCount() + " slabs are left");
    require(copies.runningBatchCount() == 0, "copies run on");
  }

  private static void require(boolean holds, String message) {
    if (!holds) {
      throw new SimViolation(message);
    }
  }
}
