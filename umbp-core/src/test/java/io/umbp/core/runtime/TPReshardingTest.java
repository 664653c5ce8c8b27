package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.ElementType;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankNamespace;
import io.umbp.api.ShardedSource;
import io.umbp.api.ShardedSource.Slice;
import io.umbp.api.TransferJobState;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.runtime.TPEngine.Rank;
import io.umbp.core.runtime.TPEngine.Tensor;
import io.umbp.testkit.FakeGpu;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * What an engine of one tensor-parallel size stored, engines of others load, with every byte of
 * their memory checked.
 */
class TPReshardingTest {
  private static final int[] SIZES = {1, 2, 4, 8};

  private final FakeGpu gpu = FakeGpu.asynchronous(1);
  private final EmbeddedRuntime runtime =
      EmbeddedRuntime.builder()
          .capacityBytes(64 << 20)
          .slabBytes(1 << 20)
          .copyEngine(gpu::copyEngine)
          .build();

  @AfterEach
  void close() {
    assertEquals(0, runtime.stats().leases());
    assertEquals(0, runtime.stats().doubleReleases());
    runtime.close(Duration.ofSeconds(20));
    gpu.close();
    assertEquals(0, gpu.useAfterFreeCount());
  }

  private TPEngine engine(String name, int tpSize, List<Tensor> tensors) {
    return new TPEngine(gpu, runtime, name + tpSize, tpSize, tensors);
  }

  private static KVCacheSpec.Attention attention(int heads, TPSharding sharding) {
    return new KVCacheSpec.Attention("full", 4, ElementType.F16, heads, 2, 2, sharding, 0);
  }

  private static List<Tensor> twoLayers(int heads, KVCacheLayout layout, KVSplit split) {
    KVCacheSpec spec = attention(heads, TPSharding.SHARDED);
    return List.of(new Tensor("full", 0, spec, 2, layout, split, heads == 16 ? 2 : 1));
  }

  static Stream<Arguments> pages() {
    List<Arguments> pages = new ArrayList<>();
    for (KVCacheLayout layout : KVCacheLayout.values()) {
      for (KVSplit split : KVSplit.values()) {
        boolean isMain = layout == KVCacheLayout.LBNHC || layout == KVCacheLayout.LBHNC;
        for (int heads : isMain ? new int[] {8, 16, 32} : new int[] {8, 16}) {
          pages.add(Arguments.of(layout, split, heads));
        }
      }
    }
    return pages.stream();
  }

  /**
   * Hash 0 is whole at every producer; hash {@code r + 1} is missing on producer rank {@code r}.
   */
  @ParameterizedTest(name = "{0} {1} {2} heads")
  @MethodSource("pages")
  void everySizeLoadsWhatEverySizeStored(KVCacheLayout layout, KVSplit split, int heads) {
    List<Tensor> tensors = twoLayers(heads, layout, split);
    KVCacheSpec.Attention spec = attention(heads, TPSharding.SHARDED);
    List<TPEngine> producers = new ArrayList<>();
    for (int size : SIZES) {
      TPEngine producer = engine("p", size, tensors);
      for (Rank rank : producer.ranks) {
        int[] hashes =
            IntStream.rangeClosed(0, size).filter(hash -> hash != rank.tp() + 1).toArray();
        rank.store(0, hashes, blocks(hashes, 3, 1));
      }
      producers.add(producer);
    }
    for (int size : SIZES) {
      for (Rank rank : engine("c", size, tensors).ranks) {
        for (TPEngine producer : producers) {
          rank.reset();
          loadAll(producer, rank, spec);
        }
      }
    }
  }

  private static int[] blocks(int[] hashes, int step, int first) {
    return IntStream.of(hashes).map(hash -> (step * hash + first) % TPEngine.BLOCKS).toArray();
  }

