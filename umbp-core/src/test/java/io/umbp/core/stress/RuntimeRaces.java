package io.umbp.core.stress;

import io.umbp.api.SupportsHold.Hold;
import io.umbp.api.TransferJobState;
import java.time.Duration;
import org.openjdk.jcstress.annotations.Actor;
import org.openjdk.jcstress.annotations.Arbiter;
import org.openjdk.jcstress.annotations.Expect;
import org.openjdk.jcstress.annotations.JCStressTest;
import org.openjdk.jcstress.annotations.Outcome;
import org.openjdk.jcstress.annotations.State;
import org.openjdk.jcstress.infra.results.III_Result;
import org.openjdk.jcstress.infra.results.II_Result;

/**
 * Races of two threads on one key through the embedded runtime's doors. What stands in no outcome
 * is forbidden.
 */
public final class RuntimeRaces {
  private RuntimeRaces() {}

  /** An object is there from its publication on. */
  @JCStressTest
  @Outcome(id = "0, 1", expect = Expect.ACCEPTABLE, desc = "looked before")
  @Outcome(id = "1, 1", expect = Expect.ACCEPTABLE, desc = "looked behind")
  @State
  public static class PublishAgainstLookup {
    private final StressRig rig = new StressRig(2);
    private final TransferJobState job = rig.store(1, 0);

    @Actor
    public void publish() {
      rig.worker.publish(job);
    }

    @Actor
    public void lookup(II_Result result) {
      result.r1 = rig.isThere(1) ? 1 : 0;
    }

    @Arbiter
    public void after(II_Result result) {
      result.r2 = rig.isThere(1) && rig.load(1, 3) == 1 && rig.balance() == 1 ? 1 : 0;
    }
  }

  /** Of two writers of one key exactly one full value is there. */
  @JCStressTest
  @Outcome(id = "1, 1", expect = Expect.ACCEPTABLE, desc = "the first one's")
  @Outcome(id = "2, 1", expect = Expect.ACCEPTABLE, desc = "the second one's")
  @State
  public static class TwoWriters {
    private final StressRig rig = new StressRig(2);

    @Actor
    public void first() {
      rig.storeAndPublish(1, 0);
    }

    @Actor
    public void second() {
      rig.storeAndPublish(1, 1);
    }

    @Arbiter
    public void after(II_Result result) {
      result.r1 = rig.load(1, 3);
      result.r2 = rig.balance();
    }
  }

  /** A store that was begun before a clear is never there behind it. */
  @JCStressTest
  @Outcome(id = "0, 1", expect = Expect.ACCEPTABLE, desc = "gone")
  @State
  public static class PublishAgainstClear {
    private final StressRig rig = new StressRig(2);
    private final TransferJobState job = rig.store(1, 0);

    @Actor
    public void publish() {
      rig.worker.publish(job);
    }

    @Actor
    public void clear() {
      rig.scheduler.clear();
    }

    @Arbiter
    public void after(II_Result result) {
      result.r1 = rig.isThere(1) ? 1 : 0;
      result.r2 = rig.balance();
    }
  }

  /** A load brings the whole object or says that it did not. */
  @JCStressTest
  @Outcome(id = "1, 1", expect = Expect.ACCEPTABLE, desc = "loaded")
  @Outcome(id = "-2, 1", expect = Expect.ACCEPTABLE, desc = "a miss")
  @State
  public static class LoadAgainstClear {
    private final StressRig rig = new StressRig(2);

    public LoadAgainstClear() {
      rig.storeAndPublish(1, 0);
    }

    @Actor
    public void load(II_Result result) {
      result.r1 = rig.load(1, 3);
    }

    @Actor
    public void clear() {
      rig.scheduler.clear();
    }

    @Arbiter
    public void after(II_Result result) {
      result.r2 = rig.isThere(1) ? 0 : rig.balance();
    }
  }

  /** A slot is never given to another object while a load reads it. */
  @JCStressTest
  @Outcome(id = "1, 2, 1", expect = Expect.ACCEPTABLE, desc = "loaded, then evicted")
  @Outcome(id = "1, -2, 1", expect = Expect.ACCEPTABLE, desc = "pinned: no room for the store")
  @Outcome(id = "-2, 2, 1", expect = Expect.ACCEPTABLE, desc = "evicted before")
  @State
  public static class LoadAgainstEviction {
    private final StressRig rig = new StressRig(1);

    public LoadAgainstEviction() {
      rig.storeAndPublish(1, 0);
    }

    @Actor
    public void load(III_Result result) {
      result.r1 = rig.load(1, 3);
    }

    @Actor
    public void evict() {
      rig.storeAndPublish(2, 1);
    }

