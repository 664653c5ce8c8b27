package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.IntStream;

/**
 * One rank of an engine as small as a contract test needs it: paged blocks, and contents named by a
 * number from which both the block hash and each byte follow. Thread-safe as far as threads keep to
 * blocks of their own.
 *
 * <p>Byte {@code o} of layer {@code l} of content {@code c} is {@code (67*l + 29*c + 3*o + 11) mod
 * 251}. All else is {@link #CANARY}, the padding between payload and stride included.
 */
final class ToyEngine {
  static final UMBPNamespace NAMESPACE = new UMBPNamespace("contract");
  static final byte CANARY = (byte) 0xEE;
  static final int BLOCKS = 64;
  static final long STRIDE = 640;
  static final long PAYLOAD = 576;

  /** Size of an object of {@link #layout}. */
  static final long OBJECT_BYTES = 2 * PAYLOAD;

  private static final int HASH_BYTES = 32;
  private static final Duration LONG = Duration.ofSeconds(30);

  final RuntimeFixture fixture;
  final UMBPNamespace namespace;
  final KVLayoutDescriptor layout;
  final UMBPSchedulerHandle scheduler;
  final UMBPWorkerHandle worker;
  final Map<String, KVCacheTensor> tensors = new LinkedHashMap<>();

  private final int blocks;
  private final Queue<TransferJobState> jobs = new ConcurrentLinkedQueue<>();

  /** Every key that was ever stored, with the size of its object. */
  private final Map<String, Long> storedKeys = new ConcurrentHashMap<>();

  private ToyEngine(
      RuntimeFixture fixture, UMBPNamespace namespace, KVLayoutDescriptor layout, int blocks) {
    this.fixture = fixture;
    this.namespace = namespace;
    this.layout = layout;
    this.blocks = blocks;
    scheduler = fixture.runtime().createSchedulerHandle(namespace, layout.topology(), layout);
    worker = fixture.runtime().createWorkerHandle(namespace, layout.topology(), layout);
  }

  /** Opens an engine whose buffers are registered and hold canaries. */
  static ToyEngine open(
      RuntimeFixture fixture, UMBPNamespace namespace, KVLayoutDescriptor layout, int blocks) {
    return open(fixture, namespace, layout, blocks, RegistrationOptions.ownWriter());
  }

  static ToyEngine open(
      RuntimeFixture fixture,
      UMBPNamespace namespace,
      KVLayoutDescriptor layout,
      int blocks,
      RegistrationOptions options) {
    ToyEngine engine = new ToyEngine(fixture, namespace, layout, blocks);
    for (KVRegion region : layout.regions()) {
      KVCacheTensor tensor =
          fixture.allocate(blocks * region.blockStride(), blocks, region.blockStride());
      engine.tensors.put(region.layerName(), tensor);
    }
    for (int block = 0; block < blocks; block++) {
      engine.clean(block);
    }
    engine.worker.registerBuffers(engine.tensors, options);
    return engine;
  }

  /** Two layers of one group. */
  static KVLayoutDescriptor layout(RankTopology topology) {
    return layout(topology, STRIDE, PAYLOAD, 0, 0);
  }

  /** One layer for each group named. */
  static KVLayoutDescriptor layout(
      RankTopology topology, long stride, long payload, int... groupIds) {
    KVRegion[] regions = new KVRegion[groupIds.length];
    for (int i = 0; i < regions.length; i++) {
      regions[i] = new KVRegion("layer." + i, groupIds[i], stride, payload, i * payload, 16);
    }
    return new KVLayoutDescriptor(List.of(regions), topology);
  }

  static int[] range(int from, int to) {
    return IntStream.range(from, to).toArray();
  }

  KVCacheTensor tensor(int layer) {
    KVCacheTensor tensor = tensors.get(layout.regions().get(layer).layerName());
    if (tensor == null) {
      throw new IllegalStateException("layer " + layer + " has no tensor");
    }
    return tensor;
  }

  BlockKeys keys(int... contents) {
    return keys(new int[contents.length], contents);
  }

  BlockKeys keys(int[] groupIds, int[] contents) {
    return BlockKeys.of(namespace, layout.topology().localNamespace(), groupIds, hashes(contents))
        .replicating(layout.replicatedGroups());
  }

  static BlockHashes hashes(int... contents) {
    byte[] bytes = new byte[HASH_BYTES * contents.length];
    for (int i = 0; i < contents.length; i++) {
      ByteBuffer.wrap(bytes).putInt((i + 1) * HASH_BYTES - Integer.BYTES, contents[i]);
    }
    return BlockHashes.of(HASH_BYTES, bytes);
  }

  /** Writes a content into a block, in all layers. */
  void fill(int block, int content) {
    for (int layer = 0; layer < layout.regions().size(); layer++) {
      fixture.write(tensor(layer), offset(layer, block), pattern(layer, content));
    }
  }

  /** As {@link #fill}, by kernels on a stream. */
  void fillOn(RuntimeFixture.Stream stream, int block, int content) {
    for (int layer = 0; layer < layout.regions().size(); layer++) {
      stream.write(tensor(layer), offset(layer, block), pattern(layer, content));
    }
  }

  /** Writes canaries over a block, in all layers. */
  void clean(int block) {
    for (int layer = 0; layer < layout.regions().size(); layer++) {
      byte[] canaries = new byte[(int) layout.regions().get(layer).blockStride()];
      Arrays.fill(canaries, CANARY);
      fixture.write(tensor(layer), offset(layer, block), canaries);
    }
  }

