package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;
import net.jqwik.api.constraints.Size;

class HostCopyProperties {
  /** Bytes between a slab's start and what the tensor may use of it, and after that. */
  private static final int MARGIN = 5;

  @Property(tries = 200)
  void copiesRandomRowsLikeArrays(
      @ForAll @Size(min = 1, max = 5) List<@IntRange(min = 1, max = 200) Integer> tensorSlabs,
      @ForAll @IntRange(min = 1, max = 3) int slabCount,
      @ForAll @IntRange(min = 1, max = 40) int rows,
      @ForAll TransferDirection direction,
      @ForAll boolean onExecutor,
      @ForAll long seed) {
    Random random = new Random(seed);
    HostCopyEngine engine = onExecutor ? HostCopyEngine.on(Runnable::run) : new HostCopyEngine();

    List<ByteBuffer> buffers = new ArrayList<>();
    for (int size : tensorSlabs) {
      ByteBuffer buffer = filled(ByteBuffer.allocateDirect(size + 2 * MARGIN), random);
      buffers.add(buffer.position(MARGIN).limit(MARGIN + size));
    }
    byte[] tensor = gather(buffers);
    long base =
        engine.register(
            KVCacheTensor.host(buffers.toArray(new ByteBuffer[0]))
                .blocks(1, tensor.length)
                .build());

    HostSlab[] slabs = new HostSlab[slabCount];
    byte[][] slabBytes = new byte[slabCount][tensor.length];
    for (int i = 0; i < slabCount; i++) {
      slabs[i] = engine.allocateSlab(tensor.length);
      filled(slabs[i].buffer(), random);
      slabs[i].buffer().get(0, slabBytes[i]);
    }

    CopyBatch batch = new CopyBatch();
    batch.reset(direction, KVCacheTensor.HOST, 1);
    int next = 0;
    int used = 0;
    int slab = random.nextInt(slabCount);
    for (int row = 0; row < rows && next < tensor.length; row++) {
      int from = next + random.nextInt(Math.min(8, tensor.length - next));
      int length = 1 + random.nextInt(tensor.length - from);
      if (rows > 4) {
        length = Math.min(length, 1 + random.nextInt(40));
      }
      batch.add(base + from, slabs[slab].baseAddress() + used, length, 0);
      if (direction == TransferDirection.STORE) {
        System.arraycopy(tensor, from, slabBytes[slab], used, length);
      } else {
        System.arraycopy(slabBytes[slab], used, tensor, from, length);
      }
      used += length;
      next = from + length;
    }
    CopyTicket ticket = engine.submit(batch, DeviceFence.none());

    assertTrue(ticket.await(Duration.ofSeconds(60)));
    assertNull(ticket.failure(0));
    assertArrayEquals(tensor, gather(buffers));
    for (int i = 0; i < slabCount; i++) {
      byte[] content = new byte[tensor.length];
      slabs[i].buffer().get(0, content);
      assertArrayEquals(slabBytes[i], content);
    }
    engine.close(Duration.ZERO);
  }

  private static ByteBuffer filled(ByteBuffer buffer, Random random) {
    byte[] content = new byte[buffer.capacity()];
    random.nextBytes(content);
    return buffer.put(0, content);
  }

  private static byte[] gather(List<ByteBuffer> buffers) {
    byte[] all = new byte[buffers.stream().mapToInt(ByteBuffer::remaining).sum()];
    int next = 0;
    for (ByteBuffer buffer : buffers) {
      buffer.get(buffer.position(), all, next, buffer.remaining());
      next += buffer.remaining();
    }
    return all;
  }
}
