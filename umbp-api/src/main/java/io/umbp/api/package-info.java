/**
 * Contracts and data records of umbp: what an engine calls ({@link io.umbp.api.UMBPRuntime} and its
 * handles) and the values that cross the walls between modules.
 *
 * <p>A logical block's KV is kept as one <em>object</em> per (block, group, rank): the
 * concatenation of the pages of all layers of the group on that rank. An object is named by a
 * {@link io.umbp.api.BlockKey}. Sizes and offsets are in bytes unless a name says otherwise. Bad
 * arguments are refused at once with {@link io.umbp.api.UMBPException}, before any memory is
 * touched.
 */
@NullMarked
package io.umbp.api;

import org.jspecify.annotations.NullMarked;
