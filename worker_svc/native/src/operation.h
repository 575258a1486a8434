// The operations of a program and the inputs of a step. Fields are the same as in structures.py.
#pragma once
#include "lora.h"
#include "matrix.h"

namespace tetrad {

enum Kind : int32_t { EMBED = 0, NORM = 1, LINEAR = 2, ROTATE = 3, ATTEND = 4, ROTATE_PACKED = 5, ATTEND_PACKED = 6, ROUTE = 7,
                     EXPERTS = 8, MIX = 9, SUM = 10, DEEPEN = 11 };
enum SumStatus : int32_t { SUMMED = 0, RANK_LOST = 1, TIMED_OUT = 2, FAILED = 3 };
enum Epilogue : int32_t { STORE = 0, ADD = 1, GATE = 2, TOP = 3, ACTIVATE = 4 };
enum HeadNorms : int32_t { NONE = 0, EACH_HEAD = 1, ALL_HEADS = 2 };

// The parameters by which a layer chooses experts.
struct Routing {
  int32_t router;  // see routing.h
  int32_t num_experts, num_chosen, num_groups, num_chosen_groups, is_renormalized;
  float scale;              // factor of the weights
  const float* correction;  // [experts], added to scores for the choice only, not to weights; or null
  int64_t* counts;          // [experts], number of tokens that each expert has computed
};

// One operation. Each kind uses only some of the fields.
struct Operation {
  int32_t kind, epilogue;
  int32_t source, target;  // buffers
  int32_t column;          // LINEAR: first column of the target; DEEPEN: number of the layer in Step::deep
  int32_t is_prepared;     // LINEAR, EXPERTS: whether a norm has converted the source to the form that the products read
  int32_t layer;           // ROTATE, ATTEND: index of the layer's page among the pages of a block
  int32_t group, window;   // ROTATE, ATTEND: KV group of the layer; number of last keys that a query attends to, 0: all keys.
                           // ATTEND_PACKED: window is the distance of attention to both sides in tokens, 0: unlimited
  int32_t activation;      // LINEAR with GATE or ACTIVATE
  int32_t is_centered;     // NORM: whether the mean is subtracted
  int32_t head_norms;      // ROTATE: span of the norms of queries and keys, a HeadNorms
  int32_t turns;           // ROTATE: index of the layer's table of cosines and sines; negative: no rotation
  float eps;
  float scale;           // EMBED: factor of rows; LINEAR, NORM, MIX and SUM with ADD: factor of the values that are added
  float clamp;           // LINEAR and EXPERTS with GATE: bound of gate and up in gpt-oss's activation; 0: another activation.
                         // ROTATE: bound of queries, keys and values before norms and rotation; 0: no bound
  float beta, period, offset;  // ROTATE: queries times 1 + beta ln(1 + floor((position + offset) / period)); beta 0: no factor
  const Matrix* matrix;  // EMBED, LINEAR; EXPERTS: the matrices of all experts, which differ only in their weights;
                         // NORM: a matrix to whose form the norm also converts the result, or null
  const float* first;    // EMBED: position embeddings that are added, or null; NORM: weight; LINEAR: bias; ROTATE: weight of
                         // the norm of queries; ROTATE_PACKED: a table as in Step::turns; EXPERTS: biases of all experts, or
                         // null; ATTEND: attention sinks, one score per head, or null
  const float* second;   // NORM: bias, or null; ROTATE: weight of the norm of keys; ATTEND: slopes of linear biases, one per
                         // head, or null
  const Routing* routing;  // ROUTE, EXPERTS, MIX
  int32_t is_by_place;   // EXPERTS: whether the source has one row per pair, by place; else it has one row per token
  int32_t shared, shared_gate;  // MIX: buffers of the shared expert's outputs and of its gate's scores; negative: none
  int32_t site;          // EMBED, LINEAR, EXPERTS: index in the adapters' tables of sites (of experts: the first one's index);
                         // -1: no adapter changes the operation
  int32_t shrunk;        // LINEAR and EXPERTS with a site: the buffer for a x; for experts, rows are by place
  int32_t first_id;      // EMBED: token id of the matrix's first row; tokens without a row become zeros
};

// Adds the other ranks' values to x, on every rank; returns SUMMED or the cause of the failure. One thread of a team calls it.
using AddUp = int32_t (*)(void* ranks, float* x, int64_t count);

// The inputs of a step: T tokens of R sequences. Arrays belong to the caller and must live until the call returns.
struct Step {
  int64_t num_tokens, num_sequences;
  const int64_t* token_ids;      // [T]
  const int64_t* slots;          // [G, T], page * block_size + offset; G KV groups
  const int64_t* positions;      // [T]
  const float* const* turns;     // tables of the rotation; each has, per row, rotary_dim / 2 cosines and as many sines
  const int64_t* turn_rows;      // [T], row of each token in these tables: its position, or its index if positions have 3 axes
  const int32_t* pages;          // [G, R, table_stride]
  int64_t table_stride;
  const int64_t* first_tokens;   // [R]
  const int64_t* ends;           // [T], for each token the position behind the last key that it attends to; null: its own + 1
  const int64_t* num_computed;   // [R]
  const int64_t* num_scheduled;  // [R]
  void* cache;                   // pages of all blocks; those of one block stand layer by layer
  const LoraSite* const* adapters;  // [T], table of sites of each token's adapter, or null; null: no token has an adapter
  int64_t adapter_rank;          // the largest rank of the adapters' sites
  const float* const* embeddings;  // [T], row that replaces the token's row of the table, or null; null: no token has one
  const float* const* deep;      // [L, T], row that is added to the token's hidden states behind layer l, or null; null: none
  AddUp add_up;                  // for programs with SUM
  void* ranks;                   // the first argument of add_up
};

}  // namespace tetrad
