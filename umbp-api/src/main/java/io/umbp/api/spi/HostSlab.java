package io.umbp.api.spi;

import java.nio.ByteBuffer;

/**
 * One piece of host memory that a copy engine allocated. Immutable; its bytes are not. Its bytes
 * belong to whoever holds a lease on a slot in it; nobody else reads or writes the buffer. Equal
 * only to itself: buffers compare by content.
 *
 * @param buffer the memory, a direct buffer of sizeBytes; shared
 * @param baseAddress address of its first byte, as {@link CopyBatch} rows name it
 * @param sizeBytes size, at most {@link KVCopyEngine#MAX_SLAB_BYTES}
 */
public record HostSlab(ByteBuffer buffer, long baseAddress, long sizeBytes) {
  @Override
  public boolean equals(Object other) {
    return this == other;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
