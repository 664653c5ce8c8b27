package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.testkit.KVCopyEngineContract;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import jcuda.Pointer;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdevice;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUstream;
import jcuda.driver.JCudaDriver;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * The engine on a real card, in a JVM without the fake driver: the contract by each path, and rows
 * of all alignments by the real kernel. Skipped, with its reason, where there is no card.
 */
@Tag("gpu")
@Timeout(300)
class CudaGpuTest {
  @BeforeAll
  static void requireCard() {
    Cuda.Availability availability = Cuda.availability();
    assumeTrue(availability.isAvailable(), availability.detail());
  }

  /** Device memory and a stream of a serving engine on the first card. */
  private static final class Card implements KVCopyEngineContract.Fixture {
    private final CUcontext context = new CUcontext();
    private final CUstream stream = new CUstream();
    private final List<CUdeviceptr> allocations = new ArrayList<>();
    private final CudaCopyEngine engine;

    Card(CudaCopySettings settings) {
      Cuda.initialise();
      CUdevice device = new CUdevice();
      Driver.check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, 0));
      Driver.check(
          "cuDevicePrimaryCtxRetain", () -> JCudaDriver.cuDevicePrimaryCtxRetain(context, device));
      on(() -> JCudaDriver.cuStreamCreate(stream, 1));
      engine = CudaCopyEngine.builder().device(0).settings(settings).open();
    }

    private void on(Driver.Call call) {
      Driver.check("cuCtxPushCurrent", () -> JCudaDriver.cuCtxPushCurrent(context));
      try {
        Driver.check("a call of the test", call);
      } finally {
        Driver.check("cuCtxPopCurrent", () -> JCudaDriver.cuCtxPopCurrent(new CUcontext()));
      }
    }

    @Override
    public KVCopyEngine engine() {
      return engine;
    }

    @Override
    public KVCacheTensor allocate(int sizeBytes) {
      Handles.Address address = new Handles.Address();
      on(() -> JCudaDriver.cuMemAlloc(address, sizeBytes));
      allocations.add(address);
      return KVCacheTensor.device(address.value(), sizeBytes, 0).blocks(1, sizeBytes).build();
    }

    @Override
    public void write(KVCacheTensor memory, int offset, byte[] bytes) {
      on(
          () ->
              JCudaDriver.cuMemcpyHtoD(
                  new Handles.Address(memory.address() + offset), Pointer.to(bytes), bytes.length));
    }

    @Override
    public byte[] read(KVCacheTensor memory, int offset, int length) {
      byte[] bytes = new byte[length];
      on(
          () ->
              JCudaDriver.cuMemcpyDtoH(
                  Pointer.to(bytes), new Handles.Address(memory.address() + offset), length));
      return bytes;
    }

    @Override
    public DeviceFence fence() {
      return CudaFence.onStream(0, stream);
    }

    @Override
    public void close() {
      engine.close(Duration.ofSeconds(20));
      allocations.forEach(allocation -> on(() -> JCudaDriver.cuMemFree(allocation)));
      on(() -> JCudaDriver.cuStreamDestroy(stream));
      CUdevice device = new CUdevice();
      Driver.check("cuDeviceGet", () -> JCudaDriver.cuDeviceGet(device, 0));
      Driver.check(
          "cuDevicePrimaryCtxRelease", () -> JCudaDriver.cuDevicePrimaryCtxRelease(device));
    }
  }

  private static CudaCopySettings kernelForAll() {
    return CudaCopySettings.builder()
        .kernelBelowBytes(1 << 30)
        .kernelMinRanges(1)
        .stridedMinRanges(1 << 20)
        .build();
  }

  @Nested
  @DisplayName("default settings")
  class Defaults extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return new Card(CudaCopySettings.defaults());
    }
  }

  @Nested
  @DisplayName("the kernel for every range")
  class Kernel extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return new Card(kernelForAll());
    }
  }

  @Nested
  @DisplayName("the kernel through a staging buffer")
  class Staged extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      return new Card(
          kernelForAll().toBuilder().kernelBelowBytes(20_000).stagingBytes(1 << 20).build());
    }
  }

  @Test
  @DisplayName("rows of all alignments and of many lengths, both ways")
  void alignments() {
    int bytes = 40 << 20;
    Card card = new Card(kernelForAll());
    KVCacheTensor tensor = card.allocate(bytes);
    card.engine.register(tensor);
    HostSlab slab = card.engine.allocateSlab(bytes);
    Random random = new Random(1);
    for (TransferDirection direction : TransferDirection.values()) {
      byte[] onDevice = new byte[bytes];
      byte[] onHost = new byte[bytes];
      random.nextBytes(onDevice);
      random.nextBytes(onHost);
      card.write(tensor, 0, onDevice);
      slab.buffer().put(0, onHost);
      CopyBatch batch = new CopyBatch();
      batch.reset(direction, 0, 1);
      int at = 0;
      for (int alignments = 0; alignments < 256; alignments++) {
        for (int length : new int[] {1, 15, 16, 17, 255, 4_096, 65_535, 65_536 + 9}) {
          int from = at + alignments / 16;
          int to = at + alignments % 16;
          batch.add(tensor.address() + from, slab.baseAddress() + to, length, 0);
          if (direction == TransferDirection.STORE) {
            System.arraycopy(onDevice, from, onHost, to, length);
          } else {
            System.arraycopy(onHost, to, onDevice, from, length);
          }
          at += (length + 47) & ~15;
        }
      }
      CopyTicket ticket = card.engine.submit(batch, card.fence());
      assertTrue(ticket.await(Duration.ofSeconds(60)));
      assertNull(ticket.failure(0));
      assertArrayEquals(onDevice, card.read(tensor, 0, bytes));
      assertArrayEquals(onHost, CudaRig.bytes(slab));
    }
    card.close();
  }
}
