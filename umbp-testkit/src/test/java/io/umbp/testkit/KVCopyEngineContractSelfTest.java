package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import io.umbp.api.CloseResult;
import io.umbp.api.DeviceFence;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.UMBPException;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.EngineFilter;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

@DisplayName("the copy engine contract rejects engines that are broken on purpose")
class KVCopyEngineContractSelfTest {
  /** What is wrong with an engine, and the rule that it breaks. */
  enum Defect {
    FINAL_WHILE_HELD(1),
    MARKS_DONE_AT_ONCE(1),
    COPIES_AGAIN_WHEN_POLLED(1),
    EMPTY_BATCH_IS_NEVER_FINAL(1),
    STORE_IGNORES_ITS_FENCE(2),
    STORE_TAKES_NO_FENCE(2),
    SECOND_RELEASE_FREES_AGAIN(4),
    FAILED_ROW_LOOKS_LIKE_SUCCESS(5),
    FAILURE_SPREADS_TO_OTHER_KEYS(5),
    DROPS_LAST_ROW(5),
    COPIES_ONE_BYTE_TOO_MANY(5),
    TENSORS_LOSE_THEIR_DISTANCE(5),
    ROWS_END_WITH_THEIR_TENSOR(5),
    SKIPS_BAD_ROWS(7),
    COPIES_BEFORE_IT_CHECKS(7),
    KEEPS_UNREGISTERED_MEMORY(7),
    TAKES_ANY_SLAB_SIZE(7),
    CLOSE_FREES_SLABS_IN_USE(8),
    RELEASE_FREES_SLABS_IN_USE(8),
    CLOSE_ALWAYS_SAYS_CLEAN(8),
    WORKS_AFTER_CLOSE(8),
    LOAD_IGNORES_ITS_FENCE(9),
    LOAD_TAKES_NO_FENCE(9);

    final int rule;

    Defect(int rule) {
      this.rule = rule;
    }
  }

  private static volatile Defect defect;

  /** The contract over an engine with the defect; not found by the build, run by hand below. */
  static class Broken extends KVCopyEngineContract {
    @Override
    protected Fixture open() {
      FakeGpu gpu = FakeGpu.stepped(1);
      BrokenEngine engine = new BrokenEngine(gpu, defect);
      FakeGpuFixture fixture = new FakeGpuFixture(gpu, engine);
      engine.holding = fixture::isHolding;
      return fixture;
    }
  }

  @ParameterizedTest
  @EnumSource
  void failsInTestsOfTheRuleThatIsBroken(Defect broken) {
    Set<String> failed = failedTests(broken);
    assertFalse(failed.isEmpty(), broken + " passes the contract");
    for (String name : failed) {
      assertTrue(name.startsWith("rule " + broken.rule + ":"), broken + " also fails " + name);
    }
  }

  @Test
  void passesWithoutDefect() {
    assertEquals(Set.of(), failedTests(null));
  }

  private static synchronized Set<String> failedTests(Defect broken) {
    Set<String> failed = new HashSet<>();
    List<String> finished = new ArrayList<>();
    defect = broken;
    LauncherFactory.create()
        .execute(
            LauncherDiscoveryRequestBuilder.request()
                .selectors(selectClass(Broken.class))
                .filters(EngineFilter.includeEngines("junit-jupiter"))
                .build(),
            new TestExecutionListener() {
              @Override
              public void executionFinished(TestIdentifier test, TestExecutionResult result) {
                finished.add(test.getDisplayName());
                if (result.getStatus() == TestExecutionResult.Status.FAILED) {
                  failed.add(test.getDisplayName());
                }
              }
            });
    assertTrue(finished.size() > 20, "the contract ran: " + finished);
    return failed;
  }

  private static final class BrokenEngine extends ForwardingEngine {
    private final Defect defect;
    private final List<HostSlab> slabs = new ArrayList<>();
    private final Map<Long, Integer> releases = new HashMap<>();
    private final List<HostSlab> freedAgain = new ArrayList<>();
    private final Set<Long> allocations = new HashSet<>();
    private final NavigableMap<Long, Long> tensorEnds = new TreeMap<>();
    private BooleanSupplier holding = () -> false;

    BrokenEngine(FakeGpu gpu, Defect defect) {
      super(new SteppingEngine(gpu));
      this.defect = defect;
    }

    @Override
    public synchronized long register(KVCacheTensor tensor) {
      long base = next.register(tensor);
      tensorEnds.put(base, base + tensor.sizeBytes());
      boolean isSecond = !allocations.add(tensor.allocationBase());
      return defect == Defect.TENSORS_LOSE_THEIR_DISTANCE && isSecond ? base + 64 : base;
    }

    @Override
    public void unregister(KVCacheTensor tensor) {
      if (defect != Defect.KEEPS_UNREGISTERED_MEMORY) {
        next.unregister(tensor);
      }
    }

    @Override
    public synchronized HostSlab allocateSlab(long sizeBytes) {
      if (defect == Defect.TAKES_ANY_SLAB_SIZE && sizeBytes == 0) {
        return next.allocateSlab(1);
      }
      if (!freedAgain.isEmpty()) {
        return freedAgain.remove(0);
      }
      HostSlab slab = next.allocateSlab(sizeBytes);
      slabs.add(slab);
      return slab;
    }

    @Override
    public synchronized void releaseSlab(HostSlab slab) {
      int count = releases.merge(slab.baseAddress(), 1, Integer::sum);
      if (defect == Defect.SECOND_RELEASE_FREES_AGAIN && count == 2) {
        freedAgain.add(slab);
      }
      next.releaseSlab(slab);
      if (defect == Defect.RELEASE_FREES_SLABS_IN_USE) {
        spoil(slab);
      }
    }

