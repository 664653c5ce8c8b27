package io.umbp.core.layout;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.umbp.core.layout.TPShardMapping.HeadSlice;
import java.util.ArrayList;
import java.util.List;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.ForAll;
import net.jqwik.api.From;
import net.jqwik.api.Property;
import net.jqwik.api.Provide;

class TPShardMappingProperties {
  /** A model's heads and two TP sizes that go with them. */
  record Sizes(int heads, int producer, int consumer) {}

  @Provide
  Arbitrary<Sizes> sizes() {
    return Arbitraries.integers()
        .between(1, 96)
        .flatMap(
            heads -> {
              List<Integer> fitting = new ArrayList<>();
              for (int size = 1; size <= 2 * 96; size++) {
                if (heads % size == 0 || size % heads == 0) {
                  fitting.add(size);
                }
              }
              Arbitrary<Integer> size = Arbitraries.of(fitting);
              return size.flatMap(
                  producer -> size.map(consumer -> new Sizes(heads, producer, consumer)));
            });
  }

  /** Which head of the model each rank has, one list a rank, by dealing heads out one at a time. */
  private static List<List<Integer>> dealt(int heads, int size) {
    List<List<Integer>> ranks = new ArrayList<>();
    for (int rank = 0; rank < size; rank++) {
      List<Integer> own = new ArrayList<>();
      for (int head = 0; head < heads; head++) {
        boolean overlaps = head * size < (rank + 1) * heads && (head + 1) * size > rank * heads;
        if (overlaps) {
          own.add(head);
        }
      }
      ranks.add(own);
    }
    return ranks;
  }

  @Property(tries = 500)
  void slicesCoverTheConsumersHeadsOnceInOrder(@ForAll @From("sizes") Sizes sizes) {
    List<List<Integer>> producers = dealt(sizes.heads, sizes.producer);
    List<List<Integer>> consumers = dealt(sizes.heads, sizes.consumer);
    for (int rank = 0; rank < sizes.consumer; rank++) {
      TPShardMapping mapping = TPShardMapping.of(sizes.heads, sizes.producer, sizes.consumer, rank);
      List<Integer> received = new ArrayList<>();
      int lastProducer = -1;
      for (HeadSlice slice : mapping.slices()) {
        assertEquals(received.size(), slice.destinationHead());
        assertEquals(1, Integer.signum(slice.producerRank() - lastProducer));
        lastProducer = slice.producerRank();
        int end = slice.sourceHead() + slice.numHeads();
        received.addAll(producers.get(slice.producerRank()).subList(slice.sourceHead(), end));
      }
      assertEquals(consumers.get(rank), received);
      assertEquals(received.size(), mapping.consumerHeads());
    }
  }
}
