/** JMH benchmarks of the hot paths. */
@NullMarked
package io.umbp.bench.jmh;

import org.jspecify.annotations.NullMarked;
