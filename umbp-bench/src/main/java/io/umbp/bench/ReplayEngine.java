package io.umbp.bench;

import io.umbp.api.BlockHashes;
import io.umbp.api.CloseResult;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.bench.EngineCache.TensorSketch;
import io.umbp.core.connector.GroupBlock;
import io.umbp.core.connector.LoadResult;
import io.umbp.core.connector.SchedulerConnector;
import io.umbp.core.connector.WorkerConnector;
import io.umbp.core.pool.PoolStats;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.function.UnaryOperator;

/**
 * A small inference engine that serves the requests of a trace through the connectors, with KV that
 * can be checked. Single-threaded: each turn of its loop is one engine step for all requests in
 * flight; the GPUs run on threads of their own.
 *
 * <p>A request looks its prefix up, loads the leading run into GPU blocks, has every loaded byte
 * checked, computes the rest, stores what it computed, touches its prefix and frees its blocks.
 * There is no prefix cache on the GPU.
 */
final class ReplayEngine implements AutoCloseable {
  private static final Duration CLOSE_BOUND = Duration.ofSeconds(10);
  private static final long DEFAULT_SLAB_BYTES = 64L << 20;
  private static final long GPU_BYTES = 256L << 20;
  private static final int SPINS = 200;
  private static final long PARK_NANOS = 20_000;

  private final Trace trace;
  private final ReplaySettings settings;
  private final EngineCache cache;
  private final ReplayProgress progress;
  private final ReplayReport report = new ReplayReport();
  private final ReplayGpus gpus;
  private final EmbeddedRuntime runtime;
  private final SchedulerConnector scheduler;
  private final List<GpuRank> ranks = new ArrayList<>();
  private final int[] freeBlocks;
  private int freeCount;
  private int nextRequest;
  private int idleTurns;
  private final Map<String, Session> sessions = new HashMap<>();
  private final List<Session> computed = new ArrayList<>();
  private final Map<Long, List<Session>> storing = new HashMap<>();

  /** One request in flight. */
  private static final class Session {
    final String id;
    final Trace.Request request;

    /** The blocks of each group. */
    final int[][] blockIds;

    final long[] hashes;
    int loadedBlocks;
    long loadStart;

    Session(String id, Trace.Request request, int[][] blockIds, long[] hashes) {
      this.id = id;
      this.request = request;
      this.blockIds = blockIds;
      this.hashes = hashes;
    }
  }

  /**
   * Sets up GPUs, pool and connectors.
   *
   * @param trace what to serve
   * @param settings how
   * @param progress told of each request that is over; borrowed
   * @param copyEngine what stands between the pool and the GPUs' copy engine
   */
  ReplayEngine(
      Trace trace,
      ReplaySettings settings,
      ReplayProgress progress,
      UnaryOperator<KVCopyEngine> copyEngine) {
    this.trace = trace;
    this.settings = settings;
    this.cache = settings.cache();
    this.progress = progress;
    int blocks = gpuBlocks();
    freeBlocks = new int[blocks];
    for (int i = 0; i < blocks; i++) {
      freeBlocks[i] = blocks - 1 - i;
    }
    freeCount = blocks;
    gpus = settings.device().open(settings);
    long slabBytes = Math.max(cache.largestObjectBytes(), DEFAULT_SLAB_BYTES);
    runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(settings.poolBytes())
            .slabBytes(Math.min(slabBytes, settings.poolBytes()))
            .copyEngine(() -> copyEngine.apply(gpus.copyEngine()))
            .build();
    for (int rank = 0; rank < settings.ranks(); rank++) {
      KVLayoutDescriptor layout = cache.describe(rank, blocks);
      ranks.add(new GpuRank(gpus, runtime, cache, layout, blocks));
    }
    gpus.startFailing();
    RankTopology own = RankTopology.tensorParallel(0, settings.ranks());
    scheduler = new SchedulerConnector(runtime, own, cache.blockSize());
    scheduler.adopt(ranks.stream().map(rank -> rank.connector().handshake()).toList());
  }

  /**
   * As many blocks as the requests in flight may need, or what fits; never less than one needs. All
   * groups draw from the same blocks, as they may share tensors.
   */
  private int gpuBlocks() {
    long groups = cache.groupCount();
    long longest = Math.max(1, trace.longestRequest()) * groups;
    long blockBytes = deviceBlockBytes();
    long wanted = longest * Math.min(settings.concurrency(), trace.requests().size());
    long blocks = Math.max(longest, Math.min(wanted, GPU_BYTES / blockBytes));
    long limit = Runtime.getRuntime().maxMemory();
    if (blocks > Math.min(Integer.MAX_VALUE, limit / 2 / blockBytes)) {
      throw new BadInputException(
          "the longest request has %d blocks of %d bytes on %d ranks, too many for a JVM of %d"
              + " bytes; %s, or raise -Xmx",
          longest / groups, cache.blockBytes(), settings.ranks(), limit, settings.remedy());
    }
    return (int) blocks;
  }

