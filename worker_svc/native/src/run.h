// Run: executes the operations of a program for one step, on all threads of a team.
//
// All threads execute the same list: they share the items of each operation, and no thread begins the next operation before all
// items are done.
#pragma once
#include <algorithm>

#include "attention.h"
#include "operation.h"
#include "packed_attention.h"
#include "packing.h"
#include "product.h"
#include "program.h"
#include "routing.h"
#include "rows.h"
#include "team.h"

namespace tetrad {

// One run of a program: its step, its buffers, and the data by which threads find their items.
class Run {
 public:
  Run(Program& program, const Step& step, float* const* buffers, uint8_t* prepared, Team& team)
      : program_(program), step_(step), buffers_(buffers), prepared_(prepared), team_(team) {
    for (auto& phase : program.phases) phase.begin(team.size());
    if (step.pages) lay_tiles();
    if (step.adapters) group_tokens();
    program.pairs.make_room(step.num_tokens, program.most_chosen);
  }

  // SUMMED, or the cause why a sum over ranks failed; no operation runs after a failed sum.
  SumStatus status() const { return status_.load(std::memory_order_relaxed); }

  // Run all operations; every thread of the team calls this with its rank.
  void work(int rank) {
    for (size_t index = 0; index < program_.operations.size(); index++) {
      const Operation& operation = program_.operations[index];
      const ThreadPhase phases[] = {{program_.phases[2 * index], rank}, {program_.phases[2 * index + 1], rank}};
      switch (operation.kind) {
        case EMBED: embed(operation, phases[0]); break;
        case NORM: norm(operation, phases[0]); break;
        case LINEAR: linear(operation, phases); break;
        case ROTATE: rotate(operation, phases[0]); break;
        case ATTEND: attend(operation, phases[0]); break;
        case ROTATE_PACKED: rotate_packed(operation, phases[0]); break;
        case ATTEND_PACKED: attend_packed(operation, phases[0]); break;
        case ROUTE: route(operation, phases); break;
        case EXPERTS: experts(operation, phases); break;
        case MIX: mix(operation, phases[0]); break;
        case SUM: sum(operation, phases); break;
        case DEEPEN: deepen(operation, phases[0]); break;
      }
      if (status() != SUMMED) return;
    }
  }

 private:
  int64_t width(int32_t buffer) const { return program_.widths[buffer]; }
  float* row(int32_t buffer, int64_t token) const { return buffers_[buffer] + token * width(buffer); }

  template <typename Element>
  Element* cache(int32_t layer) const {
    return static_cast<Element*>(step_.cache) + layer * program_.heads.page_size();
  }

  // Whether adapters of the step's tokens may change the operation.
  bool is_adapted(const Operation& operation) const { return step_.adapters && operation.site >= 0; }

  // The site of a token's adapter for an operation, or for one of its experts; null: no change.
  const LoraSite* site(const Operation& operation, int64_t token, int64_t expert = 0) const {
    if (!is_adapted(operation) || !step_.adapters[token]) return nullptr;
    const LoraSite* found = step_.adapters[token] + operation.site + expert;
    return found->num_parts ? found : nullptr;
  }

  // The site of the adapter of a pair's token for the pair's expert; null: no change.
  const LoraSite* pair_site(const Operation& operation, int64_t place) const {
    return site(operation, program_.pairs.tokens[place], program_.pairs.experts[place]);
  }

  // Group tokens by adapter, within each piece of TOKENS_AT_ONCE tokens.
  void group_tokens() {
    program_.order.resize(step_.num_tokens);
    program_.adapted.clear();
    for (int64_t begin = 0; begin < step_.num_tokens; begin += TOKENS_AT_ONCE) {
      const int64_t count = std::min(TOKENS_AT_ONCE, step_.num_tokens - begin);
      const LoraSite* const* adapters = step_.adapters + begin;
      uint8_t* order = program_.order.data() + begin;
      sort_rows(adapters, count, order);
      TokensOfAdapter together;
      for (int64_t i = 0; i < count; i++) {
        together.tokens[together.count++] = static_cast<int32_t>(begin + order[i]);
        if (i + 1 < count && adapters[order[i + 1]] == adapters[order[i]] && together.count < ROWS_AT_ONCE) continue;
        if (adapters[order[i]]) program_.adapted.push_back(together);
        together.count = 0;
      }
    }
  }

