package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKey;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.DeviceFence;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.StoreEventResult.StoredObject;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.ConnectorRig.Step;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Groups whose objects are the same on all tensor-parallel ranks, from step to step. */
class ReplicatedGroupsTest {
  private static final String START = "umbp:vllm:v1:m:";

  /** Group 0 replicated and group 1 sharded, on ranks of one stage. */
  private static ConnectorRig mixed(int tp, int poolObjects) {
    return new ConnectorRig(Shape.of(tp, 1, 0), poolObjects, 16, 16, 16);
  }

  private static Step store(ConnectorRig rig, String request, BlockHashes hashes, int first) {
    int count = hashes.size();
    rig.scheduler.lookup(request, count * 16, hashes, 0);
    rig.scheduler.admit(request, 0, blocks(first, count), blocks(first, count));
    rig.scheduler.planStores(request, count * 16);
    return rig.step();
  }

  private static String key(String rank, int group, BlockHashes hashes, int index) {
    return START + rank + ":g" + group + ":" + hashes.get(index);
  }

  @ParameterizedTest(name = "case 5: with TP {0} two stages store 2 objects and load their own")
  @ValueSource(ints = {1, 2})
  void eachStageStoresItsOwnObject(int tp) {
    Shape shape = tp == 1 ? Shape.of(1, 2) : Shape.of(tp, 2, 0);
    try (ConnectorRig rig = new ConnectorRig(shape, 8, 16, 16)) {
      BlockHashes hash = hashes(1, 1);
      for (int rank = 0; rank < 2 * tp; rank++) {
        rig.fill(rank, 0, 5, 10 + rank / tp);
      }
      Step stored = rig.store("first", 16, hash, 5);
      assertEquals(Set.of(), stored.endedEvents().get(0L).failedObjects());
      assertEquals(2, rig.runtime.stats().storedObjects());
      assertEquals(2, rig.runtime.stats().publishedObjects());

      assertEquals(new LoadSpec(0, 16), rig.scheduler.lookup("r", 17, hash, 0));
      rig.scheduler.admit("r", 16, new int[] {9, 10});
      assertEquals(Map.of("r", 16), rig.step().validTokens());
      for (int rank = 0; rank < 2 * tp; rank++) {
        assertTrue(rig.holds(rank, 0, 9, 10 + rank / tp), "rank " + rank);
      }
    }
  }

  @ParameterizedTest(name = "case 5: with TP {0} and stage 1 missing the hit is 0")
  @ValueSource(ints = {1, 2})
  void aMissingStageIsAMiss(int tp) {
    Shape shape = tp == 1 ? Shape.of(1, 2) : Shape.of(tp, 2, 0);
    try (ConnectorRig rig = new ConnectorRig(shape, 8, 16, 16)) {
      BlockHashes hash = hashes(1, 1);
      rig.copies.failNext((row, key) -> false);
      rig.copies.failNext((row, key) -> true);
      Step stored = rig.store("r", 16, hash, 5);
      assertEquals(
          new StoreEventResult(2 * tp, Set.of(new StoredObject(0, hash.get(0)))),
          stored.endedEvents().get(0L));
      assertEquals(1, rig.runtime.stats().publishedObjects());
      assertEquals(0, rig.hit(17, hash));
      rig.scheduler.planStores("r", 16);
      rig.step();
      assertEquals(2, rig.runtime.stats().publishedObjects());
      assertEquals(16, rig.hit(17, hash));
    }
  }

  @Test
  @DisplayName("case 6: in a shared runtime TP 4 stores 1 + 4 objects, and every rank loads both")
  void oneCopyInASharedRuntime() {
    try (ConnectorRig rig = mixed(4, 8)) {
      BlockHashes hash = hashes(1, 1);
      for (int rank = 0; rank < 4; rank++) {
        rig.fill(rank, 0, 3, 77);
        rig.fill(rank, 1, 3, 20 + rank);
      }
      store(rig, "first", hash, 3);
      assertEquals(5, rig.runtime.stats().storedObjects());
      assertArrayEquals(new boolean[] {true, true, true, true, true}, lookup(rig.runtime, hash));

      assertEquals(16, rig.scheduler.lookup("r", 17, hash, 0).tokensToLoad());
      rig.scheduler.admit("r", 16, blocks(9, 2), blocks(9, 2));
      assertEquals(Map.of("r", 16), rig.step().validTokens());
      for (int rank = 0; rank < 4; rank++) {
        assertTrue(rig.holds(rank, 0, 9, 77), "replicated on rank " + rank);
        assertTrue(rig.holds(rank, 1, 9, 20 + rank), "sharded on rank " + rank);
      }
    }
  }

