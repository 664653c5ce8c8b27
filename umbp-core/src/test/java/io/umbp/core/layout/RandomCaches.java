package io.umbp.core.layout;

import io.umbp.api.ElementType;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Tensor;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;

/**
 * Small caches of all kinds: every order and split, kernel blocks, padding, several groups and
 * tensors, slots that layers of different groups share, latents, states, groups left out.
 */
public final class RandomCaches {
  private static final KVCacheLayout[] LAYOUTS = KVCacheLayout.values();
  private static final KVSplit[] SPLITS = KVSplit.values();

  private final Random random;
  private final int tpSize;
  private final int blockCount;
  private final List<List<Layer>> layers = new ArrayList<>();
  private final int[] blockSizes;
  private int layerCount;

  private RandomCaches(Random random, int tpSize, int blockCount) {
    this.random = random;
    this.tpSize = tpSize;
    this.blockCount = blockCount;
    blockSizes =
        IntStream.range(0, 1 + random.nextInt(3)).map(i -> 6 << random.nextInt(2)).toArray();
    for (int i = 0; i < blockSizes.length; i++) {
      layers.add(new ArrayList<>());
    }
  }

  /**
   * Returns a cache.
   *
   * @param random decides
   * @param tpSize 1 or 2
   * @param blockCount blocks of each tensor
   */
  public static KVCacheConfig next(Random random, int tpSize, int blockCount) {
    return new RandomCaches(random, tpSize, blockCount).config();
  }

  private KVCacheConfig config() {
    List<Tensor> packed = new ArrayList<>();
    int tensors = 1 + random.nextInt(2);
    for (int i = 0; i < tensors; i++) {
      packed.add(tensor());
    }
    List<Group> groups = new ArrayList<>();
    for (List<Layer> ofGroup : layers) {
      if (!ofGroup.isEmpty()) {
        boolean isLeftOut = !groups.isEmpty() && random.nextInt(4) == 0;
        groups.add(new Group(ofGroup, isLeftOut ? Transfer.DISABLED : Transfer.ENABLED));
      }
    }
    return new KVCacheConfig(groups, packed.stream().map(t -> padded(groups, t)).toList());
  }

  private Tensor padded(List<Group> groups, Tensor tensor) {
    if (random.nextBoolean()) {
      return tensor;
    }
    long packed = new LayoutOracle(groups, tensor, tpSize).packedKernelStride();
    return new Tensor(
        tensor.slots(),
        tensor.layout(),
        tensor.split(),
        tensor.blockCount(),
        tensor.kernelBlocks(),
        (packed + random.nextInt(4)) * tensor.kernelBlocks());
  }

  private Tensor tensor() {
    KVCacheLayout layout = LAYOUTS[random.nextInt(LAYOUTS.length)];
    KVSplit split = SPLITS[random.nextInt(SPLITS.length)];
    int kernelBlocks = Math.max(1, random.nextInt(4));
    int heads = 1 << random.nextInt(3);
    boolean isLayerFirst = layout.name().startsWith("LB");
    boolean canHoldState =
        split != KVSplit.PLANES
            && (isLayerFirst || (layout.name().startsWith("BL") && kernelBlocks == 1));
    List<Slot> slots = new ArrayList<>();
    int slotCount = 1 + random.nextInt(3);
    for (int i = 0; i < slotCount; i++) {
      List<String> names = new ArrayList<>();
      int owner = random.nextInt(blockSizes.length);
      for (int group = 0; group < blockSizes.length; group++) {
        if (group == owner || random.nextInt(3) == 0) {
          String name = "layer" + layerCount++;
          KVCacheSpec spec =
              canHoldState && random.nextInt(4) == 0
                  ? state(blockSizes[group])
                  : attention(
                      blockSizes[group],
                      split,
                      layout == KVCacheLayout.BHLNC ? heads : 1 << random.nextInt(3),
                      layout == KVCacheLayout.BHLNC ? tpSize + 1 : random.nextInt(3));
          layers.get(group).add(new Layer(name, spec));
          names.add(name);
        }
      }
      slots.add(new Slot(names));
    }
    return new Tensor(slots, layout, split, blockCount, kernelBlocks, Tensor.PACKED);
  }

  private KVCacheSpec state(int blockSize) {
    int bytes = 1 + random.nextInt(40);
    return new KVCacheSpec.State("MambaSpec", blockSize, ElementType.U8, bytes, TPSharding.SHARDED);
  }

  private KVCacheSpec attention(int blockSize, KVSplit split, int heads, int replicatedIfZero) {
    int key = 1 + random.nextInt(3);
    int value = random.nextInt(4);
    if (split != KVSplit.FUSED && value > 0) {
      value = key;
    }
    return new KVCacheSpec.Attention(
        "FullAttentionSpec",
        blockSize,
        random.nextInt(4) == 0 ? ElementType.BF16 : ElementType.U8,
        heads,
        key,
        value,
        replicatedIfZero == 0 ? TPSharding.REPLICATED : TPSharding.SHARDED,
        0);
  }
}
