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

  /** Checks length and alphabet. */
  public UMBPNamespace {
    if (value.isEmpty() || value.length() > MAX_LENGTH) {
      throw UMBPException.invalid(
          "namespace has %d characters, allowed are 1 to %d", value.length(), MAX_LENGTH);
    }
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      boolean allowed =
          (c >= 'a' && c <= 'z')
              || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9')
              || c == '.'
              || c == '_'
              || c == '-';
      if (!allowed) {
        throw UMBPException.invalid(
            "namespace '%s' has the character U+%04X at index %d, allowed are A-Z a-z 0-9 . _ -",
            value, (int) c, i);
      }
    }
  }

  @Override
  public String toString() {
    return value;
  }
}