  // Divide the attention of the step into tiles. A step has its longest sequences first, so the last items are the smallest.
  void lay_tiles() {
    const Heads& heads = program_.heads;
    // With few sequences, a tile has one KV head, so that all threads have work; with many, a tile has several.
    const int32_t together = step_.num_sequences < 2 * team_.size() ? 1 : MAX_HEADS_TOGETHER;
    program_.sequences.clear();
    program_.tiles.clear();
    for (int64_t table = 0; table < program_.num_groups * step_.num_sequences; table++) {
      const int64_t r = table % step_.num_sequences;
      const int64_t first = step_.first_tokens[r];
      program_.sequences.push_back({step_.pages + table * step_.table_stride, first, step_.num_computed[r],
                                    step_.ends ? step_.ends + first : nullptr});
    }
    for (int64_t r = 0; r < step_.num_sequences; r++) {
      const int64_t rows = step_.num_scheduled[r] * heads.group();
      const int32_t its_together = step_.num_scheduled[r] == 1 ? together : 1;
      for (int64_t first = 0; first < rows; first += TILE_ROWS)
        for (int32_t kv_head = 0; kv_head < heads.num_kv_heads; kv_head += its_together)
          program_.tiles.push_back({static_cast<int32_t>(r), kv_head, std::min(its_together, heads.num_kv_heads - kv_head),
                                    static_cast<int32_t>(first), static_cast<int32_t>(std::min<int64_t>(TILE_ROWS, rows - first))});
    }
  }

