package io.umbp.core.runtime;

import io.umbp.api.UMBPException;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Direct memory of this process, recycled by size. Thread-safe.
 *
 * <p>Java 17 frees direct memory only when its buffer is collected. A recycled buffer is therefore
 * taken again by the next request of its size; until then it is held weakly, so that the collection
 * which the JDK starts when direct memory runs short gives it back to whoever needs it.
 */
final class DirectMemory {
  private static final String LIMIT_OPTION = "-XX:MaxDirectMemorySize";

  private static final Map<Integer, ArrayDeque<WeakReference<ByteBuffer>>> FREE = new HashMap<>();

  private DirectMemory() {}

  /**
   * Takes a buffer.
   *
   * @param sizeBytes size, above 0
   * @param purpose what needs it, for the message
   * @return a direct buffer of exactly that capacity, owned by the caller; content undefined
   */
  static ByteBuffer allocate(int sizeBytes, String purpose) {
    ByteBuffer recycled = takeFree(sizeBytes);
    if (recycled != null) {
      return recycled;
    }
    try {
      return ByteBuffer.allocateDirect(sizeBytes);
    } catch (OutOfMemoryError e) {
      String message =
          String.format(
              "%s: no room for %d bytes of direct memory; %s, in use are %d; raise it with %s",
              purpose, sizeBytes, limitText(), usedBytes(), LIMIT_OPTION);
      throw new UMBPException(UMBPException.Reason.OUT_OF_MEMORY, message, e);
    }
  }

  /**
   * Gives a buffer back for the next request of its size.
   *
   * @param root a buffer of {@link #allocate} itself, no view of it; transferred
   */
  static void recycle(ByteBuffer root) {
    synchronized (FREE) {
      FREE.values()
          .removeIf(
              sameSize -> {
                sameSize.removeIf(entry -> entry.get() == null);
                return sameSize.isEmpty();
              });
      FREE.computeIfAbsent(root.capacity(), size -> new ArrayDeque<>())
          .push(new WeakReference<>(root));
    }
  }

  private static @Nullable ByteBuffer takeFree(int sizeBytes) {
    synchronized (FREE) {
      ArrayDeque<WeakReference<ByteBuffer>> sameSize = FREE.get(sizeBytes);
      while (sameSize != null && !sameSize.isEmpty()) {
        ByteBuffer buffer = sameSize.pop().get();
        if (buffer != null) {
          return buffer;
        }
      }
      return null;
    }
  }

  /** Returns the bytes of direct memory that the process has reserved. */
  static long usedBytes() {
    for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
      if (pool.getName().equals("direct")) {
        return pool.getMemoryUsed();
      }
    }
    return 0;
  }

  private static String limitText() {
    String limit = null;
    for (String argument : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
      if (argument.startsWith(LIMIT_OPTION + "=")) {
        limit = argument.substring(LIMIT_OPTION.length() + 1);
      }
    }
    if (limit == null || limit.equals("0")) {
      return "the limit is "
          + Runtime.getRuntime().maxMemory()
          + " bytes (default: the greatest heap)";
    }
    return "the limit is " + bytes(limit) + " bytes";
  }

  /** Returns a memory option's value in bytes, or the text itself when it is no plain number. */
  static String bytes(String option) {
    int unit = "kmgt".indexOf(option.toLowerCase(Locale.ROOT).charAt(option.length() - 1)) + 1;
    String digits = unit == 0 ? option : option.substring(0, option.length() - 1);
    try {
      return Long.toString(Long.parseLong(digits) << (10 * unit));
    } catch (NumberFormatException e) {
      return option;
    }
  }
}
