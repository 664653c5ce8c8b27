package io.umbp.api;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.function.Executable;

/** Expects calls to be refused. */
public final class Refusals {
  private Refusals() {}

  /**
   * Expects a call to be refused as an invalid argument.
   *
   * @param message the whole message
   * @param call what is refused
   */
  public static void assertRefused(String message, Executable call) {
    UMBPException e = assertThrows(UMBPException.class, call);
    assertEquals(message, e.getMessage());
    assertEquals(UMBPException.Reason.INVALID_ARGUMENT, e.reason());
  }
}
