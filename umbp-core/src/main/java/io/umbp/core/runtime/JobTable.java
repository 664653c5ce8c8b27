package io.umbp.core.runtime;

import io.umbp.api.TransferJobState;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.spi.CopyTicket;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * All jobs of a runtime, from admission until nobody will ask for them. Guarded by the runtime's
 * lock, but for {@link #isDue}.
 */
final class JobTable {
  /** Jobs that are over and read stay known this long, for callers with an older snapshot. */
  static final int MAX_RETIRED_JOBS = 1024;

  private final Map<Long, TransferJob> jobs = new HashMap<>();
  private final ArrayDeque<TransferJob> retired = new ArrayDeque<>();

  /** Jobs that run or hold unpublished objects, in the order of their deadlines. */
  private final LinkedHashMap<Long, TransferJob> live = new LinkedHashMap<>();

  private long lastId;
  private volatile long nextDeadlineNanos;
  private volatile boolean hasDeadline;

  long nextId() {
    return ++lastId;
  }

  void enter(TransferJob job) {
    jobs.put(job.id, job);
    live.put(job.id, job);
    if (!hasDeadline) {
      nextDeadlineNanos = job.deadlineNanos;
      hasDeadline = true;
    }
  }

  /** Returns a job that is not forgotten. */
  @Nullable TransferJob find(long id) {
    return jobs.get(id);
  }

  int size() {
    return jobs.size();
  }

  /** Returns the live jobs, oldest first. */
  List<TransferJob> live() {
    return live.isEmpty() ? List.of() : new ArrayList<>(live.values());
  }

  /** Returns the live jobs of a worker, oldest first. */
  List<TransferJob> live(EmbeddedWorkerHandle worker) {
    return live.values().stream().filter(job -> job.registration.owner() == worker).toList();
  }

  /** Returns how many jobs have a copy that has not ended. */
  int runningCount() {
    return (int) live.values().stream().filter(job -> !job.hasCopyEnded()).count();
  }

  /** Returns the bytes of the slots that copies use which have not ended. */
  long runningBytes() {
    return live.values().stream()
        .filter(job -> !job.hasCopyEnded())
        .mapToLong(TransferJob::pinnedBytes)
        .sum();
  }

  /** Returns the ticket of the oldest running copy, or null. */
  @Nullable CopyTicket oldestTicket() {
    for (TransferJob job : live.values()) {
      if (!job.hasCopyEnded() && job.ticket != null) {
        return job.ticket;
      }
    }
    return null;
  }

  /** Tells without the lock whether some deadline may have passed. */
  boolean isDue(long nowNanos) {
    return hasDeadline && nowNanos - nextDeadlineNanos >= 0;
  }

  /** Returns the newest snapshot of a job; a final one lets the job be forgotten in time. */
  TransferJobState read(TransferJob job) {
    if (job.isFinal()) {
      forget(job);
    }
    return job.snapshot();
  }

  /** Takes a job that can no longer change out of the live ones. */
  void settleIfOver(TransferJob job) {
    if (!job.isOver() || !job.hasCopyEnded()) {
      return;
    }
    retireIfRead(job);
    if (live.remove(job.id) != null) {
      if (live.isEmpty()) {
        hasDeadline = false;
      } else {
        nextDeadlineNanos = live.values().iterator().next().deadlineNanos;
      }
    }
  }

  /** Notes that nobody new will ask for a worker's jobs. */
  void forget(EmbeddedWorkerHandle worker) {
    for (TransferJob job : List.copyOf(jobs.values())) {
      if (job.registration.owner() == worker) {
        forget(job);
      }
    }
  }

  /** Keeps the running stores of a namespace from reserving more. */
  void clear(UMBPNamespace namespace) {
    for (TransferJob job : live.values()) {
      if (job.batch.keys().namespace().equals(namespace)) {
        job.clear();
      }
    }
  }

  /** Notes that nobody will ask for a job. */
  void forget(TransferJob job) {
    job.isRead = true;
    retireIfRead(job);
  }

  private void retireIfRead(TransferJob job) {
    if (job.isRead && job.isOver() && job.hasCopyEnded() && !job.isRetired) {
      job.isRetired = true;
      retired.addLast(job);
      if (retired.size() > MAX_RETIRED_JOBS) {
        jobs.remove(retired.removeFirst().id);
      }
    }
  }
}
