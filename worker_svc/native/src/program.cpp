// Program: a model's forward pass as a list of operations over numbered buffers, run by a team of threads.
//
// Python (program.py) writes the list once, when the model is loaded, and calls `tetrad_run` once a step. Every thread walks
// the same list; they share the items of each operation, and none begins the next before all are done. The C functions at the
// end are all that Python sees.
#include <algorithm>
#include <memory>
#include <system_error>

#include "attention.h"
#include "gguf_blocks.h"
#include "matmul_float.h"
#include "matmul_quantized.h"
#include "rows.h"
#include "team.h"

namespace tetrad {

enum Kind : int32_t { EMBED = 0, NORM = 1, LINEAR = 2, ROTATE = 3, ATTEND = 4 };
enum Epilogue : int32_t { STORE = 0, ADD = 1, GATE = 2, TOP = 3 };

// One operation; which fields count depends on its kind.
struct Operation {
  int32_t kind, epilogue;
  int32_t source, target;  // buffers
  int32_t column;          // LINEAR: first column of the target
  int32_t quantize;        // NORM: whether what reads the result is quantized
  int32_t layer;           // ROTATE, ATTEND
  float eps;
  const Matrix* matrix;  // EMBED, LINEAR
  const float* first;    // NORM: weight; LINEAR: bias; ROTATE: weight of the norm of queries, or null
  const float* second;   // ROTATE: weight of the norm of keys, or null
};

// What a step brings: T tokens of R sequences. Arrays belong to the caller and live as long as the call.
struct Step {
  int64_t num_tokens, num_sequences;
  const int64_t* token_ids;      // [T]
  const int64_t* slots;          // [T], page * block_size + offset
  const int64_t* positions;      // [T]
  const float* turns;            // of every position: rotary_dim / 2 cosines and as many sines
  const int32_t* pages;          // [R, table_stride]
  int64_t table_stride;
  const int64_t* first_tokens;   // [R]
  const int64_t* num_computed;   // [R]
  const int64_t* num_scheduled;  // [R]
  void* cache;                   // the first layer's pages, each with those of the other layers behind it
};

struct Program {
  std::vector<Operation> operations;
  std::vector<int64_t> widths;  // columns of each buffer
  Heads heads;
  std::vector<Phase> phases;  // two for each operation
  std::vector<Sequence> sequences;
  std::vector<Tile> tiles;

  Program(const Operation* list, int64_t count, const int64_t* buffer_widths, int64_t num_buffers, Heads its_heads)
      : operations(list, list + count), widths(buffer_widths, buffer_widths + num_buffers), heads(its_heads), phases(2 * count) {}
};

constexpr int64_t BYTES_AT_ONCE = 1 << 16;  // of weights in one item: long reads are fast reads
constexpr int64_t TOKENS_AT_ONCE = 64;  // rows of activations that stay in the second-level cache while panels pass

// How a product's panels are shared out: `span` to an item, as many as make a long read, but no fewer items than keep every thread
// busy to the end. Panels of a paired matrix count in pairs.
struct Shares {
  int64_t panels, span, spans;

  Shares(const Matrix& matrix, int64_t num_threads) {
    const int64_t per_panel = matrix.paired ? 2 : 1;
    panels = matrix.num_panels() / per_panel;
    const int64_t long_read = std::max<int64_t>(1, BYTES_AT_ONCE / (per_panel * matrix.panel_bytes()));
    span = std::max<int64_t>(1, std::min(long_read, panels / (8 * num_threads)));
    spans = (panels + span - 1) / span;
  }
};

// A run: the program, its step and the buffers, with what every thread needs to find its items.
class Run {
 public:
  Run(Program& program, const Step& step, float* const* buffers, uint8_t* quantized, Team& team)
      : program_(program), step_(step), buffers_(buffers), quantized_(quantized), team_(team) {
    for (auto& phase : program.phases) phase.begin();
    lay_tiles();
  }

