/** Who a block is: the keys under which engines find each other's objects. */
@NullMarked
package io.umbp.core.identity;

import org.jspecify.annotations.NullMarked;