  byte[] pattern(int layer, int content) {
    byte[] bytes = new byte[(int) layout.regions().get(layer).blockBytes()];
    for (int o = 0; o < bytes.length; o++) {
      bytes[o] = (byte) ((67L * layer + 29L * content + 3L * o + 11) % 251);
    }
    return bytes;
  }

  long offset(int layer, int block) {
    return block * layout.regions().get(layer).blockStride();
  }

  void assertHolds(int block, int content) {
    for (int layer = 0; layer < layout.regions().size(); layer++) {
      assertHolds(layer, block, content);
    }
  }

  void assertHolds(int layer, int block, int content) {
    byte[] expected = new byte[(int) layout.regions().get(layer).blockStride()];
    Arrays.fill(expected, CANARY);
    byte[] payload = pattern(layer, content);
    System.arraycopy(payload, 0, expected, 0, payload.length);
    assertArrayEquals(
        expected, read(layer, block), "block " + block + " of " + layout.regions().get(layer));
  }

  void assertUntouched(int block) {
    for (int layer = 0; layer < layout.regions().size(); layer++) {
      byte[] expected = new byte[(int) layout.regions().get(layer).blockStride()];
      Arrays.fill(expected, CANARY);
      assertArrayEquals(
          expected, read(layer, block), "block " + block + " of " + layout.regions().get(layer));
    }
  }

  private byte[] read(int layer, int block) {
    return fixture.read(
        tensor(layer), offset(layer, block), (int) layout.regions().get(layer).blockStride());
  }

  /** Stores contents from consecutive blocks, whatever these hold. */
  TransferJobState store(int firstBlock, int... contents) {
    return store(firstBlock, keys(contents), DeviceFence.hostComplete());
  }

  TransferJobState store(int firstBlock, BlockKeys keys, DeviceFence producer) {
    for (int i = 0; i < keys.size(); i++) {
      storedKeys.putIfAbsent(keys.get(i), layout.objectBytes(keys.groupId(i)));
    }
    TransferJobState job =
        worker.store(
            BlockStoreBatch.of("r", keys, range(firstBlock, firstBlock + keys.size())), producer);
    jobs.add(job);
    return job;
  }

  /** Loads contents into consecutive blocks. */
  TransferJobState load(int firstBlock, int... contents) {
    return load(firstBlock, keys(contents), DeviceFence.hostComplete());
  }

  TransferJobState load(int firstBlock, BlockKeys keys, DeviceFence destinationFree) {
    TransferJobState job =
        worker.load(
            BlockLoadBatch.of("r", keys, range(firstBlock, firstBlock + keys.size())),
            destinationFree);
    jobs.add(job);
    return job;
  }

  /** Fills the blocks from 0 on with contents, stores and publishes them. */
  void put(int... contents) {
    for (int from = 0; from < contents.length; from += blocks) {
      int[] part = Arrays.copyOfRange(contents, from, Math.min(contents.length, from + blocks));
      for (int i = 0; i < part.length; i++) {
        fill(i, part[i]);
      }
      TransferJobState stored = finish(store(0, part));
      assertEquals(part.length, stored.count(KeyOutcome.COMPLETED), stored::toString);
      assertEquals(part.length, worker.publish(stored), "keys that became visible");
      for (int i = 0; i < part.length; i++) {
        clean(i);
      }
    }
  }

  /** Waits until a job is final. */
  TransferJobState finish(TransferJobState job) {
    TransferJobState newest = worker.poll(job);
    while (!newest.isFinal()) {
      if (Thread.interrupted()) {
        throw new AssertionError("no end of " + newest);
      }
      newest = worker.await(newest, LONG);
      Thread.onSpinWait();
    }
    return newest;
  }

  /** Gives a job that must not end some time to do so, and returns its newest snapshot. */
  TransferJobState linger(TransferJobState job) {
    fixture.tickOnRead(Duration.ofMillis(1));
    TransferJobState newest = worker.await(job, Duration.ofMillis(50));
    fixture.tickOnRead(Duration.ZERO);
    return newest;
  }

  boolean[] lookup(int... contents) {
    return scheduler.lookup(keys(contents));
  }

  boolean isVisible(int content) {
    return lookup(content)[0];
  }

  /** Returns the length of the leading run of contents that are there. */
  int hit(int... contents) {
    return hit(lookup(contents));
  }

  static int hit(boolean[] present) {
    int hit = 0;
    while (hit < present.length && present[hit]) {
      hit++;
    }
    return hit;
  }

  /** Drives every job to its end, as far as the handles are open. */
  void settle() {
    for (TransferJobState job : jobs) {
      try {
        finish(job);
      } catch (UMBPException e) {
        if (e.reason() != UMBPException.Reason.CLOSED
            && e.reason() != UMBPException.Reason.INVALID_ARGUMENT) {
          throw e;
        }
      }
    }
  }

  /** Adds the keys that are visible, with the sizes of their objects. */
  void collectVisible(Map<String, Long> visible) {
    List<String> texts = List.copyOf(storedKeys.keySet());
    boolean[] present = scheduler.lookup(texts);
    for (int i = 0; i < present.length; i++) {
      if (present[i]) {
        visible.put(texts.get(i), storedKeys.getOrDefault(texts.get(i), 0L));
      }
    }
  }
}