  void work() {
    for (size_t index = 0; index < program_.operations.size(); index++) {
      const Operation& operation = program_.operations[index];
      Phase* phases = &program_.phases[2 * index];
      switch (operation.kind) {
        case EMBED: embed(operation, phases[0]); break;
        case NORM: norm(operation, phases[0]); break;
        case LINEAR: linear(operation, phases); break;
        case ROTATE: rotate(operation, phases[0]); break;
        case ATTEND: attend(operation, phases[0]); break;
      }
    }
  }

 private:
  int64_t width(int32_t buffer) const { return program_.widths[buffer]; }
  float* row(int32_t buffer, int64_t token) const { return buffers_[buffer] + token * width(buffer); }

  template <typename Element>
  Element* cache(int32_t layer) const {
    return static_cast<Element*>(step_.cache) + layer * program_.heads.page_size();
  }

  Activations activations(int64_t token, int64_t columns) const {
    return Activations::at(quantized_ + token * Activations::size_bytes(columns), columns);
  }

  // Longest sequences come first in a step, so the last items are the smallest.
  void lay_tiles() {
    const Heads& heads = program_.heads;
    // Few sequences are shared out by KV head; of many, each goes over its pages once.
    const int32_t together = step_.num_sequences < 2 * team_.size() ? 1 : MAX_HEADS_TOGETHER;
    program_.sequences.clear();
    program_.tiles.clear();
    for (int64_t r = 0; r < step_.num_sequences; r++) {
      program_.sequences.push_back({step_.pages + r * step_.table_stride, step_.first_tokens[r], step_.num_computed[r]});
      const int64_t rows = step_.num_scheduled[r] * heads.group();
      const int32_t its_together = step_.num_scheduled[r] == 1 ? together : 1;
      for (int64_t first = 0; first < rows; first += TILE_ROWS)
        for (int32_t kv_head = 0; kv_head < heads.num_kv_heads; kv_head += its_together)
          program_.tiles.push_back({static_cast<int32_t>(r), kv_head, std::min(its_together, heads.num_kv_heads - kv_head),
                                    static_cast<int32_t>(first), static_cast<int32_t>(std::min<int64_t>(TILE_ROWS, rows - first))});
    }
  }

