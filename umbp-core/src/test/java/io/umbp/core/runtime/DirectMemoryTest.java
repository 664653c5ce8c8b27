package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

class DirectMemoryTest {
  private static final int MIB = 1 << 20;

  /** What runs in a JVM of its own, with the options of the test. */
  static final class Child {
    private Child() {}

    /**
     * Opens a pool of slabs of 8 MiB and closes it again, or prints why not.
     *
     * @param args the pool's size in MiB, and how often
     */
    public static void main(String[] args) {
      int poolMiB = Integer.parseInt(args[0]);
      int rounds = Integer.parseInt(args[1]);
      try {
        for (int round = 0; round < rounds; round++) {
          HostCopyEngine engine = new HostCopyEngine();
          for (int i = 0; i < poolMiB / 8; i++) {
            engine.allocateSlab(8 * MIB).buffer().put(0, (byte) round);
          }
          engine.close(Duration.ZERO);
        }
        System.out.println("done");
      } catch (UMBPException e) {
        System.out.println(e.reason() + ": " + e.getMessage());
      }
    }
  }

  private static String child(String poolMiB, String rounds, String... options) throws Exception {
    List<String> command = new ArrayList<>();
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.addAll(List.of(options));
    command.addAll(List.of("-cp", System.getProperty("java.class.path")));
    command.addAll(List.of(Child.class.getName(), poolMiB, rounds));
    Process process =
        new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
    String output =
        new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
    assertEquals(0, process.waitFor(), output);
    return output;
  }

  @Test
  @DisplayName("case 60: a 32 MiB pool opens and closes 100 times under a limit of 64 MiB")
  void reopensPoolsUnderTheLimit() throws Exception {
    assertEquals("done", child("32", "100", "-XX:MaxDirectMemorySize=64m"));
    assertEquals(
        "done",
        child("32", "100", "-XX:MaxDirectMemorySize=64m", "-XX:+DisableExplicitGC", "-Xmx64m"));
  }

  @Test
  @DisplayName(
      "case 60: a 128 MiB pool under a limit of 64 MiB is refused with need, limit, option")
  void namesNeedAndLimit() throws Exception {
    String output = child("128", "1", "-XX:MaxDirectMemorySize=64m");
    assertEquals(
        "OUT_OF_MEMORY: A slab of the host pool: no room for 8388608 bytes of direct memory;"
            + " the limit is 67108864 bytes, in use are 67108864;"
            + " raise it with -XX:MaxDirectMemorySize",
        output);
  }

  @Test
  @DisplayName(
      "case 60: without the option the limit is the greatest heap, and the message says so")
  void namesTheDefaultLimit() throws Exception {
    String output = child("128", "1", "-Xmx64m", "-XX:+UseParallelGC");
    assertTrue(output.startsWith("OUT_OF_MEMORY: A slab of the host pool"), output);
    assertTrue(output.contains("bytes (default: the greatest heap), in use are "), output);
  }

  @Test
  @DisplayName("case 60: 32 threads that store 4 MiB blocks add no direct memory of their own")
  void addsNoDirectMemoryPerThread() throws Exception {
    int threads = 32;
    int blockBytes = 4 * MIB;
    KVRegion region = new KVRegion("layer0.k", 0, blockBytes, blockBytes, 0, 16);
    HostKVPages pages =
        HostKVPages.create(new KVLayoutDescriptor(List.of(region), RankTopology.single()), threads);
    HostCopyEngine engine = new HostCopyEngine();
    long base = engine.register(pages.tensors().get("layer0.k"));
    HostSlab slab = engine.allocateSlab((long) threads * blockBytes);
    long before = DirectMemory.usedBytes();
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    try {
      List<Callable<CopyTicket>> tasks = new ArrayList<>();
      for (int i = 0; i < threads; i++) {
        long blockStart = (long) i * blockBytes;
        int block = i;
        tasks.add(
            () -> {
              pages.layer("layer0.k").put(block, 0, new float[MIB], 0, MIB);
              CopyBatch batch = new CopyBatch();
              batch.reset(TransferDirection.STORE, KVCacheTensor.HOST, 1);
              batch.add(base + blockStart, slab.baseAddress() + blockStart, blockBytes, 0);
              return engine.submit(batch, DeviceFence.hostComplete());
            });
      }
      for (Future<CopyTicket> ticket : pool.invokeAll(tasks)) {
        assertNull(ticket.get().failure(0));
      }
    } finally {
      pool.shutdown();
    }
    long growth = DirectMemory.usedBytes() - before;
    assertTrue(growth <= 16L * MIB, "direct memory grew by " + growth + " bytes");
    engine.close(Duration.ZERO);
  }

  @Test
  void readsMemoryOptions() {
    assertEquals("67108864", DirectMemory.bytes("64m"));
    assertEquals("67108864", DirectMemory.bytes("64M"));
    assertEquals("1099511627776", DirectMemory.bytes("1T"));
    assertEquals("1024", DirectMemory.bytes("1024"));
    assertEquals("0x10", DirectMemory.bytes("0x10"));
  }
}
