// KV pages: the layout of keys and values in a page, and the page table of a sequence.
//
// Floats: a page of one layer has keys [KV heads][head_dim][block_size], then values [KV heads][block_size][head_dim]. Keys are
//   transposed, so that the scores of LANES keys fill the lanes of a vector and no sum runs across a vector.
// 8 bits: numbers stand in pairs, because processors multiply and add pairs in one instruction. Keys pair two dimensions:
//   [KV heads][head_dim / 2][block_size][2]; values pair two tokens: [KV heads][block_size / 2][head_dim][2]. If block_size is
//   no multiple of LANES, both are [KV heads][block_size][head_dim]. Scales in half precision follow, of keys and then of
//   values: [KV heads][blocks of 32 dimensions][block_size].
#pragma once
#include "vec.h"

namespace tetrad {

constexpr int MAX_HEAD_DIM = 256;
constexpr int SCALED = 32;  // dimensions of a head that share a scale

// The type of keys and values in pages.
enum KvType : int32_t { FLOAT32, FLOAT16, INT8 };

// The shape of a model's attention. The program sets `window`, `sinks` and `slopes` for each layer.
struct Heads {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int32_t window;  // number of last keys that a query of the current layer attends to; 0: all keys
  int32_t kv_type;
  int32_t rotary_dim;   // number of dimensions of a head that are rotated by position
  float scale;          // factor of the products of queries and keys; 0: 1 / sqrt(head_dim)
  float softcap;        // scores become softcap * tanh(score / softcap); 0: scores are not bounded
  int64_t page_stride;  // elements from a layer's page of one block to its page of the next block
  const float* sinks;   // attention sinks of the current layer, or null: per head a score in the softmax that has no value
  const float* slopes;  // slopes of the current layer's linear biases, one per head, or null: no biases