  void embed(const Operation& operation, Phase& phase) {
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      const Matrix& matrix = *operation.matrix;
      float* out = row(operation.target, token);
      matrix.is_quantized() ? unpack_quantized_row(matrix, step_.token_ids[token], out)
                            : unpack_float_row(matrix, step_.token_ids[token], out);
    });
  }

  void norm(const Operation& operation, Phase& phase) {
    const int64_t size = width(operation.source);
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      float* out = row(operation.target, token);
      rms_norm_row(row(operation.source, token), operation.first, size, operation.eps, out);
      if (operation.quantize) quantize_row(out, size, activations(token, size));
    });
  }

  void linear(const Operation& operation, Phase* phases) {
    const Matrix& matrix = *operation.matrix;
    if (matrix.is_quantized() && !operation.quantize) {  // nobody has quantized the source yet
      phases[0].work_off(step_.num_tokens, [&](int64_t token) {
        quantize_row(row(operation.source, token), matrix.columns, activations(token, matrix.columns));
      });
    }
    const Shares shares(matrix, team_.size());
    const int64_t pieces = (step_.num_tokens + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE;
    phases[1].work_off(pieces * shares.spans, [&](int64_t item) {
      const int64_t begin = item / shares.spans * TOKENS_AT_ONCE, end = std::min(begin + TOKENS_AT_ONCE, step_.num_tokens);
      const int64_t span = item % shares.spans, first = span * shares.span;
      const int64_t last = std::min(first + shares.span, shares.panels);
      Top tops[TOKENS_AT_ONCE];
      if (operation.epilogue == TOP) std::fill_n(tops, end - begin, Top::from(first * matrix.panel_rows()));
      for (int64_t panel = first; panel < last; panel++) {
        // The others take the items between, as long as all are as quick.
        const int64_t next = panel + 1 < last ? panel + 1 : (item + team_.size()) % shares.spans * shares.span;
        matrix.is_quantized() ? multiply_quantized_item(operation, panel, begin, end, tops)
                              : multiply_float_item(operation, panel, next, begin, end, tops);
      }
      if (operation.epilogue == TOP) finish_tops(operation, span, begin, end, tops);
    });
  }

  // Inlined into the loop that calls it, GCC loads weights anew for every row: with AVX2, two thirds of the speed.
  [[gnu::noinline]] void multiply_float_item(const Operation& operation, int64_t panel, int64_t next, int64_t begin, int64_t end,
                                             Top* tops) {
    const Matrix& matrix = *operation.matrix;
    const int64_t stride = width(operation.source);
    alignas(64) float products[2][MAX_ROWS * PANEL];
    for (int64_t token = begin; token < end; token += MAX_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, end - token));
      const float* x = row(operation.source, token);
      const auto multiply = [&](int64_t which, int64_t its_next, float* out) {
        const float* weights = matrix.floats(which);
        // Of several passes the first two fetch the next panel, half of it each. One that is alone asks for what comes soon, and
        // so do the third and later ones: to them it is near already, so that costs little.
        const int64_t pass = (token - begin) / MAX_ROWS;
        const bool fetches_next = end - begin > MAX_ROWS && pass < 2;
        const Ahead ahead = fetches_next ? Ahead{matrix.floats(its_next) + pass * LANES * matrix.columns, LANES}
                                         : Ahead{weights + COLUMNS_AHEAD * PANEL, PANEL};
        multiply_panel(rows, x, stride, weights, matrix.columns, out, ahead);
      };
      if (operation.epilogue == GATE) {
        multiply(2 * panel, 2 * next, products[0]);
        multiply(2 * panel + 1, 2 * next + 1, products[1]);
        finish_gate(operation, panel * PANEL, PANEL, token, rows, products[0], products[1]);
      } else {
        multiply(panel, next, products[0]);
        finish(operation, panel * PANEL, PANEL, token, rows, products[0], tops + (token - begin));
      }
    }
  }

  void multiply_quantized_item(const Operation& operation, int64_t panel, int64_t begin, int64_t end, Top* tops) {
    const Matrix& matrix = *operation.matrix;
    alignas(64) float products[2][MAX_QUANTIZED_ROWS * QUANTUM_PANEL];
    for (int64_t token = begin; token < end; token += MAX_QUANTIZED_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_QUANTIZED_ROWS, end - token));
      Activations x[MAX_QUANTIZED_ROWS];
      for (int i = 0; i < rows; i++) x[i] = activations(token + i, matrix.columns);
      if (operation.epilogue == GATE) {
        multiply_quantized(matrix, rows, x, matrix.panel(2 * panel), products[0], QUANTUM_PANEL);
        multiply_quantized(matrix, rows, x, matrix.panel(2 * panel + 1), products[1], QUANTUM_PANEL);
        finish_gate(operation, panel * QUANTUM_PANEL, QUANTUM_PANEL, token, rows, products[0], products[1]);
      } else {
        multiply_quantized(matrix, rows, x, matrix.panel(panel), products[0], QUANTUM_PANEL);
        finish(operation, panel * QUANTUM_PANEL, QUANTUM_PANEL, token, rows, products[0], tops + (token - begin));
      }
    }
  }

  // Outputs `first` .. of some rows: look for the largest; or add the bias, store or add to the target.
  void finish(const Operation& operation, int64_t first, int64_t size, int64_t token, int rows, const float* products, Top* tops) {
    const int64_t count = std::min(size, operation.matrix->num_outputs() - first);
    for (int i = 0; i < rows; i++) {
      const float* product = products + i * size;
      if (operation.epilogue == TOP) {
        tops[i].take(product, first, count);
        continue;
      }
      float* out = row(operation.target, token + i) + operation.column + first;
      for (int64_t j = 0; j < count; j++) {
        const float value = operation.first ? product[j] + operation.first[first + j] : product[j];
        out[j] = operation.epilogue == ADD ? out[j] + value : value;
      }
    }
  }

  void finish_gate(const Operation& operation, int64_t first, int64_t size, int64_t token, int rows, float* gate, float* up) {
    const int64_t outputs = operation.matrix->num_outputs(), count = std::min(size, outputs - first);
    for (int i = 0; i < rows; i++) {
      float* its_gate = gate + i * size;
      float* its_up = up + i * size;
      if (operation.first)
        for (int64_t j = 0; j < count; j++) {
          its_gate[j] += operation.first[first + j];
          its_up[j] += operation.first[outputs + first + j];
        }
      gate_row(its_gate, its_up, size, its_gate);
      std::memcpy(row(operation.target, token + i) + first, its_gate, count * sizeof(float));
    }
  }

  // Of an item's outputs only the largest is kept, and its index: the target has the values of all spans, then the indices.
  void finish_tops(const Operation& operation, int64_t span, int64_t begin, int64_t end, const Top* tops) {
    for (int64_t token = begin; token < end; token++) {
      int32_t index;
      float* out = row(operation.target, token) + span;
      tops[token - begin].find(out, &index);
      std::memcpy(out + width(operation.target) / 2, &index, sizeof index);
    }
  }

  // Queries and keys: normed if the model does that, then rotated; keys and values go to their pages.
  void rotate(const Operation& operation, Phase& phase) {
    const Heads& heads = program_.heads;
    const int64_t size = heads.head_dim, half = heads.rotary_dim / 2;
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      float* head = row(operation.source, token);
      const float* turns = step_.turns + step_.positions[token] * 2 * half;
      for (int64_t i = 0; i < heads.num_heads + heads.num_kv_heads; i++, head += size) {
        const float* weight = i < heads.num_heads ? operation.first : operation.second;
        if (weight) rms_norm_row(head, weight, size, operation.eps, head);
        rotate_head(head, turns, turns + half, half);
      }
      const float* keys = row(operation.source, token) + heads.num_heads * size;
      const float* values = keys + heads.num_kv_heads * size;
      switch (heads.kv_type) {
        case FLOAT32: write_key_value(heads, cache<float>(operation.layer), step_.slots[token], keys, values); break;
        case FLOAT16: write_key_value(heads, cache<half_t>(operation.layer), step_.slots[token], keys, values); break;
        case INT8: write_key_value(heads, cache<int8_t>(operation.layer), step_.slots[token], keys, values); break;
      }
    });
  }

  void attend(const Operation& operation, Phase& phase) {
    switch (program_.heads.kv_type) {
      case FLOAT32: return attend_to(operation, cache<const float>(operation.layer), phase);
      case FLOAT16: return attend_to(operation, cache<const half_t>(operation.layer), phase);
      case INT8: return attend_to(operation, cache<const int8_t>(operation.layer), phase);
    }
  }

  template <typename Element>
  void attend_to(const Operation& operation, const Element* cache, Phase& phase) {
    const auto& tiles = program_.tiles;
    const auto& sequences = program_.sequences;
    const int64_t count = static_cast<int64_t>(tiles.size());
    phase.work_off(count, [&](int64_t index) {
      const Tile& tile = tiles[index];
      // The others take those between, as long as all are as quick.
      const AheadKeys following = start_of(program_.heads, sequences.data(), tiles[std::min(index + team_.size(), count - 1)]);
      attend_tile(program_.heads, cache, sequences[tile.sequence], tile, following, buffers_[operation.source],
                  width(operation.source), buffers_[operation.target], width(operation.target));
    });
  }

  Program& program_;
  const Step& step_;
  float* const* buffers_;
  uint8_t* quantized_;
  Team& team_;
};

