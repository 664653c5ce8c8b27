package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.connector.HitExplanation.MissReason;
import io.umbp.core.connector.HitExplanation.MissingBlock;
import io.umbp.testkit.ManualClock;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.RejectedExecutionException;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

/** Lookups that run elsewhere, their budget, what is left alone, and how a hit is explained. */
class PrefixLookupTest {
  private final ManualClock clock = new ManualClock();
  private final Deque<Runnable> tasks = new ArrayDeque<>();

  private ConnectorSettings.Builder settings() {
    return ConnectorSettings.builder().nanoTime(clock);
  }

  private ConnectorSettings elsewhere() {
    return settings()
        .lookUpOn(tasks::add, Duration.ofMillis(100))
        .holdHits(Duration.ofMinutes(1))
        .build();
  }

  private static ConnectorRig rig(ConnectorSettings settings, int poolBlocks) {
    return new ConnectorRig(settings, Shape.of(1, 1), poolBlocks, 16, 16);
  }

  private static void store(ConnectorRig rig, BlockHashes prompt, int firstBlock) {
    int tokens = prompt.size() * 16;
    rig.scheduler.lookup(RequestView.of("first", tokens, BlockHashes.empty()), 0);
    rig.scheduler.extend(RequestView.of("first", tokens, prompt));
    rig.scheduler.admit("first", 0, blocks(firstBlock, prompt.size()));
    rig.scheduler.planStores("first", tokens);
    rig.step();
    rig.scheduler.finish("first");
  }

  private Optional<LoadSpec> ask(ConnectorRig rig, int tokens, BlockHashes prompt) {
    return rig.scheduler.lookup(RequestView.of("r", tokens, prompt), 0);
  }

  private void runTasks() {
    while (!tasks.isEmpty()) {
      tasks.remove().run();
    }
  }

