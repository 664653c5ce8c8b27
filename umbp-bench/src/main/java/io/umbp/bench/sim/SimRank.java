package io.umbp.bench.sim;

import io.umbp.api.DeviceFence;
import io.umbp.api.GroupBlock;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPRuntime;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.core.connector.WorkerConnector;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeStream;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** One rank of a simulated engine: its buffers, its stream and its connector. Thread-confined. */
final class SimRank {
  private final int rank;
  private final FakeGpu gpu;
  private final FakeStream stream;
  private final long[] bases;
  private final int[] blockUnits;
  private final boolean[] isState;
  private final KVLayoutDescriptor layout;
  private final WorkerConnector connector;
  private @Nullable SimViolation broken;
  private long checkedBytes;

  SimRank(
      FakeGpu gpu,
      UMBPRuntime runtime,
      UMBPNamespace namespace,
      KVLayoutDescriptor layout,
      int blocks,
      boolean[] isState) {
    this.gpu = gpu;
    this.layout = layout;
    this.isState = isState;
    rank = layout.topology().tpRank();
    stream = gpu.stream(rank);
    int groups = layout.regions().size();
    bases = new long[groups];
    blockUnits = new int[groups];
    Map<String, KVCacheTensor> tensors = new HashMap<>();
    for (KVRegion region : layout.regions()) {
      int group = region.groupId();
      long bytes = blocks * region.blockStride();
      bases[group] = gpu.malloc(rank, bytes);
      blockUnits[group] = region.blockSize() / SimTruth.UNIT_TOKENS;
      tensors.put(
          region.layerName(),
          KVCacheTensor.device(bases[group], bytes, rank)
              .blocks(blocks, region.blockStride())
              .build());
    }
    UMBPWorkerHandle handle = runtime.createWorkerHandle(namespace, layout.topology(), layout);
    handle.registerBuffers(tensors);
    connector = new WorkerConnector(handle, new UMBPHandshakeMetadata(namespace, "", layout));
  }

  WorkerConnector connector() {
    return connector;
  }

  DeviceFence computed() {
    return stream.fence();
  }

  long checkedBytes() {
    return checkedBytes;
  }

  long blockBytes(int group) {
    return (long) blockUnits[group] * SimTruth.UNIT_BYTES;
  }

  long address(int group, int block) {
    return bases[group] + block * blockBytes(group);
  }

  /** Replicated groups hold the same on all ranks. */
  private int writer(int group) {
    return layout.replicatedGroups().contains(group) ? 0 : rank;
  }

  /** What a place of a table must hold of a prefix that ends in it or behind it. */
  private boolean holds(SimPrefix prefix, int group, int place, int endUnits) {
    int first = place * blockUnits[group];
    int units = Math.min(endUnits, first + blockUnits[group]) - first;
    long address = address(group, prefix.tables()[group][place]);
    checkedBytes += (long) units * SimTruth.UNIT_BYTES;
    for (int i = 0; i < units; i++) {
      int end = isState[group] ? Math.min(endUnits, first + blockUnits[group]) : first + i + 1;
      byte[] expected = SimTruth.unit(group, writer(group), prefix.chain()[end - 1]);
      long at = address + (long) i * SimTruth.UNIT_BYTES;
      if (gpu.mismatch(at, expected, 0, SimTruth.UNIT_BYTES) >= 0) {
        return false;
      }
    }
    return true;
  }

  /** Checks at once that all that a request needs of its prefix is right. */
  void check(SimPrefix prefix, int endUnits, String when) {
    checkBehind(prefix, 0, endUnits, when);
  }

  /** Checks at once what a request needs of its prefix behind some units. */
  void checkBehind(SimPrefix prefix, int fromUnits, int endUnits, String when) {
    for (int group = 0; group < bases.length; group++) {
      int first = prefix.firstPlace(group, endUnits, blockUnits[group]);
      first = Math.max(first, fromUnits / blockUnits[group]);
      boolean isNeeded = !prefix.needsNothing(group);
      for (int place = first; isNeeded && place * blockUnits[group] < endUnits; place++) {
        if (prefix.tables()[group][place] == SimBlocks.NULL
            || !holds(prefix, group, place, endUnits)) {
          throw new SimViolation(
              String.format(
                  "%s: rank %d has wrong KV of request '%s' in place %d (block %d) of group %d,"
                      + " whose prefix has %d units",
                  when, rank, prefix.id(), place, prefix.tables()[group][place], group, endUnits));
        }
      }
    }
  }

  /**
   * Enqueues the work of a request: it reads its prefix, and writes the KV of further units.
   *
   * @param written the prefix with what is written, right or speculated
   */
  void compute(SimPrefix prefix, SimPrefix written, int fromUnits, int toUnits, int stateUnits) {
    stream.enqueue(
        () -> {
          if (broken != null) {
            return;
          }
          try {
            check(prefix, fromUnits, "before computing");
            write(written, fromUnits, toUnits, stateUnits);
          } catch (SimViolation e) {
            broken = e;
          }
        });
  }

  private void write(SimPrefix prefix, int fromUnits, int toUnits, int stateUnits) {
    for (int group = 0; group < bases.length; group++) {
      int size = blockUnits[group];
      if (isState[group]) {
        int place = (stateUnits - 1) / size;
        long address = address(group, prefix.tables()[group][place]);
        byte[] state = SimTruth.unit(group, writer(group), prefix.chain()[stateUnits - 1]);
        for (int i = 0; i < size; i++) {
          gpu.write(address + (long) i * SimTruth.UNIT_BYTES, state);
        }
      } else {
        for (int unit = fromUnits; unit < toUnits; unit++) {
          long address = address(group, prefix.tables()[group][unit / size]);
          gpu.write(
              address + (long) (unit % size) * SimTruth.UNIT_BYTES,
              SimTruth.unit(group, writer(group), prefix.chain()[unit]));
        }
      }
    }
  }

  /** Throws what work on the stream found wrong. */
  void throwBroken() {
    if (broken != null) {
      throw broken;
    }
  }

  /** Spoils blocks that are about to be loaded, behind all work so far. */
  void spoil(List<GroupBlock> blocks) {
    stream.enqueue(
        () -> {
          for (GroupBlock block : blocks) {
            int group = block.groupId();
            gpu.fill(address(group, block.blockId()), blockBytes(group), (byte) 0xEE);
          }
        });
  }
}