  private static void loadAll(TPEngine producer, Rank consumer, KVCacheSpec.Attention spec) {
    int[] hashes = IntStream.rangeClosed(0, producer.ranks.size()).toArray();
    int[] blocks = blocks(hashes, 5, 2);
    TransferJobState job = consumer.load(consumer.source(producer), 0, hashes, blocks);
    int end = consumer.firstHead(spec) + consumer.heads(spec);
    int completed = 0;
    for (int hash : hashes) {
      boolean isNeeded = false;
      if (hash > 0) {
        Rank missing = producer.ranks.get(hash - 1);
        isNeeded =
            missing.firstHead(spec) < end
                && consumer.firstHead(spec) < missing.firstHead(spec) + missing.heads(spec);
        assertFalse(producer.isPresent(0, hash));
      }
      assertEquals(isNeeded ? KeyOutcome.MISS : KeyOutcome.COMPLETED, job.outcome(hash));
      if (isNeeded) {
        assertEquals(
            "the object of tp"
                + (hash - 1)
                + ":pcp0:dcp0:pp0 in namespace '"
                + producer.namespace
                + "' is not there",
            job.detail(hash));
      } else {
        consumer.expect(0, hash, blocks[hash]);
        completed++;
      }
    }
    assertTrue(producer.isPresent(0, 0));
    assertEquals(completed * consumer.objectBytes(0), job.completedBytes());
    consumer.assertMemory("from " + producer.namespace);
  }

  @ParameterizedTest(name = "{0} heads")
  @ValueSource(ints = {1, 2, 4})
  @DisplayName("case 15: heads that several ranks hold come from one of them")
  void fewerHeadsThanRanks(int heads) {
    for (KVCacheLayout layout : List.of(KVCacheLayout.LBNHC, KVCacheLayout.LBHNC)) {
      List<Tensor> tensors = twoLayers(heads, layout, KVSplit.BLOCKS);
      for (int from : SIZES) {
        TPEngine producer = engine("p." + layout, from, tensors);
        producer.storeAll(0, new int[] {7}, 3);
        for (int to : SIZES) {
          for (Rank rank : engine("c." + layout + from, to, tensors).ranks) {
            TransferJobState job = rank.load(rank.source(producer), 0, new int[] {7}, 5);
            assertEquals(KeyOutcome.COMPLETED, job.outcome(0), job.detail(0));
            rank.expect(0, 7, 5);
            rank.assertMemory(from + " to " + to);
          }
        }
      }
    }
  }

  /** Groups: a latent, heads, a state that all ranks share, and a group of heads and latents. */
  private static List<Tensor> hybrid() {
    KVCacheSpec latent =
        new KVCacheSpec.Attention("mla", 8, ElementType.BF16, 1, 9, 0, TPSharding.REPLICATED, 0);
    KVCacheSpec state =
        new KVCacheSpec.State("state", 8, ElementType.U8, 100, TPSharding.REPLICATED);
    KVCacheSpec shared = attention(4, TPSharding.REPLICATED);
    return List.of(
        new Tensor("latent", 0, latent, 3, KVCacheLayout.LBNHC, KVSplit.FUSED, 1),
        new Tensor(
            "heads",
            1,
            attention(8, TPSharding.SHARDED),
            2,
            KVCacheLayout.BLNHC,
            KVSplit.BLOCKS,
            2),
        new Tensor("state", 2, state, 2, KVCacheLayout.LBNHC, KVSplit.FUSED, 1),
        new Tensor(
            "mixed", 3, attention(8, TPSharding.SHARDED), 1, KVCacheLayout.LBHNC, KVSplit.FUSED, 1),
        new Tensor("shared", 3, shared, 1, KVCacheLayout.LBNHC, KVSplit.PLANES, 1));
  }

  @Test
  void replicatedGroupsComeWholeFromTheSharedObject() {
    int[] sizes = {1, 2, 4};
    for (int from : sizes) {
      TPEngine producer = engine("p", from, hybrid());
      for (int group = 0; group < 4; group++) {
        producer.storeAll(group, new int[] {10 + group}, 6);
      }
      for (int to : sizes) {
        for (Rank rank : engine("c" + from, to, hybrid()).ranks) {
          ShardedSource source = rank.source(producer);
          for (int group : new int[] {0, 2}) {
            ShardedSource.Group plan = source.groups().get(group);
            int tp = from == 1 ? 0 : RankNamespace.ALL_TP;
            assertEquals(List.of(new RankNamespace(tp, 0, 0, 0)), plan.producers());
            assertEquals(List.of(new Slice(0, 0, 0, rank.objectBytes(group))), plan.slices());
          }
          for (int group = 0; group < 4; group++) {
            TransferJobState job = rank.load(source, group, new int[] {10 + group}, 2);
            assertEquals(KeyOutcome.COMPLETED, job.outcome(0), job.detail(0));
            rank.expect(group, 10 + group, 2);
          }
          rank.assertMemory(from + " to " + to);
        }
      }
    }
  }
}
