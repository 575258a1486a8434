// Operations: what a program is made of, and what a step brings to it. Field for field as in structures.py.
#pragma once
#include "lora.h"
#include "matrix.h"

namespace tetrad {

enum Kind : int32_t { EMBED = 0, NORM = 1, LINEAR = 2, ROTATE = 3, ATTEND = 4, ROTATE_PACKED = 5, ATTEND_PACKED = 6, ROUTE = 7,
                     EXPERTS = 8, MIX = 9, SUM = 10 };
enum SumStatus : int32_t { SUMMED = 0, RANK_LOST = 1, TIMED_OUT = 2, FAILED = 3 };
enum Epilogue : int32_t { STORE = 0, ADD = 1, GATE = 2, TOP = 3, ACTIVATE = 4 };
enum HeadNorms : int32_t { NONE = 0, EACH_HEAD = 1, ALL_HEADS = 2 };

// How a layer chooses its experts.
struct Routing {
  int32_t router;  // see routing.h
  int32_t num_experts, num_chosen, num_groups, num_chosen_groups, is_renormalized;
  float scale;              // of the weights
  const float* correction;  // [experts], added to scores for the choice alone, or null
  int64_t* counts;          // [experts], tokens of each so far
};

// One operation; which fields count depends on its kind.
struct Operation {
  int32_t kind, epilogue;
  int32_t source, target;  // buffers
  int32_t column;          // LINEAR: first column of the target
  int32_t quantize;        // NORM: whether what reads the result is quantized
  int32_t layer;           // ROTATE, ATTEND: the place of the layer's page among those of a block
  int32_t group, window;   // ROTATE, ATTEND: which KV group the layer is of; keys that its queries see, 0: all. ATTEND_PACKED: how
                           // far a token sees to both sides, 0: everything
  int32_t activation;      // LINEAR with GATE or ACTIVATE
  int32_t is_centered;     // NORM: whether the mean is subtracted
  int32_t head_norms;      // ROTATE: what the weights of norms span
  int32_t turns;           // ROTATE: index of the layer's table of turns; negative: its heads do not turn
  float eps;
  float scale;           // EMBED: of rows; LINEAR, NORM, MIX and SUM with ADD: of what is added
  float clamp;           // LINEAR and EXPERTS with GATE: bound of gate and up in gpt-oss's activation; 0: the activation is another
  float beta, period, offset;  // ROTATE: queries times 1 + beta ln(1 + floor((position + offset) / period)); beta 0: they stay
  const Matrix* matrix;  // EMBED, LINEAR; EXPERTS: those of all experts, alike but for their weights
  const float* first;    // EMBED: rows by position that are added, or null; NORM: weight; LINEAR: bias; ROTATE: norm of queries;
                         // ROTATE_PACKED: a table of turns, as those of a step; EXPERTS: biases of all experts, or null;
                         // ATTEND: scores of heads without a key, or null
  const float* second;   // NORM: bias, or null; ROTATE: norm of keys
  const Routing* routing;  // ROUTE, EXPERTS, MIX
  int32_t is_by_place;   // EXPERTS: the source has a row for each pair, by place; else one for each token
  int32_t shared, shared_gate;  // MIX: the buffer of the shared expert's outputs, and that of its gate's scores; negative: none
  int32_t site;          // EMBED, LINEAR, EXPERTS: its number in the tables of adapters, of experts the first one's; -1: no adapter
                         // changes it
  int32_t shrunk;        // LINEAR and EXPERTS with a site: the buffer for a x, of experts by place
  int32_t first_id;      // EMBED: token of the matrix's first row; tokens whose rows it lacks are zeros
};

// Adds the other ranks' values to x, on every rank; returns SUMMED, or why it could not. Called by one thread of a team.
using AddUp = int32_t (*)(void* ranks, float* x, int64_t count);

// What a step brings: T tokens of R sequences. Arrays belong to the caller and live as long as the call.
struct Step {
  int64_t num_tokens, num_sequences;
  const int64_t* token_ids;      // [T]
  const int64_t* slots;          // [G, T], page * block_size + offset; G KV groups
  const int64_t* positions;      // [T]
  const float* const* turns;     // tables; of every position: rotary_dim / 2 cosines and as many sines
  const int32_t* pages;          // [G, R, table_stride]
  int64_t table_stride;
  const int64_t* first_tokens;   // [R]
  const int64_t* num_computed;   // [R]
  const int64_t* num_scheduled;  // [R]
  void* cache;                   // the first layer's pages, each with those of the other layers behind it
  const LoraSite* const* adapters;  // [T], each token's table of sites, or null; null: no token has one
  int64_t adapter_rank;          // the largest of their sites
  const float* const* embeddings;  // [T], what is given in place of a token's row of the table, or null; null: no token has any
  AddUp add_up;                  // for programs with SUM, and its first argument
  void* ranks;
};

}  // namespace tetrad