  /** Looks the five keys of one hash up: the shared one, then those of the four ranks. */
  private static boolean[] lookup(EmbeddedRuntime runtime, BlockHashes hash) {
    List<String> keys = new ArrayList<>(List.of(key("tp*:pcp0:dcp0:pp0", 0, hash, 0)));
    for (int rank = 0; rank < 4; rank++) {
      keys.add(key("tp" + rank + ":pcp0:dcp0:pp0", 1, hash, 0));
    }
    RankTopology rank = RankTopology.tensorParallel(0, 4);
    try (UMBPSchedulerHandle handle =
        runtime.createSchedulerHandle(
            ConnectorRig.NAMESPACE, rank, ConnectorRig.layout(rank, Set.of(0), 16, 16))) {
      return handle.lookup(keys);
    }
  }

  @Test
  @DisplayName(
      "case 6: with a private pool a process each of TP 4 stores both, under the same keys")
  void aCopyForEachPrivatePool() {
    Shape shape = Shape.of(4, 1, 0).withPrivatePools();
    try (ConnectorRig rig = new ConnectorRig(shape, 8, 16, 16, 16)) {
      BlockHashes hash = hashes(1, 1);
      Step stored = store(rig, "r", hash, 3);
      assertEquals(new StoreEventResult(4, Set.of()), stored.endedEvents().get(0L));
      long objects = 0;
      for (int rank = 0; rank < 4; rank++) {
        objects += rig.runtimes.get(rank).stats().storedObjects();
        boolean[] expected = {true, rank == 0, rank == 1, rank == 2, rank == 3};
        assertArrayEquals(expected, lookup(rig.runtimes.get(rank), hash), "rank " + rank);
      }
      assertEquals(8, objects);
    }
  }

  @Test
  @DisplayName("case 6: what only rank 0's process stored, rank 3's does not have")
  void aPrivatePoolIsSeenByItsOwnRank() {
    Shape shape = Shape.of(4, 1, 0).withPrivatePools();
    try (ConnectorRig rig = new ConnectorRig(shape, 8, 16, 16, 16)) {
      BlockHashes hash = hashes(1, 1);
      rig.scheduler.lookup("r", 16, hash, 0);
      rig.scheduler.admit("r", 0, blocks(3, 1), blocks(3, 1));
      rig.scheduler.planStores("r", 16);
      UMBPConnectorMetadata step = rig.scheduler.takeStep();
      rig.workers.get(0).startStores(step, DeviceFence.hostComplete());
      rig.gpu.runAll();
      rig.scheduler.update(rig.workers.get(0).poll().metadata());
      assertArrayEquals(
          new boolean[] {true, true, false, false, false}, lookup(rig.runtimes.get(0), hash));
      assertArrayEquals(new boolean[5], lookup(rig.runtimes.get(3), hash));
      for (int rank = 1; rank < 4; rank++) {
        rig.workers.get(rank).startStores(step, DeviceFence.hostComplete());
      }
    }
  }

