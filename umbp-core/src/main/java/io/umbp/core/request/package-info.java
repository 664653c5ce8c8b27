/** What a request still needs: its blocks, and how far they are saved. */
@NullMarked
package io.umbp.core.request;

import org.jspecify.annotations.NullMarked;
