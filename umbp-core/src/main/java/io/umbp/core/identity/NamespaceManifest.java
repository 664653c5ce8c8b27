package io.umbp.core.identity;

import static java.nio.charset.StandardCharsets.US_ASCII;

import com.google.common.hash.Hashing;
import io.umbp.api.UMBPException;
import io.umbp.api.UMBPNamespace;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;
import org.jspecify.annotations.Nullable;

/**
 * All that changes a stored byte of an engine, as named fields with readable values: what a strict
 * namespace is the digest of. Immutable; equal by content.
 *
 * <p>The text is kept beside the stored data, so that two engines whose namespaces differ can be
 * told {@linkplain #explain which fields} differ, and how. What leaves the bytes as they are is not
 * in it: the number of blocks, strides, addresses, which rank it is.
 */
public final class NamespaceManifest {
  /** Greatest length of a text in characters. */
  public static final int MAX_LENGTH = 1 << 20;

  /** Version of the meaning of the fields and of the bytes of objects. */
  static final int LAYOUT_VERSION = 1;

  static final String ORIGIN = "kv.origin";
  static final String FOREIGN = "may-be-foreign";

  private static final String FIRST_LINE = "umbp-manifest 1";
  private static final int HEX_DIGITS = 32;

  /** Names and values as they stand in the text, that is, escaped. */
  private final SortedMap<String, String> fields;

  private final String text;

  private NamespaceManifest(SortedMap<String, String> fields, String text) {
    this.fields = fields;
    this.text = text;
  }

  /** Returns the manifest of fields whose names and values are plain text. */
  static NamespaceManifest of(Map<String, String> plain) {
    SortedMap<String, String> fields = new TreeMap<>();
    plain.forEach((name, value) -> fields.put(escape(name, '='), escape(value, '\\')));
    StringBuilder text = new StringBuilder(FIRST_LINE).append('\n');
    fields.forEach((name, value) -> text.append(name).append('=').append(value).append('\n'));
    checkLength(text.length());
    return new NamespaceManifest(fields, text.toString());
  }

  private static void checkLength(int length) {
    if (length > MAX_LENGTH) {
      throw UMBPException.invalid(
          "the manifest has %d characters, at most %d are allowed", length, MAX_LENGTH);
    }
  }

  /**
   * Starts the manifest of an engine.
   *
   * @param model the model as configured, not empty
   * @return a builder
   */
  public static NamespaceManifestBuilder builder(String model) {
    return new NamespaceManifestBuilder(model);
  }

  /**
   * Reads a text that {@link #text} wrote, here or in another program. Fields that this version
   * does not know are kept.
   *
   * @param text the text
   * @return the manifest, whose text is this one
   * @throws UMBPException INVALID_ARGUMENT naming the line, when the text is not exactly as {@link
   *     #text} writes it
   */
  public static NamespaceManifest parse(String text) {
    checkLength(text.length());
    SortedMap<String, String> fields = new TreeMap<>();
    String last = "";
    int number = 0;
    for (int at = 0; at < text.length() || number == 0; ) {
      number++;
      int end = text.indexOf('\n', at);
      if (end < 0) {
        throw refused(number, "has no line feed at its end");
      }
      String line = text.substring(at, end);
      if (number == 1) {
        if (!line.equals(FIRST_LINE)) {
          throw refused(number, "is not '" + FIRST_LINE + "'");
        }
      } else {
        int equals = line.indexOf('=');
        if (equals < 1) {
          throw refused(number, "is no field=value");
        }
        String name = line.substring(0, equals);
        String value = line.substring(equals + 1);
        if (!isAsWritten(name, '=') || !isAsWritten(value, '\\')) {
          throw refused(number, "is not escaped as it must be");
        }
        if (name.compareTo(last) <= 0) {
          throw refused(number, "is not behind the line before in the order of field names");
        }
        fields.put(name, value);
        last = name;
      }
      at = end + 1;
    }
    return new NamespaceManifest(fields, text);
  }

  private static UMBPException refused(int line, String what) {
    return UMBPException.invalid("line %d of the manifest %s", line, what);
  }

  /**
   * Returns the manifest as text in ASCII: a line with name and version, then a line {@code
   * field=value} for each field, sorted by name.
   *
   * @return the text, of at most {@value #MAX_LENGTH} characters
   */
  public String text() {
    return text;
  }

  /**
   * Returns the namespace: the first 32 hex digits of the SHA-256 over the text, {@linkplain
   * UMBPNamespace#foreign() marked} when the engine may load KV that its own cache writer did not
   * make.
   *
   * @return the namespace
   */
  public UMBPNamespace namespace() {
    String hex = Hashing.sha256().hashString(text, US_ASCII).toString();
    UMBPNamespace namespace = new UMBPNamespace(hex.substring(0, HEX_DIGITS));
    return FOREIGN.equals(fields.get(ORIGIN)) ? namespace.foreign() : namespace;
  }

