package io.umbp.core.connector;

import static io.umbp.core.connector.ConnectorRig.blocks;
import static io.umbp.core.connector.ConnectorRig.hashes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.api.BlockHashes;
import io.umbp.api.BlockStoreBatch;
import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVPageShape;
import io.umbp.api.KVPageShape.Axis;
import io.umbp.api.KVRegion;
import io.umbp.api.KVRegion.PageSegment;
import io.umbp.api.LoadResult;
import io.umbp.api.LoadSpec;
import io.umbp.api.RankTopology;
import io.umbp.api.StoreEventResult;
import io.umbp.api.UMBPConnectorMetadata;
import io.umbp.api.UMBPConnectorWorkerMetadata;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.connector.ConnectorRig.Shape;
import io.umbp.core.runtime.EmbeddedRuntime;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** How the scheduler takes over what the workers report. */
class HandshakeTest {
  private static final UMBPConnectorMetadata EMPTY_STEP =
      new UMBPConnectorMetadata(Set.of(), Map.of(), Map.of(), UMBPConnectorMetadata.NO_EVENT);

  private final EmbeddedRuntime runtime = EmbeddedRuntime.builder().capacityBytes(1 << 20).build();

  @AfterEach
  void close() {
    runtime.close(Duration.ZERO);
  }

  private static String manifest(String... fields) {
    return "umbp-manifest 1\n" + String.join("\n", fields) + "\n";
  }

  /** One of 2 x 2 ranks with an MLA-like replicated group 0 and a group 1 of two layers. */
  private static UMBPHandshakeMetadata report(int globalRank) {
    RankTopology rank = RankTopology.ofGlobalRank(globalRank, 2, 1, 1, 2);
    String stage = "s" + rank.ppRank();
    KVPageShape shape = new KVPageShape(List.of(Axis.TOKEN, Axis.HEAD), 2, 1, 8, 1, 2, 2);
    return new UMBPHandshakeMetadata(
        new UMBPNamespace("n"),
        manifest("model=m", "revision=1"),
        new KVLayoutDescriptor(
            List.of(
                new KVRegion(stage + ".latent", 0, 64, 64, 0, 16),
                new KVRegion(stage + ".a", 1, 40, 32, 64, 8, List.of(), shape),
                new KVRegion(stage + ".b", 1, 40, 32, 96, 8, List.of(), shape)),
            rank,
            Set.of(0),
            KVLayoutDescriptor.RANK_LOCAL));
  }

  private static List<UMBPHandshakeMetadata> reports() {
    return new ArrayList<>(IntStream.range(0, 4).mapToObj(HandshakeTest::report).toList());
  }

  private SchedulerConnector scheduler() {
    return new SchedulerConnector(
        runtime, RankTopology.ofGlobalRank(0, 2, 1, 1, 2), 8, ConnectorSettings.defaults());
  }