  /** Bytes of one block of all tensors on all ranks. */
  private long deviceBlockBytes() {
    long sum = 0;
    for (TensorSketch tensor : cache.tensors()) {
      sum += new TensorMap(tensor, cache.blockSize(), 1).sizeBytes();
    }
    return sum * settings.ranks();
  }

  /** Serves all requests. */
  ReplayReport run() {
    long start = System.nanoTime();
    while (nextRequest < trace.requests().size() || !sessions.isEmpty()) {
      boolean hasMoved = admit();
      hasMoved |= startStep();
      hasMoved |= poll();
      if (hasMoved) {
        idleTurns = 0;
      } else {
        idle();
      }
    }
    report.elapsedNanos = System.nanoTime() - start;
    check();
    return report;
  }

  private boolean admit() {
    boolean hasMoved = false;
    while (nextRequest < trace.requests().size() && sessions.size() < settings.concurrency()) {
      Trace.Request request = trace.requests().get(nextRequest);
      if ((long) request.fullBlocks() * cache.groupCount() > freeCount) {
        break;
      }
      admit(request);
      hasMoved = true;
    }
    return hasMoved;
  }

  private void admit(Trace.Request request) {
    String id = Integer.toString(nextRequest++);
    BlockHashes hashes = trace.hashes(request);
    report.inputTokens += request.inputTokens();
    report.lookupBlocks += request.usableBlocks();
    long before = System.nanoTime();
    LoadSpec spec = scheduler.lookup(id, request.tokens(cache.blockSize()), hashes, 0);
    report.lookupNanos.recordValue(System.nanoTime() - before);
    Session session =
        new Session(id, request, takeBlocks(request.fullBlocks()), trace.shortHashes(request));
    sessions.put(id, session);
    scheduler.admit(id, spec.tokensToLoad(), session.blockIds);
    session.loadedBlocks = spec.tokensToLoad() / cache.blockSize();
    if (session.loadedBlocks > 0) {
      for (GpuRank rank : ranks) {
        rank.spoil(session.blockIds, session.loadedBlocks);
      }
      session.loadStart = System.nanoTime();
    } else {
      compute(session, 0);
    }
  }

  private int[][] takeBlocks(int count) {
    int[][] taken = new int[cache.groupCount()][count];
    for (int[] ofGroup : taken) {
      for (int i = 0; i < count; i++) {
        ofGroup[i] = freeBlocks[--freeCount];
      }
    }
    return taken;
  }

  private void compute(Session session, int firstBlock) {
    if (firstBlock < session.hashes.length) {
      for (GpuRank rank : ranks) {
        rank.prefill(session.blockIds, session.hashes, firstBlock);
      }
    }
    scheduler.planStores(session.id, session.request.tokens(cache.blockSize()));
    computed.add(session);
  }

  /** Starts what became due; requests that have nothing to store are over. */
  private boolean startStep() {
    UMBPConnectorMetadata step = scheduler.takeStep();
    for (GpuRank rank : ranks) {
      rank.connector().startLoads(step, rank.computed());
    }
    for (GpuRank rank : ranks) {
      rank.connector().startStores(step, rank.computed());
    }
    boolean hasMoved = !computed.isEmpty() || !step.loads().isEmpty();
    List<Session> stored = new ArrayList<>();
    for (Session session : computed) {
      if (step.stores().containsKey(session.id)) {
        stored.add(session);
      } else {
        end(session);
      }
    }
    computed.clear();
    if (!stored.isEmpty()) {
      storing.put(step.storeEvent(), stored);
    }
    return hasMoved;
  }

  private boolean poll() {
    boolean hasMoved = false;
    UMBPConnectorWorkerMetadata ended = new UMBPConnectorWorkerMetadata(Map.of());
    for (GpuRank rank : ranks) {
      WorkerConnector.Report progressed = rank.connector().poll();
      for (LoadResult result : progressed.loads()) {
        loadEnded(rank, result);
        hasMoved = true;
      }
      if (!progressed.metadata().storeEvents().isEmpty()) {
        progressed
            .metadata()
            .storeEvents()
            .values()
            .forEach(result -> report.failedKeys += result.failedObjects().size());
        ended = ended.plus(progressed.metadata());
        hasMoved = true;
      }
    }
    for (Long event : scheduler.update(ended).keySet()) {
      List<Session> stored = storing.remove(event);
      if (stored != null) {
        stored.forEach(this::end);
      }
    }
    return hasMoved;
  }

