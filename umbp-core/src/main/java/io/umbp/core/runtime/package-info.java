/**
 * Jobs from start to end: the runtime that lives inside the engine's process, its handles, and the
 * copy engine and page pool for KV in host memory.
 */
@NullMarked
package io.umbp.core.runtime;

import org.jspecify.annotations.NullMarked;
