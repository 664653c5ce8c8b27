package io.umbp.api;

/**
 * The compatibility namespace of stored objects: two engines share KV exactly when theirs are
 * equal, so everything that changes a stored byte must change it. Immutable.
 *
 * <p>The text stands unescaped inside keys; its alphabet leaves out the key's separator, so a key
 * always parses back to the parts it was made of.
 *
 * @param value 1 to {@value #MAX_LENGTH} characters of {@code A-Z a-z 0-9 . _ -}
 */
public record UMBPNamespace(String value) {
  /** Greatest length in characters. */
  public static final int MAX_LENGTH = 128;

  /** How the namespaces of engines begin that may load KV which their own writer did not make. */
  public static final String FOREIGN_PREFIX = "foreign.";

  /** Checks length and alphabet. */
  public UMBPNamespace {
    if (value.isEmpty() || value.length() > MAX_LENGTH) {
      throw UMBPException.invalid(
          "namespace has %d characters, allowed are 1 to %d", value.length(), MAX_LENGTH);
    }
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      if (!isAllowed(c)) {
        throw UMBPException.invalid(
            "namespace '%s' has the character U+%04X at index %d, allowed are A-Z a-z 0-9 . _ -",
            value, (int) c, i);
      }
    }
  }

  static boolean isAllowed(char c) {
    return (c >= 'a' && c <= 'z')
        || (c >= 'A' && c <= 'Z')
        || (c >= '0' && c <= '9')
        || c == '.'
        || c == '_'
        || c == '-';
  }

  /**
   * Returns the namespace for engines that may load KV which their own cache writer did not make.
   *
   * @return this namespace, or the same text behind {@value #FOREIGN_PREFIX}
   * @throws UMBPException INVALID_ARGUMENT when that is too long
   */
  public UMBPNamespace foreign() {
    return isForeign() ? this : new UMBPNamespace(FOREIGN_PREFIX + value);
  }

  /**
   * Tells whether the namespace is one of engines that may load foreign KV.
   *
   * @return true when it starts with {@value #FOREIGN_PREFIX}
   */
  public boolean isForeign() {
    return value.startsWith(FOREIGN_PREFIX);
  }

  @Override
  public String toString() {
    return value;
  }
}
