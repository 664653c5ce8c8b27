package io.umbp.api;

/**
 * The engine's own way to one place in its KV buffers, by which umbp learns whether the layout that
 * it was told is the one that the engine's kernels use. Implemented by the engine with the code
 * that its kernels index the cache with; called on the thread that registers the buffers. Each call
 * returns when the bytes have been written or read.
 */
public interface KVProbe {
  /**
   * One place: the key or the value of a token and head.
   *
   * @param layerName a layer of the layout
   * @param blockId a block that was lent
   * @param part key or value; always the key when the layer's page has one content, which is then
   *     the whole content
   * @param head the head as counted on this rank
   * @param token the token in the block
   */
  record Place(String layerName, int blockId, KVPageShape.Part part, int head, int token) {}

  /**
   * Writes one place. Whatever float format the elements have, each is a finite number.
   *
   * @param place where
   * @param value the bytes of all its elements, as many as the layer's shape says; borrowed
   */
  void write(Place place, byte[] value);

  /**
   * Reads one place.
   *
   * @param place where
   * @param value receives the bytes of all its elements; borrowed
   */
  void read(Place place, byte[] value);
}