    private static void spoil(HostSlab slab) {
      for (int i = 0; i < slab.sizeBytes(); i++) {
        slab.buffer().put(i, FakeGpu.FREED_POISON);
      }
    }

    @Override
    public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
      if (defect == null) {
        return next.submit(batch, fence);
      }
      boolean load = batch.direction() == TransferDirection.LOAD;
      boolean onStream = fence instanceof DeviceFence.OnStream;
      return switch (defect) {
        case STORE_IGNORES_ITS_FENCE ->
            next.submit(batch, onStream && !load ? DeviceFence.hostComplete() : fence);
        case LOAD_IGNORES_ITS_FENCE ->
            next.submit(batch, onStream && load ? DeviceFence.hostComplete() : fence);
        case STORE_TAKES_NO_FENCE ->
            next.submit(batch, onStream || load ? fence : DeviceFence.hostComplete());
        case LOAD_TAKES_NO_FENCE ->
            next.submit(batch, onStream || !load ? fence : DeviceFence.hostComplete());
        case DROPS_LAST_ROW ->
            next.submit(batch.keyCount() == 3 ? copy(batch, batch.count() - 1, 0) : batch, fence);
        case COPIES_ONE_BYTE_TOO_MANY ->
            next.submit(batch.keyCount() == 3 ? copy(batch, batch.count(), 1) : batch, fence);
        case SKIPS_BAD_ROWS, COPIES_BEFORE_IT_CHECKS -> submitUnchecked(batch, fence);
        case ROWS_END_WITH_THEIR_TENSOR -> {
          for (int row = 0; row < batch.count(); row++) {
            long start = batch.device()[row];
            long end = start + batch.length()[row];
            Map.Entry<Long, Long> first = tensorEnds.floorEntry(start);
            Map.Entry<Long, Long> last = tensorEnds.lowerEntry(end);
            boolean isInside = first != null && start < first.getValue();
            if (isInside && last != null && last.getKey() > start && end <= last.getValue()) {
              throw UMBPException.invalid("row %d ends in another tensor", row);
            }
          }
          yield next.submit(batch, fence);
        }
        default -> new BrokenTicket(batch, fence, next.submit(batch, fence));
      };
    }

    private CopyTicket submitUnchecked(CopyBatch batch, DeviceFence fence) {
      try {
        return next.submit(batch, fence);
      } catch (UMBPException refusal) {
        if (refusal.reason() != UMBPException.Reason.INVALID_ARGUMENT) {
          throw refusal;
        }
        CopyBatch good = copy(batch, batch.count() - 1, 0);
        if (defect == Defect.SKIPS_BAD_ROWS) {
          good.reset(batch.direction(), 0, batch.keyCount());
          return next.submit(good, fence);
        }
        if (good.count() > 0) {
          next.submit(good, fence).await(Duration.ofSeconds(1));
        }
        throw refusal;
      }
    }

    /** Copies the first rows; all but the last of them get longer. */
    private static CopyBatch copy(CopyBatch batch, int rows, int extraBytes) {
      CopyBatch copy = new CopyBatch();
      copy.reset(batch.direction(), batch.deviceOrdinal(), batch.keyCount());
      for (int row = 0; row < rows; row++) {
        copy.add(
            batch.device()[row],
            batch.host()[row],
            batch.length()[row] + (row < rows - 1 ? extraBytes : 0),
            batch.key()[row]);
      }
      return copy;
    }

    @Override
    public CloseResult close(Duration bound) {
      if (defect == Defect.WORKS_AFTER_CLOSE) {
        return CloseResult.CLEAN;
      }
      CloseResult result = next.close(bound);
      if (defect == Defect.CLOSE_FREES_SLABS_IN_USE && !result.isClean()) {
        slabs.forEach(BrokenEngine::spoil);
      }
      return defect == Defect.CLOSE_ALWAYS_SAYS_CLEAN ? CloseResult.CLEAN : result;
    }

    private final class BrokenTicket extends ForwardingEngine.ForwardingTicket {
      private final CopyBatch batch;
      private final DeviceFence fence;
      private final boolean isEmpty;

      private BrokenTicket(CopyBatch batch, DeviceFence fence, CopyTicket next) {
        super(next);
        this.batch = batch;
        this.fence = fence;
        isEmpty = batch.count() == 0;
      }

      @Override
      public boolean poll() {
        if (defect == Defect.COPIES_AGAIN_WHEN_POLLED && next.poll()) {
          copyAgain();
        }
        return isFinal(next.poll());
      }

      @Override
      public boolean await(Duration timeout) {
        return isFinal(false) || isFinal(next.await(timeout));
      }

      private boolean isFinal(boolean really) {
        if (defect == Defect.EMPTY_BATCH_IS_NEVER_FINAL && isEmpty) {
          return false;
        }
        return really || (defect == Defect.FINAL_WHILE_HELD && holding.getAsBoolean());
      }

      private void copyAgain() {
        try {
          BrokenEngine.this.next.submit(batch, fence).await(Duration.ofSeconds(1));
        } catch (UMBPException closed) {
          assertEquals(UMBPException.Reason.CLOSED, closed.reason());
        }
      }

      @Override
      public boolean isMarkDone(int mark) {
        return defect == Defect.MARKS_DONE_AT_ONCE || next.isMarkDone(mark);
      }

      @Override
      public String failure(int key) {
        if (defect == Defect.FAILED_ROW_LOOKS_LIKE_SUCCESS) {
          return null;
        }
        String failure = next.failure(key);
        if (defect == Defect.FAILURE_SPREADS_TO_OTHER_KEYS) {
          for (int other = 0; other < batch.keyCount() && failure == null; other++) {
            failure = next.failure(other);
          }
        }
        return failure;
      }
    }
  }
}