  int64_t group() const { return num_heads / num_kv_heads; }
  float score_scale() const { return scale != 0.0f ? scale : 1.0f / __builtin_sqrtf(static_cast<float>(head_dim)); }
  int64_t num_scales() const { return kv_type == INT8 ? (head_dim + SCALED - 1) / SCALED : 0; }  // of one head of one token
  int64_t page_size() const { return scales_at() + value_scale_at(num_kv_heads) * static_cast<int64_t>(sizeof(half_t)); }
  int64_t key_at(int64_t kv_head) const { return kv_head * head_dim * block_size; }
  int64_t value_at(int64_t kv_head) const { return (num_kv_heads + kv_head) * head_dim * block_size; }
  int64_t scales_at() const { return int64_t(2) * num_kv_heads * head_dim * block_size; }
  int64_t key_scale_at(int64_t kv_head) const { return kv_head * num_scales() * block_size; }
  int64_t value_scale_at(int64_t kv_head) const { return (num_kv_heads + kv_head) * num_scales() * block_size; }
};

// The page table of a sequence, and its tokens in the step.
struct Sequence {
  const int32_t* pages;
  int64_t first_token;   // index of the sequence's first token in the step
  int64_t num_computed;  // position of that token
  const int64_t* ends;   // of each of the tokens, the position behind the last key that it attends to; null: its own + 1
};

// Return the index of dimension `d` of the token in `slot`, within the keys or the values of one KV head.
template <typename Element>
inline int64_t key_index(const Heads& heads, int64_t slot, int64_t d) {
  return d * heads.block_size + slot;
}
template <typename Element>
inline int64_t value_index(const Heads& heads, int64_t slot, int64_t d) {
  return slot * heads.head_dim + d;
}
template <>
inline int64_t key_index<int8_t>(const Heads& heads, int64_t slot, int64_t d) {
  return heads.block_size % LANES == 0 ? (d / 2 * heads.block_size + slot) * 2 + d % 2 : slot * heads.head_dim + d;
}
template <>
inline int64_t value_index<int8_t>(const Heads& heads, int64_t slot, int64_t d) {
  return heads.block_size % LANES == 0 ? (slot / 2 * heads.head_dim + d) * 2 + slot % 2 : slot * heads.head_dim + d;
}

inline half_t* scales_of(const Heads& heads, int8_t* page) { return reinterpret_cast<half_t*>(page + heads.scales_at()); }
inline const half_t* scales_of(const Heads& heads, const int8_t* page) {
  return reinterpret_cast<const half_t*>(page + heads.scales_at());
}

// Write the keys and values [KV heads][head_dim] of one token to its slot.
template <typename Element>
inline void write_key_value(const Heads& heads, Element* cache, int64_t slot, const float* keys, const float* values) {
  Element* page = cache + slot / heads.block_size * heads.page_stride;
  const int64_t offset = slot % heads.block_size, size = heads.head_dim;
  for (int64_t head = 0; head < heads.num_kv_heads; head++)
    for (int64_t d = 0; d < size; d++) {
      put(page + heads.key_at(head) + key_index<Element>(heads, offset, d), keys[head * size + d]);
      put(page + heads.value_at(head) + value_index<Element>(heads, offset, d), values[head * size + d]);
    }
}

// Quantize one head of one token to 8 bits. Scales are written `stride` elements apart.
inline void quantize_head(const float* x, int64_t size, int8_t* quanta, half_t* scales, int64_t stride) {
  for (int64_t begin = 0; begin < size; begin += SCALED, scales += stride) {
    const int64_t end = begin + SCALED < size ? begin + SCALED : size;
    vf top = {};
    vi is_odd = {};
    for (int64_t d = begin; d < end; d += LANES) {
      top = larger(absolute(load(x + d)), top);
      is_odd |= not_finite(load(x + d));
    }
    put(scales, any(is_odd) ? NAN : largest(top) / 127.0f);
    // With a scale that is infinite or not a number, quanta are 0, and their products with the scale are not finite either.
    const float scale = to_float(*scales), inverse = scale > 0.0f && scale < INFINITY ? 1.0f / scale : 0.0f;
    for (int64_t d = begin; d < end; d += LANES) {
      const vf value = inverse ? load(x + d) * inverse : vf{};
      const vf bounded = larger(splat(-127.0f), value < 127.0f ? value : splat(127.0f));  // a tiny scale is rounded coarsely
      const vb bytes = __builtin_convertvector(nearest(bounded), vb);
      std::memcpy(quanta + d, &bytes, sizeof bytes);
    }
  }
}

inline void write_key_value(const Heads& heads, int8_t* cache, int64_t slot, const float* keys, const float* values) {
  int8_t* page = cache + slot / heads.block_size * heads.page_stride;
  const int64_t offset = slot % heads.block_size, size = heads.head_dim, block_size = heads.block_size;
  half_t* scales = scales_of(heads, page) + offset;
  alignas(64) int8_t key[MAX_HEAD_DIM], value[MAX_HEAD_DIM];
  for (int64_t head = 0; head < heads.num_kv_heads; head++) {
    quantize_head(keys + head * size, size, key, scales + heads.key_scale_at(head), block_size);
    quantize_head(values + head * size, size, value, scales + heads.value_scale_at(head), block_size);
    for (int64_t d = 0; d < size; d++) {
      page[heads.key_at(head) + key_index<int8_t>(heads, offset, d)] = key[d];
      page[heads.value_at(head) + value_index<int8_t>(heads, offset, d)] = value[d];
    }
  }
}

// Copy KV head `head` of the token in `slot` to head `to_head` of slot `to_slot`, in a page of a different layout.
template <typename Element>
inline void copy_token(const Heads& heads, const Element* page, int64_t slot, int64_t head, const Heads& to_heads, Element* to_page,
                       int64_t to_slot, int64_t to_head) {
  const Element *key = page + heads.key_at(head), *value = page + heads.value_at(head);
  Element *to_key = to_page + to_heads.key_at(to_head), *to_value = to_page + to_heads.value_at(to_head);
  for (int64_t d = 0; d < heads.head_dim; d++) {
    to_key[key_index<Element>(to_heads, to_slot, d)] = key[key_index<Element>(heads, slot, d)];
    to_value[value_index<Element>(to_heads, to_slot, d)] = value[value_index<Element>(heads, slot, d)];
  }
  if constexpr (sizeof(Element) == 1) {
    const half_t* scales = scales_of(heads, page) + slot;
    half_t* to_scales = scales_of(to_heads, to_page) + to_slot;
    for (int64_t i = 0; i < heads.num_scales(); i++) {
      to_scales[to_heads.key_scale_at(to_head) + i * to_heads.block_size] = scales[heads.key_scale_at(head) + i * heads.block_size];
      to_scales[to_heads.value_scale_at(to_head) + i * to_heads.block_size] = scales[heads.value_scale_at(head) + i * heads.block_size];
    }
  }
}

}  // namespace tetrad
