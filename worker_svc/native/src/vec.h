// Vectors: common names for the widest float vectors of the machine that the library is compiled on. Arithmetic uses the vector
// extensions of GCC and clang, so a new instruction set needs no code here; compilers contract multiply-adds to FMA.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tetrad {

// Use 512 bits only if the processor also has integer dot products (VNNI); without these, 512 bits gain little.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define TETRAD_AVX512
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef float vf_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline vf load(const float* at) { return *reinterpret_cast<const vf_unaligned*>(at); }
inline void store(float* at, vf value) { *reinterpret_cast<vf_unaligned*>(at) = value; }
inline vf splat(float value) { return value - vf{}; }
inline vi splat_int(int32_t value) { return value - vi{}; }
inline vf to_float(vi value) { return __builtin_convertvector(value, vf); }

typedef int8_t vb __attribute__((vector_size(LANES)));

inline vf absolute(vf value) { return value < 0.0f ? -value : value; }
inline vf larger(vf a, vf b) { return a > b ? a : b; }
inline vi not_finite(vf value) { return value - value != 0.0f; }

// Round to the nearest integer, ties to even. Values up to 2^22.
inline vi nearest(vf value) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23
  return __builtin_convertvector((value + magic) - magic, vi);
}

// Sums across a vector run in one fixed order, so that a row's result does not depend on the rows beside it.
#if defined(TETRAD_AVX512)
inline float sum(vf value) { return _mm512_reduce_add_ps(reinterpret_cast<__m512>(value)); }
inline int32_t sum(vi value) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(value)); }
inline float largest(vf value) { return _mm512_reduce_max_ps(reinterpret_cast<__m512>(value)); }
inline int32_t smallest(vi value) { return _mm512_reduce_min_epi32(reinterpret_cast<__m512i>(value)); }
#else
inline float sum(vf value) {
  float total = 0;
  for (int lane = 0; lane < LANES; lane++) total += value[lane];
  return total;
}
inline int32_t sum(vi value) {
  int32_t total = 0;
  for (int lane = 0; lane < LANES; lane++) total += value[lane];
  return total;
}
inline float largest(vf value) {
  float found = value[0];
  for (int lane = 1; lane < LANES; lane++) found = value[lane] > found ? value[lane] : found;
  return found;
}
inline int32_t smallest(vi value) {
  int32_t found = value[0];
  for (int lane = 1; lane < LANES; lane++) found = value[lane] < found ? value[lane] : found;
  return found;
}
#endif

inline vi lane_numbers() {
  vi lanes;
  for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
  return lanes;
}

// Whether any lane's mask is set.
inline bool any(vi mask) {
#if defined(TETRAD_AVX512)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#else
  for (int lane = 0; lane < LANES; lane++)
    if (mask[lane]) return true;
  return false;
#endif
}

// Copy a short row. The call of memcpy would take longer than the copy.
inline void copy_row(const float* from, int64_t size, float* to) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) store(to + i, load(from + i));
  for (; i < size; i++) to[i] = from[i];
}

// The columns of two rows, of which those with the bit HALF of their index change places: `upper` for the first row, `lower` for
// the second. GCC has __builtin_shufflevector from release 12 on, clang has no __builtin_shuffle.
#if defined(__clang__)
template <int HALF, int... LANE>
inline void swap_blocks(vf& upper, vf& lower, std::integer_sequence<int, LANE...>) {
  const vf above = upper, below = lower;
  upper = __builtin_shufflevector(above, below, (LANE & HALF ? LANE + LANES - HALF : LANE)...);
  lower = __builtin_shufflevector(above, below, (LANE & HALF ? LANE + LANES : LANE + HALF)...);
}
#else
template <int HALF, int... LANE>
inline void swap_blocks(vf& upper, vf& lower, std::integer_sequence<int, LANE...>) {
  const vf above = upper, below = lower;
  upper = __builtin_shuffle(above, below, vi{(LANE & HALF ? LANE + LANES - HALF : LANE)...});
  lower = __builtin_shuffle(above, below, vi{(LANE & HALF ? LANE + LANES : LANE + HALF)...});
}
#endif

// Transpose a square of LANES rows. Each pass swaps the blocks beside the diagonal; the block size halves with each pass.
template <int HALF = LANES / 2>
inline void transpose(vf (&rows)[LANES]) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++)
    if (!(i & HALF)) swap_blocks<HALF>(rows[i], rows[i + HALF], std::make_integer_sequence<int, LANES>());
  if constexpr (HALF > 1) transpose<HALF / 2>(rows);
}

