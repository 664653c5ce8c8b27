package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostKVPages;
import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Runs the example of the README, and holds the two texts against each other. */
class ReadmeExampleTest {
  @Test
  void twoBlocksComeBack() {
    // example-begin
    float[] kv = new float[1024]; // one block of one layer's K: 16 tokens of 64 floats
    Arrays.fill(kv, 0.5f);
    RankTopology rank = RankTopology.single();
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(
            List.of( // name, group, bytes between blocks, bytes of a block, bytes before, tokens
                new KVRegion("layer0.k", 0, 4096, 4096, 0, 16),
                new KVRegion("layer0.v", 0, 4096, 4096, 4096, 16)),
            rank);
    HostKVPages pages = HostKVPages.create(layout, 8); // the engine's KV pool, here in host memory
    int[] mine = {pages.acquire().getAsInt(), pages.acquire().getAsInt()};
    pages.layer("layer0.k").put(mine[0], 0, kv, 0, kv.length); // ... and so on for each page

    UMBPNamespace model = new UMBPNamespace("my-model-f32-v1");
    EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(64L << 20).build();
    UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(model, rank, layout);
    UMBPWorkerHandle worker = runtime.createWorkerHandle(model, rank, layout);
    worker.registerBuffers(pages.tensors());

    // The hash of a block covers the hash of the block before it and its own tokens.
    BlockHashes hashes = BlockHashes.of(List.of(BlockHash.fromHex("0a"), BlockHash.fromHex("0b")));
    BlockKeys keys = new BlockIdentityCodec(model, rank).localKeys(0, hashes);
    TransferJobState stored =
        worker.store(BlockStoreBatch.of("request-1", keys, mine), DeviceFence.none());
    worker.publish(worker.await(stored, Duration.ofSeconds(1)));

    boolean[] present = scheduler.lookup(keys); // both are there
    int[] other = {pages.acquire().getAsInt(), pages.acquire().getAsInt()};
    TransferJobState loaded =
        worker.load(BlockLoadBatch.of("request-2", keys, other), DeviceFence.none());
    loaded = worker.await(loaded, Duration.ofSeconds(1));
    if (loaded.status() != TransferJobState.Status.COMPLETED) {
      throw new IllegalStateException("recompute " + Arrays.toString(loaded.failedBlockIds()));
    }
    runtime.close(Duration.ofSeconds(5)); // closes the handles too
    // example-end
    assertArrayEquals(new boolean[] {true, true}, present);
    float[] restored = new float[1024];
    pages.layer("layer0.k").take(other[0], 0, restored, 0, 1024);
    assertArrayEquals(kv, restored);
  }

  @Test
  void theReadmeShowsThisVeryExample() throws IOException {
    ExampleText.assertShown("src/test/java/io/umbp/core/ReadmeExampleTest.java", "../README.md", 4);
  }
}
