package io.umbp.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import net.jqwik.api.EdgeCasesMode;
import net.jqwik.api.ForAll;
import net.jqwik.api.Property;
import net.jqwik.api.constraints.IntRange;
import org.junit.jupiter.api.Test;

class CopyKernelTest {
  private static final int CHUNK = CopyKernel.CHUNK_BYTES;
  private static final int[] AROUND_CHUNKS = {
    CHUNK - 17,
    CHUNK - 16,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    CHUNK + 15,
    CHUNK + 16,
    CHUNK + 17,
    2 * CHUNK - 1,
    2 * CHUNK,
    2 * CHUNK + 1,
    3 * CHUNK + 5
  };

  private interface Kernel {
    void launch(int gridX, int gridY, int threads, KernelMemory memory, int rows);
  }

  private static final Kernel MODEL =
      (gridX, gridY, threads, memory, rows) ->
          new CopyKernelModel(memory).launch(gridX, gridY, threads, rows);

  private static final Kernel PTX = new PtxMachine(CopyKernel.ptx())::launch;

  @Test
  void sourceAndModelHaveTheSameConstants() throws Exception {
    String source = Files.readString(Path.of("src/main/cuda/copy_ranges.cu"));
    assertEquals(CHUNK, constant(source, "CHUNK_BYTES"));
    assertEquals(CopyKernel.THREADS, constant(source, "THREADS"));
    assertEquals(CopyKernelModel.UNROLL, constant(source, "UNROLL"));
  }

  private static int constant(String source, String name) {
    Matcher matcher = Pattern.compile("constexpr \\w+ " + name + " = (\\d+);").matcher(source);
    assertTrue(matcher.find(), name);
    return Integer.parseInt(matcher.group(1));
  }

  @Test
  void everyAlignmentAndShortLengthIsCopied() {
    int[] lengths = IntStream.rangeClosed(1, 300).toArray();
    for (int source = 0; source < 16; source++) {
      for (int destination = 0; destination < 16; destination++) {
        copyAll(MODEL, lengths, source, destination, CopyKernel.THREADS);
        copyAll(PTX, lengths, source, destination, 32);
      }
    }
  }

  @Test
  void everyAlignmentIsCopiedAroundAChunk() {
    for (int source = 0; source < 16; source++) {
      for (int destination = 0; destination < 16; destination++) {
        copyAll(MODEL, AROUND_CHUNKS, source, destination, CopyKernel.THREADS);
      }
    }
  }

  @Test
  void eachWidthOfWordIsCopiedAroundAChunk() {
    for (int apart : new int[] {0, 1, 2, 4, 8}) {
      copyAll(PTX, AROUND_CHUNKS, 15, 15 - apart, CopyKernel.THREADS);
    }
  }

  private static void copyAll(
      Kernel kernel, int[] lengths, int source, int destination, int threads) {
    int[] sources = new int[lengths.length];
    int[] destinations = new int[lengths.length];
    Arrays.fill(sources, source);
    Arrays.fill(destinations, destination);
    copy(kernel, lengths, sources, destinations, 5, 2, threads, 1);
  }

  @Property(tries = 100, edgeCases = EdgeCasesMode.NONE)
  void randomTablesAreCopied(
      @ForAll @IntRange(min = 1, max = 40) int rows,
      @ForAll @IntRange(min = 1, max = 50) int gridX,
      @ForAll @IntRange(min = 1, max = 5) int gridY,
      @ForAll @IntRange(min = 1, max = 8) int warps,
      @ForAll long seed) {
    Random random = new Random(seed);
    int[] lengths = new int[rows];
    for (int i = 0; i < rows; i++) {
      lengths[i] = 1 + random.nextInt(random.nextInt(8) == 0 ? 3 * CHUNK : 5000);
    }
    int[] sources = random.ints(rows, 0, 16).toArray();
    int[] destinations = random.ints(rows, 0, 16).toArray();
    copy(MODEL, lengths, sources, destinations, gridX, gridY, 32 * warps, seed);
    copy(PTX, lengths, sources, destinations, gridX, gridY, 32 * warps, seed);
  }