  private static String refusal(Runnable call) {
    UMBPException refusal = assertThrows(UMBPException.class, call::run);
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, refusal.reason());
    return refusal.getMessage();
  }

  private static UMBPHandshakeMetadata with(
      UMBPHandshakeMetadata report, UnaryOperator<List<KVRegion>> change) {
    KVLayoutDescriptor layout = report.layout();
    List<KVRegion> regions = change.apply(new ArrayList<>(layout.regions()));
    Set<Integer> replicated =
        regions.stream().anyMatch(region -> region.groupId() == 0) ? Set.of(0) : Set.of();
    return new UMBPHandshakeMetadata(
        report.namespace(),
        report.manifest(),
        new KVLayoutDescriptor(regions, layout.topology(), replicated, layout.format()));
  }

  private static UnaryOperator<List<KVRegion>> last(UnaryOperator<KVRegion> change) {
    return regions -> {
      regions.set(regions.size() - 1, change.apply(regions.get(regions.size() - 1)));
      return regions;
    };
  }

  private static UnaryOperator<List<KVRegion>> all(UnaryOperator<KVRegion> change) {
    return regions -> regions.stream().map(change).toList();
  }

  private static KVRegion ofBlockSize(KVRegion r, int blockSize) {
    return new KVRegion(
        r.layerName(),
        r.groupId(),
        r.blockStride(),
        r.blockBytes(),
        r.objectOffset(),
        blockSize,
        r.pageSegments(),
        r.shape());
  }

  private static Arguments bad(
      String message, int rank, UnaryOperator<UMBPHandshakeMetadata> change) {
    return Arguments.of(message, rank, change);
  }

  static Stream<Arguments> disagreements() {
    String rank2 = "rank tp0:pcp0:dcp0:pp1 has the ";
    String rank3 = "rank tp1:pcp0:dcp0:pp1 has the ";
    String rank0Has = ", rank tp0:pcp0:dcp0:pp0 has ";
    String rank2Has = ", rank tp0:pcp0:dcp0:pp1 has ";
    KVPageShape headMajor = new KVPageShape(List.of(Axis.HEAD, Axis.TOKEN), 2, 1, 8, 1, 2, 2);
    return Stream.of(
        bad(
            rank3 + "namespace 'other'" + rank0Has + "'n'",
            3,
            r -> new UMBPHandshakeMetadata(new UMBPNamespace("other"), "", r.layout())),
        bad(
            rank2 + "format 'rows'" + rank0Has + "'rank_local'",
            2,
            r ->
                new UMBPHandshakeMetadata(
                    r.namespace(),
                    r.manifest(),
                    new KVLayoutDescriptor(
                        r.layout().regions(), r.layout().topology(), Set.of(0), "rows"))),
        bad(
            rank2 + "KV cache groups '[1]'" + rank0Has + "'[0, 1]'",
            2,
            r -> with(r, regions -> regions.subList(1, 3))),
        bad(
            rank2 + "block size of group 0 '32'" + rank0Has + "'16'",
            2,
            r -> with(r, all(region -> ofBlockSize(region, 32)))),
        bad(
            rank3 + "replicated groups '[]'" + rank0Has + "'[0]'",
            3,
            r ->
                new UMBPHandshakeMetadata(
                    r.namespace(),
                    r.manifest(),
                    new KVLayoutDescriptor(r.layout().regions(), r.layout().topology()))),
        bad(
            rank3 + "number of layers '2'" + rank2Has + "'3'",
            3,
            r -> with(r, regions -> regions.subList(0, 2))),
        bad(
            rank3 + "layer 2 's1.c'" + rank2Has + "'s1.b'",
            3,
            r -> with(r, last(b -> new KVRegion("s1.c", 1, 40, 32, 96, 8, List.of(), b.shape())))),
        bad(
            rank3 + "block bytes of layer 's1.b' '40'" + rank2Has + "'32'",
            3,
            r -> with(r, last(b -> new KVRegion("s1.b", 1, 40, 40, 96, 8)))),
        bad(
            rank3
                + "page shape of layer 's1.b' '"
                + headMajor
                + "'"
                + rank2Has
                + "'"
                + report(2).layout().regions().get(2).shape()
                + "'",
            3,
            r -> with(r, last(b -> new KVRegion("s1.b", 1, 40, 32, 96, 8, List.of(), headMajor)))),
        bad(
            "rank tp1:pcp0:dcp0:pp0 is of an engine with sizes tp 4, pcp 1, dcp 1, pp 1,"
                + " this one has sizes tp 2, pcp 1, dcp 1, pp 2",
            3,
            r ->
                new UMBPHandshakeMetadata(
                    r.namespace(),
                    "",
                    new KVLayoutDescriptor(
                        r.layout().regions(), RankTopology.tensorParallel(1, 4)))),
        bad("rank tp0:pcp0:dcp0:pp1 reports twice", 3, r -> report(2)));
  }

  @ParameterizedTest(name = "{0}")
  @MethodSource("disagreements")
  void whoeverDisagreesIsNamed(
      String message, int rank, UnaryOperator<UMBPHandshakeMetadata> change) {
    List<UMBPHandshakeMetadata> reports = reports();
    reports.set(rank, change.apply(reports.get(rank)));
    SchedulerConnector scheduler = scheduler();
    assertEquals(message, refusal(() -> scheduler.adopt(reports)));
    assertFalse(scheduler.isAdopted());
    assertEquals(Map.of(), runtime.manifests());
    scheduler.adopt(reports());
    assertTrue(scheduler.isAdopted());
  }

  @Test
  void ranksOfDifferentNamespacesAreToldWhatDiffersInTheirManifests() {
    List<UMBPHandshakeMetadata> reports = reports();
    reports.set(
        1,
        new UMBPHandshakeMetadata(
            new UMBPNamespace("n2"), manifest("model=m", "revision=2"), report(1).layout()));
    assertEquals(
        "rank tp1:pcp0:dcp0:pp0 has the namespace 'n2', rank tp0:pcp0:dcp0:pp0 has 'n'"
            + ": revision: 2 here, 1 there",
        refusal(() -> scheduler().adopt(reports)));
    reports.set(
        1,
        new UMBPHandshakeMetadata(new UMBPNamespace("n"), manifest("model=x"), report(1).layout()));
    assertEquals(
        "rank tp1:pcp0:dcp0:pp0 and rank tp0:pcp0:dcp0:pp0 derive namespace 'n' from manifests that"
            + " differ: model: x here, m there; revision: none here, 1 there",
        refusal(() -> scheduler().adopt(reports)));
  }

  @Test
  void aRankThatIsMissingIsNamed() {
    assertEquals(
        "rank tp0:pcp0:dcp0:pp0 has not reported; 0 of 4 ranks have",
        refusal(() -> scheduler().adopt(List.of())));
    List<UMBPHandshakeMetadata> reports = reports();
    reports.remove(2);
    assertEquals(
        "rank tp0:pcp0:dcp0:pp1 has not reported; 3 of 4 ranks have",
        refusal(() -> scheduler().adopt(reports)));
  }

  @Test
  void stridesSegmentsAndOrderOfTheReportsAreFree() {
    List<UMBPHandshakeMetadata> reports = reports();
    reports.set(
        3,
        with(
            report(3),
            all(
                r ->
                    new KVRegion(
                        r.layerName(),
                        r.groupId(),
                        128,
                        r.blockBytes(),
                        r.objectOffset(),
                        r.blockSize(),
                        List.of(new PageSegment(0, 8), new PageSegment(512, r.blockBytes() - 8)),
                        r.shape()))));
    Collections.reverse(reports);
    SchedulerConnector scheduler = scheduler();
    scheduler.adopt(reports);
    assertTrue(scheduler.isAdopted());
  }

  @Test
  void theHashUnitMustDivideTheBlockSizes() {
    SchedulerConnector scheduler =
        new SchedulerConnector(
            runtime, report(0).layout().topology(), 12, ConnectorSettings.defaults());
    assertEquals(
        "the block size 16 of group 0 is no multiple of the hash unit 12",
        refusal(() -> scheduler.adopt(reports())));
    assertEquals(
        "the hash unit of -1 tokens must be > 0",
        refusal(
            () ->
                new SchedulerConnector(
                    runtime, RankTopology.single(), -1, ConnectorSettings.defaults())));
  }

  @Test
  void aRestartedWorkerMaySayTheSameAgainAndNothingElse() {
    SchedulerConnector scheduler = scheduler();
    scheduler.adopt(reports());
    scheduler.adopt(reports());
    assertTrue(scheduler.isAdopted());

    List<UMBPHandshakeMetadata> renamed = new ArrayList<>();
    List<UMBPHandshakeMetadata> elsewhere = new ArrayList<>();
    for (UMBPHandshakeMetadata report : reports()) {
      boolean isFirstStage = report.layout().topology().ppRank() == 0;
      renamed.add(
          isFirstStage
              ? report
              : with(
                  report, last(b -> new KVRegion("new", 1, 40, 32, 96, 8, List.of(), b.shape()))));
      elsewhere.add(
          new UMBPHandshakeMetadata(new UMBPNamespace("n3"), report.manifest(), report.layout()));
    }
    String refused = refusal(() -> scheduler.adopt(renamed));
    assertTrue(
        refused.matches(
            "rank (tp[01]:pcp0:dcp0:pp1) has the layer 2 'new', the adopted rank \\1 has 's1.b'"),
        refused);
    refused = refusal(() -> scheduler.adopt(elsewhere));
    assertTrue(refused.contains("has the namespace 'n3', the adopted rank"), refused);
    assertTrue(scheduler.isAdopted());
  }

  @Test
  void theManifestIsKeptAtTheRuntime() {
    List<UMBPHandshakeMetadata> reports = reports();
    reports.set(0, new UMBPHandshakeMetadata(new UMBPNamespace("n"), "", report(0).layout()));
    scheduler().adopt(reports);
    assertEquals(
        Map.of(new UMBPNamespace("n"), manifest("model=m", "revision=1")), runtime.manifests());
    reports.set(3, new UMBPHandshakeMetadata(new UMBPNamespace("n"), "x", report(3).layout()));
    assertEquals(
        "rank tp1:pcp0:dcp0:pp1 and rank tp1:pcp0:dcp0:pp0 derive namespace 'n' from manifests that"
            + " differ: they can't be compared: line 1 of the manifest has no line feed at its end",
        refusal(() -> scheduler().adopt(reports)));

    runtime.describeNamespace(new UMBPNamespace("taken"), "model y");
    List<UMBPHandshakeMetadata> taken =
        reports().stream()
            .map(r -> new UMBPHandshakeMetadata(new UMBPNamespace("taken"), "model m", r.layout()))
            .toList();
    SchedulerConnector scheduler = scheduler();
    assertTrue(refusal(() -> scheduler.adopt(taken)).contains("'taken'"));
    assertFalse(scheduler.isAdopted());
  }

  @Test
  void aHitRateOfZeroIsExplained() {
    SchedulerConnector scheduler = scheduler();
    assertEquals(List.of(), scheduler.explainNamespace());
    scheduler.adopt(reports());
    assertEquals(List.of(), scheduler.explainNamespace());
    runtime.describeNamespace(new UMBPNamespace("z"), manifest("model=m", "revision=2"));
    runtime.describeNamespace(
        new UMBPNamespace("a"), manifest("dtype=fp8", "model=m", "revision=1"));
    assertEquals(
        List.of(
            "namespace 'n' against 'a': dtype: none here, fp8 there",
            "namespace 'n' against 'z': revision: 1 here, 2 there"),
        scheduler.explainNamespace());

    SchedulerConnector byHand = scheduler();
    byHand.adopt(
        reports().stream()
            .map(r -> new UMBPHandshakeMetadata(new UMBPNamespace("hand"), "", r.layout()))
            .toList());
    assertEquals(
        List.of("namespace 'hand' was given by hand, without a manifest to compare"),
        byHand.explainNamespace());
  }

  @Test
  void anEngineMayStartBeforeItsWorkersHaveReported() {
    try (ConnectorRig rig = new ConnectorRig(Shape.of(2, 1, 0), 32, 16, 16, 16)) {
      BlockHashes prompt = hashes(1, 3);
      SchedulerConnector early =
          new SchedulerConnector(
              rig.runtime, RankTopology.tensorParallel(0, 2), 16, ConnectorSettings.defaults());
      assertEquals(
          new LoadSpec(16, 16), early.lookup(RequestView.of("r", 49, prompt), 16).orElseThrow());
      assertEquals(
          "request 'r' loads 16 tokens; the lookup found 0",
          refusal(() -> early.admit("r", 16, blocks(0, 2), blocks(0, 2))));
      early.admit("r", 0, blocks(0, 2), blocks(0, 2));
      early.planStores("r", 32);
      assertTrue(refusal(() -> early.planStores("r", -1)).contains("-1"));
      assertTrue(refusal(() -> early.planStores("x", 32)).contains("'x'"));
      early.updateBlocks("r", blocks(2, 1), blocks(2, 1));
      early.touch("r", 48);
      assertEquals(EMPTY_STEP, early.takeStep());
      assertEquals(
          new ConnectorUpdate(Map.of(), Map.of()),
          early.update(
              new UMBPConnectorWorkerMetadata(
                  Map.of("r", new LoadResult(2, Set.of(), Set.of())),
                  Map.of(0L, new StoreEventResult(2, Set.of())))));
      assertEquals(0, early.storeEventCount());

      early.adopt(rig.handshakes());
      assertEquals(EMPTY_STEP, early.takeStep(), "nothing was due");
      early.planStores("r", 48);
      BlockStoreBatch stores = early.takeStep().stores().get("r");
      assertEquals(6, stores.size(), "all that was computed, also before");
      assertArrayEquals(new int[] {0, 0, 1, 1, 2, 2}, stores.blockIds());
      early.close();
    }
  }

  @Test
  void tablesOfAnEarlyRequestAreCheckedOnceTheGroupsAreKnown() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      SchedulerConnector early =
          new SchedulerConnector(
              rig.runtime, RankTopology.single(), 16, ConnectorSettings.defaults());
      early.lookup(RequestView.of("r", 32, hashes(1, 2)), 0);
      early.admit("r", 0, blocks(0, 2), blocks(0, 2));
      early.adopt(rig.handshakes());
      assertEquals(
          "request 'r' has blocks of 2 KV cache groups, the layout has 1",
          refusal(() -> early.planStores("r", 32)));
      assertEquals(EMPTY_STEP, early.takeStep());
    }
  }

  @Test
  void closeClosesTheHandleAndLetsLateReportsIn() {
    try (ConnectorRig rig = new ConnectorRig(1, 8, 16, 16)) {
      rig.scheduler.lookup(RequestView.of("r", 16, hashes(1, 1)), 0);
      rig.scheduler.admit("r", 0, blocks(0, 1));
      rig.scheduler.planStores("r", 16);
      UMBPConnectorMetadata step = rig.start();
      rig.scheduler.close();
      rig.scheduler.close();
      assertClosed(() -> rig.scheduler.lookup(RequestView.of("s", 17, hashes(1, 1)), 0));
      assertClosed(() -> rig.scheduler.touch("r", 16));
      assertClosed(() -> rig.scheduler.adopt(rig.handshakes()));
      assertClosed(rig.scheduler::takeEvents);
      assertClosed(rig.scheduler::clear);
      rig.gpu.runAll();
      assertEquals(1, rig.collect(step).endedEvents().size());
    }
    SchedulerConnector unused = scheduler();
    unused.close();
    assertClosed(() -> unused.adopt(reports()));
  }

  private static void assertClosed(Runnable call) {
    assertEquals(
        UMBPException.Reason.CLOSED, assertThrows(UMBPException.class, call::run).reason());
  }
}
