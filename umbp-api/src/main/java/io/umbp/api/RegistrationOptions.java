package io.umbp.api;

import org.jspecify.annotations.Nullable;

/**
 * How buffers are registered. Immutable.
 *
 * @param origin who may have written what the buffers hold
 * @param trial how the layout is tried out; null to check bounds and overlap only
 */
public record RegistrationOptions(KVOrigin origin, @Nullable Trial trial) {

  /**
   * A trial of the layout with two blocks that the engine lends until the registration is over.
   * Their content is overwritten. Meanwhile the engine writes no other block either: the bytes
   * around the second block must stay what they are.
   *
   * @param probe the engine's own way to their contents
   * @param firstBlock a free block of every group, at least 0
   * @param secondBlock another one
   */
  public record Trial(KVProbe probe, int firstBlock, int secondBlock) {
    /** Checks that there are two blocks. */
    public Trial {
      if (firstBlock < 0 || secondBlock < 0 || firstBlock == secondBlock) {
        throw UMBPException.invalid(
            "a trial needs two blocks >= 0, given were %d and %d", firstBlock, secondBlock);
      }
    }
  }

  /**
   * Returns the options of an engine that alone writes its buffers, without a trial.
   *
   * @return the standard options
   */
  public static RegistrationOptions ownWriter() {
    return new RegistrationOptions(KVOrigin.OWN_WRITER, null);
  }

  /**
   * Returns these options with another origin.
   *
   * @param origin who may have written what the buffers hold
   * @return the options
   */
  public RegistrationOptions withOrigin(KVOrigin origin) {
    return new RegistrationOptions(origin, trial);
  }

  /**
   * Returns these options with a trial.
   *
   * @param probe the engine's own way to the contents of its blocks
   * @param firstBlock a free block of every group
   * @param secondBlock another one
   * @return the options
   */
  public RegistrationOptions withTrial(KVProbe probe, int firstBlock, int secondBlock) {
    return new RegistrationOptions(origin, new Trial(probe, firstBlock, secondBlock));
  }
}
