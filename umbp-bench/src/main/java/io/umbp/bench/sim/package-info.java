/** A whole engine under a seed, that tries every bad moment. */
@NullMarked
package io.umbp.bench.sim;

import org.jspecify.annotations.NullMarked;
