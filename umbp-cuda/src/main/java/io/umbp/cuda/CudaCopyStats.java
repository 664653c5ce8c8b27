package io.umbp.cuda;

/**
 * What an engine copied by which path since it was opened. Immutable.
 *
 * @param ranges rows of batches that were enqueued, or refused by the driver
 * @param copyCalls single copies ({@code cuMemcpyAsync}), each of one or more merged rows, with
 *     those between staging buffer and host
 * @param copyBytes bytes that they moved
 * @param stridedCalls strided copies ({@code cuMemcpy2DAsync})
 * @param stridedBytes bytes that they moved
 * @param kernelLaunches launches of the copy kernel
 * @param kernelBytes bytes that they moved
 */
public record CudaCopyStats(
    long ranges,
    long copyCalls,
    long copyBytes,
    long stridedCalls,
    long stridedBytes,
    long kernelLaunches,
    long kernelBytes) {}