  /**
   * Tells why another engine's namespace is another.
   *
   * @param other that engine's manifest
   * @return the fields that differ, sorted by name; empty when the manifests are equal. A
   *     difference that several layers or groups have alike is one element
   */
  public List<Difference> explain(NamespaceManifest other) {
    TreeSet<String> names = new TreeSet<>(fields.keySet());
    names.addAll(other.fields.keySet());
    Map<Difference, String> firstName = new LinkedHashMap<>();
    Map<Difference, Integer> counts = new HashMap<>();
    for (String name : names) {
      String mine = fields.get(name);
      String theirs = other.fields.get(name);
      if (mine == null || !mine.equals(theirs)) {
        Difference each = new Difference(pattern(name), mine, theirs, 1);
        firstName.putIfAbsent(each, name);
        counts.merge(each, 1, Integer::sum);
      }
    }
    List<Difference> differences = new ArrayList<>();
    firstName.forEach(
        (each, name) -> {
          int count = counts.getOrDefault(each, 1);
          String field = count == 1 ? name : each.field();
          differences.add(new Difference(field, each.mine(), each.theirs(), count));
        });
    return List.copyOf(differences);
  }

  /** Returns a field's name with a star for the layer or group, which stands in brackets. */
  private static String pattern(String name) {
    int open = name.indexOf('[');
    int close = name.lastIndexOf(']');
    boolean hasOwner = open > 0 && close > open && name.lastIndexOf('.', open) < 0;
    return hasOwner ? name.substring(0, open + 1) + '*' + name.substring(close) : name;
  }

  /**
   * A field in which two manifests differ. Immutable.
   *
   * @param field name as in the text, with {@code *} for several layers or groups
   * @param mine value in the manifest asked, as in the text; null when it lacks the field
   * @param theirs value in the other manifest, as in the text; null when it lacks the field
   * @param count fields that differ in this way, at least 1
   */
  public record Difference(
      String field, @Nullable String mine, @Nullable String theirs, int count) {
    private static final int SHOWN = 60;

    /**
     * Returns one line for a log, with long values cut around their first difference.
     *
     * @return such as {@code layer[*].element-type (2 fields): BF16 here, F8_E4M3 there}
     */
    @Override
    public String toString() {
      int common = 0;
      if (mine != null && theirs != null) {
        int shorter = Math.min(mine.length(), theirs.length());
        while (common < shorter && mine.charAt(common) == theirs.charAt(common)) {
          common++;
        }
      }
      String fields = count == 1 ? "" : " (" + count + " fields)";
      return field
          + fields
          + ": "
          + shown(mine, common)
          + " here, "
          + shown(theirs, common)
          + " there";
    }

    private static String shown(@Nullable String value, int common) {
      if (value == null) {
        return "none";
      }
      int from = value.length() <= SHOWN ? 0 : Math.max(0, common - SHOWN / 2);
      int to = Math.min(value.length(), from + SHOWN);
      return (from == 0 ? "" : "...")
          + value.substring(from, to)
          + (to == value.length() ? "" : "...");
    }
  }

  /** Escapes all that is no printable ASCII, the backslash, and one more character. */
  private static String escape(String plain, char special) {
    StringBuilder escaped = new StringBuilder(plain.length());
    for (int i = 0; i < plain.length(); i++) {
      char c = plain.charAt(i);
      if (c == '\\') {
        escaped.append("\\\\");
      } else if (c >= ' ' && c <= '~' && c != special) {
        escaped.append(c);
      } else {
        escaped.append("\\u").append(HexFormat.of().toHexDigits(c));
      }
    }
    return escaped.toString();
  }

  private static boolean isAsWritten(String escaped, char special) {
    StringBuilder plain = new StringBuilder(escaped.length());
    for (int i = 0; i < escaped.length(); i++) {
      char c = escaped.charAt(i);
      if (c != '\\') {
        plain.append(c);
      } else if (escaped.startsWith("\\\\", i)) {
        plain.append(c);
        i++;
      } else if (escaped.length() - i >= 6 && escaped.charAt(i + 1) == 'u') {
        int unit = hex(escaped, i + 2);
        if (unit < 0) {
          return false;
        }
        plain.append((char) unit);
        i += 5;
      } else {
        return false;
      }
    }
    return escape(plain.toString(), special).equals(escaped);
  }

  private static int hex(String text, int at) {
    int unit = 0;
    for (int i = at; i < at + 4; i++) {
      int digit = Character.digit(text.charAt(i), 16);
      if (digit < 0) {
        return -1;
      }
      unit = unit << 4 | digit;
    }
    return unit;
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof NamespaceManifest that && text.equals(that.text);
  }

  @Override
  public int hashCode() {
    return text.hashCode();
  }

  /**
   * Returns the namespace.
   *
   * @return one line for logs
   */
  @Override
  public String toString() {
    return "NamespaceManifest[" + namespace() + ", " + fields.size() + " fields]";
  }
}
