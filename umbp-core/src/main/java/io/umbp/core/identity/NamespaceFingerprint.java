package io.umbp.core.identity;

import static java.nio.charset.StandardCharsets.US_ASCII;

import com.google.common.hash.Hashing;
import io.umbp.api.RankTopology;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Derives the namespace of an engine from what it runs, so that engines that lay the same KV out
 * alike find each other's objects without a name agreed by hand. Stateless.
 */
public final class NamespaceFingerprint {
  private static final int HEX_DIGITS = 32;
  private static final int LAYOUT_VERSION = 1;

  private NamespaceFingerprint() {}

  /**
   * What the v1 fingerprint covers of an engine. Immutable.
   *
   * <p>It leaves out much that changes KV: overrides of the model's configuration, scales of
   * quantised KV, heads and page bytes, the hash algorithm and seed. Engines that differ in such a
   * thing need namespaces given by hand.
   *
   * @param model the model as configured, not empty
   * @param revision revision of the weights, not empty; null when none is configured
   * @param blockSize tokens in a block of the engine's cache, at least 1
   * @param cacheLayout the cache layout's name, not empty; null when none is configured
   * @param groups the KV cache groups in order, at least one; copied
   * @param topology parallel sizes; which rank it is makes no difference
   * @param drafter the speculative decoder, or null when there is none
   */
  public record Deployment(
      String model,
      @Nullable String revision,
      int blockSize,
      @Nullable String cacheLayout,
      List<Group> groups,
      RankTopology topology,
      @Nullable Drafter drafter) {

    /** Checks texts and sizes, and that no layer stands twice. */
    public Deployment {
      requireText("model", model);
      requireText("revision", revision);
      requireBlockSize("cache", blockSize);
      requireText("cache layout", cacheLayout);
      groups = List.copyOf(groups);
      if (groups.isEmpty()) {
        throw UMBPException.invalid("a deployment has 0 KV cache groups, it needs at least 1");
      }
      Set<String> layers = new HashSet<>();
      for (Group group : groups) {
        for (String layer : group.layers()) {
          if (!layers.add(layer)) {
            throw UMBPException.invalid("layer '%s' stands twice in the groups", layer);
          }
        }
      }
    }
  }

  /**
   * One KV cache group of a {@link Deployment}. Immutable.
   *
   * @param kind name of the cache spec's class in vLLM, such as {@code FullAttentionSpec}
   * @param layers the layers' names in group order, at least one, none empty; copied
   * @param blockSize tokens in a block of this group, at least 1
   * @param dtype element type as Python prints it, such as {@code torch.bfloat16}; null when the
   *     spec has none, which Python prints as {@code None}
   */
  public record Group(String kind, List<String> layers, int blockSize, @Nullable String dtype) {

    /** Checks texts and sizes. */
    public Group {
      requireText("spec kind", kind);
      requireText("dtype", dtype);
      requireBlockSize("group", blockSize);
      layers = List.copyOf(layers);
      if (layers.isEmpty()) {
        throw UMBPException.invalid("a group of kind '%s' has 0 layers, it needs at least 1", kind);
      }
      for (String layer : layers) {
        requireText("layer name", layer);
      }
    }
  }

  /**
   * The speculative decoder of a {@link Deployment}: its presence and each of its parts change the
   * namespace. Immutable.
   *
   * @param method the method's name, not empty; null when none is configured
   * @param model the drafter's model, not empty; null when the method has none
   * @param revision revision of the drafter's weights, not empty; null when none is configured
   */
  public record Drafter(
      @Nullable String method, @Nullable String model, @Nullable String revision) {

    /** Checks that no text is empty. */
    public Drafter {
      requireText("speculative method", method);
      requireText("drafter model", model);
      requireText("drafter revision", revision);
    }
  }

  private static void requireText(String what, @Nullable String text) {
    if (text != null && text.isEmpty()) {
      throw UMBPException.invalid("%s is empty; leave it null when there is none", what);
    }
  }

  private static void requireBlockSize(String what, int blockSize) {
    if (blockSize < 1) {
      throw UMBPException.invalid("%s block size %d must be >= 1 token", what, blockSize);
    }
  }

  /**
   * Returns the namespace that vLLM's connector derives for the same engine: the first 32 hex
   * digits of the SHA-256 over {@linkplain #compatibleJson the deployment as canonical JSON}.
   *
   * @param deployment what the engine runs
   * @return the v1 namespace
   */
  public static UMBPNamespace compatible(Deployment deployment) {
    String hex = Hashing.sha256().hashString(compatibleJson(deployment), US_ASCII).toString();
    return new UMBPNamespace(hex.substring(0, HEX_DIGITS));
  }

  /**
   * Returns the text that the v1 namespace is a digest of, to see why two namespaces differ: the
   * fields sorted by name, no spaces, ASCII only, as Python's {@code json.dumps} writes it.
   *
   * @param deployment what the engine runs
   * @return the canonical JSON
   */
  public static String compatibleJson(Deployment deployment) {
    StringBuilder json = new StringBuilder(256);
    RankTopology sizes = deployment.topology();
    json.append("{\"block_size\":").append(deployment.blockSize());
    appendText(json.append(",\"cache_layout\":"), deployment.cacheLayout());
    json.append(",\"dcp\":").append(sizes.dcpSize());
    json.append(",\"groups\":[");
    String separator = "";
    for (Group group : deployment.groups()) {
      appendGroup(json.append(separator), group);
      separator = ",";
    }
    json.append("],\"layout_version\":").append(LAYOUT_VERSION);
    appendText(json.append(",\"model\":"), deployment.model());
    json.append(",\"pcp\":").append(sizes.pcpSize());
    json.append(",\"pp\":").append(sizes.ppSize());
    appendText(json.append(",\"revision\":"), deployment.revision());
    Drafter drafter = deployment.drafter();
    if (drafter != null) {
      appendText(json.append(",\"speculative\":{\"method\":"), drafter.method());
      appendText(json.append(",\"model\":"), drafter.model());
      appendText(json.append(",\"revision\":"), drafter.revision());
      json.append('}');
    }
    return json.append(",\"tp\":").append(sizes.tpSize()).append('}').toString();
  }

  private static void appendGroup(StringBuilder json, Group group) {
    json.append("{\"block_size\":").append(group.blockSize());
    appendText(json.append(",\"dtype\":"), group.dtype() == null ? "None" : group.dtype());
    appendText(json.append(",\"kind\":"), group.kind());
    json.append(",\"layers\":[");
    String separator = "";
    for (String layer : group.layers()) {
      appendText(json.append(separator), layer);
      separator = ",";
    }
    json.append("]}");
  }

  private static void appendText(StringBuilder json, @Nullable String text) {
    if (text == null) {
      json.append("null");
      return;
    }
    json.append('"');
    for (int i = 0; i < text.length(); i++) {
      appendChar(json, text.charAt(i));
    }
    json.append('"');
  }

  private static void appendChar(StringBuilder json, char c) {
    switch (c) {
      case '"', '\\' -> json.append('\\').append(c);
      case '\b' -> json.append("\\b");
      case '\f' -> json.append("\\f");
      case '\n' -> json.append("\\n");
      case '\r' -> json.append("\\r");
      case '\t' -> json.append("\\t");
      default -> {
        if (c >= ' ' && c <= '~') {
          json.append(c);
        } else {
          json.append(String.format("\\u%04x", (int) c));
        }
      }
    }
  }
}
