// Routing: chooses the experts of each token and their weights, and sorts tokens by expert.
//
// A pair is a token and one of its experts. Pairs are sorted by expert, so that an expert's weights are read once for all its
// tokens; `place` is a pair's index in that order. A token's outputs are added in the order in which its experts were chosen,
// so the sum does not depend on the tokens beside it.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "operation.h"
#include "product.h"

namespace tetrad {

// The methods of choosing experts; see model_facts/config.py. Scores and weights are float32.
enum Router : int32_t { SOFTMAX = 0, SOFTMAX_CHOSEN = 1, GROUPED_SOFTMAX = 2, GROUPED_SIGMOID = 3 };

// A piece of the work of one expert: pairs `first` .. `first + count`, at most TOKENS_AT_ONCE.
struct ExpertPiece {
  int32_t expert;
  int64_t first, count;
};

// Replace scores by probabilities, in place.
inline void softmax(float* scores, int64_t size) {
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t i = 0; i < size; i++) top = std::max(top, scores[i]);
  for (int64_t i = 0; i < size; i++) sum += scores[i] = std::exp(scores[i] - top);
  for (int64_t i = 0; i < size; i++) scores[i] /= sum;
}

// Find the indices of the `count` largest values, the largest first, equal ones by index. NaN counts as the largest value, so
// that it reaches the output.
inline void find_largest(float* values, int64_t size, int64_t count, int32_t* found) {
  std::vector<bool> is_taken(size);
  for (int64_t i = 0; i < count; i++) {
    int64_t best = -1;
    for (int64_t j = 0; j < size; j++)
      if (!is_taken[j] && (best < 0 || values[j] > values[best] || (values[j] != values[j] && values[best] == values[best]))) best = j;
    is_taken[best] = true;
    found[i] = static_cast<int32_t>(best);
  }
}

// Exclude all groups of experts but the num_chosen_groups best ones: set the values of their experts to `closed`. Groups
// compare by their largest value or, with sigmoids, by the sum of their two largest values.
inline void close_groups(const Routing& routing, float* values, float closed) {
  const int64_t size = routing.num_experts / routing.num_groups;
  std::vector<float> best(routing.num_groups);
  for (int64_t g = 0; g < routing.num_groups; g++) {
    const float* its = values + g * size;
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (int64_t i = 0; i < size; i++) {
      if (its[i] > first || its[i] != its[i]) {
        second = first;
        first = its[i];
      } else {
        second = std::max(second, its[i]);
      }
    }
    best[g] = routing.router == GROUPED_SIGMOID ? first + second : first;
  }
  std::vector<int32_t> open(routing.num_chosen_groups);
  find_largest(best.data(), routing.num_groups, routing.num_chosen_groups, open.data());
  for (int32_t g = 0; g < routing.num_groups; g++)
    if (std::find(open.begin(), open.end(), g) == open.end()) std::fill_n(values + g * size, size, closed);
}

// Choose a token's experts by its scores, and compute their weights. The scores are overwritten.
inline void choose_experts(const Routing& routing, float* scores, float* weights, int32_t* chosen) {
  const int64_t size = routing.num_experts, count = routing.num_chosen;
  if (routing.router == GROUPED_SIGMOID) {
    for (int64_t i = 0; i < size; i++) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
  } else if (routing.router != SOFTMAX_CHOSEN) {
    softmax(scores, size);
  }
  std::vector<float> values(scores, scores + size);
  if (routing.router == GROUPED_SIGMOID) {
    for (int64_t i = 0; routing.correction && i < size; i++) values[i] += routing.correction[i];
    close_groups(routing, values.data(), -std::numeric_limits<float>::infinity());
  } else if (routing.router == GROUPED_SOFTMAX) {
    close_groups(routing, values.data(), 0.0f);
  }
  find_largest(values.data(), size, count, chosen);
  for (int64_t i = 0; i < count; i++) weights[i] = scores[chosen[i]];
  if (routing.router == SOFTMAX_CHOSEN) softmax(weights, count);
  float sum = 1e-20f;
  for (int64_t i = 0; i < count; i++) sum += weights[i];
  for (int64_t i = 0; i < count; i++) weights[i] *= routing.is_renormalized ? routing.scale / sum : routing.scale;
}

// The pairs of a step in the current layer: T tokens with C experts each.
struct Pairs {
  std::vector<float> weights;        // [T, C]
  std::vector<int32_t> chosen;       // [T, C]
  std::vector<int32_t> places;       // [T, C]
  std::vector<int32_t> tokens;       // by place
  std::vector<int32_t> experts;      // by place
  std::vector<ExpertPiece> pieces;   // in the order of experts
  std::vector<int64_t> next;         // by expert, place of its next pair; used while pairs are sorted

  // Make room for the pairs of T tokens with at most `most_chosen` experts each.
  void make_room(int64_t num_tokens, int64_t most_chosen) {
    const size_t size = num_tokens * most_chosen;
    if (places.size() >= size) return;
    weights.resize(size);
    chosen.resize(size);
    places.resize(size);
    tokens.resize(size);
    experts.resize(size);
  }

  // Return the maximum number of pieces that the pairs of T tokens can make.
  static int64_t most_pieces(const Routing& routing, int64_t num_tokens) {
    const int64_t pairs = num_tokens * routing.num_chosen;
    return std::min(pairs, pairs / TOKENS_AT_ONCE + routing.num_experts);
  }

  // Sort the pairs of T tokens, whose experts must have been chosen, make pieces of them, and add to the routing's counts.
  void sort(const Routing& routing, int64_t num_tokens) {
    const int64_t count = routing.num_chosen;
    next.assign(routing.num_experts, 0);
    for (int64_t pair = 0; pair < num_tokens * count; pair++) next[chosen[pair]]++;
    pieces.clear();
    int64_t first = 0;
    for (int32_t expert = 0; expert < routing.num_experts; expert++) {
      const int64_t its = next[expert];
      routing.counts[expert] += its;
      for (int64_t begin = 0; begin < its; begin += TOKENS_AT_ONCE)
        pieces.push_back({expert, first + begin, std::min(TOKENS_AT_ONCE, its - begin)});
      next[expert] = first;
      first += its;
    }
    for (int64_t pair = 0; pair < num_tokens * count; pair++) {
      const int64_t place = next[chosen[pair]]++;
      places[pair] = static_cast<int32_t>(place);
      tokens[place] = static_cast<int32_t>(pair / count);
      experts[place] = chosen[pair];
    }
  }

  // Write columns `first` up to `last` of the weighted sum of a token's outputs to `out`. Rows of `outputs` are by place.
  void mix(const Routing& routing, int64_t token, const float* outputs, int64_t columns, int64_t first, int64_t last, float* out) const {
    const int64_t count = routing.num_chosen;
    const float* its_weights = weights.data() + token * count;
    const int32_t* its_places = places.data() + token * count;
    int64_t i = first;
    for (; i + LANES <= last; i += LANES) {
      vf sum = {};
      for (int64_t c = 0; c < count; c++) sum += load(outputs + its_places[c] * columns + i) * its_weights[c];
      store(out + i - first, sum);
    }
    for (; i < last; i++) {
      float sum = 0;
      for (int64_t c = 0; c < count; c++) sum += outputs[its_places[c] * columns + i] * its_weights[c];
      out[i - first] = sum;
    }
  }
};

}  // namespace tetrad
