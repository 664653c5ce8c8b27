/**
 * Jobs from start to end: the embedded runtime with its handles, the copy engine for host memory, and
 * page pools for engines that keep heap arrays.
 */
@NullMarked
package io.umbp.core.runtime;

import org.jspecify.annotations.NullMarked;
