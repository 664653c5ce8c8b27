package io.umbp.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.umbp.api.ElementType;
import io.umbp.bench.CatalogueModel.Cache;
import io.umbp.bench.CatalogueModel.Kind;
import io.umbp.bench.CatalogueModel.StateCache;
import io.umbp.bench.CatalogueModel.TokenCache;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The KV caches of public models by name, computed from the fields of their configurations. The
 * fields lie in {@code models.json}, each with its source. Immutable.
 */
final class ModelCatalogue {
  private static final String RESOURCE = "models.json";

  private final Map<String, CatalogueModel> models;

  private ModelCatalogue(Map<String, CatalogueModel> models) {
    this.models = models;
  }

  /** Reads the models that lie in the jar. */
  static ModelCatalogue bundled() {
    try (InputStream in = ModelCatalogue.class.getResourceAsStream(RESOURCE)) {
      if (in == null) {
        throw new IllegalStateException("the jar has no " + RESOURCE);
      }
      return of(new JsonMapper().readTree(in));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static ModelCatalogue of(JsonNode root) {
    Map<String, CatalogueModel> models = new LinkedHashMap<>();
    for (JsonNode entry : root.required("models")) {
      String name = entry.required("name").asText();
      String source = entry.required("source").asText();
      models.put(name, new CatalogueModel(name, source, 1, new Fields(name, entry).caches()));
    }
    return new ModelCatalogue(models);
  }

  /** All names, in the catalogue's order. */
  List<String> names() {
    return List.copyOf(models.keySet());
  }

  /**
   * Returns a model.
   *
   * @param name one of {@link #names()}
   * @throws BadInputException when there is none of that name; the message lists all
   */
  CatalogueModel model(String name) {
    CatalogueModel model = models.get(name);
    if (model == null) {
      throw new BadInputException(
          "there is no model '%s' in the catalogue, it has %s",
          name, String.join(", ", models.keySet()));
    }
    return model;
  }

  /** The configuration of one model, and the rules that make caches of it. */
  private record Fields(String name, JsonNode entry) {
    private boolean has(String field) {
      return entry.path("config").has(field) || entry.path("engine").has(field);
    }

    private JsonNode value(String field) {
      JsonNode value = entry.path("config").get(field);
      if (value == null) {
        value = entry.path("engine").path(field).get("value");
      }
      if (value == null) {
        throw new IllegalStateException("model " + name + " has no field " + field);
      }
      return value;
    }

    private int number(String field) {
      JsonNode value = value(field);
      if (!value.isInt() || value.intValue() <= 0) {
        throw new IllegalStateException("model " + name + ": " + field + " is " + value);
      }
      return value.intValue();
    }

    private ElementType elementType() {
      String text = value("torch_dtype").asText();
      return switch (text) {
        case "bfloat16" -> ElementType.BF16;
        case "float16" -> ElementType.F16;
        default -> throw new IllegalStateException("model " + name + ": torch_dtype is " + text);
      };
    }

    List<Cache> caches() {
      List<Cache> caches = new ArrayList<>();
      for (int layer = 0; layer < number("num_hidden_layers"); layer++) {
        String prefix = "model.layers." + layer + ".";
        if (has("kv_lora_rank")) {
          caches.add(latent(prefix));
          if (has("index_head_dim")) {
            caches.add(indexer(prefix));
          }
        } else if (has("hybrid_override_pattern")) {
          switch (value("hybrid_override_pattern").asText().charAt(layer)) {
            case '*' -> caches.add(attention(prefix + "mixer.attn", Kind.FULL));
            case 'M' -> caches.add(mamba(prefix + "mixer"));
            default -> {}
          }
        } else if (has("full_attention_interval")
            && (layer + 1) % number("full_attention_interval") != 0) {
          caches.add(deltaNet(prefix + "linear_attn"));
        } else {
          caches.add(
              attention(prefix + "self_attn.attn", slides(layer) ? Kind.SLIDING : Kind.FULL));
        }
      }
      return caches;
    }

    private boolean slides(int layer) {
      if (!has("sliding_window")) {
        return false;
      }
      if (has("layer_types")) {
        return value("layer_types").required(layer).asText().equals("sliding_attention");
      }
      return !has("sliding_window_pattern") || (layer + 1) % number("sliding_window_pattern") != 0;
    }

    private TokenCache attention(String layerName, Kind kind) {
      int size = headSize();
      int window = kind == Kind.SLIDING ? number("sliding_window") : 0;
      int heads = number("num_key_value_heads");
      return new TokenCache(layerName, kind, elementType(), heads, size, size, window);
    }

    private int headSize() {
      if (has("head_dim")) {
        return number("head_dim");
      }
      return has("attention_head_dim")
          ? number("attention_head_dim")
          : number("hidden_size") / number("num_attention_heads");
    }

    private TokenCache latent(String prefix) {
      int size = number("kv_lora_rank") + number("qk_rope_head_dim");
      return new TokenCache(prefix + "self_attn.attn", Kind.LATENT, elementType(), 1, size, 0, 0);
    }

    /** An 8-bit key, and a scale for each so many of its elements. */
    private TokenCache indexer(String prefix) {
      int size = number("index_head_dim");
      int scales = size / number("index_quant_block_size") * number("index_scale_bytes");
      return new TokenCache(
          prefix + "self_attn.indexer.k_cache",
          Kind.INDEXER,
          ElementType.U8,
          1,
          size + scales,
          0,
          0);
    }

    private StateCache mamba(String layerName) {
      return state(
          layerName,
          number("conv_kernel"),
          number("n_groups"),
          number("mamba_num_heads"),
          number("mamba_head_dim"),
          number("ssm_state_size"));
    }

    private StateCache deltaNet(String layerName) {
      return state(
          layerName,
          number("linear_conv_kernel_dim"),
          number("linear_num_key_heads"),
          number("linear_num_value_heads"),
          number("linear_value_head_dim"),
          number("linear_key_head_dim"));
    }

    /**
     * Mamba-2's state, and the gated delta net's, which differs in the names only: the convolution
     * sees the heads' own inputs and two vectors of each group, and keeps one step less than it is
     * wide.
     */
    private StateCache state(
        String layerName, int kernel, int groups, int heads, int headSize, int stateSize) {
      long shared = (kernel - 1L) * 2 * groups * stateSize;
      long own = (kernel - 1L) * heads * headSize;
      long matrix = (long) heads * headSize * stateSize;
      return new StateCache(layerName, elementType(), own + shared, matrix, groups, heads, shared);
    }
  }
}