// Work off `count` items on the team.
template <typename Item>
void share(Team& team, int64_t count, Item item) {
  Phase phase;
  team.run([&] { phase.work_off(count, item); });
}

}  // namespace tetrad

using namespace tetrad;

extern "C" {

int32_t tetrad_lanes() { return LANES; }

// Null if the system has no room for so many threads.
Team* tetrad_team_new(int32_t size) {
  try {
    return new Team(size);
  } catch (const std::system_error&) {
    return nullptr;
  }
}
void tetrad_team_delete(Team* team) { delete team; }

int64_t tetrad_matrix_size_bytes(const Matrix* matrix) { return matrix->size_bytes(); }
int64_t tetrad_matrix_num_spans(const Team* team, const Matrix* matrix) { return Shares(*matrix, team->size()).spans; }
int64_t tetrad_activations_size_bytes(int64_t columns) { return Activations::size_bytes(columns); }

// Pack float32 weights [rows, columns] into matrix->data.
void tetrad_pack_float(Team* team, const Matrix* matrix, const float* weights) {
  share(*team, matrix->num_panels(), [&](int64_t panel) { pack_float_panel(*matrix, weights, panel); });
}

// Pack rows of a GGUF file, `row_bytes` apart, into matrix->data, which is zeroed.
void tetrad_pack_gguf(Team* team, const Matrix* matrix, int32_t type, const uint8_t* rows, int64_t row_bytes) {
  const int64_t columns = matrix->columns;
  share(*team, matrix->num_panels(), [&](int64_t panel) {
    std::vector<uint8_t> quanta(columns);
    std::vector<float> scales(columns / 16), minima(columns / 16);
    const UnpackedRow unpacked{quanta.data(), scales.data(), minima.data()};
    for (int64_t place = 0; place < QUANTUM_PANEL; place++) {
      const int64_t row = matrix->row_of(panel, place);
      if (row < 0) continue;
      unpack_gguf_row(static_cast<GgufType>(type), rows + row * row_bytes, columns, unpacked);
      pack_quantized_row(*matrix, panel, place, unpacked);
    }
  });
}

// Quantize float32 weights to 8 bits, one scale for 32 columns, and pack them into matrix->data, which is zeroed.
void tetrad_pack_int8(Team* team, const Matrix* matrix, const float* weights) {
  const int64_t columns = matrix->columns;
  share(*team, matrix->num_panels(), [&](int64_t panel) {
    std::vector<uint8_t> quanta(columns);
    std::vector<float> scales(columns / 32), minima(columns / 32);
    for (int64_t place = 0; place < QUANTUM_PANEL; place++) {
      const int64_t row = matrix->row_of(panel, place);
      if (row < 0) continue;
      for (int64_t block = 0; block < columns / 32; block++) {
        const float* x = weights + row * columns + block * 32;
        float top = 0, broken = 0;
        for (int i = 0; i < 32; i++) {
          top = std::max(top, std::fabs(x[i]));
          broken += x[i] * 0.0f;
        }
        // The quanta fit the scale as it is stored. What is not finite stays so, in the scale.
        const float scale = static_cast<float>(static_cast<_Float16>(top / 127.0f + broken));
        scales[block] = scale;
        for (int i = 0; i < 32; i++) {
          const float quantum = scale > 0 && broken == 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
          quanta[block * 32 + i] = static_cast<uint8_t>(static_cast<int>(std::clamp(quantum, -127.0f, 127.0f)) + 128);
        }
      }
      pack_quantized_row(*matrix, panel, place, {quanta.data(), scales.data(), minima.data()});
    }
  });
}

// Unpack rows to float32 [count, columns]: what the products see.
void tetrad_unpack(const Matrix* matrix, const int64_t* rows, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i++, out += matrix->columns)
    matrix->is_quantized() ? unpack_quantized_row(*matrix, rows[i], out) : unpack_float_row(*matrix, rows[i], out);
}

Program* tetrad_program_new(const Operation* operations, int64_t count, const int64_t* widths, int64_t num_buffers, Heads heads) {
  return new Program(operations, count, widths, num_buffers, heads);
}
void tetrad_program_delete(Program* program) { delete program; }

void tetrad_run(Team* team, Program* program, const Step* step, float* const* buffers, uint8_t* quantized) {
  Run run(*program, *step, buffers, quantized, *team);
  team->run([&] { run.work(); });
}

}  // extern "C"
