package io.umbp.core.connector;

import io.umbp.api.KVLayoutDescriptor;
import io.umbp.api.KVRegion;
import io.umbp.api.RankNamespace;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPHandshakeMetadata;
import io.umbp.api.UMBPNamespace;
import io.umbp.core.identity.NamespaceManifest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.TreeSet;

/** What the workers of all ranks have reported, found to agree. Immutable. */
final class Handshake {
  private final Map<RankNamespace, UMBPHandshakeMetadata> reports;

  /** A report with the manifest, or any when none has it. */
  private final UMBPHandshakeMetadata described;

  private Handshake(
      Map<RankNamespace, UMBPHandshakeMetadata> reports, UMBPHandshakeMetadata described) {
    this.reports = reports;
    this.described = described;
  }

  /**
   * Holds reports against each other.
   *
   * @param topology a rank of the engine; its sizes say which ranks there are
   * @param reports the reports
   * @throws UMBPException INVALID_ARGUMENT unless there is one of each rank and all agree
   */
  static Handshake of(RankTopology topology, Collection<UMBPHandshakeMetadata> reports) {
    Map<RankNamespace, UMBPHandshakeMetadata> byRank = new HashMap<>();
    for (UMBPHandshakeMetadata report : reports) {
      RankTopology place = report.layout().topology();
      if (!sizes(place).equals(sizes(topology))) {
        throw UMBPException.invalid(
            "rank %s is of an engine with %s, this one has %s",
            place.localNamespace(), sizes(place), sizes(topology));
      }
      if (byRank.put(place.localNamespace(), report) != null) {
        throw UMBPException.invalid("rank %s reports twice", place.localNamespace());
      }
    }
    List<RankNamespace> ranks = topology.allNamespaces();
    for (RankNamespace rank : ranks) {
      if (!byRank.containsKey(rank)) {
        throw UMBPException.invalid(
            "rank %s has not reported; %d of %d ranks have", rank, byRank.size(), ranks.size());
      }
    }
    Handshake handshake = new Handshake(byRank, described(ranks, byRank));
    Map<Integer, UMBPHandshakeMetadata> firstOfStage = new HashMap<>();
    UMBPHandshakeMetadata first = handshake.report(ranks.get(0));
    for (RankNamespace rank : ranks) {
      UMBPHandshakeMetadata report = handshake.report(rank);
      new Comparison(name(first), first, name(report), report).checkEngine();
      new Comparison(name(handshake.described), handshake.described, name(report), report)
          .checkManifest();
      UMBPHandshakeMetadata ofStage = firstOfStage.putIfAbsent(rank.pp(), report);
      if (ofStage != null) {
        new Comparison(name(ofStage), ofStage, name(report), report).checkStage();
      }
    }
    return handshake;
  }

  private static UMBPHandshakeMetadata described(
      List<RankNamespace> ranks, Map<RankNamespace, UMBPHandshakeMetadata> byRank) {
    UMBPHandshakeMetadata any = null;
    for (RankNamespace rank : ranks) {
      UMBPHandshakeMetadata report = Objects.requireNonNull(byRank.get(rank), "report");
      if (!report.manifest().isEmpty()) {
        return report;
      }
      any = report;
    }
    return Objects.requireNonNull(any, "an engine has a rank");
  }

  private static String sizes(RankTopology topology) {
    return "sizes tp %d, pcp %d, dcp %d, pp %d"
        .formatted(topology.tpSize(), topology.pcpSize(), topology.dcpSize(), topology.ppSize());
  }

  private static String name(UMBPHandshakeMetadata report) {
    return "rank " + report.layout().topology().localNamespace();
  }

  /** Refuses later reports of the same ranks that say something else. */
  void checkSame(Handshake later) {
    for (UMBPHandshakeMetadata before : reports.values()) {
      UMBPHandshakeMetadata now = later.report(before.layout().topology().localNamespace());
      Comparison comparison = new Comparison("the adopted " + name(before), before, name(now), now);
      comparison.checkEngine();
      comparison.checkStage();
    }
    new Comparison(
            "the adopted " + name(described), described, name(later.described), later.described)
        .checkManifest();
  }

  /** The report of a rank of the engine. */
  UMBPHandshakeMetadata report(RankNamespace rank) {
    UMBPHandshakeMetadata report = reports.get(rank);
    if (report == null) {
      throw UMBPException.invalid("rank %s is none of this engine's", rank);
    }
    return report;
  }