    @Arbiter
    public void after(III_Result result) {
      result.r2 = rig.load(2, 4);
      result.r3 = rig.balance();
    }
  }

  /** What a lookup holds is not evicted, and is let go once. */
  @JCStressTest
  @Outcome(id = "1, 1", expect = Expect.ACCEPTABLE, desc = "held, and loaded")
  @Outcome(id = "-2, 1", expect = Expect.ACCEPTABLE, desc = "evicted before the lookup")
  @State
  public static class HoldAgainstEviction {
    private final StressRig rig = new StressRig(1);

    public HoldAgainstEviction() {
      rig.storeAndPublish(1, 0);
    }

    @Actor
    public void holdAndLoad(II_Result result) {
      try (Hold hold = rig.scheduler.lookupAndHold(StressRig.key(1), Duration.ofHours(1))) {
        boolean isThere = hold.present()[0];
        int loaded = rig.load(1, 3);
        result.r1 = isThere == (loaded != -2) ? loaded : -3;
      }
    }

    @Actor
    public void evict() {
      rig.storeAndPublish(2, 1);
    }

    @Arbiter
    public void after(II_Result result) {
      result.r2 = rig.balance();
    }
  }

  /** A hold that several end, one of them by a clear, gives each pin back once. */
  @JCStressTest
  @Outcome(id = "0, 1", expect = Expect.ACCEPTABLE, desc = "given back once")
  @State
  public static class HoldEndedByAll {
    private final StressRig rig = new StressRig(2);
    private final Hold hold;

    public HoldEndedByAll() {
      rig.storeAndPublish(1, 0);
      hold = rig.scheduler.lookupAndHold(StressRig.key(1), Duration.ofHours(1));
    }

    @Actor
    public void close() {
      hold.close();
    }

    @Actor
    public void clear() {
      rig.scheduler.clear();
      hold.keepFirst(0);
    }

    @Arbiter
    public void after(II_Result result) {
      result.r1 = hold.isHeld() || rig.isThere(1) ? 1 : 0;
      result.r2 = rig.balance();
    }
  }

  /** A job that two threads publish is published once. */
  @JCStressTest
  @Outcome(id = "1, 0, 1", expect = Expect.ACCEPTABLE, desc = "by the first")
  @Outcome(id = "0, 1, 1", expect = Expect.ACCEPTABLE, desc = "by the second")
  @State
  public static class PublishTwice {
    private final StressRig rig = new StressRig(2);
    private final TransferJobState job = rig.store(1, 0);

    @Actor
    public void first(III_Result result) {
      result.r1 = rig.worker.publish(rig.worker.poll(job));
    }

    @Actor
    public void second(III_Result result) {
      result.r2 = rig.worker.publish(rig.worker.await(job, Duration.ofSeconds(1)));
    }

    @Arbiter
    public void after(III_Result result) {
      result.r3 = rig.isThere(1) ? rig.balance() : 0;
    }
  }

  /** A cancelled store is never there; one that was published first is. */
  @JCStressTest
  @Outcome(id = "1, 1, 1", expect = Expect.ACCEPTABLE, desc = "published before")
  @Outcome(id = "0, 0, 1", expect = Expect.ACCEPTABLE, desc = "cancelled before")
  @State
  public static class CancelAgainstPublish {
    private final StressRig rig = new StressRig(2);
    private final TransferJobState job = rig.store(1, 0);

    @Actor
    public void cancel() {
      rig.worker.cancel(job);
    }

    @Actor
    public void publish(III_Result result) {
      result.r1 = rig.worker.publish(job);
    }

    @Arbiter
    public void after(III_Result result) {
      result.r2 = rig.isThere(1) ? 1 : 0;
      result.r3 = rig.balance();
    }
  }

  /**
   * The canary: a lookup without a hold promises nothing, so that a hit which can't be loaded must
   * turn up here. When it does not, the other races prove nothing either.
   */
  @JCStressTest
  @Outcome(id = "1, 1", expect = Expect.ACCEPTABLE, desc = "found and loaded")
  @Outcome(id = "0, -2", expect = Expect.ACCEPTABLE, desc = "neither")
  @Outcome(id = "1, -2", expect = Expect.FORBIDDEN, desc = "found, and gone")
  @State
  public static class CanaryHitWithoutHold {
    private final StressRig rig = new StressRig(2);

    public CanaryHitWithoutHold() {
      rig.storeAndPublish(1, 0);
    }

    @Actor
    public void lookupAndLoad(II_Result result) {
      result.r1 = rig.isThere(1) ? 1 : 0;
      result.r2 = rig.load(1, 3);
    }

    @Actor
    public void clear() {
      rig.scheduler.clear();
    }

    @Arbiter
    public void after() {
      rig.runtime.close(Duration.ZERO);
    }
  }
}