  @Property(tries = 100, edgeCases = EdgeCasesMode.NONE)
  void tablesAreCopiedOnTheGridMadeForThem(
      @ForAll @IntRange(min = 1, max = 200) int rows,
      @ForAll @IntRange(min = 1, max = 4) int processors,
      @ForAll long seed) {
    Random random = new Random(seed);
    int[] lengths = random.ints(rows, 1, 1 + 4 * CHUNK / rows).toArray();
    int[] sources = random.ints(rows, 0, 16).toArray();
    int[] destinations = random.ints(rows, 0, 16).toArray();
    int longest = Arrays.stream(lengths).max().orElseThrow();
    int gridX = CopyKernel.gridX(rows, processors);
    int gridY = CopyKernel.gridY(rows, longest, processors);
    copy(MODEL, lengths, sources, destinations, gridX, gridY, CopyKernel.THREADS, seed);
    copy(PTX, lengths, sources, destinations, gridX, gridY, CopyKernel.THREADS, seed);
  }

  /** Copies rows that lie 16 bytes and more apart, and expects the whole memory to be right. */
  private static void copy(
      Kernel kernel,
      int[] lengths,
      int[] sources,
      int[] destinations,
      int gridX,
      int gridY,
      int threads,
      long seed) {
    int rows = lengths.length;
    int half = 16;
    for (int length : lengths) {
      half += (length / 16 + 3) * 16;
    }
    byte[] memory = new byte[2 * half];
    new Random(seed).nextBytes(memory);
    byte[] expected = memory.clone();
    LongBuffer table = CopyKernel.table(ByteBuffer.allocateDirect(rows * CopyKernel.ROW_BYTES));
    int next = 16;
    for (int i = 0; i < rows; i++) {
      int from = next + sources[i];
      int to = half + next + destinations[i];
      CopyKernel.putRow(table, i, KernelMemory.BASE + from, KernelMemory.BASE + to, lengths[i]);
      System.arraycopy(memory, from, expected, to, lengths[i]);
      next += (lengths[i] / 16 + 3) * 16;
    }
    kernel.launch(gridX, gridY, threads, new KernelMemory(memory, table, rows), rows);
    assertArrayEquals(expected, memory);
  }

  @Test
  void gridsFillTheDevice() {
    // Many short rows: one block each, up to 32 a processor.
    assertEquals(List.of(4096, 1), grid(4096, 4096, 132));
    assertEquals(List.of(4224, 1), grid(1 << 20, 4096, 132));
    assertEquals(List.of(4224, 1), grid(1 << 20, 1 << 20, 132));
    // Few long ones: blocks for their chunks.
    assertEquals(List.of(1, 4224), grid(1, 1 << 30, 132));
    assertEquals(List.of(16, 16), grid(16, 1 << 20, 132));
    assertEquals(List.of(1000, 5), grid(1000, 1 << 20, 132));
    // A chunk's edges.
    assertEquals(List.of(1, 1), grid(1, 1, 132));
    assertEquals(List.of(1, 1), grid(1, CHUNK, 132));
    assertEquals(List.of(1, 2), grid(1, CHUNK + 1, 132));
    // What a grid may be at most.
    assertEquals(List.of(1, 65_535), grid(1, 1L << 40, 10_000));
    assertEquals(List.of(1, 1), grid(1, 1, 0));
  }

  private static List<Integer> grid(int rows, long longest, int processors) {
    return List.of(CopyKernel.gridX(rows, processors), CopyKernel.gridY(rows, longest, processors));
  }

  @Test
  void aRowIsThreeWordsInTheOrderOfTheMachine() {
    ByteBuffer memory = ByteBuffer.allocateDirect(3 * CopyKernel.ROW_BYTES).position(24);
    LongBuffer table = CopyKernel.table(memory);
    assertEquals(6, table.capacity());
    CopyKernel.putRow(table, 1, 0x1122_3344_5566_7788L, 2, 3);
    memory.order(ByteOrder.nativeOrder());
    assertEquals(0, memory.getLong(40));
    assertEquals(0x1122_3344_5566_7788L, memory.getLong(48));
    assertEquals(2, memory.getLong(56));
    assertEquals(3, memory.getLong(64));
  }
}
