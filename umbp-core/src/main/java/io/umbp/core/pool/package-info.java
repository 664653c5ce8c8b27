/**
 * Host memory and who may touch it: slots of fixed size in slabs, the index of the objects in them,
 * recency, and the leases that keep a slot while a copy uses it. Nothing here locks or copies; one
 * owner guards a whole {@link io.umbp.core.pool.BlockPool}.
 */
@NullMarked
package io.umbp.core.pool;

import org.jspecify.annotations.NullMarked;
