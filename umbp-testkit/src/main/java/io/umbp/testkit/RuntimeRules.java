package io.umbp.testkit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVOrigin;
import io.umbp.api.RankTopology;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/**
 * What the tests of the runtime's rules share: fixtures that are opened on demand, and the balance
 * after each test.
 */
@Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
abstract class RuntimeRules {
  static final Duration TIMEOUT = Duration.ofSeconds(30);
  static final Duration TICK = Duration.ofMillis(1);

  private final List<RuntimeFixture> fixtures = new ArrayList<>();
  private final List<ToyEngine> engines = new ArrayList<>();

  /** See {@link UMBPRuntimeContract#open}. */
  protected abstract RuntimeFixture open(RuntimeFixture.Setup setup);

  /** Opens a runtime that lives until the end of the test. */
  RuntimeFixture fixture(long capacityBytes, Duration transferTimeout) {
    RuntimeFixture fixture = open(new RuntimeFixture.Setup(capacityBytes, transferTimeout));
    fixtures.add(fixture);
    return fixture;
  }

  /** Opens a runtime with room for some objects and the engine that uses it. */
  ToyEngine engine(int objects) {
    return engine(fixture(objects * ToyEngine.OBJECT_BYTES, TIMEOUT));
  }

  ToyEngine engine(int objects, Duration transferTimeout) {
    return engine(fixture(objects * ToyEngine.OBJECT_BYTES, transferTimeout));
  }

  ToyEngine engine(RuntimeFixture fixture) {
    return engine(fixture, ToyEngine.NAMESPACE, ToyEngine.layout(RankTopology.single()));
  }

  ToyEngine engine(RuntimeFixture fixture, UMBPNamespace namespace, KVLayoutDescriptor layout) {
    return engine(fixture, namespace, layout, ToyEngine.BLOCKS);
  }

  ToyEngine engine(
      RuntimeFixture fixture, UMBPNamespace namespace, KVLayoutDescriptor layout, int blocks) {
    return watched(ToyEngine.open(fixture, namespace, layout, blocks));
  }

  /** Opens an engine whose buffers may hold KV that another writer made. */
  ToyEngine foreignEngine(RuntimeFixture fixture, UMBPNamespace namespace) {
    KVLayoutDescriptor layout = ToyEngine.layout(RankTopology.single());
    RegistrationOptions options =
        RegistrationOptions.ownWriter().withOrigin(KVOrigin.MAY_BE_FOREIGN);
    return watched(ToyEngine.open(fixture, namespace, layout, ToyEngine.BLOCKS, options));
  }

  private ToyEngine watched(ToyEngine engine) {
    engines.add(engine);
    return engine;
  }

  static void assumeHeldCopies(ToyEngine engine) {
    assumeTrue(engine.fixture.canHoldCopies(), "copies run inside the call here, none can be held");
  }

  static void assumeStreams(ToyEngine engine) {
    assumeTrue(engine.fixture.hasStreams(), "the engine's memory has no streams here");
  }

  static UMBPException refused(UMBPException.Reason reason, Executable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call);
    assertEquals(reason, refusal.reason(), refusal::getMessage);
    return refusal;
  }

  /** Refused as a bad argument, with each of the parts in the message. */
  static void refusedNaming(Executable call, Object... parts) {
    UMBPException refusal = refused(UMBPException.Reason.INVALID_ARGUMENT, call);
    for (Object part : parts) {
      assertTrue(
          String.valueOf(refusal.getMessage()).contains(part.toString()),
          () -> "'" + refusal.getMessage() + "' does not name " + part);
    }
  }

  static void assertNotFinal(TransferJobState job) {
    assertFalse(job.isFinal(), job::toString);
  }

  static void assertStatus(TransferJobState.Status expected, TransferJobState job) {
    assertEquals(expected, job.status(), job::toString);
  }

  /** Nothing is left over: what is used is what lookups find, and the rest is free. */
  @AfterEach
  @Timeout(value = 60, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
  void leavesNothingBehind() {
    List<Throwable> failures = new ArrayList<>();
    for (RuntimeFixture fixture : fixtures) {
      try {
        fixture.tickOnRead(Duration.ZERO);
        fixture.healCopies();
        fixture.releaseCopies();
        checkBalance(fixture);
      } catch (AssertionError | RuntimeException e) {
        failures.add(e);
      } finally {
        fixture.close();
      }
    }
    if (!failures.isEmpty()) {
      throw new AssertionError("after the test: " + failures.get(0).getMessage(), failures.get(0));
    }
  }

  private void checkBalance(RuntimeFixture fixture) {
    List<ToyEngine> own = new ArrayList<>();
    for (ToyEngine engine : engines) {
      if (engine.fixture == fixture) {
        engine.settle();
        own.add(engine);
      }
    }
    fixture.advance(TIMEOUT.plus(TIMEOUT));
    if (!isOpen(own)) {
      return;
    }
    Map<String, Long> visible = new HashMap<>();
    own.forEach(engine -> engine.collectVisible(visible));
    RuntimeFixture.Counts counts = fixture.counts();
    assertEquals(0, counts.leases(), () -> "leases: " + counts);
    assertEquals(0, counts.runningCopies(), () -> "copies in flight: " + counts);
    assertEquals(0, counts.unpublishedObjects(), () -> "objects in flight: " + counts);
    assertEquals(counts.capacityBytes(), counts.usedBytes() + counts.freeBytes(), counts::toString);
    assertEquals(
        visible.values().stream().mapToLong(Long::longValue).sum(),
        counts.usedBytes(),
        () -> "used bytes against the objects that lookups find: " + counts);
  }

  private static boolean isOpen(List<ToyEngine> engines) {
    for (ToyEngine engine : engines) {
      try {
        engine.lookup(0);
      } catch (UMBPException e) {
        return false;
      }
    }
    return true;
  }
}
