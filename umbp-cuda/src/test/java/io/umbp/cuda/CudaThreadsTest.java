package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Many threads that copy at once by one engine. */
@Timeout(60)
class CudaThreadsTest {
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final int ROWS = 64;
  private static final int ROW_BYTES = 512;
  private static final int BYTES = ROWS * ROW_BYTES;

  private CudaRig rig;
  private CudaCopyEngine engine;

  @BeforeEach
  void open() {
    rig = new CudaRig(1);
  }

  @AfterEach
  void close() {
    if (engine != null) {
      engine.close(LONG);
    }
    rig.close();
    rig.assertNothingLeft();
  }

  @ParameterizedTest
  @EnumSource
  @DisplayName("batches of several threads don't mix in the staging buffer")
  void stagingOfManyThreads(TransferDirection direction) throws Exception {
    engine =
        CudaCopyEngine.builder()
            .device(0)
            .settings(
                CudaCopySettings.builder()
                    .kernelBelowBytes(1024)
                    .kernelMinRanges(1)
                    .stridedMinRanges(Integer.MAX_VALUE)
                    .stagingBytes(BYTES)
                    .build())
            .open();
    int threads = 4;
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    try {
      List<Future<?>> all = new ArrayList<>();
      for (int i = 0; i < threads; i++) {
        Copier copier = new Copier(i);
        all.add(
            pool.submit(
                () -> {
                  for (int n = 0; n < 300; n++) {
                    copier.copy(direction);
                  }
                  return null;
                }));
      }
      for (Future<?> each : all) {
        each.get();
      }
    } finally {
      pool.shutdownNow();
    }
  }

  @Test
  @DisplayName("virtual threads keep their context from one driver call to the next")
  void virtualThreads() throws Exception {
    assumeTrue(Runtime.version().feature() >= 21, "no virtual threads before Java 21");
    engine = CudaCopyEngine.open(0);
    // By reflection, because tests are compiled for Java 17.
    ExecutorService pool =
        (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    try {
      List<Future<?>> all = new ArrayList<>();
      for (int i = 0; i < 64; i++) {
        Copier copier = new Copier(i);
        all.add(
            pool.submit(
                () -> {
                  for (int n = 0; n < 100; n++) {
                    copier.copyMarks();
                  }
                }));
      }
      for (Future<?> each : all) {
        each.get();
      }
    } finally {
      pool.shutdownNow();
    }
  }

  /** Copies every other row of a tensor from or to a slab, and looks what came. */
  private final class Copier {
    private final KVCacheTensor tensor = rig.tensor(0, 2 * BYTES);
    private final HostSlab slab = engine.allocateSlab(BYTES);
    private final byte[] onHost = new byte[BYTES];
    private final byte[] onDevice = new byte[2 * BYTES];
    private final CopyBatch batch = new CopyBatch();

    Copier(int seed) {
      engine.register(tensor);
      new Random(seed).nextBytes(onHost);
      for (int row = 0; row < ROWS; row++) {
        System.arraycopy(onHost, row * ROW_BYTES, onDevice, 2 * row * ROW_BYTES, ROW_BYTES);
      }
    }

    /** Loads a few rows with a mark, and so an event, for each. */
    void copyMarks() {
      batch.reset(TransferDirection.LOAD, 0, 1);
      for (int row = 0; row < 8; row++) {
        batch.add(tensor.address() + row, slab.baseAddress() + row, 1, 0);
        batch.endMark();
      }
      CopyTicket ticket = engine.submit(batch, rig.fence(0));
      assertTrue(ticket.await(LONG));
      assertNull(ticket.failure(0));
    }

    void copy(TransferDirection direction) {
      boolean isLoad = direction == TransferDirection.LOAD;
      slab.buffer().put(0, isLoad ? onHost : new byte[BYTES]);
      rig.driver.poke(tensor.address(), isLoad ? new byte[2 * BYTES] : onDevice);
      batch.reset(direction, 0, 1);
      for (int row = 0; row < ROWS; row++) {
        batch.add(
            tensor.address() + 2L * row * ROW_BYTES,
            slab.baseAddress() + (long) row * ROW_BYTES,
            ROW_BYTES,
            0);
      }
      CopyTicket ticket = engine.submit(batch, rig.fence(0));
      assertTrue(ticket.await(LONG));
      assertNull(ticket.failure(0));
      assertArrayEquals(onDevice, rig.driver.peek(tensor.address(), 2 * BYTES));
      assertArrayEquals(onHost, CudaRig.bytes(slab));
    }
  }
}
