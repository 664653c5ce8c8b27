/**
 * Service interfaces behind a runtime: the copy engine that moves bytes between engine memory and
 * host slabs, and slower tiers below the slabs. Implementers read the numbered rules in {@code
 * docs/runtime-authors-guide.md}; the testkit's contract suites check them.
 */
@NullMarked
package io.umbp.api.spi;

import org.jspecify.annotations.NullMarked;
