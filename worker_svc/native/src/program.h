// Program: the operations of a model, and the memory that its runs reuse.
#pragma once
#include <algorithm>

#include "attention.h"
#include "operation.h"
#include "routing.h"
#include "team.h"

namespace tetrad {

// Tokens with the same adapter.
struct TokensOfAdapter {
  int32_t count = 0;  // at most ROWS_AT_ONCE
  int32_t tokens[ROWS_AT_ONCE];
};

// The operations of a model, and memory that its runs reuse.
struct Program {
  std::vector<Operation> operations;
  std::vector<int64_t> widths;  // columns of each buffer
  Heads heads;
  std::vector<Phase> phases;  // two for each operation
  int64_t num_groups = 1;
  std::vector<Sequence> sequences;  // [G, R]
  std::vector<Tile> tiles;          // the same in all groups
  int64_t most_chosen = 0;          // largest number of experts per token
  Pairs pairs;                      // pairs of the current layer
  std::vector<uint8_t> order;       // [T], row indices of each piece of TOKENS_AT_ONCE tokens, sorted by adapter
  std::vector<TokensOfAdapter> adapted;

  Program(const Operation* list, int64_t count, const int64_t* buffer_widths, int64_t num_buffers, Heads its_heads)
      : operations(list, list + count), widths(buffer_widths, buffer_widths + num_buffers), heads(its_heads), phases(2 * count) {
    for (const Operation& operation : operations) {
      num_groups = std::max<int64_t>(num_groups, operation.group + 1);
      if (operation.routing) most_chosen = std::max<int64_t>(most_chosen, operation.routing->num_chosen);
    }
  }
};

}  // namespace tetrad
