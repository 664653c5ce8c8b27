package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.LayoutOracle;
import io.umbp.core.layout.LayoutOracle.PageByte;
import io.umbp.core.layout.RandomCaches;
import io.umbp.core.layout.TensorPlan;
import io.umbp.testkit.FakeGpu;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;

/**
 * Blocks of random layouts through a runtime and a fake GPU: they come back in other blocks byte
 * for byte where an oracle has them, and no other byte is touched.
 */
class LayoutRoundTripProperties {
  private static final byte CANARY = (byte) 0xEE;
  private static final int GUARD = 16;
  private static final int BLOCKS = 12;
  private static final UMBPNamespace NAMESPACE = new UMBPNamespace("m");
  private static final Duration LONG = Duration.ofSeconds(20);

  /** A tensor in the middle of an allocation, with its content and the oracle's view of it. */
  private static final class Memory {
    final FakeGpu gpu;
    final long base;
    final byte[] before;
    final byte[] expected;
    final LayoutOracle oracle;

    Memory(FakeGpu gpu, TensorPlan plan, LayoutOracle oracle, Random random) {
      this.gpu = gpu;
      this.oracle = oracle;
      before = new byte[Math.toIntExact(plan.sizeBytes()) + 2 * GUARD];
      random.nextBytes(before);
      base = gpu.malloc(0, before.length);
      gpu.write(base, before);
      expected = new byte[before.length];
      Arrays.fill(expected, CANARY);
    }

    void spoil() {
      gpu.fill(base, before.length, CANARY);
    }

    void expectMoved(String layer, int fromBlock, int toBlock) {
      List<PageByte> from = oracle.page(layer, fromBlock);
      List<PageByte> to = oracle.page(layer, toBlock);
      for (int i = 0; i < from.size(); i++) {
        expected[GUARD + (int) to.get(i).address()] = before[GUARD + (int) from.get(i).address()];
      }
    }

    void check() {
      assertArrayEquals(expected, gpu.read(base, expected.length));
    }
  }

  @Property(tries = 100)
  void everyByteComesBackAndNoOtherIsTouched(@ForAll Random random) {
    int tpSize = 1 + random.nextInt(2);
    RankTopology topology = RankTopology.tensorParallel(0, tpSize);
    KVCacheConfig config = RandomCaches.next(random, tpSize, BLOCKS);
    KVLayoutDescriptor layout = KVLayoutPlanner.describe(config, topology);
    try (FakeGpu gpu = FakeGpu.asynchronous(1)) {
      EmbeddedRuntime runtime =
          EmbeddedRuntime.builder().capacityBytes(1 << 20).copyEngine(gpu::copyEngine).build();
      List<Memory> memories = new ArrayList<>();
      Map<String, Memory> memoryOf = new HashMap<>();
      Map<String, KVCacheTensor> tensors = new HashMap<>();
      List<TensorPlan> plans = KVLayoutPlanner.tensors(config, topology);
      for (int i = 0; i < plans.size(); i++) {
        KVCacheConfig.Tensor tensor = config.tensors().get(i);
        Memory memory =
            new Memory(
                gpu, plans.get(i), new LayoutOracle(config.groups(), tensor, tpSize), random);
        memories.add(memory);
        for (Slot slot : tensor.slots()) {
          slot.layers().forEach(layer -> memoryOf.put(layer, memory));
        }
        tensors.putAll(plans.get(i).onDevice(memory.base + GUARD, 0));
      }
      List<String> moved = layout.regions().stream().map(KVRegion::layerName).toList();
      tensors.keySet().retainAll(moved);
      UMBPWorkerHandle worker = runtime.createWorkerHandle(NAMESPACE, topology, layout);
      worker.registerBuffers(tensors);

      // Blocks of different groups may share memory, so no id is used by two of them.
      List<Integer> ids = new ArrayList<>(IntStream.range(0, BLOCKS).boxed().toList());
      Collections.shuffle(ids, random);
      int next = 0;
      Map<Integer, int[]> sources = new HashMap<>();
      Map<Integer, int[]> targets = new HashMap<>();
      for (int group : layout.groupIds()) {
        sources.put(group, new int[] {ids.get(next++), ids.get(next++)});
        targets.put(group, new int[] {ids.get(next++), ids.get(next++)});
        BlockStoreBatch batch = BlockStoreBatch.of("r", keys(layout, group), sources.get(group));
        TransferJobState stored = worker.store(batch, DeviceFence.hostComplete());
        assertEquals(2, worker.publish(worker.await(stored, LONG)));
      }
      memories.forEach(Memory::spoil);
      for (int group : layout.groupIds()) {
        BlockLoadBatch batch = BlockLoadBatch.of("r", keys(layout, group), targets.get(group));
        TransferJobState loaded =
            worker.await(worker.load(batch, DeviceFence.hostComplete()), LONG);
        assertEquals(TransferJobState.Status.COMPLETED, loaded.status());
      }
      for (KVRegion region : layout.regions()) {
        Memory memory = memoryOf.get(region.layerName());
        for (int i = 0; i < 2; i++) {
          memory.expectMoved(
              region.layerName(),
              sources.get(region.groupId())[i],
              targets.get(region.groupId())[i]);
        }
      }
      memories.forEach(Memory::check);
      assertEquals(0, runtime.stats().leases());
      runtime.close(LONG);
    }
  }

  private static BlockKeys keys(KVLayoutDescriptor layout, int group) {
    BlockHashes hashes =
        BlockHashes.of(List.of(BlockHash.of(new byte[] {1}), BlockHash.of(new byte[] {2})));
    return BlockKeys.of(NAMESPACE, layout.topology().localNamespace(), group, hashes)
        .replicating(layout.replicatedGroups());
  }
}
