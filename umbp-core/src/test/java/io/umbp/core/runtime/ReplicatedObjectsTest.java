package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.BlockTransferPlan;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.ObjectReach;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.TransferJobState.Status;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Objects that all tensor-parallel ranks share, seen from the handles. */
class ReplicatedObjectsTest {
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final BlockHashes HASH = BlockHashes.of(List.of(BlockHash.fromHex("00ff")));
  private static final int PAGE = 64;

  private final List<EmbeddedRuntime> runtimes = new ArrayList<>();

  @AfterEach
  void close() {
    for (EmbeddedRuntime runtime : runtimes) {
      assertEquals(0, runtime.stats().leases());
      assertEquals(0, runtime.stats().unpublishedObjects());
      runtime.close(Duration.ZERO);
    }
  }

  private EmbeddedRuntime runtime(ObjectReach reach) {
    EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 16).reach(reach).build();
    runtimes.add(runtime);
    return runtime;
  }

  /** One rank with its pages in host memory. */
  private static final class Rank {
    final KVLayoutDescriptor layout;
    final BlockIdentityCodec codec;
    final HostKVPages pages;
    final UMBPWorkerHandle worker;
    final UMBPSchedulerHandle scheduler;

    Rank(EmbeddedRuntime runtime, KVLayoutDescriptor layout) {
      this.layout = layout;
      codec = new BlockIdentityCodec(NAMESPACE, layout);
      pages = HostKVPages.create(layout, 8);
      worker = runtime.createWorkerHandle(NAMESPACE, layout.topology(), layout);
      worker.registerBuffers(pages.tensors());
      scheduler = runtime.createSchedulerHandle(NAMESPACE, layout.topology(), layout);
    }

    void fill(int block, int value) {
      for (KVRegion region : layout.regions()) {
        pages.layer(region.layerName()).put(block, 0, page(region, value), 0, PAGE / 4);
      }
    }

    void assertHolds(int block, int value) {
      for (KVRegion region : layout.regions()) {
        float[] found = new float[PAGE / 4];
        pages.layer(region.layerName()).take(block, 0, found, 0, PAGE / 4);
        assertArrayEquals(page(region, value), found, region.layerName());
      }
    }

    private static float[] page(KVRegion region, int value) {
      float[] page = new float[PAGE / 4];
      for (int i = 0; i < page.length; i++) {
        page[i] = value * 1000f + region.layerName().hashCode() % 97 + i;
      }
      return page;
    }

    int store(int groupId, int block) {
      TransferJobState job =
          worker.store(
              BlockStoreBatch.of("r", codec.localKeys(groupId, HASH), block), DeviceFence.none());
      assertEquals(Status.COMPLETED, job.status(), job::toString);
      return worker.publish(job);
    }

    TransferJobState load(int groupId, int block) {
      return worker.load(
          BlockLoadBatch.of("r", codec.localKeys(groupId, HASH), block), DeviceFence.none());
    }

    boolean isHit(int groupId) {
      for (boolean isPresent : scheduler.lookup(codec.allRankKeys(groupId, HASH))) {
        if (!isPresent) {
          return false;
        }
      }
      return true;
    }
  }

  private static KVLayoutDescriptor layout(
      RankTopology place, Set<Integer> replicated, int... groupOfLayer) {
    List<KVRegion> regions = new ArrayList<>();
    for (int i = 0; i < groupOfLayer.length; i++) {
      String layer = "layer." + (place.ppRank() * groupOfLayer.length + i);
      regions.add(new KVRegion(layer, groupOfLayer[i], PAGE, PAGE, (long) i * PAGE, 16));
    }
    return new KVLayoutDescriptor(regions, place, replicated, KVLayoutDescriptor.RANK_LOCAL);
  }

  @ParameterizedTest(name = "case 5: 4 layers, PP 2, TP {0}: 2 objects, each stage its own bytes")
  @ValueSource(ints = {1, 2})
  void theStageIsPartOfTheKey(int tp) {
    EmbeddedRuntime runtime = runtime(ObjectReach.EVERY_RANK);
    Set<Integer> replicated = tp == 1 ? Set.of() : Set.of(0);
    List<Rank> ranks = new ArrayList<>();
    for (int rank = 0; rank < 2 * tp; rank++) {
      RankTopology place = RankTopology.ofGlobalRank(rank, tp, 1, 1, 2);
      ranks.add(new Rank(runtime, layout(place, replicated, 0, 0)));
    }
    Rank stage0 = ranks.get(0);
    Rank stage1 = ranks.get(tp);
    assertEquals("layer.2", stage1.layout.regions().get(0).layerName());
    stage0.fill(1, 5);
    stage1.fill(1, 6);
    assertEquals(1, stage0.store(0, 1));
    assertFalse(stage0.isHit(0), "stage 1 is missing");
    assertEquals(1, stage1.store(0, 1), "stage 1 is not skipped because stage 0 stored first");
    assertEquals(2, runtime.stats().publishedObjects());
    assertEquals(2, runtime.stats().storedObjects());
    for (Rank rank : ranks) {
      assertTrue(rank.isHit(0));
      assertEquals(Status.COMPLETED, rank.load(0, 4).status());
      rank.assertHolds(4, rank.layout.topology().ppRank() == 0 ? 5 : 6);
    }
  }

  private static Rank ofFour(EmbeddedRuntime runtime, int rank) {
    return new Rank(runtime, layout(RankTopology.tensorParallel(rank, 4), Set.of(0), 0, 1));
  }

  @Test
  @DisplayName("case 6: TP 4 in a shared runtime: 1 + 4 objects, also when every rank stores both")
  void aSharedPoolKeepsOneCopy() {
    EmbeddedRuntime runtime = runtime(ObjectReach.EVERY_RANK);
    List<Rank> ranks = new ArrayList<>();
    for (int rank = 0; rank < 4; rank++) {
      ranks.add(ofFour(runtime, rank));
      assertEquals(ObjectReach.EVERY_RANK, ranks.get(rank).worker.reach());
      ranks.get(rank).fill(1, rank);
    }
    for (int rank = 0; rank < 4; rank++) {
      assertEquals(rank == 0 ? 1 : 0, ranks.get(rank).store(0, 1), "newly visible");
      assertEquals(1, ranks.get(rank).store(1, 1));
    }
    assertEquals(5, runtime.stats().publishedObjects());
    assertEquals(5, runtime.stats().storedObjects());
    assertTrue(ranks.get(2).isHit(0) && ranks.get(2).isHit(1));
    assertEquals(Status.COMPLETED, ranks.get(3).load(0, 2).status());
    assertEquals(5, ranks.get(0).scheduler.clear().removed());
    assertFalse(ranks.get(3).isHit(0));
  }

  @Test
  @DisplayName("case 6: TP 4 with private pools: 8 objects, and rank 3 finds nothing of rank 0's")
  void aPrivatePoolKeepsItsOwnCopy() {
    List<Rank> ranks = new ArrayList<>();
    for (int rank = 0; rank < 4; rank++) {
      ranks.add(ofFour(runtime(ObjectReach.OWN_RANK), rank));
      assertEquals(ObjectReach.OWN_RANK, ranks.get(rank).worker.reach());
    }
    Rank rank3 = ranks.get(3);
    ranks.get(0).store(0, 1);
    ranks.get(0).store(1, 1);
    BlockKeys keys = rank3.codec.localKeys(new int[] {0, 1}, HASH.select(0, 0));
    assertEquals(
        List.of(
            "umbp:vllm:v1:m:tp*:pcp0:dcp0:pp0:g0:00ff", "umbp:vllm:v1:m:tp3:pcp0:dcp0:pp0:g1:00ff"),
        keys);
    assertArrayEquals(new boolean[2], rank3.scheduler.lookup(keys));
    assertEquals(KeyOutcome.MISS, rank3.load(0, 2).outcome(0));
    for (int rank = 1; rank < 4; rank++) {
      assertEquals(1, ranks.get(rank).store(0, 1));
      assertEquals(1, ranks.get(rank).store(1, 1));
    }
    assertEquals(8, runtimes.stream().mapToLong(each -> each.stats().storedObjects()).sum());
    assertArrayEquals(new boolean[] {true, true}, rank3.scheduler.lookup(keys));
  }

  @Test
  void keysOfTheOtherKindAreRefused() {
    Rank rank = ofFour(runtime(ObjectReach.EVERY_RANK), 1);
    BlockKeys plain = rank.codec.localKeys(0, HASH).replicating(Set.of());
    UMBPException refusal =
        assertThrows(
            UMBPException.class,
            () -> rank.worker.store(BlockStoreBatch.of("r", plain, 1), DeviceFence.none()));
    assertEquals(
        "in the keys the groups [] are replicated, in the handle's layout [0]",
        refusal.getMessage());
    BlockTransferPlan ofOwnRank = new BlockTransferPlan(plain.key(0), 1, "r");
    refusal =
        assertThrows(
            UMBPException.class, () -> rank.worker.load(List.of(ofOwnRank), DeviceFence.none()));
    assertEquals(
        "key umbp:vllm:v1:m:tp1:pcp0:dcp0:pp0:g0:00ff was given to the handle of"
            + " tp*:pcp0:dcp0:pp0 in namespace 'm'",
        refusal.getMessage());
    BlockTransferPlan shared = new BlockTransferPlan(rank.codec.localKey(0, HASH.get(0)), 1, "r");
    assertEquals(KeyOutcome.MISS, rank.worker.load(List.of(shared), DeviceFence.none()).outcome(0));
  }
}
