/**
 * The engine's two front doors: the scheduler's, which decides what to load and store, and each
 * worker's, which does it.
 */
@NullMarked
package io.umbp.core.connector;

import org.jspecify.annotations.NullMarked;
