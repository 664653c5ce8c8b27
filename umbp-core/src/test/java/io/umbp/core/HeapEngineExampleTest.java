package io.umbp.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.common.hash.Hashing;
import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.core.runtime.HostKVPages;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** The engine with heap arrays of docs/heap-engines.md, run. */
class HeapEngineExampleTest {
  // example-begin
  /** An engine that keeps K and V of a session as float[layer][position * DIM]. */
  static final class HeapEngine {
    static final int LAYERS = 2;
    static final int DIM = 8; // floats of one token in one layer
    static final int BLOCK = 4; // tokens
    static final int PAGE = BLOCK * DIM;

    final RankTopology rank = RankTopology.single();
    final UMBPNamespace model = new UMBPNamespace("toy-f32-v1");
    final BlockIdentityCodec codec = new BlockIdentityCodec(model, rank);
    final KVLayoutDescriptor layout = new KVLayoutDescriptor(regions(), rank);
    final HostKVPages pages = HostKVPages.create(layout, 16);
    final EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();
    final UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(model, rank, layout);
    final UMBPWorkerHandle worker = runtime.createWorkerHandle(model, rank, layout);

    HeapEngine() {
      worker.registerBuffers(pages.tensors());
    }

    static List<KVRegion> regions() {
      List<KVRegion> regions = new ArrayList<>();
      for (int i = 0; i < 2 * LAYERS; i++) {
        long bytes = PAGE * 4L;
        regions.add(new KVRegion(name(i), 0, bytes, bytes, i * bytes, BLOCK));
      }
      return regions;
    }

    static String name(int i) {
      return "layer" + i / 2 + (i % 2 == 0 ? ".k" : ".v");
    }

    /** Fills kv[2 * layer + (0 for K, 1 for V)]; returns how many tokens were not computed. */
    int prefill(int[] tokens, float[][] kv) {
      BlockKeys keys = codec.localKeys(0, hashes(tokens));
      boolean[] present = scheduler.lookup(keys);
      int hit = 0;
      while (hit < (tokens.length - 1) / BLOCK && present[hit]) {
        hit++;
      }
      int full = present.length;
      int[] blocks = new int[full];
      Arrays.setAll(blocks, i -> pages.acquire().orElseThrow());
      int loaded = load(tokens, blocks, hit, kv);
      compute(tokens, loaded * BLOCK, kv);
      copy(blocks, loaded, full, kv, true);
      BlockKeys rest = codec.localKeys(0, hashes(tokens).slice(loaded, full));
      TransferJobState stored =
          worker.store(
              BlockStoreBatch.of("r", rest, Arrays.copyOfRange(blocks, loaded, full)),
              DeviceFence.none());
      worker.publish(worker.await(stored, Duration.ofSeconds(5)));
      Arrays.stream(blocks).forEach(pages::release); // the store is final: nothing reads them
      return loaded * BLOCK;
    }

    /** Loads the first blocks into kv; returns how many are whole. */
    int load(int[] tokens, int[] blocks, int hit, float[][] kv) {
      BlockKeys keys = codec.localKeys(0, hashes(tokens).slice(0, hit));
      TransferJobState job =
          worker.await(
              worker.load(
                  BlockLoadBatch.of("r", keys, Arrays.copyOf(blocks, hit)), DeviceFence.none()),
              Duration.ofSeconds(5));
      int whole = 0;
      while (whole < hit && job.outcome(whole) == KeyOutcome.COMPLETED) {
        whole++;
      }
      copy(blocks, 0, whole, kv, false);
      return whole;
    }

    void copy(int[] blocks, int from, int to, float[][] kv, boolean isOut) {
      for (int i = 0; i < kv.length; i++) {
        HostKVPages.Layer layer = pages.layer(name(i));
        for (int block = from; block < to; block++) {
          if (isOut) {
            layer.put(blocks[block], 0, kv[i], block * PAGE, PAGE);
          } else {
            layer.take(blocks[block], 0, kv[i], block * PAGE, PAGE);
          }
        }
      }
    }

    /** Hashes of the full blocks: each covers the hash before it and its own tokens. */
    static BlockHashes hashes(int[] tokens) {
      List<BlockHash> hashes = new ArrayList<>();
      byte[] previous = new byte[32];
      for (int end = BLOCK; end <= tokens.length; end += BLOCK) {
        ByteBuffer text = ByteBuffer.allocate(32 + BLOCK * 4).put(previous);
        for (int i = end - BLOCK; i < end; i++) {
          text.putInt(tokens[i]);
        }
        previous = Hashing.sha256().hashBytes(text.array()).asBytes();
        hashes.add(BlockHash.of(previous));
      }
      return BlockHashes.of(hashes);
    }

    /** Stands for the model. */
    static void compute(int[] tokens, int from, float[][] kv) {
      for (int i = 0; i < kv.length; i++) {
        for (int at = from * DIM; at < tokens.length * DIM; at++) {
          kv[i][at] = tokens[at / DIM] * 31f + at + i / 8f;
        }
      }
    }
  }

  // example-end

  private static float[][] kv(int tokens) {
    return new float[2 * HeapEngine.LAYERS][tokens * HeapEngine.DIM];
  }

  private static void assertPrefill(HeapEngine engine, int expectedTokens, int... tokens) {
    float[][] kv = kv(tokens.length);
    assertEquals(expectedTokens, engine.prefill(tokens, kv));
    float[][] recomputed = kv(tokens.length);
    HeapEngine.compute(tokens, 0, recomputed);
    for (int i = 0; i < kv.length; i++) {
      assertArrayEquals(recomputed[i], kv[i]);
    }
  }

  @Test
  void whatComesBackIsWhatRecomputingGives() {
    HeapEngine engine = new HeapEngine();
    assertPrefill(engine, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    assertPrefill(engine, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    assertPrefill(engine, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    assertPrefill(engine, 4, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13);
    assertPrefill(engine, 0, 7);
    assertEquals(16, engine.pages.freeBlocks());
    engine.runtime.close(Duration.ofSeconds(5));
  }

  @Test
  void theGuideShowsThisVeryEngine() throws IOException {
    ExampleText.assertShown(
        "src/test/java/io/umbp/core/HeapEngineExampleTest.java", "../docs/heap-engines.md", 2);
  }
}