// e^x to about 1 ulp, 0 below -87: Cephes' polynomial on x - n ln 2, |x - n ln 2| <= ln 2 / 2.
// Always inlined: in loops over rows, a call would take longer than the polynomial.
[[gnu::always_inline]] inline vf exponential(vf x) {
  const vf is_tiny_at = splat(-87.0f), top = splat(88.0f);
  vf bounded = x > top ? top : x;
  bounded = bounded < is_tiny_at ? is_tiny_at : bounded;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const vf shifted = bounded * 1.44269504088896341f + magic;
  const vf n = shifted - magic;
  const vf r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vi power = (__builtin_convertvector(n, vi) + 127) << 23;
  vf scale;
  std::memcpy(&scale, &power, sizeof scale);
  const vf result = p * scale;
  return x < is_tiny_at ? vf{} : (x != x ? x : result);
}

// A half-precision number; GCC has _Float16 on ARM from release 13 on, clang on x86-64 from release 15 on.
#if defined(__aarch64__) || defined(__clang__)
typedef __fp16 float16;
#else
typedef _Float16 float16;
#endif

// The bits of a half-precision number.
typedef uint16_t half_t;

// Load LANES half-precision numbers as floats.
inline vf load(const half_t* at) {
#if defined(TETRAD_AVX512)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
#else
  vf result;
  for (int lane = 0; lane < LANES; lane++) {
    float16 value;
    std::memcpy(&value, at + lane, sizeof value);
    result[lane] = static_cast<float>(value);
  }
  return result;
#endif
}

// A bfloat16 number: the upper half of a float.
struct bfloat_t {
  uint16_t bits;
};

// Load LANES bfloat16 numbers as floats.
inline vf load(const bfloat_t* at) {
#if defined(TETRAD_AVX512)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return reinterpret_cast<vf>(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  return reinterpret_cast<vf>(_mm256_slli_epi32(wide, 16));
#else
  vi wide;
  for (int lane = 0; lane < LANES; lane++) wide[lane] = static_cast<int32_t>(uint32_t(at[lane].bits) << 16);
  vf result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
#endif
}

inline float to_float(bfloat_t value) {
  const uint32_t wide = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

inline float to_float(half_t bits) {
  float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}
inline float to_float(float value) { return value; }

inline void put(float* at, float value) { *at = value; }
inline void put(half_t* at, float value) {
  const float16 rounded = static_cast<float16>(value);
  std::memcpy(at, &rounded, sizeof rounded);
}

// A vector of pairs of 16-bit numbers, one pair per lane.
typedef int16_t vp __attribute__((vector_size(LANES * 4)));

constexpr float MAX_INT16 = 32767.0f;

// Convert a vector to 16 bits and store it. Intrinsics take one or two instructions; GCC would convert element by element.
inline void store(int16_t* at, vi value) {
#if defined(TETRAD_AVX512)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(value)));
#elif defined(__AVX2__)
  const __m256i narrow = _mm256_packs_epi32(reinterpret_cast<__m256i>(value), reinterpret_cast<__m256i>(value));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(_mm256_permute4x64_epi64(narrow, 8)));
#else
  typedef int16_t shorts __attribute__((vector_size(LANES * 2)));
  const shorts narrow = __builtin_convertvector(value, shorts);
  std::memcpy(at, &narrow, sizeof narrow);
#endif
}

// Load LANES pairs of bytes as 16-bit numbers.
inline vp load_pairs(const int8_t* at) {
#if defined(TETRAD_AVX512)
  return reinterpret_cast<vp>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
#elif defined(__AVX2__)
  return reinterpret_cast<vp>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#else
  typedef int8_t bytes __attribute__((vector_size(LANES * 2)));
  bytes values;
  std::memcpy(&values, at, sizeof values);
  return __builtin_convertvector(values, vp);
#endif
}

inline vp splat_pair(const int16_t* at) {
  int32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  const vi pairs = splat_int(bits);
  vp result;
  std::memcpy(&result, &pairs, sizeof result);
  return result;
}

// Return, per lane, total + the sum of the products of the pair's numbers.
inline vi add_products(vi total, vp a, vp b) {
#if defined(TETRAD_AVX512)
  return reinterpret_cast<vi>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(total), reinterpret_cast<__m512i>(a),
                                                  reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return total + reinterpret_cast<vi>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  for (int lane = 0; lane < LANES; lane++) total[lane] += int32_t(a[2 * lane]) * b[2 * lane] + int32_t(a[2 * lane + 1]) * b[2 * lane + 1];
  return total;
#endif
}

// Prefetch a vector's memory: the processor's own prefetcher stops at the end of a page. Loops that compute should prefetch one
// line at a time: a processor has few line buffers, and a burst of prefetches delays the loads that follow.
template <typename Element>
inline void prefetch(const Element* at) {
  __builtin_prefetch(at, 0, 2);  // into the second-level cache
}

}  // namespace tetrad
