package io.umbp.core.pool;

/**
 * The pool's content at one moment. Immutable.
 *
 * @param capacityBytes bytes of objects that the pool may hold
 * @param usedBytes bytes of the objects that are there, published or not
 * @param freeBytes capacityBytes - usedBytes
 * @param slabBytes bytes of host memory taken from the copy engine
 * @param publishedObjects objects that lookups find
 * @param unpublishedObjects objects being written, or written and not published
 * @param leases pins held by running copies
 * @param storedObjects objects whose bytes have landed since the start
 * @param storedBytes their bytes
 * @param evictedObjects published objects removed to make room since the start
 * @param droppedObjects objects whose bytes had landed and that nobody published: the job was
 *     cancelled, or its deadline passed first
 * @param doubleReleases pins given back twice since the start; above 0 it is a defect of the
 *     runtime
 */
public record PoolStats(
    long capacityBytes,
    long usedBytes,
    long freeBytes,
    long slabBytes,
    long publishedObjects,
    long unpublishedObjects,
    long leases,
    long storedObjects,
    long storedBytes,
    long evictedObjects,
    long droppedObjects,
    long doubleReleases) {}
