package io.umbp.bench;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.umbp.api.BlockHashes;
import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.GZIPInputStream;

/**
 * Requests of a production engine, in order of arrival. Immutable.
 *
 * <p>The format is Mooncake's: one JSON object a line, with {@code input_length} in tokens and
 * {@code hash_ids}, a number for each block of {@value #BLOCK_TOKENS} tokens that stands for the
 * whole prefix up to the block's end. Other fields are not used. The block hash of id {@code n} is
 * the SHA-256 of the eight big-endian bytes of {@code n}.
 */
final class Trace {
  /** Tokens of one block. */
  static final int BLOCK_TOKENS = 512;

  /** Bytes of one block hash. */
  static final int HASH_BYTES = 32;

  private static final JsonMapper JSON =
      JsonMapper.builder().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS).build();

  private final String name;
  private final List<Request> requests;
  private final byte[] hashes;

  /** One request: its prompt's length, and its prefix blocks as indexes into the trace's hashes. */
  static final class Request {
    private final int inputTokens;
    private final int[] blocks;

    private Request(int inputTokens, int[] blocks) {
      this.inputTokens = inputTokens;
      this.blocks = blocks;
    }

    int inputTokens() {
      return inputTokens;
    }

    /** Blocks that are full and have a hash. */
    int fullBlocks() {
      return Math.min(inputTokens / BLOCK_TOKENS, blocks.length);
    }

    /**
     * Returns the prompt's length for an engine with blocks of another size.
     *
     * @param blockTokens tokens in a block of the engine, at least 2
     */
    int tokens(int blockTokens) {
      return Trace.tokens(inputTokens, blockTokens);
    }

    /** Full blocks that do not hold the last token. */
    int usableBlocks() {
      return Math.min((inputTokens - 1) / BLOCK_TOKENS, blocks.length);
    }
  }

  /**
   * Turns a length of the trace into one with as many full blocks of another size, and a rest when
   * there was one.
   */
  static int tokens(int inputTokens, int blockTokens) {
    int rest = inputTokens % BLOCK_TOKENS;
    return Math.addExact(
        Math.multiplyExact(inputTokens / BLOCK_TOKENS, blockTokens),
        blockTokens == BLOCK_TOKENS ? rest : Math.min(rest, blockTokens - 1));
  }

  private Trace(String name, List<Request> requests, byte[] hashes) {
    this.name = name;
    this.requests = List.copyOf(requests);
    this.hashes = hashes;
  }

  /** Reads the first requests of a file, plain or gzip. */
  static Trace read(Path file, int limit) {
    try (InputStream in = Files.newInputStream(file)) {
      return new Reader(file.toString()).read(in, limit);
    } catch (NoSuchFileException e) {
      throw new BadInputException("%s: no such file", file);
    } catch (IOException e) {
      throw new BadInputException("%s: cannot be read: %s", file, e.getMessage());
    }
  }

  /** Reads the first requests of a sample that lies in the jar. */
  static Trace bundled(String sample, int limit) {
    String resource = "traces/" + sample + ".jsonl.gz";
    try (InputStream in = Trace.class.getResourceAsStream(resource)) {
      if (in == null) {
        throw new IllegalStateException("the jar has no " + resource);
      }
      return new Reader("bundled " + sample).read(in, limit);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** Reads one trace. Thread-confined. */
  private static final class Reader {
    private final String name;
    private final Map<Long, Integer> indexes = new HashMap<>();
    private final MessageDigest sha256;
    private byte[] hashes = new byte[HASH_BYTES * 1024];

    Reader(String name) {
      this.name = name;
      try {
        sha256 = MessageDigest.getInstance("SHA-256");
      } catch (NoSuchAlgorithmException e) {
        throw new IllegalStateException(e);
      }
    }

    Trace read(InputStream source, int limit) throws IOException {
      List<Request> requests = new ArrayList<>();
      int number = 0;
      try (BufferedReader lines =
          new BufferedReader(new InputStreamReader(plain(source), StandardCharsets.UTF_8))) {
        while (requests.size() < limit) {
          number++;
          String line = lines.readLine();
          if (line == null) {
            break;
          }
          if (!line.isBlank()) {
            requests.add(request(line, number));
          }
        }
      } catch (EOFException e) {
        throw new BadInputException("%s:%d: the compressed file ends in the middle", name, number);
      }
      if (requests.isEmpty()) {
        throw new BadInputException("%s: there is no request in it", name);
      }
      return new Trace(name, requests, Arrays.copyOf(hashes, indexes.size() * HASH_BYTES));
    }

    private static InputStream plain(InputStream source) throws IOException {
      BufferedInputStream in = new BufferedInputStream(source);
      in.mark(2);
      boolean isGzip = in.read() == 0x1F && in.read() == 0x8B;
      in.reset();
      return isGzip ? new GZIPInputStream(in) : in;
    }

    private Request request(String line, int number) {
      JsonNode json;
      try {
        json = JSON.readTree(line);
      } catch (JsonProcessingException e) {
        throw new BadInputException(
            "%s:%d: no complete JSON object: %s", name, number, e.getOriginalMessage());
      }
      if (!json.isObject()) {
        throw new BadInputException("%s:%d: no JSON object", name, number);
      }
      int inputTokens = length(json, "input_length", number);
      if (json.has("output_length")) {
        length(json, "output_length", number);
      }
      JsonNode ids = json.get("hash_ids");
      if (ids == null || !ids.isArray()) {
        throw new BadInputException("%s:%d: no hash_ids, a list of numbers", name, number);
      }
      int[] blocks = new int[ids.size()];
      for (int i = 0; i < blocks.length; i++) {
        JsonNode id = ids.get(i);
        if (!id.isIntegralNumber() || !id.canConvertToLong()) {
          throw new BadInputException(
              "%s:%d: hash_ids[%d] is %s, needed is a 64-bit number", name, number, i, id);
        }
        blocks[i] = indexOf(id.longValue());
      }
      return new Request(inputTokens, blocks);
    }

    private int length(JsonNode json, String field, int number) {
      JsonNode value = json.get(field);
      if (value == null) {
        throw new BadInputException("%s:%d: no %s", name, number, field);
      }
      if (!value.isIntegralNumber() || !value.canConvertToInt() || value.intValue() < 0) {
        throw new BadInputException(
            "%s:%d: %s is %s, needed are 0 to %d tokens",
            name, number, field, value, Integer.MAX_VALUE);
      }
      return value.intValue();
    }

    private int indexOf(long id) {
      Integer known = indexes.get(id);
      if (known != null) {
        return known;
      }
      int index = indexes.size();
      indexes.put(id, index);
      if (hashes.length < (index + 1L) * HASH_BYTES) {
        hashes = Arrays.copyOf(hashes, Math.multiplyExact(hashes.length, 2));
      }
      byte[] hash = sha256.digest(ByteBuffer.allocate(Long.BYTES).putLong(id).array());
      System.arraycopy(hash, 0, hashes, index * HASH_BYTES, HASH_BYTES);
      return index;
    }
  }

  /** What messages call the trace. */
  String name() {
    return name;
  }

  List<Request> requests() {
    return requests;
  }

  /** The most full blocks of one request. */
  int longestRequest() {
    int longest = 0;
    for (Request request : requests) {
      longest = Math.max(longest, request.fullBlocks());
    }
    return longest;
  }

  /** The hashes of a request's blocks. */
  BlockHashes hashes(Request request) {
    byte[] picked = new byte[request.blocks.length * HASH_BYTES];
    for (int i = 0; i < request.blocks.length; i++) {
      System.arraycopy(hashes, request.blocks[i] * HASH_BYTES, picked, i * HASH_BYTES, HASH_BYTES);
    }
    return BlockHashes.of(HASH_BYTES, picked);
  }

  /** The hashes of a request's full blocks, each shortened to 64 bits. */
  long[] shortHashes(Request request) {
    long[] shortened = new long[request.fullBlocks()];
    for (int i = 0; i < shortened.length; i++) {
      shortened[i] = KVPattern.shortened(hashes, request.blocks[i] * HASH_BYTES);
    }
    return shortened;
  }
}
