package io.umbp.api;

/**
 * What a worker tells the scheduler before the first request: which namespace and layout it has
 * derived. Immutable.
 *
 * @param namespace the namespace of its objects
 * @param manifest the readable text that the namespace was derived from; empty for a namespace
 *     given by hand
 * @param layout its objects, and its rank
 */
public record UMBPHandshakeMetadata(
    UMBPNamespace namespace, String manifest, KVLayoutDescriptor layout) {}
