package io.umbp.bench.sim;

import io.umbp.api.BlockKeys;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.DeviceFence;
import io.umbp.api.GroupBlock;
import io.umbp.api.LoadResult;
import io.umbp.api.StoreEventResult;
import io.umbp.api.SupportsHold;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPSchedulerHandle;
import io.umbp.api.spi.CopyBatch;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.KVCopyEngine;
import io.umbp.core.connector.BlockPins;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** Engines with one faulty part each, of the kinds that were seen in public. */
enum PlantedBug {
  /** A copy is taken for done when it was submitted, so that it is published before. */
  PUBLISHED_BEFORE_DONE {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        KVCopyEngine copies(KVCopyEngine engine) {
          return new HastyCopies(engine);
        }
      };
    }
  },
  /** Blocks are pinned for no time at all. */
  EARLY_UNPIN {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        BlockPins pins(BlockPins pins) {
          return BlockPins.NONE;
        }
      };
    }
  },
  /** Blocks are unpinned twice. */
  DOUBLE_RELEASE {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        BlockPins pins(BlockPins pins) {
          return new BlockPins() {
            @Override
            public void pin(Collection<GroupBlock> blocks) {
              pins.pin(blocks);
            }

            @Override
            public void unpin(Collection<GroupBlock> blocks) {
              pins.unpin(blocks);
              pins.unpin(blocks);
            }
          };
        }
      };
    }
  },
  /** A worker does not say which blocks its load lost. */
  LOST_FAILURE {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        UMBPConnectorWorkerMetadata fromWorker(int rank, UMBPConnectorWorkerMetadata report) {
          Map<String, LoadResult> loads = new HashMap<>();
          report
              .loads()
              .forEach(
                  (id, load) ->
                      loads.put(id, new LoadResult(load.completedWorkers(), Set.of(), Set.of())));
          return new UMBPConnectorWorkerMetadata(loads, report.storeEvents());
        }
      };
    }
  },
  /** The last rank's store events never arrive. */
  LOST_STORE_EVENT {
    @Override
    SimParts parts() {
      return new SimParts() {
        private int seen;

        @Override
        UMBPConnectorWorkerMetadata fromWorker(int rank, UMBPConnectorWorkerMetadata report) {
          Map<Long, StoreEventResult> events = new HashMap<>(report.storeEvents());
          events.keySet().removeIf(event -> seen++ % 20 == 7);
          return new UMBPConnectorWorkerMetadata(report.loads(), events);
        }
      };
    }
  },
  /** The end of a load never arrives. */
  LOST_LOAD {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        UMBPConnectorWorkerMetadata fromWorker(int rank, UMBPConnectorWorkerMetadata report) {
          return new UMBPConnectorWorkerMetadata(Map.of(), report.storeEvents());
        }
      };
    }
  },
  /** What was there once is there for ever. */
  STALE_HIT {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        UMBPSchedulerHandle schedulerHandle(UMBPSchedulerHandle handle) {
          return remembering((SupportsHold) handle);
        }
      };
    }
  },
  /** A load does not wait for the last user of its blocks. */
  REUSE_BEFORE_LAST_READER {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        DeviceFence loadFence(DeviceFence computed) {
          return DeviceFence.hostComplete();
        }
      };
    }
  },
  /** A store does not wait for its producer. */
  STORE_BEFORE_PRODUCER {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        DeviceFence storeFence(DeviceFence computed) {
          return DeviceFence.hostComplete();
        }
      };
    }
  },
  /** The blocks of a store are given to the keys in another order. */
  KEY_OF_ANOTHER_BLOCK {
    @Override
    SimParts parts() {
      return storing(
          batch -> {
            int[] blockIds = batch.blockIds();
            int last = blockIds[blockIds.length - 1];
            System.arraycopy(blockIds, 0, blockIds, 1, blockIds.length - 1);
            blockIds[0] = last;
            return BlockStoreBatch.of(batch.requestId(), batch.keys(), blockIds);
          });
    }
  },
  /** A worker leaves out the first block of each store of several, and reports all as stored. */
  HOLE_REPORTED_AS_STORED {
    @Override
    SimParts parts() {
      return storing(
          batch -> {
            int rows = batch.size();
            if (rows < 2) {
              return batch;
            }
            int[] kept = IntStream.range(1, rows).toArray();
            BlockKeys keys = batch.keys();
            BlockKeys rest =
                BlockKeys.of(
                        keys.namespace(),
                        keys.ranks().get(0),
                        IntStream.of(kept).map(keys::groupIdOf).toArray(),
                        keys.hashes().select(kept))
                    .replicating(keys.replicatedGroups());
            return BlockStoreBatch.of(
                batch.requestId(), rest, IntStream.of(kept).map(batch::blockId).toArray());
          });
    }
  },
  /** Each worker's report of a load is counted twice. */
  LOAD_COUNTED_TWICE {
    @Override
    SimParts parts() {
      return new SimParts() {
        @Override
        UMBPConnectorWorkerMetadata fromWorker(int rank, UMBPConnectorWorkerMetadata report) {
          return report.plus(new UMBPConnectorWorkerMetadata(report.loads(), Map.of()));
        }
      };
    }
  };

  /** The parts of an engine with the bug. */
  abstract SimParts parts();

  private interface StoreChange {
    BlockStoreBatch of(BlockStoreBatch batch);
  }

  private static SimParts storing(StoreChange change) {
    return new SimParts() {
      @Override
      UMBPConnectorMetadata toWorker(int rank, UMBPConnectorMetadata step) {
        Map<String, BlockStoreBatch> stores = new HashMap<>();
        step.stores().forEach((id, batch) -> stores.put(id, change.of(batch)));
        return new UMBPConnectorMetadata(step.preempted(), step.loads(), stores, step.storeEvent());
      }
    };
  }

  private static SupportsHold remembering(SupportsHold handle) {
    Set<String> known = new HashSet<>();
    return (SupportsHold)
        Proxy.newProxyInstance(
            SupportsHold.class.getClassLoader(),
            new Class<?>[] {SupportsHold.class},
            (proxy, method, arguments) -> {
              Object result;
              try {
                result = method.invoke(handle, arguments);
              } catch (InvocationTargetException e) {
                throw e.getCause();
              }
              if (method.getName().equals("lookup")) {
                boolean[] answers = (boolean[]) result;
                List<?> keys = (List<?>) arguments[0];
                for (int i = 0; i < answers.length; i++) {
                  String key = String.valueOf(keys.get(i));
                  answers[i] |= known.contains(key);
                  if (answers[i]) {
                    known.add(key);
                  }
                }
              }
              return result;
            });
  }

  /** Says of every copy at once that it is done. */
  private static final class HastyCopies extends WatchedCopies {
    HastyCopies(KVCopyEngine engine) {
      super(engine);
    }

    @Override
    public CopyTicket submit(CopyBatch batch, DeviceFence fence) {
      CopyTicket ticket = super.submit(batch, fence);
      return new CopyTicket() {
        @Override
        public boolean poll() {
          return true;
        }

        @Override
        public boolean await(Duration timeout) {
          return true;
        }

        @Override
        public boolean isMarkDone(int mark) {
          return true;
        }

        @Override
        public @Nullable String failure(int key) {
          return ticket.poll() ? ticket.failure(key) : null;
        }
      };
    }
  }
}
