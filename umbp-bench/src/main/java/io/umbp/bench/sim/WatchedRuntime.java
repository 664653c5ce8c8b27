package io.umbp.bench.sim;

import io.umbp.api.BlockKey;
import io.umbp.api.BlockKeys;
import io.umbp.api.ClearResult;
import io.umbp.api.CloseResult;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KeyOutcome;
import io.umbp.api.RankTopology;
import io.umbp.api.SupportsHold;
import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.UMBPWorkerHandle;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A runtime whose answers are held against what was published: nothing is there before, and nothing
 * after a clear. Thread-confined.
 */
final class WatchedRuntime implements UMBPRuntime {
  private final UMBPRuntime runtime;
  private final SimParts parts;
  private final Set<BlockKey> published = new HashSet<>();

  /** Stores that were begun since the last clear. */
  private final Set<Long> youngStores = new HashSet<>();

  WatchedRuntime(UMBPRuntime runtime, SimParts parts) {
    this.runtime = parts.runtime(runtime);
    this.parts = parts;
  }

  @Override
  public UMBPSchedulerHandle createSchedulerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    SupportsHold real = (SupportsHold) runtime.createSchedulerHandle(namespace, topology, layout);
    return new WatchedScheduler(real, (SupportsHold) parts.schedulerHandle(real));
  }

  @Override
  public UMBPWorkerHandle createWorkerHandle(
      UMBPNamespace namespace, RankTopology topology, KVLayoutDescriptor layout) {
    UMBPWorkerHandle handle = runtime.createWorkerHandle(namespace, topology, layout);
    return (UMBPWorkerHandle)
        Proxy.newProxyInstance(
            UMBPWorkerHandle.class.getClassLoader(),
            new Class<?>[] {UMBPWorkerHandle.class},
            (proxy, method, arguments) -> {
              Object result;
              try {
                result = method.invoke(handle, arguments);
              } catch (InvocationTargetException e) {
                throw e.getCause();
              }
              if (method.getName().equals("store")) {
                youngStores.add(((TransferJobState) result).jobId());
              }
              if (method.getName().equals("publish")) {
                notePublished((TransferJobState) arguments[0]);
              }
              return result;
            });
  }

  private void notePublished(TransferJobState store) {
    for (int i = 0; i < store.size() && youngStores.contains(store.jobId()); i++) {
      if (store.outcome(i) == KeyOutcome.COMPLETED) {
        published.add(store.keys().key(i));
      }
    }
  }

  @Override
  public void describeNamespace(UMBPNamespace namespace, String manifest) {
    runtime.describeNamespace(namespace, manifest);
  }

  @Override
  public Map<UMBPNamespace, String> manifests() {
    return runtime.manifests();
  }

  @Override
  public CloseResult close(Duration bound) {
    return runtime.close(bound);
  }

  /** Holds a handle's answers against the real one's and against what was published. */
  private final class WatchedScheduler implements SupportsHold {
    private final SupportsHold real;
    private final SupportsHold handle;

    WatchedScheduler(SupportsHold real, SupportsHold handle) {
      this.real = real;
      this.handle = handle;
    }

    private boolean[] check(List<String> keys, boolean[] answers) {
      boolean[] truth = real.lookup(keys);
      for (int i = 0; i < answers.length; i++) {
        if (answers[i] != truth[i]) {
          throw new SimViolation(
              "a lookup says " + answers[i] + " of " + keys.get(i) + ", the store " + truth[i]);
        }
        if (answers[i] && !published.contains(((BlockKeys) keys).key(i))) {
          throw new SimViolation(keys.get(i) + " is there and was never published");
        }
      }
      return answers;
    }

    @Override
    public boolean[] lookup(List<String> keys) {
      return check(keys, handle.lookup(keys));
    }

    @Override
    public Hold lookupAndHold(List<String> keys, Duration limit) {
      Hold hold = handle.lookupAndHold(keys, limit);
      check(keys, hold.present());
      return hold;
    }

    @Override
    public void touch(List<String> keys) {
      handle.touch(keys);
    }

    @Override
    public ClearResult clear() {
      ClearResult result = handle.clear();
      published.clear();
      youngStores.clear();
      return result;
    }

    @Override
    public List<BlockKey> takeEvictedKeys() {
      return handle.takeEvictedKeys();
    }

    @Override
    public void close() {
      handle.close();
    }
  }
}