  /** Something whose calls of one method are shown to a watcher first. */
  private static <T> T watched(
      Class<T> type, T target, String method, BiConsumer<Object, Object[]> watcher) {
    return type.cast(
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (proxy, called, arguments) -> {
              Object result;
              try {
                result = called.invoke(target, arguments);
              } catch (InvocationTargetException e) {
                throw e.getCause();
              }
              if (called.getName().equals(method)) {
                watcher.accept(result, arguments);
              }
              return result;
            }));
  }

  @ParameterizedTest(
      name = "case 7: with group 0 replicated and TP 2, PP {0} the keys probed are those written")
  @ValueSource(ints = {1, 2})
  void theSchedulerProbesWhatTheWorkersWrite(int pp) {
    try (ConnectorRig rig = new ConnectorRig(Shape.of(2, pp, 0), 32, 16, 16, 32)) {
      Set<String> probed = new HashSet<>();
      UMBPRuntime runtime =
          (UMBPRuntime)
              Proxy.newProxyInstance(
                  UMBPRuntime.class.getClassLoader(),
                  new Class<?>[] {UMBPRuntime.class},
                  (proxy, called, arguments) ->
                      watched(
                          UMBPSchedulerHandle.class,
                          (UMBPSchedulerHandle) called.invoke(rig.runtime, arguments),
                          "lookup",
                          (present, keys) ->
                              ((List<?>) keys[0]).forEach(k -> probed.add((String) k))));
      SchedulerConnector scheduler =
          new SchedulerConnector(runtime, rig.handshakes().get(0).layout().topology(), 16);
      scheduler.adopt(rig.handshakes());
      List<String> written = new ArrayList<>();
      List<WorkerConnector> workers = new ArrayList<>();
      for (int rank = 0; rank < 2 * pp; rank++) {
        workers.add(
            new WorkerConnector(
                watched(
                    UMBPWorkerHandle.class,
                    rig.handles.get(rank),
                    "store",
                    (job, plans) ->
                        ((List<?>) plans[0])
                            .forEach(p -> written.add(((BlockTransferPlan) p).key().toString()))),
                rig.handshakes().get(rank)));
      }
      BlockHashes prompt = hashes(1, 2);
      scheduler.lookup("r", 33, prompt, 0);
      scheduler.admit("r", 0, blocks(0, 3), blocks(0, 2));
      scheduler.planStores("r", 32);
      UMBPConnectorMetadata step = scheduler.takeStep();
      workers.forEach(worker -> worker.startStores(step, DeviceFence.hostComplete()));
      rig.gpu.runAll();
      workers.forEach(WorkerConnector::poll);

      assertEquals(probed, new HashSet<>(written));
      assertEquals(probed.size(), written.size(), "each by one rank");
      assertEquals(2 * pp + 2 * pp, written.size(), "two blocks of group 0, one of group 1");
      assertTrue(written.contains(key("tp*:pcp0:dcp0:pp" + (pp - 1), 0, prompt, 1)));
      assertEquals(32, scheduler.lookup("r", 33, prompt, 0).tokensToLoad());
      boolean[] older = rig.store.lookup(List.of("umbp:vllm:v0:m:tp0:g0:" + prompt.get(0)));
      assertArrayEquals(new boolean[] {false}, older, "a key of an older format is a miss");
    }
  }

  @Test
  @DisplayName("case 35: of mixed groups the tail's objects go first, and are named")
  void theTailOfMixedGroupsIsEvictedFirst() {
    try (ConnectorRig rig = mixed(2, 6)) {
      BlockHashes chain = hashes(1, 2);
      store(rig, "chain", chain, 0);
      assertEquals(6, rig.runtime.stats().publishedObjects());
      rig.scheduler.touch("chain", 32);
      store(rig, "other", hashes(2, 1), 5);
      assertEquals(
          List.of(
              key("tp1:pcp0:dcp0:pp0", 1, chain, 1),
              key("tp0:pcp0:dcp0:pp0", 1, chain, 1),
              key("tp*:pcp0:dcp0:pp0", 0, chain, 1)),
          rig.store.takeEvictedKeys().stream().map(BlockKey::toString).toList());
      assertEquals(16, rig.hit(33, chain));
      assertEquals(16, rig.hit(17, hashes(2, 1)));
    }
  }

  @Test
  void aSharedObjectThatFailsIsNamedOnceAndOfferedAgainToItsWriter() {
    try (ConnectorRig rig = mixed(2, 16)) {
      BlockHashes prompt = hashes(1, 2);
      rig.copies.failNext((row, key) -> key == 2);
      Step stored = store(rig, "r", prompt, 0);
      assertEquals(
          new StoreEventResult(2, Set.of(new StoredObject(0, prompt.get(1)))),
          stored.endedEvents().get(0L));
      assertEquals(5, rig.runtime.stats().publishedObjects());
      assertEquals(16, rig.hit(33, prompt));
      rig.scheduler.planStores("r", 32);
      rig.step();
      assertEquals(6, rig.runtime.stats().storedObjects(), "only the failed one was copied again");
      assertEquals(32, rig.hit(33, prompt));
    }
  }

  @Test
  void aSharedObjectThatOneRankCannotLoadCutsThePrefix() {
    try (ConnectorRig rig = mixed(2, 16)) {
      BlockHashes prompt = hashes(1, 2);
      store(rig, "first", prompt, 0);
      rig.scheduler.lookup("r", 33, prompt, 0);
      rig.scheduler.admit("r", 32, blocks(10, 2), blocks(20, 2));
      UMBPConnectorMetadata step = rig.scheduler.takeStep();
      rig.workers.get(0).startLoads(step, DeviceFence.hostComplete());
      rig.copies.failNext((row, key) -> key == 2);
      rig.workers.get(1).startLoads(step, DeviceFence.hostComplete());
      rig.gpu.runAll();
      LoadResult whole = rig.workers.get(0).poll().loads().get(0);
      LoadResult partial = rig.workers.get(1).poll().loads().get(0);
      assertEquals(new LoadResult("r", List.of()), whole);
      assertEquals(new LoadResult("r", List.of(new GroupBlock(0, 11))), partial);
      rig.scheduler.loadFinished(whole);
      assertEquals(16, rig.scheduler.loadFinished(partial).getAsInt());
    }
  }

  @Test
  void aRankWithNothingOfItsOwnToStoreReportsTheEvent() {
    try (ConnectorRig rig = new ConnectorRig(Shape.of(3, 1, 0), 8, 16, 16)) {
      Step stored = rig.store("r", 32, hashes(1, 2), 0, 1);
      assertEquals(new StoreEventResult(3, Set.of()), stored.endedEvents().get(0L));
      assertEquals(2, rig.runtime.stats().storedObjects());
    }
  }
}