  void embed(const Operation& operation, ThreadPhase phase) {
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      const Matrix& matrix = *operation.matrix;
      float* out = row(operation.target, token);
      const int64_t size = matrix.columns, id = step_.token_ids[token] - operation.first_id;
      if (step_.embeddings && step_.embeddings[token]) {
        std::memcpy(out, step_.embeddings[token], size * sizeof(float));
      } else if (id < 0 || id >= matrix.rows) {
        std::fill_n(out, size, 0.0f);
      } else {
        unpack_row(matrix, id, out);
        if (const LoraSite* its = site(operation, token)) adapt_embedding(*its, id, size, out);
        for (int64_t i = 0; i < size; i++) out[i] *= operation.scale;
      }
      if (!operation.first) return;
      const float* position = operation.first + step_.positions[token] * size;
      for (int64_t i = 0; i < size; i++) out[i] += position[i];
    });
  }

  void norm(const Operation& operation, ThreadPhase phase) {
    const int64_t size = width(operation.source);
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      float* source = row(operation.source, token);
      float* target = row(operation.target, token);
      // With ADD, the norm overwrites its source, which no later operation reads.
      float* out = operation.epilogue == ADD ? source : target;
      operation.is_centered ? layer_norm_row(source, operation.first, operation.second, size, operation.eps, out)
                            : rms_norm_row(source, operation.first, size, operation.eps, out);
      if (operation.epilogue == ADD)
        for (int64_t i = 0; i < size; i++) target[i] += operation.scale * out[i];
      if (operation.matrix) prepare_row(*operation.matrix, out, prepared_ + token * prepared_bytes(*operation.matrix));
    });
  }

  void linear(const Operation& operation, const ThreadPhase* phases) {
    const Matrix& matrix = *operation.matrix;
    const int64_t row_bytes = prepared_bytes(matrix);
    const int64_t num_shrunk = is_adapted(operation) ? static_cast<int64_t>(program_.adapted.size()) * rank_pieces() : 0;
    const int64_t num_prepared = row_bytes && !operation.is_prepared ? step_.num_tokens : 0;
    if (num_shrunk + num_prepared)
      phases[0].work_off(num_shrunk + num_prepared, [&](int64_t item) {
        if (item < num_shrunk) return shrink_tokens(operation, item);
        const int64_t token = item - num_shrunk;
        prepare_row(matrix, row(operation.source, token), prepared_ + token * row_bytes);
      });
    const Shares shares(matrix, team_.size());
    const int64_t pieces = (step_.num_tokens + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE;
    phases[1].work_off(pieces * shares.spans, [&](int64_t item) {
      const int64_t begin = item / shares.spans * TOKENS_AT_ONCE, end = std::min(begin + TOKENS_AT_ONCE, step_.num_tokens);
      const LoraSite* sites[TOKENS_AT_ONCE];
      for (int64_t token = begin; is_adapted(operation) && token < end; token++) sites[token - begin] = site(operation, token);
      const Product product{operation, matrix, operation.first, end - begin, row(operation.source, begin), width(operation.source),
                            prepared_ + begin * row_bytes, nullptr, row(operation.target, begin) + operation.column,
                            width(operation.target), is_adapted(operation) ? sites : nullptr,
                            is_adapted(operation) ? &program_.order[begin] : nullptr,
                            is_adapted(operation) ? row(operation.shrunk, begin) : nullptr, width(operation.shrunk)};
      const int64_t span = item % shares.spans;
      Top tops[TOKENS_AT_ONCE];
      if (operation.epilogue == TOP) std::fill_n(tops, end - begin, Top::from(span * shares.span * matrix.panel_rows()));
      compute(product, shares, item, tops);
      if (operation.epilogue == TOP) finish_tops(operation, span, begin, end, tops);
    });
  }

  // Compute the panels of one item of a product.
  void compute(const Product& product, const Shares& shares, int64_t item, Top* tops) const {
    const int64_t first = item % shares.spans * shares.span, last = std::min(first + shares.span, shares.panels);
    for (int64_t panel = first; panel < last; panel++) {
      const int64_t next = panel + 1 < last ? panel + 1 : (item + 1) % shares.spans * shares.span;
      product.compute(panel, next, tops);
    }
  }

  // Choose the experts of all tokens. The source has the scores of all experts, and is overwritten.
  void route(const Operation& operation, const ThreadPhase* phases) {
    const Routing& routing = *operation.routing;
    Pairs& pairs = program_.pairs;
    phases[0].work_off(step_.num_tokens, [&](int64_t token) {
      const int64_t first = token * routing.num_chosen;
      choose_experts(routing, row(operation.source, token), pairs.weights.data() + first, pairs.chosen.data() + first);
    });
    phases[1].work_off(1, [&](int64_t) { pairs.sort(routing, step_.num_tokens); });
  }

  // Compute the products of each expert with its tokens. Rows of the target are by place.
  void experts(const Operation& operation, const ThreadPhase* phases) {
    const Pairs& pairs = program_.pairs;
    const Matrix& any = *operation.matrix;
    const int64_t columns = any.columns, outputs = any.num_outputs(), row_bytes = prepared_bytes(any);
    const int64_t num_rows = step_.num_tokens * (operation.is_by_place ? operation.routing->num_chosen : 1);
    const float* source = buffers_[operation.source];
    const int64_t num_pairs = step_.num_tokens * operation.routing->num_chosen;
    const int64_t num_shrunk = is_adapted(operation) ? num_pairs * rank_pieces() : 0;
    const int64_t num_prepared = row_bytes && !operation.is_prepared ? num_rows : 0;
    if (num_shrunk + num_prepared)
      phases[0].work_off(num_shrunk + num_prepared, [&](int64_t item) {
        if (item < num_shrunk) return shrink_pair(operation, item);
        const int64_t row = item - num_shrunk;
        prepare_row(any, source + row * columns, prepared_ + row * row_bytes);
      });
    const int64_t shrunk_stride = stride_of_pairs(operation);
    const Shares shares(any, team_.size());
    // The count is the maximum number of pieces: all threads need the same count, but a late thread may find the pairs of a
    // later layer, with another number of pieces.
    phases[1].work_off(Pairs::most_pieces(*operation.routing, step_.num_tokens) * shares.spans, [&](int64_t item) {
      static thread_local std::vector<float> gathered;
      if (item / shares.spans >= static_cast<int64_t>(pairs.pieces.size())) return;
      const ExpertPiece& piece = pairs.pieces[item / shares.spans];
      const Matrix& matrix = operation.matrix[piece.expert];
      const int32_t* tokens = operation.is_by_place ? nullptr : pairs.tokens.data() + piece.first;
      const float* x = source + (tokens ? tokens[0] : piece.first) * columns;
      if (tokens && piece.count > 1 && !row_bytes) {
        gathered.resize(piece.count * columns);
        for (int64_t i = 0; i < piece.count; i++)
          std::memcpy(gathered.data() + i * columns, source + tokens[i] * columns, columns * sizeof(float));
        x = gathered.data();
      }
      const LoraSite* sites[TOKENS_AT_ONCE];
      for (int64_t i = 0; is_adapted(operation) && i < piece.count; i++) sites[i] = pair_site(operation, piece.first + i);
      uint8_t order[TOKENS_AT_ONCE];
      if (is_adapted(operation)) sort_rows(sites, piece.count, order);
      const Product product{operation, matrix, operation.first ? operation.first + piece.expert * matrix.rows : nullptr, piece.count, x,
                            columns, prepared_ + (tokens ? 0 : piece.first * row_bytes), tokens,
                            buffers_[operation.target] + piece.first * outputs, outputs, is_adapted(operation) ? sites : nullptr, order,
                            is_adapted(operation) ? buffers_[operation.shrunk] + piece.first * shrunk_stride : nullptr, shrunk_stride};
      compute(product, shares, item, nullptr);
    });
  }

  // target = the weighted sum of the outputs of each token's experts, plus the output of the shared expert. With ADD, scale times
  // this sum is added to the target.
  void mix(const Operation& operation, ThreadPhase phase) {
    constexpr int64_t COLUMNS = 512;
    const int64_t columns = width(operation.target), pieces = (columns + COLUMNS - 1) / COLUMNS;
    phase.work_off(step_.num_tokens * pieces, [&](int64_t item) {
      const int64_t token = item / pieces, first = item % pieces * COLUMNS, last = std::min(first + COLUMNS, columns);
      float mixed[COLUMNS];
      program_.pairs.mix(*operation.routing, token, buffers_[operation.source], columns, first, last, mixed);
      float* out = row(operation.target, token) + first;
      const float share = operation.shared_gate < 0 ? 1.0f : 1.0f / (1.0f + std::exp(-row(operation.shared_gate, token)[0]));
      const float* shared = operation.shared < 0 ? nullptr : row(operation.shared, token) + first;
      for (int64_t i = 0; i < last - first; i++) {
        const float value = shared ? mixed[i] + share * shared[i] : mixed[i];
        out[i] = operation.epilogue == ADD ? out[i] + operation.scale * value : value;
      }
    });
  }

  // source = its sum over the ranks; with ADD, then target += scale * source.
  void sum(const Operation& operation, const ThreadPhase* phases) {
    const int64_t columns = width(operation.source);
    phases[0].work_off(1, [&](int64_t) {
      const int32_t status = step_.add_up(step_.ranks, buffers_[operation.source], step_.num_tokens * columns);
      status_.store(static_cast<SumStatus>(status), std::memory_order_relaxed);
    });
    if (status() != SUMMED || operation.epilogue != ADD) return;
    phases[1].work_off(step_.num_tokens, [&](int64_t token) {
      const float* source = row(operation.source, token);
      float* target = row(operation.target, token);
      for (int64_t i = 0; i < columns; i++) target[i] += operation.scale * source[i];
    });
  }

  // Add the further rows of images to the residual stream.
  void deepen(const Operation& operation, ThreadPhase phase) {
    if (!step_.deep) return;
    const float* const* rows = step_.deep + operation.column * step_.num_tokens;
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      if (rows[token]) add_row(rows[token], width(operation.target), 1.0f, row(operation.target, token));
    });
  }

  // Number of work items per group of tokens: each item computes a x for RANKS_AT_ONCE ranks.
  int64_t rank_pieces() const { return (step_.adapter_rank + RANKS_AT_ONCE - 1) / RANKS_AT_ONCE; }

  // Compute a x for one item: some ranks and a group of tokens with the same adapter.
  void shrink_tokens(const Operation& operation, int64_t item) const {
    const TokensOfAdapter& its = program_.adapted[item / rank_pieces()];
    const LoraSite* found = site(operation, its.tokens[0]);
    const int64_t first = item % rank_pieces() * RANKS_AT_ONCE;
    if (!found || first >= found->rank) return;
    AdaptedRows rows;
    rows.count = its.count;
    for (int64_t i = 0; i < its.count; i++) {
      rows.from[i] = row(operation.source, its.tokens[i]);
      rows.to[i] = row(operation.shrunk, its.tokens[i]);
    }
    const int64_t columns = operation.matrix->columns, last = std::min(first + RANKS_AT_ONCE, found->rank);
    shrink(*found, rows, columns, first, last, ahead_of(operation, item, found->row(first, columns)));
  }

  // The rows of a that the thread most likely reads after this item, or `otherwise` if there are none.
  const uint8_t* ahead_of(const Operation& operation, int64_t item, const uint8_t* otherwise) const {
    const int64_t next = item + 1;
    if (next >= static_cast<int64_t>(program_.adapted.size()) * rank_pieces()) return otherwise;
    const LoraSite* its = site(operation, program_.adapted[next / rank_pieces()].tokens[0]);
    const int64_t first = next % rank_pieces() * RANKS_AT_ONCE;
    return its && first < its->rank ? its->row(first, operation.matrix->columns) : otherwise;
  }

  // The columns of one pair in the buffer for a x of experts; a token's row has room for most_chosen pairs.
  int64_t stride_of_pairs(const Operation& operation) const {
    return is_adapted(operation) ? width(operation.shrunk) / program_.most_chosen : 0;
  }

  // Compute a x for one item: some ranks and one pair.
  void shrink_pair(const Operation& operation, int64_t item) const {
    const int64_t place = item / rank_pieces(), first = item % rank_pieces() * RANKS_AT_ONCE;
    const LoraSite* its = pair_site(operation, place);
    if (!its || first >= its->rank) return;
    const int64_t columns = operation.matrix->columns;
    const float* x = buffers_[operation.source] + (operation.is_by_place ? place : program_.pairs.tokens[place]) * columns;
    const AdaptedRows rows{1, {x}, {buffers_[operation.shrunk] + place * stride_of_pairs(operation)}};
    shrink(*its, rows, columns, first, std::min(first + RANKS_AT_ONCE, its->rank), its->row(first, columns));
  }

  // Store only the largest of an item's outputs and its index. A row of the target has the values of all spans, then indices.
  void finish_tops(const Operation& operation, int64_t span, int64_t begin, int64_t end, const Top* tops) {
    for (int64_t token = begin; token < end; token++) {
      int32_t index;
      float* out = row(operation.target, token) + span;
      tops[token - begin].find(out, &index);
      std::memcpy(out + width(operation.target) / 2, &index, sizeof index);
    }
  }

  // Apply norms to queries and keys if the model has them, rotate both, and write keys and values to their pages.
  void rotate(const Operation& operation, ThreadPhase phase) {
    const Heads& heads = program_.heads;
    const int64_t size = heads.head_dim, half = operation.turns < 0 ? 0 : heads.rotary_dim / 2;
    const float* table = operation.turns < 0 ? nullptr : step_.turns[operation.turns];
    const int64_t* slots = step_.slots + operation.group * step_.num_tokens;
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      float* head = row(operation.source, token);
      const float* turns = table + step_.turn_rows[token] * 2 * half;
      if (operation.clamp != 0.0f) bound_row(head, width(operation.source), operation.clamp);
      if (operation.head_norms == ALL_HEADS) {
        float* keys = head + heads.num_heads * size;
        rms_norm_row(head, operation.first, heads.num_heads * size, operation.eps, head);
        rms_norm_row(keys, operation.second, heads.num_kv_heads * size, operation.eps, keys);
      }
      for (int64_t i = 0; i < heads.num_heads + heads.num_kv_heads; i++, head += size) {
        const float* weight = i < heads.num_heads ? operation.first : operation.second;
        if (operation.head_norms == EACH_HEAD) rms_norm_row(head, weight, size, operation.eps, head);
        rotate_head(head, turns, turns + half, half);
      }
      if (operation.beta != 0.0f) scale_queries(operation, token);
      const float* keys = row(operation.source, token) + heads.num_heads * size;
      const float* values = keys + heads.num_kv_heads * size;
      switch (heads.kv_type) {
        case FLOAT32: write_key_value(heads, cache<float>(operation.layer), slots[token], keys, values); break;
        case FLOAT16: write_key_value(heads, cache<half_t>(operation.layer), slots[token], keys, values); break;
        case INT8: write_key_value(heads, cache<int8_t>(operation.layer), slots[token], keys, values); break;
      }
    });
  }

  void scale_queries(const Operation& operation, int64_t token) {
    const float position = static_cast<float>(step_.positions[token]);
    const float factor = 1.0f + operation.beta * std::log1p(std::floor((position + operation.offset) / operation.period));
    float* queries = row(operation.source, token);
    for (int64_t i = 0; i < program_.heads.num_heads * program_.heads.head_dim; i++) queries[i] *= factor;
  }

  void attend(const Operation& operation, ThreadPhase phase) {
    switch (program_.heads.kv_type) {
      case FLOAT32: return attend_to(operation, cache<const float>(operation.layer), phase);
      case FLOAT16: return attend_to(operation, cache<const half_t>(operation.layer), phase);
      case INT8: return attend_to(operation, cache<const int8_t>(operation.layer), phase);
    }
  }

  template <typename Element>
  void attend_to(const Operation& operation, const Element* cache, ThreadPhase phase) {
    const auto& tiles = program_.tiles;
    const Sequence* sequences = program_.sequences.data() + operation.group * step_.num_sequences;
    Heads heads = program_.heads;
    heads.window = operation.window;
    heads.sinks = operation.first;
    heads.slopes = operation.second;
    const int64_t count = static_cast<int64_t>(tiles.size());
    phase.work_off(count, [&](int64_t index) {
      const Tile& tile = tiles[index];
      // The other threads take the tiles in between, if all threads are equally fast.
      const AheadKeys following = start_of(heads, sequences, tiles[std::min(index + team_.size(), count - 1)]);
      attend_tile(heads, cache, sequences[tile.sequence], tile, following, buffers_[operation.source],
                  width(operation.source), buffers_[operation.target], width(operation.target));
    });
  }

  // Rotate queries and keys in place; there is no KV cache.
  void rotate_packed(const Operation& operation, ThreadPhase phase) {
    const Heads& heads = program_.heads;
    const int64_t half = heads.rotary_dim / 2;
    phase.work_off(step_.num_tokens, [&](int64_t token) {
      const float* turns = operation.first + step_.positions[token] * 2 * half;
      float* head = row(operation.source, token);
      for (int64_t i = 0; i < 2 * heads.num_heads; i++, head += heads.head_dim) rotate_head(head, turns, turns + half, half);
    });
  }

  // Compute the attention of whole prompts, one item per head and sequence.
  void attend_packed(const Operation& operation, ThreadPhase phase) {
    const Heads& heads = program_.heads;
    const int64_t size = heads.head_dim, num_heads = heads.num_heads;
    phase.work_off(step_.num_sequences * num_heads, [&](int64_t item) {
      static thread_local PackedWorkspace space;
      const int64_t sequence = item / num_heads, head = item % num_heads, first = step_.first_tokens[sequence];
      const PackedHead its{row(operation.source, first), width(operation.source), step_.num_scheduled[sequence], size,
                           head * size, (num_heads + head) * size, (2 * num_heads + head) * size, operation.window};
      attend_head(its, space, row(operation.target, first) + head * size, width(operation.target));
    });
  }

  Program& program_;
  const Step& step_;
  float* const* buffers_;
  uint8_t* prepared_;  // rows of activations in the form that the next products read
  Team& team_;
  std::atomic<SumStatus> status_{SUMMED};  // of the last sum; set before its phase ends
};

}  // namespace tetrad
