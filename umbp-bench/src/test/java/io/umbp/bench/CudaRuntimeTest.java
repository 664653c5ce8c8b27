package io.umbp.bench;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.BlockHash;
import io.umbp.api.BlockHashes;
import io.umbp.api.BlockKeys;
import io.umbp.api.BlockLoadBatch;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.CloseResult;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankTopology;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.identity.BlockIdentityCodec;
import io.umbp.core.runtime.EmbeddedRuntime;
import io.umbp.cuda.Cuda;
import io.umbp.cuda.CudaCopyEngine;
import io.umbp.cuda.CudaFence;
import io.umbp.testkit.FakeCudaDriver;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The embedded runtime over the CUDA copy engine, on the fake driver. */
@Timeout(60)
class CudaRuntimeTest {
  private static final int BLOCK = 4096;
  private static final int BLOCKS = 5;
  private static final Duration LONG = Duration.ofSeconds(20);

  /** Device memory of a raw address. */
  private static final class Memory extends CUdeviceptr {
    long address() {
      return getNativePointer() + getByteOffset();
    }
  }

  @Test
  @DisplayName(
      "case 64: a scheduler touches no driver, a worker does; case 58: five blocks in slabs of 10,000")
  void fromSchedulerToWorker() {
    Optional<String> reason = FakeCudaDriver.unavailableReason();
    assumeTrue(
        reason.isEmpty() || "true".equals(System.getenv("CI")), () -> reason.orElse("available"));
    FakeCudaDriver driver = FakeCudaDriver.install();
    driver.reset();
    RankTopology rank = RankTopology.single();
    KVLayoutDescriptor layout =
        new KVLayoutDescriptor(List.of(new KVRegion("layer0", 0, BLOCK, BLOCK, 0, 16)), rank);
    UMBPNamespace model = new UMBPNamespace("my-model-f32-v1");
    EmbeddedRuntime runtime =
        EmbeddedRuntime.builder()
            .capacityBytes(1 << 20)
            .slabBytes(10_000)
            .copyEngine(() -> CudaCopyEngine.open(0))
            .build();
    UMBPSchedulerHandle scheduler = runtime.createSchedulerHandle(model, rank, layout);
    BlockHashes hashes =
        BlockHashes.of(
            IntStream.range(0, BLOCKS)
                .mapToObj(i -> BlockHash.fromHex(String.format("%02x", i)))
                .toList());
    BlockKeys keys = new BlockIdentityCodec(model, rank).localKeys(0, hashes);
    assertArrayEquals(new boolean[BLOCKS], scheduler.lookup(keys));
    assertTrue(scheduler.clear().isComplete());
    assertEquals(0, driver.calls("cuInit"));

    UMBPWorkerHandle worker = runtime.createWorkerHandle(model, rank, layout);
    assertEquals(0, driver.calls("cuInit"));
    FakeCudaDriver.Live before = driver.live();
    makeContextCurrent();
    int bytes = 2 * BLOCKS * BLOCK;
    Memory memory = new Memory();
    CUstream stream = new CUstream();
    JCudaDriver.cuMemAlloc(memory, bytes);
    JCudaDriver.cuStreamCreate(stream, 1);
    driver.resetCalls();
    worker.registerBuffers(
        Map.of(
            "layer0",
            KVCacheTensor.device(memory.address(), bytes, 0).blocks(2 * BLOCKS, BLOCK).build()));
    assertEquals(1, driver.calls("cuInit"));

    byte[] content = new byte[bytes];
    new Random(58).nextBytes(content);
    driver.poke(memory.address(), content);
    TransferJobState stored =
        worker.store(
            BlockStoreBatch.of("r1", keys, new int[] {0, 1, 2, 3, 4}),
            CudaFence.onStream(0, stream));
    worker.publish(worker.await(stored, LONG));
    boolean[] all = {true, true, true, true, true};
    assertArrayEquals(all, scheduler.lookup(keys));
    TransferJobState loaded =
        worker.load(
            BlockLoadBatch.of("r2", keys, new int[] {9, 8, 7, 6, 5}),
            CudaFence.onStream(0, stream));
    assertEquals(TransferJobState.Status.COMPLETED, worker.await(loaded, LONG).status());
    for (int block = 0; block < BLOCKS; block++) {
      assertArrayEquals(
          Arrays.copyOfRange(content, block * BLOCK, (block + 1) * BLOCK),
          driver.peek(memory.address() + (9L - block) * BLOCK, BLOCK));
    }
    assertEquals(CloseResult.CLEAN, runtime.close(LONG));
    JCudaDriver.cuMemFree(memory);
    JCudaDriver.cuStreamDestroy(stream);
    JCudaDriver.cuCtxPopCurrent(new CUcontext());
    JCudaDriver.cuDevicePrimaryCtxRelease(new CUdevice());
    assertEquals(before, driver.live());
    assertEquals(0, driver.violations(), () -> driver.violationReports().toString());
  }

  /** Makes the primary context of device 0 current, as a serving engine does. */
  private static void makeContextCurrent() {
    assertTrue(Cuda.availability().isAvailable());
    CUcontext context = new CUcontext();
    JCudaDriver.cuDevicePrimaryCtxRetain(context, new CUdevice());
    JCudaDriver.cuCtxPushCurrent(context);
  }
}
