package io.umbp.bench;

import org.jspecify.annotations.Nullable;

/**
 * What the user gave cannot be used: one line that says what and where. Ends the command with 2.
 */
final class BadInputException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  BadInputException(String format, @Nullable Object... arguments) {
    super(String.format(format, arguments));
  }
}