  private void loadEnded(GpuRank rank, LoadResult result) {
    Session session = sessions.get(result.requestId());
    if (session == null) {
      throw new IllegalStateException("a load ended for no request in flight: " + result);
    }
    report.failedKeys += result.failedBlocks().size();
    report.loadedBytes += session.loadedBlocks * cache.blockBytes();
    for (GroupBlock failed : result.failedBlocks()) {
      report.loadedBytes -= cache.objectBytes(failed.groupId());
    }
    if (settings.verification() == ReplaySettings.Verification.ALL) {
      verify(rank, session, result.failedBlocks());
    }
    OptionalInt validTokens = scheduler.loadFinished(result);
    if (validTokens.isPresent()) {
      report.loadNanos.recordValue(System.nanoTime() - session.loadStart);
      int validBlocks = validTokens.getAsInt() / cache.blockSize();
      report.hitBlocks += validBlocks;
      compute(session, validBlocks);
    }
  }

  private void verify(GpuRank rank, Session session, List<GroupBlock> failedBlocks) {
    Set<GroupBlock> failed = Set.copyOf(failedBlocks);
    for (int group = 0; group < session.blockIds.length; group++) {
      long objectBytes = cache.objectBytes(group);
      for (int i = 0; i < session.loadedBlocks; i++) {
        int blockId = session.blockIds[group][i];
        if (failed.isEmpty() || !failed.contains(new GroupBlock(group, blockId))) {
          report.checkedBytes += objectBytes;
          report.corruptBytes += rank.wrongBytes(group, blockId, session.hashes[i]);
        }
      }
    }
  }

  private void end(Session session) {
    scheduler.touch(session.id, session.request.tokens(cache.blockSize()));
    scheduler.finish(session.id);
    for (int group = session.blockIds.length - 1; group >= 0; group--) {
      int[] ofGroup = session.blockIds[group];
      for (int i = ofGroup.length - 1; i >= 0; i--) {
        freeBlocks[freeCount++] = ofGroup[i];
      }
    }
    sessions.remove(session.id);
    report.requests++;
    progress.reached((int) report.requests);
  }

  private void idle() {
    idleTurns++;
    if (idleTurns < SPINS) {
      Thread.onSpinWait();
    } else {
      LockSupport.parkNanos(PARK_NANOS);
    }
  }

  /** Reads the pool's counts and looks whether everything was given back. */
  private void check() {
    for (GpuRank rank : ranks) {
      rank.synchronize();
    }
    PoolStats pool = runtime.stats();
    report.storedObjects = pool.storedObjects();
    report.storedBlocks = pool.storedObjects() / cache.objectsPerBlock();
    report.storedBytes = pool.storedBytes();
    report.evictedObjects = pool.evictedObjects();
    require(pool.leases() == 0, "%d leases are left", pool.leases());
    require(pool.unpublishedObjects() == 0, "%d stores are in flight", pool.unpublishedObjects());
    require(pool.doubleReleases() == 0, "%d leases were released twice", pool.doubleReleases());
    require(
        pool.usedBytes() + pool.freeBytes() == pool.capacityBytes()
            && pool.usedBytes() >= pool.publishedObjects() * cache.smallestObjectBytes()
            && pool.usedBytes() <= pool.publishedObjects() * cache.largestObjectBytes(),
        "%d bytes used by %d objects, %d free, capacity %d",
        pool.usedBytes(),
        pool.publishedObjects(),
        pool.freeBytes(),
        pool.capacityBytes());
    int running = scheduler.requestCount() + scheduler.storeEventCount();
    for (GpuRank rank : ranks) {
      running += rank.connector().runningCount();
    }
    require(running == 0, "%d requests, loads or store events are not forgotten", running);
    require(
        freeCount == freeBlocks.length,
        "%d of %d GPU blocks are free",
        freeCount,
        freeBlocks.length);
  }

  private void require(boolean holds, String format, Object... arguments) {
    if (!holds) {
      report.defects.add(String.format(format, arguments));
    }
  }

  @Override
  public void close() {
    scheduler.close();
    CloseResult result = runtime.close(CLOSE_BOUND);
    require(result.isClean(), "the pool was not closed cleanly: %s", result);
    gpus.close();
    report.defects.addAll(gpus.defects());
  }
}
