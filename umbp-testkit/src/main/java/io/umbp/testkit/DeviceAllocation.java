package io.umbp.testkit;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReferenceArray;
import org.jspecify.annotations.Nullable;

/**
 * One allocation of fake device memory, kept in heap chunks that come to life at their first write.
 * Thread-safe; racing accesses to the same bytes give either's bytes, as on a device.
 *
 * <p>Methods take offsets in bytes from the allocation's base and check nothing: {@link FakeGpu}
 * and its copy engine check before, and ask {@link #isFreed} again afterwards.
 */
final class DeviceAllocation implements AddressSpace.Region {
  private static final int CHUNK_BITS = 18;
  private static final int CHUNK_BYTES = 1 << CHUNK_BITS;
  private static final byte[] UNTOUCHED = new byte[CHUNK_BYTES];
  private static final byte[] GONE = new byte[CHUNK_BYTES];

  static {
    Arrays.fill(UNTOUCHED, FakeGpu.FRESH_POISON);
    Arrays.fill(GONE, FakeGpu.FREED_POISON);
  }

  private final long base;
  private final long sizeBytes;
  private final int ordinal;
  private final AtomicReferenceArray<byte @Nullable []> chunks;
  private volatile boolean freed;

  DeviceAllocation(long base, long sizeBytes, int ordinal) {
    this.base = base;
    this.sizeBytes = sizeBytes;
    this.ordinal = ordinal;
    chunks = new AtomicReferenceArray<>((int) ((sizeBytes + CHUNK_BYTES - 1) >>> CHUNK_BITS));
  }

  @Override
  public long base() {
    return base;
  }

  @Override
  public long sizeBytes() {
    return sizeBytes;
  }

  int ordinal() {
    return ordinal;
  }

  boolean isFreed() {
    return freed;
  }

  /** Frees the memory, once; accesses that race with it meet poison. */
  boolean free() {
    synchronized (this) {
      if (freed) {
        return false;
      }
      freed = true;
    }
    for (int i = 0; i < chunks.length(); i++) {
      byte[] chunk = chunks.getAndSet(i, null);
      if (chunk != null) {
        Arrays.fill(chunk, FakeGpu.FREED_POISON);
      }
    }
    return true;
  }

  void write(long offset, byte[] source, int from, int length) {
    for (int done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = Math.min(length - done, CHUNK_BYTES - at);
      System.arraycopy(source, from + done, writable(offset + done), at, part);
      done += part;
    }
  }

  void write(long offset, ByteBuffer source, int from, int length) {
    for (int done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = Math.min(length - done, CHUNK_BYTES - at);
      source.get(from + done, writable(offset + done), at, part);
      done += part;
    }
  }

  void read(long offset, byte[] target, int to, int length) {
    for (int done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = Math.min(length - done, CHUNK_BYTES - at);
      System.arraycopy(readable(offset + done), at, target, to + done, part);
      done += part;
    }
  }

  void read(long offset, ByteBuffer target, int to, int length) {
    for (int done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = Math.min(length - done, CHUNK_BYTES - at);
      target.put(to + done, readable(offset + done), at, part);
      done += part;
    }
  }

  void fill(long offset, long length, byte value) {
    for (long done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = (int) Math.min(length - done, CHUNK_BYTES - at);
      Arrays.fill(writable(offset + done), at, at + part, value);
      done += part;
    }
  }

  /** Returns the index of the first byte that differs, -1 when none does. */
  int mismatch(long offset, byte[] expected, int from, int length) {
    for (int done = 0; done < length; ) {
      int at = inChunk(offset + done);
      int part = Math.min(length - done, CHUNK_BYTES - at);
      int first =
          Arrays.mismatch(
              readable(offset + done), at, at + part, expected, from + done, from + done + part);
      if (first >= 0) {
        return done + first;
      }
      done += part;
    }
    return -1;
  }

  private static int inChunk(long offset) {
    return (int) offset & (CHUNK_BYTES - 1);
  }

  private byte[] readable(long offset) {
    byte[] chunk = chunks.get((int) (offset >>> CHUNK_BITS));
    if (chunk != null) {
      return chunk;
    }
    return freed ? GONE : UNTOUCHED;
  }

  private byte[] writable(long offset) {
    int index = (int) (offset >>> CHUNK_BITS);
    byte[] chunk = chunks.get(index);
    if (chunk == null) {
      byte[] fresh = UNTOUCHED.clone();
      chunk = chunks.compareAndExchange(index, null, fresh);
      if (chunk == null) {
        chunk = fresh;
      }
    }
    return chunk;
  }

  @Override
  public String toString() {
    return String.format(
        "%s at 0x%x with %d bytes on device %d",
        freed ? "freed allocation" : "allocation", base, sizeBytes, ordinal);
  }
}
