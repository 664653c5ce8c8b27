package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;

/** Random batches by every path, against a scatter and gather over arrays. */
class CudaCopyProperties {
  private static final int TENSOR_BYTES = 200_000;
  private static final int TENSORS = 3;
  private static final int SLABS = 2;

  /** Where rows go; the kernel and strided copies may also share a plan. */
  @SuppressWarnings("ImmutableEnumChecker") // The settings are immutable.
  enum Paths {
    ONE_BY_ONE(CudaCopySettings.builder().kernelBelowBytes(0).stridedMinRanges(1 << 20)),
    STRIDED(CudaCopySettings.builder().kernelBelowBytes(0).stridedMinRanges(2).stridedMinBytes(0)),
    KERNEL(
        CudaCopySettings.builder()
            .kernelBelowBytes(1 << 30)
            .kernelMinRanges(1)
            .stridedMinRanges(1 << 20)
            .tableRanges(7)),
    STAGED(
        CudaCopySettings.builder()
            .kernelBelowBytes(1_000)
            .kernelMinRanges(2)
            .stridedMinRanges(1 << 20)
            .stagingBytes(5_000)),
    MIXED(CudaCopySettings.builder().kernelBelowBytes(300).kernelMinRanges(2).stridedMinBytes(64)),
    DEFAULTS(CudaCopySettings.builder());

    private final CudaCopySettings settings;

    Paths(CudaCopySettings.Builder settings) {
      this.settings = settings.build();
    }
  }

  @Property(tries = 400)
  void copiesLikeArrays(
      @ForAll Paths paths,
      @ForAll TransferDirection direction,
      @ForAll @IntRange(min = 1, max = 120) int rows,
      @ForAll @IntRange(min = 1, max = 4) int marks,
      @ForAll long seed) {
    Random random = new Random(seed);
    CudaRig rig = new CudaRig(1);
    CudaCopyEngine engine = CudaCopyEngine.builder().device(0).settings(paths.settings).open();
    List<KVCacheTensor> tensors = new ArrayList<>();
    List<HostSlab> slabs = new ArrayList<>();
    byte[][] device = new byte[TENSORS][];
    byte[][] host = new byte[SLABS][];
    for (int i = 0; i < TENSORS; i++) {
      KVCacheTensor tensor = rig.tensor(0, TENSOR_BYTES);
      engine.register(tensor);
      tensors.add(tensor);
      device[i] = content(TENSOR_BYTES, random);
      rig.driver.poke(tensor.address(), device[i]);
    }
    for (int i = 0; i < SLABS; i++) {
      slabs.add(engine.allocateSlab((long) TENSOR_BYTES * TENSORS));
      host[i] = content(TENSOR_BYTES * TENSORS, random);
      slabs.get(i).buffer().put(0, host[i]);
    }

    CopyBatch batch = new CopyBatch();
    batch.reset(direction, 0, 1);
    int[] deviceNext = new int[TENSORS];
    int[] hostNext = new int[SLABS];
    for (int row = 0; row < rows; ) {
      int tensor = random.nextInt(TENSORS);
      int slab = random.nextInt(SLABS);
      int bytes = length(random);
      int deviceGap = random.nextInt(3) == 0 ? 0 : random.nextInt(100);
      int hostGap = random.nextInt(3) == 0 ? 0 : random.nextInt(100);
      int run = 1 + random.nextInt(12);
      deviceNext[tensor] += random.nextInt(17);
      hostNext[slab] += random.nextInt(17);
      for (int i = 0; i < run && row < rows; i++, row++) {
        int from = deviceNext[tensor];
        int to = hostNext[slab];
        if (from + bytes > TENSOR_BYTES || to + bytes > host[slab].length) {
          row = rows;
          break;
        }
        batch.add(
            tensors.get(tensor).address() + from, slabs.get(slab).baseAddress() + to, bytes, 0);
        if (direction == TransferDirection.STORE) {
          System.arraycopy(device[tensor], from, host[slab], to, bytes);
        } else {
          System.arraycopy(host[slab], to, device[tensor], from, bytes);
        }
        deviceNext[tensor] += bytes + deviceGap;
        hostNext[slab] += bytes + hostGap;
        if (random.nextInt(rows) < marks) {
          batch.endMark();
        }
      }
    }
    CopyTicket ticket = engine.submit(batch, rig.fence(0));
    assertTrue(ticket.await(Duration.ofSeconds(20)));
    assertNull(ticket.failure(0));
    for (int i = 0; i < TENSORS; i++) {
      assertArrayEquals(device[i], rig.driver.peek(tensors.get(i).address(), TENSOR_BYTES));
    }
    for (int i = 0; i < SLABS; i++) {
      assertArrayEquals(host[i], CudaRig.bytes(slabs.get(i)));
    }
    assertEquals(batch.count(), engine.stats().ranges());
    engine.close(Duration.ofSeconds(20));
    rig.assertEnginesLeftNothing();
    rig.close();
    rig.assertNothingLeft();
  }

  private static byte[] content(int bytes, Random random) {
    byte[] content = new byte[bytes];
    random.nextBytes(content);
    return content;
  }

  private static int length(Random random) {
    return switch (random.nextInt(4)) {
      case 0 -> 1 + random.nextInt(40);
      case 1 -> 16 * (1 + random.nextInt(30));
      case 2 -> 1 + random.nextInt(1_500);
      default -> 70_000 + random.nextInt(2_000);
    };
  }
}
