/** The {@code umbp} command line. */
@NullMarked
package io.umbp.bench;

import org.jspecify.annotations.NullMarked;
