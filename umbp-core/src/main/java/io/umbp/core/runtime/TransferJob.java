package io.umbp.core.runtime;

import io.umbp.api.BlockTransferBatch;
import io.umbp.api.KeyOutcome;
import io.umbp.api.KeyReason;
import io.umbp.api.TransferDirection;
import io.umbp.api.TransferJobState;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.core.pool.BlockPool;
import io.umbp.core.pool.Lease;
import io.umbp.core.pool.PooledObject;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * One load or store from admission to its last outcome. Guarded by the runtime's lock.
 *
 * <p>A key of a store is in one of three situations while it is pending: it <em>writes</em> (the
 * lease pins its object and the copy runs), it has <em>joined</em> another writer of the same key
 * (it holds the object and waits), or it waits for nothing and is about to get its outcome. A
 * completed key keeps its hold on the unpublished object until it is published or dropped.
 */
final class TransferJob {
  final long id;
  final TransferDirection direction;
  final BlockTransferBatch batch;
  final Registration registration;
  final Lease lease;
  final long deadlineNanos;

  /** Objects that a key can have: several for a load of pieces. Their pins stand together. */
  final int objectsPerKey;

  private final BlockPool pool;
  private final @Nullable PooledObject[] held;
  private final KeyOutcome[] outcomes;
  private final KeyReason[] reasons;
  private @Nullable String @Nullable [] details;
  private int pendingCount;
  private int heldCount;
  private long completedBytes;
  private boolean isOverdue;
  private boolean isCancelled;
  private boolean isCleared;
  private boolean hasCopyEnded;
  private boolean isDeadlineJudged;
  private boolean isTicketBroken;
  private @Nullable TransferJobState snapshot;

  /** Set when a final snapshot has been handed out, or nobody will ask for one. */
  boolean isRead;

  /** Set when the job is on its way out of the table of jobs. */
  boolean isRetired;

  /** The rows being copied; null before the copy starts and after it has ended. */
  @Nullable CopyBatch rows;

  /** The progress of the copy; null before it starts and after its end is booked. */
  @Nullable CopyTicket ticket;

  TransferJob(
      long id,
      TransferDirection direction,
      BlockTransferBatch batch,
      Registration registration,
      BlockPool pool,
      int objectsPerKey,
      long deadlineNanos) {
    this.id = id;
    this.direction = direction;
    this.batch = batch;
    this.registration = registration;
    this.pool = pool;
    this.deadlineNanos = deadlineNanos;
    this.objectsPerKey = objectsPerKey;
    this.lease = pool.lease(batch.size() * objectsPerKey);
    this.held = new PooledObject[batch.size()];
    this.outcomes = new KeyOutcome[batch.size()];
    this.reasons = new KeyReason[batch.size()];
    this.pendingCount = batch.size();
    Arrays.fill(outcomes, KeyOutcome.PENDING);
    Arrays.fill(reasons, KeyReason.NONE);
  }

  boolean isFinal() {
    return pendingCount == 0;
  }

  /** Tells whether nothing more can happen to the job but that its outcomes are read. */
  boolean isOver() {
    return pendingCount == 0 && heldCount == 0;
  }

  boolean isOverdue() {
    return isOverdue && pendingCount > 0;
  }

  boolean hasCopyEnded() {
    return hasCopyEnded;
  }

  /** Tells whether some key waits for another job's copy. */
  boolean hasPendingJoins() {
    for (int i = 0; heldCount > 0 && i < outcomes.length; i++) {
      if (isJoined(i)) {
        return true;
      }
    }
    return false;
  }

  private boolean isJoined(int key) {
    return outcomes[key] == KeyOutcome.PENDING && held[key] != null && pinned(key) == null;
  }

  /** Returns the first of a key's objects that the copy uses: the one that a store writes. */
  private @Nullable PooledObject pinned(int key) {
    return lease.object(key * objectsPerKey);
  }

  private void release(int key) {
    int first = key * objectsPerKey;
    for (int pin = first; pin < first + objectsPerKey; pin++) {
      if (lease.object(pin) != null) {
        pool.release(lease, pin);
      }
    }
  }