  /** The manifest of the namespace, empty when no rank has one. */
  String manifest() {
    return described.manifest();
  }

  /** One line for each field in which another namespace's manifest differs from this one's. */
  List<String> explain(Map<UMBPNamespace, String> manifests) {
    String own = described.namespace().value();
    Map<String, String> others = new TreeMap<>();
    manifests.forEach((namespace, text) -> others.put(namespace.value(), text));
    others.remove(own);
    if (!others.isEmpty() && manifest().isEmpty()) {
      return List.of("namespace '" + own + "' was given by hand, without a manifest to compare");
    }
    List<String> lines = new ArrayList<>();
    others.forEach(
        (other, text) -> {
          for (String difference : differences(manifest(), text)) {
            lines.add("namespace '%s' against '%s': %s".formatted(own, other, difference));
          }
        });
    return lines;
  }

  /** What differs between two manifests, one text a field. */
  private static List<String> differences(String ours, String theirs) {
    NamespaceManifest own;
    NamespaceManifest other;
    try {
      own = NamespaceManifest.parse(ours);
      other = NamespaceManifest.parse(theirs);
    } catch (UMBPException e) {
      return List.of("they can't be compared: " + e.getMessage());
    }
    return own.explain(other).stream().map(NamespaceManifest.Difference::toString).toList();
  }

  /** Two reports and what to call them. */
  private record Comparison(
      String expectedName,
      UMBPHandshakeMetadata expected,
      String givenName,
      UMBPHandshakeMetadata given) {

    /** Refuses what must be the same on all ranks. */
    void checkEngine() {
      if (!given.namespace().equals(expected.namespace())) {
        throw disagree("namespace", given.namespace(), expected.namespace(), manifestDifferences());
      }
      KVLayoutDescriptor layout = given.layout();
      KVLayoutDescriptor other = expected.layout();
      check("format", layout.format(), other.format());
      int[] groupIds = other.groupIds();
      check("KV cache groups", Arrays.toString(layout.groupIds()), Arrays.toString(groupIds));
      for (int groupId : groupIds) {
        check(
            "block size of group " + groupId,
            CacheGroups.blockSize(layout, groupId),
            CacheGroups.blockSize(other, groupId));
      }
      check(
          "replicated groups",
          new TreeSet<>(layout.replicatedGroups()),
          new TreeSet<>(other.replicatedGroups()));
    }

    /** Refuses two manifests of one namespace. */
    void checkManifest() {
      if (haveManifests() && !given.manifest().equals(expected.manifest())) {
        throw UMBPException.invalid(
            "%s and %s derive namespace '%s' from manifests that differ%s",
            givenName, expectedName, given.namespace(), manifestDifferences());
      }
    }

    /** Refuses what must be the same on all ranks of a pipeline stage. */
    void checkStage() {
      List<KVRegion> regions = given.layout().regions();
      List<KVRegion> others = expected.layout().regions();
      check("number of layers", regions.size(), others.size());
      for (int i = 0; i < regions.size(); i++) {
        KVRegion region = regions.get(i);
        KVRegion other = others.get(i);
        check("layer " + i, region.layerName(), other.layerName());
        String layer = " of layer '" + region.layerName() + "'";
        check("group" + layer, region.groupId(), other.groupId());
        check("block bytes" + layer, region.blockBytes(), other.blockBytes());
        check("page shape" + layer, region.shape(), other.shape());
      }
    }

    private void check(String field, Object ours, Object theirs) {
      if (!ours.equals(theirs)) {
        throw disagree(field, ours, theirs, "");
      }
    }

    private UMBPException disagree(String field, Object ours, Object theirs, String reason) {
      return UMBPException.invalid(
          "%s has the %s '%s', %s has '%s'%s",
          givenName, field, ours, expectedName, theirs, reason);
    }

    private boolean haveManifests() {
      return !given.manifest().isEmpty() && !expected.manifest().isEmpty();
    }

    private String manifestDifferences() {
      if (!haveManifests()) {
        return "";
      }
      List<String> differences = differences(given.manifest(), expected.manifest());
      return differences.isEmpty() ? "" : ": " + String.join("; ", differences);
    }
  }
}
