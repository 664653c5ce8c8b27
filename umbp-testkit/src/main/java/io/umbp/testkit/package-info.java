/**
 * What implementers and users of umbp test with: a fake GPU with streams and a copy engine, a clock
 * that tests own, and contract suites whose test names carry the number of the rule they check.
 */
@NullMarked
package io.umbp.testkit;

import org.jspecify.annotations.NullMarked;
