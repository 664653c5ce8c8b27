package io.umbp.core.runtime;

import static io.umbp.core.runtime.TrialEngine.FIRST;
import static io.umbp.core.runtime.TrialEngine.RANK;
import static io.umbp.core.runtime.TrialEngine.SECOND;
import static io.umbp.core.runtime.TrialEngine.config;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.CloseResult;
import io.umbp.api.ElementType;
import io.umbp.api.KVCacheTensor;
import io.umbp.api.KVPageShape.Part;
import io.umbp.api.KVProbe;
import io.umbp.api.RegistrationOptions;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPException.Reason;
import io.umbp.api.UMBPNamespace;
import io.umbp.api.UMBPWorkerHandle;
import io.umbp.api.spi.CopyBatch;
import io.umbp.core.layout.KVCacheConfig;
import io.umbp.core.layout.KVCacheConfig.Group;
import io.umbp.core.layout.KVCacheConfig.Layer;
import io.umbp.core.layout.KVCacheConfig.Slot;
import io.umbp.core.layout.KVCacheConfig.Transfer;
import io.umbp.core.layout.KVCacheLayout;
import io.umbp.core.layout.KVCacheSpec;
import io.umbp.core.layout.KVLayoutPlanner;
import io.umbp.core.layout.KVSplit;
import io.umbp.core.layout.TPSharding;
import io.umbp.core.layout.TensorPlan;
import io.umbp.testkit.FakeGpu;
import io.umbp.testkit.FakeKVCache;
import io.umbp.testkit.FakeKVCache.Strides;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.ToIntFunction;
import org.junit.jupiter.api.Test;
import org.slf4j.LoggerFactory;
import org.slf4j.simple.SimpleLogger;

/**
 * Trials of a layout with two layers of 3 heads, 8 tokens and 16 bytes for each key and value: 384
 * bytes of keys, then 384 of values in a page, 1,536 bytes in an object.
 */
class LayoutTrialTest {
  private static final Duration LONG = Duration.ofSeconds(20);
  private static final KVCacheSpec SPEC = attention(3, 8, 8, ElementType.BF16);

  private static KVCacheSpec attention(int heads, int tokens, int size, ElementType type) {
    return new KVCacheSpec.Attention(
        "FullAttentionSpec", tokens, type, heads, size, size, TPSharding.SHARDED, 0);
  }

  private static KVCacheConfig tokenMajor(int kernelBlocks, long stride) {
    return config(SPEC, 2, KVCacheLayout.LBNHC, KVSplit.BLOCKS, kernelBlocks, stride);
  }

  private static TrialEngine saying(KVCacheConfig told, KVCacheConfig done) {
    return new TrialEngine(FakeGpu.asynchronous(1), told, done);
  }

  /** Checks that a trial finds one certain fault, and that it leaves everything as it was. */
  private static void assertFound(TrialEngine engine, String... essentials) {
    try (engine) {
      Map<Long, byte[]> before = engine.otherBytes();
      UMBPException fault = engine.refused();
      assertEquals(Reason.LAYOUT_MISMATCH, fault.reason(), fault::getMessage);
      for (String essential : essentials) {
        assertTrue(fault.getMessage().contains(essential), fault::getMessage);
      }
      engine.assertNothingLeft();
      Map<Long, byte[]> after = engine.otherBytes();
      before.forEach((address, bytes) -> assertArrayEquals(bytes, after.get(address)));
    }
  }

