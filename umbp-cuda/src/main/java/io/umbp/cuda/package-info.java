/**
 * The copy engine for CUDA devices: scatter and gather between an engine's GPU memory and pinned
 * host slabs, through JCuda's driver API. Loading these classes touches no driver.
 */
@NullMarked
package io.umbp.cuda;

import org.jspecify.annotations.NullMarked;