  @Test
  void anAnswerIsAskedForAgain() {
    try (ConnectorRig rig = rig(elsewhere(), 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      assertEquals(Optional.empty(), ask(rig, 49, prompt));
      assertEquals(1, tasks.size());
      assertEquals(Optional.empty(), ask(rig, 49, prompt), "one lookup runs");
      assertEquals(1, tasks.size());
      assertTrue(rig.scheduler.hasPendingWork());
      UMBPException refusal =
          assertThrows(UMBPException.class, () -> rig.scheduler.admit("r", 0, blocks(10, 4)));
      assertTrue(refusal.getMessage().contains("without a lookup"), refusal.getMessage());
      refusal = assertThrows(UMBPException.class, () -> rig.scheduler.explain("r"));
      assertTrue(refusal.getMessage().contains("no answer yet"), refusal.getMessage());
      runTasks();
      assertEquals(3, rig.runtime.stats().leases(), "held before it is taken");
      assertEquals(Optional.of(new LoadSpec(0, 48)), ask(rig, 49, prompt));
      assertFalse(rig.scheduler.hasPendingWork());
      rig.scheduler.admit("r", 48, blocks(10, 4));
      assertEquals(Map.of("r", 48), rig.step().validTokens());
      assertEquals(0, rig.runtime.stats().leases());
    }
  }

  @Test
  void aRequestThatChangedIsLookedUpAnew() {
    try (ConnectorRig rig = rig(elsewhere(), 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      ask(rig, 49, prompt);
      ask(rig, 33, prompt);
      ask(rig, 33, hashes(2, 3));
      assertEquals(3, tasks.size());
      assertEquals(
          Optional.empty(), rig.scheduler.lookup(RequestView.of("r", 33, hashes(2, 3)), 16));
      assertEquals(4, tasks.size());
      runTasks();
      assertEquals(0, rig.runtime.stats().leases(), "dropped lookups hold nothing");
      assertEquals(
          Optional.of(new LoadSpec(16, 16)),
          rig.scheduler.lookup(RequestView.of("r", 33, hashes(2, 3)), 16));
    }
  }

  @Test
  @DisplayName("case 24: a lookup without an answer is a miss once its budget is spent")
  void aLookupHasABudget() {
    try (ConnectorRig rig = rig(elsewhere(), 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      ask(rig, 49, prompt);
      clock.advance(Duration.ofMillis(99));
      assertEquals(Optional.empty(), ask(rig, 49, prompt));
      clock.advance(Duration.ofMillis(1));
      assertEquals(Optional.of(new LoadSpec(0, 0)), ask(rig, 49, prompt));
      assertEquals(
          "request 'r' hits 0 of 48 tokens: the store gave no answer within PT0.1S",
          rig.scheduler.explain("r").detail());
      runTasks();
      assertEquals(0, rig.runtime.stats().leases(), "an answer that comes too late holds nothing");
      rig.scheduler.admit("r", 0, blocks(10, 4));
    }
  }

  @Test
  void finishAndCloseDropRunningLookups() {
    try (ConnectorRig rig = rig(elsewhere(), 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      ask(rig, 49, prompt);
      rig.scheduler.finish("r");
      runTasks();
      assertEquals(0, rig.runtime.stats().leases());
      assertFalse(rig.scheduler.hasPendingWork());
      ask(rig, 49, prompt);
      rig.scheduler.close();
      runTasks();
      assertEquals(0, rig.runtime.stats().leases());
    }
  }

  @Test
  void anExecutorThatRefusesIsAMiss() {
    ConnectorSettings refusing =
        settings()
            .lookUpOn(
                task -> {
                  throw new RejectedExecutionException("planted");
                },
                Duration.ofMillis(100))
            .build();
    try (ConnectorRig rig = rig(refusing, 8)) {
      assertEquals(Optional.of(new LoadSpec(0, 0)), ask(rig, 49, hashes(1, 3)));
      assertFalse(rig.scheduler.hasPendingWork());
      assertTrue(
          rig.scheduler.explain("r").detail().endsWith("executor of the lookups refuses them"));
    }
  }

  @Test
  void aStoreThatFailsHasNothing() {
    try (ConnectorRig rig = rig(settings().build(), 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      rig.runtime.close(Duration.ZERO);
      assertEquals(Optional.of(new LoadSpec(0, 0)), ask(rig, 49, prompt));
      assertTrue(rig.scheduler.explain("r").detail().contains("the store failed: "));
    }
  }

  @Test
  void theFirstMissingBlockIsExplained() {
    try (ConnectorRig rig = new ConnectorRig(settings().build(), Shape.of(2, 1), 8, 16, 16)) {
      BlockHashes prompt = hashes(1, 4);
      store(rig, prompt.slice(0, 2), 0);
      ask(rig, 65, prompt);
      HitExplanation explained = rig.scheduler.explain("r");
      assertEquals(32, explained.hitTokens());
      assertEquals(64, explained.usableTokens());
      MissingBlock missing = explained.firstMissing().orElseThrow();
      assertEquals(
          new MissingBlock(
              0,
              32,
              RankTopology.tensorParallel(0, 2).localNamespace(),
              prompt.get(2),
              MissReason.NEVER_STORED),
          missing);
      assertEquals(
          "request 'r' hits 32 of 64 tokens: the block of group 0 that begins at token 32 is"
              + " missing on rank tp0:pcp0:dcp0:pp0; it was never stored",
          explained.detail());
      rig.scheduler.admit("r", 0, blocks(10, 4));
      rig.scheduler.planStores("r", 64);
      rig.start();
      assertEquals(MissReason.IN_FLIGHT, reason(rig, "r"));
      rig.gpu.runAll();
      UMBPConnectorWorkerMetadata first = rig.workers.get(0).poll();
      rig.scheduler.update(first.plus(rig.workers.get(1).poll()));
      assertEquals(64, rig.hit(65, prompt));
      ask2(rig, prompt);
      assertEquals(Optional.empty(), rig.scheduler.explain("s").firstMissing());
      assertEquals("request 's' hits 64 of 64 tokens", rig.scheduler.explain("s").detail());
      store(rig, hashes(2, 4), 20);
      ask2(rig, prompt);
      assertEquals(MissReason.EVICTED, reason(rig, "s"));
      rig.runtime.describeNamespace(new UMBPNamespace("other"), "umbp-manifest 1\nmodel=o\n");
      assertEquals(MissReason.EVICTED, reason(rig, "s"));
      rig.scheduler.finish("s");
      rig.scheduler.lookup(RequestView.of("s", 65, hashes(3, 4)), 0);
      assertEquals(MissReason.NAMESPACE_DIFFERS, reason(rig, "s"));
    }
  }

  private static void ask2(ConnectorRig rig, BlockHashes prompt) {
    rig.scheduler.finish("s");
    rig.scheduler.lookup(RequestView.of("s", 65, prompt), 0);
  }

  private static MissReason reason(ConnectorRig rig, String request) {
    return rig.scheduler.explain(request).firstMissing().orElseThrow().reason();
  }

  @Test
  void whatWasNotLookedUpIsExplainedToo() {
    try (ConnectorRig rig = rig(settings().build(), 8)) {
      rig.scheduler.lookup(RequestView.of("r", 49, hashes(1, 3)), 8);
      assertEquals(
          "request 'r' hits 8 of 48 tokens: 8 local tokens do not end where blocks of all groups"
              + " do, every 16 tokens",
          rig.scheduler.explain("r").detail());
      rig.scheduler.lookup(RequestView.of("r", 1, BlockHashes.empty()), 0);
      assertEquals("request 'r' hits 0 of 0 tokens", rig.scheduler.explain("r").detail());
    }
  }

  @Test
  void anObjectWhoseLoadFailedIsLeftAloneForAWhile() {
    ConnectorSettings settings = settings().quarantine(Duration.ofSeconds(5)).build();
    try (ConnectorRig rig = rig(settings, 8)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      ask(rig, 49, prompt);
      rig.scheduler.admit("r", 48, blocks(10, 4));
      rig.copies.failNext((row, key) -> key == 1);
      assertEquals(Map.of("r", 16), rig.step().validTokens());
      assertEquals(Optional.of(new LoadSpec(0, 16)), ask(rig, 49, prompt));
      assertEquals(MissReason.QUARANTINED, reason(rig, "r"));
      clock.advance(Duration.ofSeconds(5));
      assertEquals(Optional.of(new LoadSpec(0, 48)), ask(rig, 49, prompt));
      rig.scheduler.admit("r", 48, blocks(10, 4));
      rig.copies.failNext((row, key) -> key == 0);
      assertEquals(Map.of("r", 0), rig.step().validTokens());
      rig.scheduler.clear();
      store(rig, prompt, 0);
      assertEquals(Optional.of(new LoadSpec(0, 48)), ask(rig, 49, prompt), "a clear lifts it");
    }
  }

  @Test
  void aMissingObjectIsNotLeftAlone() {
    try (ConnectorRig rig = rig(settings().build(), 4)) {
      BlockHashes prompt = hashes(1, 3);
      store(rig, prompt, 0);
      ask(rig, 49, prompt);
      store(rig, hashes(2, 4), 20);
      rig.scheduler.admit("r", 48, blocks(10, 4));
      assertEquals(Map.of("r", 0), rig.step().validTokens());
      store(rig, prompt, 0);
      assertEquals(Optional.of(new LoadSpec(0, 48)), ask(rig, 49, prompt));
    }
  }
}
