package io.umbp.bench.sim;

/** An invariant that does not hold. */
final class SimViolation extends RuntimeException {
  private static final long serialVersionUID = 1L;

  SimViolation(String message) {
    super(message);
  }
}
