/** Where a block's bytes lie: an engine's cache as regions, and blocks as rows of copies. */
@NullMarked
package io.umbp.core.layout;

import org.jspecify.annotations.NullMarked;