  @Test
  void theRightLayoutPassesAndOtherBlocksStayAsTheyWere() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      Map<Long, byte[]> before = engine.otherBytes();
      engine.register();
      Map<Long, byte[]> after = engine.otherBytes();
      before.forEach((address, bytes) -> assertArrayEquals(bytes, after.get(address)));
      assertEquals(2, engine.copies.registered.get());
      assertEquals(0, engine.gpu.copyEngine().liveSlabCount());
      engine.store();
    }
  }

  @Test
  void faultStride() {
    assertFound(
        saying(tokenMajor(1, 0), tokenMajor(1, 768 + 48)),
        "layer 'layers.0' block 1 key head 0 token 0 is not where the layout puts it, at byte 0 of"
            + " the object",
        "it is where 'layers.0' block 1 key head 0 token 1 was expected, at byte 48 of block 1's"
            + " object",
        "192 of 192 places of group 0 are wrong");
    assertFound(
        saying(tokenMajor(1, 0), tokenMajor(1, 768 + 8)),
        "it is 8 bytes behind where 'layers.0' block 1 key head 0 token 0 was expected, at byte 8");
  }

  @Test
  void aFaultThatOnlyTheSecondBlockShowsIsFound() {
    try (TrialEngine engine = saying(tokenMajor(1, 0), tokenMajor(1, 768 + 48))) {
      engine.cache.put("layers.1", moved(engine.cache.strides("layers.1"), -5 * 48, 384));
      RegistrationOptions options = RegistrationOptions.ownWriter().withTrial(engine.cache, 0, 2);
      UMBPException fault =
          assertThrows(
              UMBPException.class, () -> engine.worker.registerBuffers(engine.tensors, options));
      assertTrue(
          fault
              .getMessage()
              .startsWith("layer 'layers.0' block 2 key head 0 token 0 is not where the layout"),
          fault::getMessage);
      assertTrue(fault.getMessage().endsWith("96 of 192 places of group 0 are wrong"));
      engine.assertNothingLeft();
    }
  }

  @Test
  void faultKeyValueOrder() {
    TrialEngine engine = new TrialEngine(tokenMajor(1, 0));
    for (String layer : List.of("layers.0", "layers.1")) {
      move(engine.cache, layer, 384, -384);
    }
    assertFound(
        engine,
        "layer 'layers.0' block 1 key head 0 token 0 is not where the layout puts it, at byte 0 of",
        "it is where 'layers.0' block 1 value head 0 token 0 was expected, at byte 384 of block 1",
        "192 of 192 places");
    TrialEngine fused = new TrialEngine(config(SPEC, 2, KVCacheLayout.BLHNC, KVSplit.FUSED, 1, 0));
    move(fused.cache, "layers.1", 16, -16);
    assertFound(
        fused,
        "layer 'layers.1' block 1 key head 0 token 0 is not where the layout puts it, at byte 768",
        "it is where 'layers.1' block 1 value head 0 token 0 was expected, at byte 784 of block 1",
        "96 of 192 places");
  }

  private static void move(FakeKVCache cache, String layer, long offset, long toValue) {
    cache.put(layer, moved(cache.strides(layer), offset, toValue));
  }

  private static Strides moved(Strides right, long offset, long toValue) {
    return new Strides(
        right.base() + offset,
        right.block(),
        right.kernelBlock(),
        right.kernelTokens(),
        right.token(),
        right.head(),
        toValue);
  }

  @Test
  void faultHeadOrder() {
    assertFound(
        saying(tokenMajor(1, 0), config(SPEC, 2, KVCacheLayout.LBHNC, KVSplit.BLOCKS, 1, 0)),
        "layer 'layers.0' block 1 key head 0 token 1 is not where the layout puts it, at byte 48 of",
        "it is where 'layers.0' block 1 key head 1 token 0 was expected, at byte 16 of block 1's",
        // head 0 token 0 and head 2 token 7 have the same place in both orders
        "176 of 192 places");
  }

  @Test
  void faultOffset() {
    TrialEngine engine = new TrialEngine(tokenMajor(1, 0));
    move(engine.cache, "layers.1", 32, 384);
    assertFound(
        engine,
        "layer 'layers.1' block 1 key head 0 token 0 is not where the layout puts it, at byte 768 of",
        "it is where 'layers.1' block 1 key head 2 token 0 was expected, at byte 800 of block 1's",
        "96 of 192 places");
  }

  @Test
  void faultKernelBlocks() {
    assertFound(
        saying(tokenMajor(2, 0), tokenMajor(1, 0)),
        "layer 'layers.0' block 1 key head 0 token 4 is not where the layout puts it, at byte 384 of",
        "it is where 'layers.0' block 1 value head 0 token 0 was expected, at byte 192 of block 1",
        "96 of 192 places");
    assertFound(
        saying(tokenMajor(2, 0), tokenMajor(4, 0)),
        "layer 'layers.0' block 1 key head 0 token 2 is not where the layout puts it, at byte 96 of",
        "it is where 'layers.0' block 1 value head 0 token 0 was expected, at byte 192 of block 1");
  }

  @Test
  void faultSwappedLayers() {
    KVCacheConfig told = tokenMajor(1, 0);
    List<Slot> swapped = List.of(new Slot(List.of("layers.1")), new Slot(List.of("layers.0")));
    KVCacheConfig done =
        new KVCacheConfig(
            told.groups(),
            List.of(
                new KVCacheConfig.Tensor(swapped, KVCacheLayout.LBNHC, KVSplit.BLOCKS, 5, 1, 0)));
    assertFound(
        saying(told, done),
        "layer 'layers.0' block 1 key head 0 token 0 is not where the layout puts it, at byte 0 of",
        "it is where 'layers.1' block 1 key head 0 token 0 was expected, at byte 768 of block 1's",
        "192 of 192 places");
  }

  @Test
  void swappedBlocksAndBytesInPiecesAreTold() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      KVProbe swapping = at(engine.cache, place -> FIRST + SECOND - place.blockId());
      String message = engine.refused(swapping).getMessage();
      assertTrue(
          message.contains(
              "it is where 'layers.0' block 3 key head 0 token 0 was expected, at byte 0 of block"
                  + " 3's object"),
          message);
      KVProbe elsewhere = at(engine.cache, place -> 0);
      message = engine.refused(elsewhere).getMessage();
      assertTrue(message.contains("it is not in one piece in the object of either block"), message);
      engine.assertNothingLeft();
      engine.register();
    }
  }

  /** A probe that looks for a block elsewhere. */
  private static KVProbe at(FakeKVCache cache, ToIntFunction<KVProbe.Place> block) {
    return new KVProbe() {
      @Override
      public void write(Place place, byte[] value) {
        cache.write(moved(place), value);
      }

      @Override
      public void read(Place place, byte[] value) {
        cache.read(moved(place), value);
      }

      private Place moved(Place place) {
        return new Place(
            place.layerName(), block.applyAsInt(place), place.part(), place.head(), place.token());
      }
    };
  }

  @Test
  void aFaultOfTheSecondGroupIsFoundWhereGroupsShareBytes() {
    try (TrialEngine engine = new TrialEngine(hybrid())) {
      engine.register();
      engine.store();
      assertTrue(engine.worker.unregisterBuffers(LONG));
      move(engine.cache, "mamba", 16, 0);
      UMBPException fault = engine.refused();
      assertEquals(Reason.LAYOUT_MISMATCH, fault.reason());
      assertTrue(
          fault
              .getMessage()
              .contains(
                  "layer 'mamba' block 1 content is not where the layout puts it, at byte 0 of"),
          fault::getMessage);
      assertTrue(fault.getMessage().contains("2 of 2 places of group 1"), fault::getMessage);
    }
  }

  /** Keys and values, a latent and a state in two groups that share the bytes of the first slot. */
  private static KVCacheConfig hybrid() {
    KVCacheSpec latent =
        new KVCacheSpec.Attention(
            "MLAAttentionSpec", 8, ElementType.BF16, 1, 20, 0, TPSharding.REPLICATED, 0);
    KVCacheSpec state =
        new KVCacheSpec.State("MambaSpec", 8, ElementType.F32, 500, TPSharding.SHARDED);
    return new KVCacheConfig(
        List.of(
            new Group(
                List.of(new Layer("full", SPEC), new Layer("latent", latent)), Transfer.ENABLED),
            new Group(List.of(new Layer("mamba", state)), Transfer.ENABLED)),
        List.of(
            new KVCacheConfig.Tensor(
                List.of(new Slot(List.of("full", "mamba")), new Slot(List.of("latent"))),
                KVCacheLayout.BLNHC,
                KVSplit.BLOCKS,
                5,
                1,
                2048)));
  }

  @Test
  void contentsOfOneByteAreToldApartInRounds() {
    KVCacheSpec bytes = attention(16, 32, 1, ElementType.U8);
    KVCacheConfig told = config(bytes, 3, KVCacheLayout.LBNHC, KVSplit.FUSED, 1, 0);
    KVCacheConfig done = config(bytes, 3, KVCacheLayout.LBHNC, KVSplit.FUSED, 1, 0);
    try (TrialEngine engine = new TrialEngine(told)) {
      engine.register();
    }
    assertFound(
        saying(told, done),
        "layer 'layers.0' block 1 key head 0 token 1 is not where the layout puts it, at byte 32 of",
        "too short to be told from others, its 1 bytes occur more than once");
  }

  @Test
  void aLoadThatWritesBesideTheBlockIsFound() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 768 + 64))) {
      long behind = engine.cache.strides("layers.0").base() + SECOND * 832L + 768 + 4;
      engine.copies.loadFault =
          (batch, target) -> {
            engine.gpu.write(behind, new byte[] {1});
            return target.submit(batch);
          };
      UMBPException fault = engine.refused();
      assertEquals(Reason.LAYOUT_MISMATCH, fault.reason());
      assertEquals(
          String.format(
              "loading block 3 of group 0 changed the byte at 0x%x, byte 5 behind a run of layer"
                  + " 'layers.0', which is no part of the block",
              behind),
          fault.getMessage());
      engine.assertNothingLeft();

      long before = engine.cache.strides("layers.1").base() + SECOND * 832L - 1;
      engine.copies.loadFault =
          (batch, target) -> {
            engine.gpu.write(before, new byte[] {1});
            return target.submit(batch);
          };
      String message = engine.refused().getMessage();
      assertTrue(message.contains("byte 1 before a run of layer 'layers.1'"), message);
    }
  }

  @Test
  void aLoadThatDoesNotBringARunIsFound() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      engine.copies.loadFault =
          (batch, target) -> {
            CopyBatch first = new CopyBatch();
            first.reset(batch.direction(), batch.deviceOrdinal(), batch.keyCount());
            first.add(batch.device()[0], batch.host()[0], batch.length()[0], batch.key()[0]);
            first.endMark();
            first.endMark();
            return target.submit(first);
          };
      UMBPException fault = engine.refused();
      assertEquals(Reason.LAYOUT_MISMATCH, fault.reason());
      assertTrue(
          fault
              .getMessage()
              .contains("layer 'layers.1' block 3 key head 0 token 0 does not read back"),
          fault::getMessage);
      engine.assertNothingLeft();
    }
  }

  @Test
  void aProbeThatDoesNothingIsNotBelieved() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      engine.register();
      assertTrue(engine.worker.unregisterBuffers(LONG));
      UMBPException unwritten = engine.refused(probe(place -> {}, engine.cache::read));
      assertTrue(
          unwritten.getMessage().contains("it is not in one piece in the object of either block"),
          unwritten::getMessage);
      UMBPException unread =
          engine.refused(
              probe(
                  engine.cache::write,
                  (place, value) -> assertEquals(TrialPlaces.NEVER, value[value.length - 1])));
      assertTrue(unread.getMessage().contains("does not read back"), unread::getMessage);
      engine.assertNothingLeft();
    }
  }

  private interface Access {
    void at(KVProbe.Place place, byte[] value);
  }

  private static KVProbe probe(Consumer<KVProbe.Place> write, Access read) {
    return probe((place, value) -> write.accept(place), read);
  }

  private static KVProbe probe(Access write, Access read) {
    return new KVProbe() {
      @Override
      public void write(Place place, byte[] value) {
        write.at(place, value);
      }

      @Override
      public void read(Place place, byte[] value) {
        read.at(place, value);
      }
    };
  }

  @Test
  void whatAProbeThrowsIsTheCause() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      IllegalStateException broken = new IllegalStateException("planted");
      Access throwing =
          (place, value) -> {
            throw broken;
          };
      UMBPException fault = engine.refused(probe(throwing, engine.cache::read));
      assertEquals(Reason.INVALID_ARGUMENT, fault.reason());
      assertSame(broken, fault.getCause());
      assertTrue(fault.getMessage().contains("can't write Place[layerName=layers.0, blockId=1"));
      engine.assertNothingLeft();
      fault = engine.refused(probe(engine.cache::write, throwing));
      assertSame(broken, fault.getCause());
      assertTrue(fault.getMessage().contains("can't read Place[layerName=layers.0, blockId=3"));
      engine.assertNothingLeft();
      Error error = new InternalError("planted");
      Access dying =
          (place, value) -> {
            throw error;
          };
      assertSame(
          error,
          assertThrows(
              InternalError.class, () -> engine.register(probe(dying, engine.cache::read))));
      engine.assertNothingLeft();
    }
  }

  @Test
  void blocksOutsideTheLayoutAreRefusedBeforeTheProbeIsCalled() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      AtomicInteger calls = new AtomicInteger();
      KVProbe counting =
          probe(
              (Access) (place, value) -> calls.incrementAndGet(),
              (place, value) -> calls.incrementAndGet());
      RegistrationOptions options = RegistrationOptions.ownWriter().withTrial(counting, 1, 5);
      UMBPException fault =
          assertThrows(
              UMBPException.class, () -> engine.worker.registerBuffers(engine.tensors, options));
      assertEquals(
          "blocks 1 and 5 were lent for a trial, but group 0 has blocks 0 to 4",
          fault.getMessage());
      assertEquals(0, calls.get());
      engine.assertNothingLeft();
    }
  }

  @Test
  void aSteppedGpuMovesByPolling() {
    try (TrialEngine engine =
        new TrialEngine(FakeGpu.stepped(1), tokenMajor(1, 0), tokenMajor(1, 0))) {
      engine.register();
      assertEquals(2, engine.copies.registered.get());
    }
  }

  /** Registers while the copy is held, with a clock that soon reaches the timeout. */
  private static void giveUp(TrialEngine engine) {
    engine.gpu.copyEngine().holdNext(1);
    engine.clockStepNanos.set(Duration.ofSeconds(1).toNanos());
    UMBPException fault = engine.refused();
    engine.clockStepNanos.set(0);
    assertEquals(Reason.COPY_FAILED, fault.reason());
    assertEquals(
        "trial of the layout: storing blocks 1 and 3 of group 0: it has not ended after PT30S; it"
            + " may still use the buffers, unregisterBuffers waits for that",
        fault.getMessage());
    assertEquals(2, engine.copies.registered.get(), "tensors that a copy uses");
    assertEquals(2, engine.gpu.copyEngine().liveSlabCount(), "slabs that a copy uses");
    assertEquals(Reason.NOT_REGISTERED, assertThrows(UMBPException.class, engine::store).reason());
    assertEquals(Reason.INVALID_ARGUMENT, engine.refused().reason());
  }

  @Test
  void aCopyThatDoesNotEndKeepsTheBuffersUntilItDoes() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      giveUp(engine);
      assertFalse(engine.worker.unregisterBuffers(Duration.ZERO));
      engine.gpu.copyEngine().releaseCopies();
      assertTrue(engine.worker.unregisterBuffers(LONG));
      engine.assertNothingLeft();
      engine.register();
      assertEquals(2, engine.copies.registered.get());
    }
  }

  @Test
  void aHandleThatIsClosedMeanwhileLeavesTheBuffersToTheCopy() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      giveUp(engine);
      CloseResult result = engine.worker.close(Duration.ZERO);
      assertEquals(new CloseResult(1, 3072), result);
      assertEquals(2, engine.copies.registered.get());
      engine.gpu.copyEngine().releaseCopies();
      awaitCopies(engine);
      assertEquals(0, engine.runtime.stats().leases());
      assertEquals(0, engine.copies.registered.get());
      assertEquals(0, engine.gpu.copyEngine().liveSlabCount());
    }
  }

  private static void awaitCopies(TrialEngine engine) {
    while (engine.copies.runningCopies() > 0) {
      Thread.onSpinWait();
    }
  }

  @Test
  void aRuntimeThatIsClosedMeanwhileCountsTheCopy() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      giveUp(engine);
      CloseResult result = engine.runtime.close(Duration.ZERO);
      assertEquals(new CloseResult(1, 3072), result);
      engine.gpu.copyEngine().releaseCopies();
      awaitCopies(engine);
    }
  }

  @Test
  void anInterruptEndsTheTrialAndStays() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      engine.gpu.copyEngine().holdNext(1);
      Thread.currentThread().interrupt();
      UMBPException fault = engine.refused();
      assertTrue(Thread.interrupted());
      assertEquals(Reason.COPY_FAILED, fault.reason());
      assertTrue(fault.getMessage().contains("the wait for it was interrupted"));
      engine.gpu.copyEngine().releaseCopies();
      assertTrue(engine.worker.unregisterBuffers(LONG));
      engine.assertNothingLeft();
    }
  }

  @Test
  void aCopyThatFailsIsToldAsSuch() {
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      engine.gpu.copyEngine().failNext((row, key) -> key == 1);
      UMBPException fault = engine.refused();
      assertEquals(Reason.COPY_FAILED, fault.reason());
      assertTrue(
          fault.getMessage().startsWith("trial of the layout: storing blocks 1 and 3 of group 0: "),
          fault::getMessage);
      engine.assertNothingLeft();
      engine.gpu.copyEngine().limitSlabBytes(2000);
      assertEquals(Reason.OUT_OF_MEMORY, engine.refused().reason());
      engine.assertNothingLeft();
    }
  }

  @Test
  void hostMemoryIsTriedTheSameWay() {
    KVCacheConfig told = config(SPEC, 2, KVCacheLayout.BHLNC, KVSplit.PLANES, 2, 0);
    List<TensorPlan> plans = KVLayoutPlanner.tensors(told, RANK);
    ByteBuffer memory = ByteBuffer.allocateDirect(Math.toIntExact(plans.get(0).sizeBytes()));
    FakeKVCache cache;
    try (TrialEngine engine = new TrialEngine(told)) {
      cache = engine.cache;
    }
    long base = cache.strides("layers.0").base();
    KVProbe probe =
        probe(
            (place, value) ->
                memory.put((int) (cache.strides(place.layerName()).address(place) - base), value),
            (place, value) ->
                memory.get((int) (cache.strides(place.layerName()).address(place) - base), value));
    Map<String, KVCacheTensor> tensors = new HashMap<>(plans.get(0).onHost(List.of(memory)));
    EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();
    try {
      UMBPWorkerHandle worker =
          runtime.createWorkerHandle(
              new UMBPNamespace("m"), RANK, KVLayoutPlanner.describe(told, RANK));
      RegistrationOptions options = RegistrationOptions.ownWriter().withTrial(probe, 4, 0);
      worker.registerBuffers(tensors, options);
      assertTrue(worker.unregisterBuffers(LONG));
      KVCacheTensor first = tensors.get("layers.0");
      tensors.put("layers.0", tensors.get("layers.1"));
      tensors.put("layers.1", first);
      UMBPException fault =
          assertThrows(UMBPException.class, () -> worker.registerBuffers(tensors, options));
      assertEquals(Reason.LAYOUT_MISMATCH, fault.reason());
      assertTrue(
          fault.getMessage().contains("it is where 'layers.1' block 4 key head 0 token 0 was"),
          fault::getMessage);
    } finally {
      runtime.close(LONG);
    }
  }

  @Test
  void aHugeLayoutIsSampledInAllLayersPartsAndKernelBlocks() {
    KVCacheSpec wide = attention(128, 1024, 1, ElementType.U8);
    KVCacheConfig config = config(wide, 16, KVCacheLayout.LBNHC, KVSplit.BLOCKS, 8, 0);
    TrialPlaces places = new TrialPlaces(KVLayoutPlanner.describe(config, RANK), 0, 1);
    assertTrue(2 * places.count() <= TrialPlaces.MAX_PLACES, () -> places.count() + " places");
    assertTrue(places.count() > TrialPlaces.MAX_PLACES / 16, () -> places.count() + " places");
    Map<String, List<Integer>> tokens = new HashMap<>();
    Map<String, List<Integer>> heads = new HashMap<>();
    places.forEach(
        (page, part, head, token, id) -> {
          tokens
              .computeIfAbsent(page.layerName() + part + token / 128, k -> new ArrayList<>())
              .add(token % 128);
          heads.computeIfAbsent(page.layerName() + part, k -> new ArrayList<>()).add(head);
        });
    assertEquals(16 * 2 * 8, tokens.size());
    tokens.values().forEach(seen -> assertTrue(seen.containsAll(List.of(0, 127))));
    heads.values().forEach(seen -> assertTrue(seen.containsAll(List.of(0, 127))));
  }

  @Test
  void aLayoutBelowTheLimitIsTriedWhole() {
    KVCacheSpec large = attention(64, 1024, 1, ElementType.U8);
    KVCacheSpec small = attention(1, 1024, 1, ElementType.U8);
    List<Layer> unequal = new ArrayList<>(List.of(new Layer("layers.0", large)));
    for (int i = 1; i <= 6; i++) {
      unequal.add(new Layer("layers." + i, small));
    }
    KVCacheConfig config =
        new KVCacheConfig(
            List.of(new Group(unequal, Transfer.ENABLED)),
            List.of(
                KVCacheConfig.Tensor.packed(
                    KVCacheLayout.LBNHC,
                    KVSplit.FUSED,
                    5,
                    unequal.stream().map(Layer::name).toList())));
    assertEquals(
        2 * 1024 * (64 + 6), new TrialPlaces(KVLayoutPlanner.describe(config, RANK), 0, 1).count());
    TrialPlaces places = new TrialPlaces(KVLayoutPlanner.describe(tokenMajor(2, 0), RANK), 0, 1);
    assertEquals(2 * 2 * 3 * 8, places.count());
    assertEquals(1, places.rounds());
    assertEquals(8, rounds(1));
    assertEquals(3, rounds(3));
    assertEquals(2, rounds(7));
  }

  private static int rounds(int contentBytes) {
    KVCacheSpec bytes = attention(2, 2, contentBytes, ElementType.U8);
    KVCacheConfig config = config(bytes, 1, KVCacheLayout.LBNHC, KVSplit.BLOCKS, 1, 0);
    return new TrialPlaces(KVLayoutPlanner.describe(config, RANK), 0, 1).rounds();
  }

  @Test
  void valuesAreDistinctAndFiniteInEveryFloatFormat() {
    Map<String, Long> seen = new HashMap<>();
    TrialPlaces places = new TrialPlaces(KVLayoutPlanner.describe(tokenMajor(1, 0), RANK), 0, 1);
    byte[] value = new byte[8];
    for (long id = 0; id < 5_000; id++) {
      for (int block = 0; block < 2; block++) {
        places.fill(value, id, block == 1, 0);
        Long other = seen.put(Arrays.toString(value), id);
        assertEquals(null, other, () -> "as place " + other);
        for (byte one : value) {
          assertEquals(0, one & 0x40);
        }
      }
    }
    byte[] whole = new byte[24];
    places.fill(whole, 7, true, 0);
    byte[] part = new byte[3];
    for (int round = 0; round < 8; round++) {
      places.fill(part, 7, true, round);
      assertArrayEquals(Arrays.copyOfRange(whole, 3 * round, 3 * round + 3), part);
    }
  }

  @Test
  void theLogSaysWhatWasChecked() throws ReflectiveOperationException {
    Object logger = LoggerFactory.getLogger(EmbeddedWorkerHandle.class);
    Field level = SimpleLogger.class.getDeclaredField("currentLogLevel");
    level.setAccessible(true);
    int before = level.getInt(logger);
    PrintStream standard = System.err;
    ByteArrayOutputStream log = new ByteArrayOutputStream();
    try (TrialEngine engine = new TrialEngine(tokenMajor(1, 0))) {
      level.setInt(logger, 10);
      System.setErr(new PrintStream(log, true, StandardCharsets.UTF_8));
      engine.worker.registerBuffers(engine.tensors);
      engine.worker.unregisterBuffers(LONG);
      String unchecked = log.toString(StandardCharsets.UTF_8);
      assertTrue(unchecked.contains("INFO"), unchecked);
      assertTrue(unchecked.contains("only bounds and overlap were checked"), unchecked);
      assertEquals(1, unchecked.lines().count(), unchecked);
      log.reset();
      engine.register();
      String tried = log.toString(StandardCharsets.UTF_8);
      assertTrue(tried.contains("DEBUG"), tried);
      assertTrue(tried.contains("held in a trial of 192 places in "), tried);
      assertEquals(1, tried.lines().count(), tried);
    } finally {
      System.setErr(standard);
      level.setInt(logger, before);
    }
  }

  @Test
  void aPartWithoutValuesIsAskedForItsKeyOnly() {
    KVCacheSpec latent =
        new KVCacheSpec.Attention(
            "MLAAttentionSpec", 8, ElementType.BF16, 1, 20, 0, TPSharding.REPLICATED, 0);
    try (TrialEngine engine =
        new TrialEngine(config(latent, 2, KVCacheLayout.BLNHC, KVSplit.FUSED, 1, 0))) {
      KVProbe keysOnly =
          probe(
              (place, value) -> {
                assertEquals(Part.KEY, place.part());
                assertEquals(40, value.length);
                engine.cache.write(place, value);
              },
              engine.cache::read);
      engine.register(keysOnly);
    }
  }
}