  /** Notes that the ticket could not be asked; returns true the first time. */
  boolean ticketBroke() {
    boolean isFirst = !isTicketBroken;
    isTicketBroken = true;
    return isFirst;
  }

  /**
   * Ends a key that is about to be given its object, when the job was given up in the meantime: it
   * waited for memory, and its deadline, a close or a clear came first.
   *
   * @return true when the key has ended
   */
  boolean endIfGivenUp(int key) {
    if (isDeadlineJudged) {
      end(key, KeyOutcome.TIMED_OUT, KeyReason.NONE, "the deadline passed before the copy began");
    } else if (isCancelled) {
      end(key, KeyOutcome.CANCELLED, KeyReason.NONE, null);
    } else if (isCleared) {
      end(key, KeyOutcome.FAILED, KeyReason.CLEARED, null);
    }
    return outcomes[key] != KeyOutcome.PENDING;
  }

  /** Notes that the namespace was cleared: what the store has not reserved yet it never will. */
  void clear() {
    isCleared = true;
  }

  /** Remembers a reserved object: the key writes it and may publish it. */
  void writes(int key, PooledObject object) {
    held[key] = object;
    heldCount++;
  }

  /** Lets the key wait for the object that another key or job is writing. */
  void join(int key, PooledObject object) {
    pool.hold(object);
    held[key] = object;
    heldCount++;
  }

  void end(int key, KeyOutcome outcome, KeyReason reason, @Nullable String detail) {
    outcomes[key] = outcome;
    reasons[key] = reason;
    if (detail != null) {
      if (details == null) {
        details = new String[outcomes.length];
      }
      details[key] = detail;
    }
    if (outcome == KeyOutcome.COMPLETED) {
      completedBytes += registration.planner().objectBytes(batch.keys().groupId(key));
    } else {
      unhold(key);
    }
    pendingCount--;
    snapshot = null;
  }

  /**
   * Ends every key that the copy served.
   *
   * @param failures failure of each key or null, null when there is none at all
   */
  void copyEnded(@Nullable String @Nullable [] failures) {
    hasCopyEnded = true;
    rows = null;
    ticket = null;
    for (int key = 0; key < outcomes.length; key++) {
      PooledObject object = pinned(key);
      if (object == null) {
        continue;
      }
      String failure = failures == null ? null : failures[key];
      if (direction == TransferDirection.STORE) {
        endWritten(key, object, failure);
      } else {
        endRead(key, failure);
      }
      release(key);
    }
  }

  private void endWritten(int key, PooledObject object, @Nullable String failure) {
    KeyReason doomed = object.doomReason();
    if (object.state() != PooledObject.State.DOOMED) {
      if (failure != null) {
        pool.doom(object, KeyReason.WRITER_FAILED);
      } else if (!object.isHeld()) {
        pool.doom(object, KeyReason.NONE);
      } else {
        pool.complete(object);
      }
    }
    if (isOverdue || doomed == KeyReason.WRITER_OVERDUE) {
      end(key, KeyOutcome.TIMED_OUT, KeyReason.NONE, "the copy ended after the deadline");
    } else if (isCancelled) {
      end(key, KeyOutcome.CANCELLED, KeyReason.NONE, null);
    } else if (failure != null) {
      end(key, KeyOutcome.FAILED, KeyReason.COPY_FAILED, failure);
    } else if (doomed != KeyReason.NONE) {
      end(key, KeyOutcome.FAILED, doomed, null);
    } else {
      end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
    }
  }

  private void endRead(int key, @Nullable String failure) {
    if (isOverdue) {
      end(key, KeyOutcome.TIMED_OUT, KeyReason.NONE, "the copy ended after the deadline");
    } else if (isCancelled) {
      end(key, KeyOutcome.CANCELLED, KeyReason.NONE, null);
    } else if (failure != null) {
      end(key, KeyOutcome.FAILED, KeyReason.COPY_FAILED, failure);
    } else {
      end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
    }
  }

