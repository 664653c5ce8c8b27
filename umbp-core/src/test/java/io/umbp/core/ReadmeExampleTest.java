package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Runs the example of the README, and holds the two texts against each other. */
class ReadmeExampleTest {
  @Test
  void twoBlocksComeBack() {
    float[] kv = new float[1024];
    for (int i = 0; i < kv.length; i++) {
      kv[i] = i + 0.5f;
    }
    // example-begin
    RankTopology rank = RankTopology.single();
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(
            List.of( // layer name, group, block stride, block bytes, object offset, tokens
                new KVRegion("layer0", 0, 4096, 4096, 0, 16),
                new KVRegion("layer1", 0, 4096, 4096, 4096, 16)),
            rank);
    HostKVPages pages = HostKVPages.create(layout, 8); // the engine's KV pool, here in host memory
    pages.layer("layer0").put(0, 0, kv, 0, 1024); // block 0, from byte 0 of its page

    UMBPNamespace model = new UMBPNamespace("my-model-f32-v1");
    EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(64L << 20).build();
    UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(model, rank, layout);
    UMBPWorkerHandle worker = runtime.createWorkerHandle(model, rank, layout);
    worker.registerBuffers(pages.tensors());

    BlockHashes hashes = BlockHashes.of(List.of(BlockHash.fromHex("0a"), BlockHash.fromHex("0b")));
    BlockKeys keys = new BlockIdentityCodec(model, rank).localKeys(0, hashes);
    TransferJobState stored =
        worker.store(BlockStoreBatch.of("request-1", keys, 0, 1), DeviceFence.hostComplete());
    worker.publish(worker.await(stored, Duration.ofSeconds(1)));

    boolean[] present = scheduler.lookup(keys); // both are there
    TransferJobState loaded =
        worker.load(BlockLoadBatch.of("request-2", keys, 6, 7), DeviceFence.hostComplete());
    loaded = worker.await(loaded, Duration.ofSeconds(1)); // blocks 6, 7 now hold what 0, 1 held
    runtime.close(Duration.ofSeconds(5));
    // example-end
    assertArrayEquals(new boolean[] {true, true}, present);
    assertEquals(TransferJobState.Status.COMPLETED, loaded.status());
    float[] restored = new float[1024];
    pages.layer("layer0").take(6, 0, restored, 0, 1024);
    assertArrayEquals(kv, restored);
  }

  @Test
  void theReadmeShowsThisVeryExample() throws IOException {
    Path module = Path.of("").toAbsolutePath();
    List<String> source =
        Files.readAllLines(module.resolve("src/test/java/io/umbp/core/ReadmeExampleTest.java"));
    List<String> example =
        source
            .subList(
                source.indexOf("    // example-begin") + 1, source.indexOf("    // example-end"))
            .stream()
            .map(line -> line.isEmpty() ? line : line.substring(4))
            .toList();
    String readme = Files.readString(module.resolve("../README.md"));
    assertTrue(readme.contains(String.join("\n", example)));
  }
}
