package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.ElementType;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.ShardedSource;
import io.umbp.api.SupportsShardedLoad;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPShardPlanner;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostKVPages;
import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Runs the example of docs/tp-resharding.md, and holds the two texts against each other. */
class TPReshardingExampleTest {
  private static final Duration LONG = Duration.ofSeconds(10);
  private static final int FLOATS = 16 * 32;

  private final EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();
  private final UMBPNamespace mine = new UMBPNamespace("m-tp1");
  private final UMBPNamespace theirs = new UMBPNamespace("m-tp2");
  private final BlockHashes hashes = BlockHashes.of(List.of(BlockHash.fromHex("0a")));

  /** One layer of two heads of 32 floats, 16 tokens a block, pages by head. */
  private static KVCacheConfig cache() {
    KVCacheSpec spec =
        new KVCacheSpec.Attention("full", 16, ElementType.F32, 2, 32, 0, TPSharding.SHARDED, 0);
    return new KVCacheConfig(
        List.of(
            new KVCacheConfig.Group(
                List.of(new KVCacheConfig.Layer("k", spec)), KVCacheConfig.Transfer.ENABLED)),
        List.of(KVCacheConfig.Tensor.packed(KVCacheLayout.LBHNC, KVSplit.FUSED, 4, List.of("k"))));
  }

  private static float[] head(float value) {
    float[] head = new float[FLOATS];
    Arrays.fill(head, value);
    return head;
  }

  /** Stores one head with a rank of the engine with TP 2. */
  private void store(int rank) {
    RankTopology topology = RankTopology.tensorParallel(rank, 2);
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(cache(), topology);
    HostKVPages pages = HostKVPages.create(layout, 4);
    pages.layer("k").put(1, 0, head(rank + 0.5f), 0, FLOATS);
    UMBPWorkerHandle worker = runtime.createWorkerHandle(theirs, topology, layout);
    worker.registerBuffers(pages.tensors());
    BlockKeys keys = new BlockIdentityCodec(theirs, layout).localKeys(0, hashes);
    TransferJobState stored = worker.store(BlockStoreBatch.of("r", keys, 1), DeviceFence.none());
    assertEquals(1, worker.publish(worker.await(stored, LONG)));
  }

  @Test
  void bothHeadsComeBack() {
    store(0);
    store(1);
    KVCacheConfig cache = cache();
    RankTopology rank = RankTopology.single();
    HostKVPages pages = HostKVPages.create(KVLayoutPlanner.describe(cache, rank), 4);
    // example-begin
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(cache, rank); // this engine has TP 1
    SupportsShardedLoad worker = runtime.createWorkerHandle(mine, rank, layout);
    worker.registerBuffers(pages.tensors());

    RankTopology other = RankTopology.tensorParallel(0, 2); // any rank of the one with TP 2
    KVLayoutDescriptor stored = KVLayoutPlanner.describe(cache, other);
    ShardedSource source = TPShardPlanner.plan(theirs, stored, layout); // once, keep it

    // The scheduler asks for the producer's keys: a block is there when all of its ranks' are.
    UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(theirs, other, stored);
    BlockKeys objects = new BlockIdentityCodec(theirs, stored).allRankKeys(0, hashes);
    boolean[] present = scheduler.lookup(objects); // two answers a block

    // The worker names the blocks by its own keys.
    BlockKeys keys = new BlockIdentityCodec(mine, layout).localKeys(0, hashes);
    TransferJobState loaded =
        worker.load(BlockLoadBatch.of("request-1", keys, 3), source, DeviceFence.none());
    // example-end
    assertArrayEquals(new boolean[] {true, true}, present);
    assertEquals(KeyOutcome.COMPLETED, worker.await(loaded, LONG).outcome(0));
    float[] restored = new float[2 * FLOATS];
    pages.layer("k").take(3, 0, restored, 0, restored.length);
    assertArrayEquals(head(0.5f), Arrays.copyOf(restored, FLOATS));
    assertArrayEquals(head(1.5f), Arrays.copyOfRange(restored, FLOATS, 2 * FLOATS));
    runtime.close(LONG);
  }

  @Test
  void theDocumentShowsThisVeryExample() throws IOException {
    ExampleText.assertShown(
        "src/test/java/io/umbp/core/TPReshardingExampleTest.java", "../docs/tp-resharding.md", 4);
  }
}