  /** Ends the joined keys whose writer has ended. */
  void resolveJoins() {
    for (int key = 0; heldCount > 0 && pendingCount > 0 && key < outcomes.length; key++) {
      PooledObject object = held[key];
      if (object == null || !isJoined(key)) {
        continue;
      }
      switch (object.state()) {
        case FILLING -> {}
        case COMPLETE, PUBLISHED -> end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
        case DOOMED -> {
          // Without a reason it was published and then evicted: its bytes had arrived.
          if (object.doomReason() == KeyReason.NONE) {
            end(key, KeyOutcome.COMPLETED, KeyReason.NONE, null);
          } else {
            end(key, KeyOutcome.FAILED, object.doomReason(), null);
          }
        }
      }
    }
  }

  /** Judges the deadline: what is not published by it is dropped, what still runs is overdue. */
  void deadlinePassed() {
    if (isDeadlineJudged) {
      return;
    }
    isDeadlineJudged = true;
    for (int key = 0; key < outcomes.length; key++) {
      if (isJoined(key)) {
        end(key, KeyOutcome.TIMED_OUT, KeyReason.NONE, "another job's store did not end in time");
      } else if (outcomes[key] == KeyOutcome.PENDING) {
        isOverdue = true;
        snapshot = null;
        doomWritten(key, KeyReason.WRITER_OVERDUE);
      }
      unhold(key);
    }
  }

  /** Gives up what the job was to publish; joined keys end, running copies are marked. */
  void cancel(KeyOutcome outcome, KeyReason reason) {
    isCancelled = true;
    for (int key = 0; key < outcomes.length; key++) {
      if (isJoined(key)) {
        end(key, outcome, reason, null);
      }
      unhold(key);
    }
  }

  /** Ends every pending key of a job whose copy never started. */
  void abort(KeyReason reason, String detail) {
    for (int key = 0; key < outcomes.length; key++) {
      if (outcomes[key] == KeyOutcome.PENDING) {
        doomWritten(key, KeyReason.WRITER_FAILED);
        end(key, KeyOutcome.FAILED, reason, detail);
      }
      release(key);
    }
    hasCopyEnded = true;
    rows = null;
    ticket = null;
  }

  private void doomWritten(int key, KeyReason reason) {
    PooledObject object = pinned(key);
    if (direction == TransferDirection.STORE
        && object != null
        && object.state() != PooledObject.State.DOOMED) {
      pool.doom(object, reason);
    }
  }

  /** Publishes what is complete and still held; returns how many objects became visible. */
  int publish() {
    int published = 0;
    for (int key = 0; heldCount > 0 && key < outcomes.length; key++) {
      PooledObject object = held[key];
      if (object != null && object.state() == PooledObject.State.COMPLETE) {
        pool.publish(object);
        published++;
      }
      unhold(key);
    }
    return published;
  }

  /** Returns the bytes of the slots that the job's copy still uses. */
  long pinnedBytes() {
    long bytes = 0;
    for (int pin = 0; pin < outcomes.length * objectsPerKey; pin++) {
      PooledObject object = lease.object(pin);
      if (object != null) {
        bytes += object.sizeBytes();
      }
    }
    return bytes;
  }

  private void unhold(int key) {
    PooledObject object = held[key];
    if (object != null) {
      held[key] = null;
      heldCount--;
      noteIfInvisible(key, object);
      pool.unhold(object);
    }
  }

  /** A key whose bytes have landed keeps its outcome; a reason tells why nobody will find them. */
  private void noteIfInvisible(int key, PooledObject object) {
    if (outcomes[key] != KeyOutcome.COMPLETED) {
      return;
    }
    boolean isGivenUp = object.state() == PooledObject.State.COMPLETE;
    KeyReason reason = isGivenUp ? KeyReason.NOT_PUBLISHED : object.doomReason();
    if (reason != KeyReason.NONE) {
      reasons[key] = reason;
      snapshot = null;
    }
  }

  /** Returns the newest snapshot, the same object until something changes. */
  TransferJobState snapshot() {
    TransferJobState current = snapshot;
    if (current == null) {
      current =
          new TransferJobState(
              id,
              direction,
              isOverdue,
              batch,
              outcomes.clone(),
              reasons.clone(),
              details == null ? null : details.clone(),
              completedBytes);
      snapshot = current;
    }
    return current;
  }
}
