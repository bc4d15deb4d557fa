#pragma once

#include <cstdint>

#include "dtype.h"

namespace qkv {

// The largest tile of any instruction set.
constexpr int kMaxTileRows = 16;
constexpr int kMaxTileKeys = 64;

// Tokens in a page of a cache (cache.h), and the most query rows that are processed together in registers.
constexpr int kPageTokens = 64;
constexpr int kGroupTokens = 16;  // no vector has more lanes
constexpr int kMaxBlockRows = 6;

// Memory that will be read next; 0 bytes if unknown.
struct NextRead {
    const char* at;
    int64_t bytes;
    bool near = false;  // whether it is fetched into the fastest CPU cache, not into the second
};

// The feature maps of the library. The numbers are part of the bindings.
enum class Map : int { identity = 0, elu1 = 1, relu = 2, squared = 3, power = 4 };

// The activations of feed-forward layers. The numbers are part of the bindings.
enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };

// A matrix as a left factor: element (r, t) is at[r · row_stride + t · inner_stride].
struct Factor {
    const float* at;
    int64_t row_stride, inner_stride;
};

// One token of a state (state.h): rows of the state are multiplied by `factors`, then key · u is added, with u = value, or
// beta · (value - stateᵀ key) for the delta rule; out = stateᵀ query for each query. Nothing need be aligned.
struct StateToken {
    int64_t width, columns;
    const float *factors, *key, *value;
    bool delta;
    float beta;
    const float* queries;
    int64_t queries_stride, query_count;
    float* out;
    int64_t out_stride;
};

// The functions of an instruction set. A tile is `tile_rows` queries against a panel of `tile_keys` keys; both are
// packed with the width outermost: queries[width][tile_rows], panel[width][tile_keys]. `scores` is scratch of
// tile_rows × tile_keys. All packed memory is aligned to 64 bytes.
struct KernelTable {
    const char* name;
    int lanes;  // floats in a vector
    int tile_rows;
    int tile_keys;

    // out[c][r] = rows[r][c] as float32 for r < count; further slots repeat the last row.
    void (*pack_rows)(const void* const* rows, int count, int slots, Dtype dtype, int64_t width,
                      int64_t stride_width, float* out);

    // to[i] = the i-th of `count` elements as float32, `stride` bytes apart.
    void (*widen_row)(const char* from, int64_t stride, int64_t count, Dtype dtype, float* to);

    // scores[r][j] = Σ_c queries[c][r] · panel[c][j], summed over c in ascending order for every pair.
    void (*score_tile)(const float* queries, const float* panel, int64_t width, float* scores);

    // If a row of scores has a score larger than best[r], best[r] becomes the largest and index[r] becomes first_key +
    // its lowest position. Returns the rows with a NaN as bits; these rows do not change.
    uint32_t (*update_rows)(const float* scores, int64_t first_key, float* best, int64_t* index);

    // score_tile, then update_rows if a row may change.
    uint32_t (*sweep_tile)(const float* queries, const float* panel, int64_t width, float* scores,
                           int64_t first_key, float* best, int64_t* index);

    // Whether `count` elements are all finite; they need not be aligned.
    bool (*all_finite)(const void* data, int64_t count, Dtype dtype);

    // The keys of a page: scores[r][t] = Σ_c queries[c][r] · keys[c][t] for the first `tokens`, and -inf for the rest
    // of the 64 (except the rest of a vector); rows of scores are `stride` apart; summed over c in the same order for
    // every pair. The sums of a group of channels are multiplied by scales[group][t], if the format has scales.
    // `widened` is scratch of 64 × width_slots floats if there are more than kMaxBlockRows rows and the
    // storage is not float32.
    void (*score_page)(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                       const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead,
                       float* widened);

    // The same for latents: keys[t][c], queries[r][c]. The rest of the 64 scores is all -inf.
    void (*score_latents)(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                          const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead,
                          float* widened);

    // The values of a page: sums[r][c] += Σ_t (weights[r][t] · scales[group][t]) · values[t][c] for the first `tokens`, in
    // ascending order. A token is `row_slots` numbers after the one before.
    void (*weigh_page)(const float* weights, int64_t stride, int rows, const char* values, Dtype storage,
                       int64_t value_slots, int64_t row_slots, const char* scales, int tokens, float* sums,
                       const NextRead& ahead, float* widened);

    // A row of scores; `count` is a multiple of 16. score · scale, then softcap · tanh(score / softcap).
    void (*scale_scores)(float* scores, int64_t count, float scale, float softcap);
    // The largest score that is not NaN; -inf if there is none.
    float (*largest_score)(const float* scores, int64_t count);
    // score becomes e^((score - highest) · scale); returns their sum.
    float (*exponentials)(float* scores, int64_t count, float scale, float highest);
    // score becomes 1 / (1 + e^-(score + offset)), within 4 ulp of a weight that is not subnormal; returns their sum.
    float (*sigmoids)(float* scores, int64_t count, float offset);
    void (*multiply_rows)(float* rows, int64_t count, const float* factors);
    // total = total · kept + part · taken; `count` is a multiple of 16.
    void (*merge_row)(float* total, float kept, const float* part, float taken, int64_t count);

    // c = a·b, or c + a·b, with `rows` rows and `columns` columns, a multiple of 16; summed over `inner` in ascending
    // order for every element. b may be unaligned.
    void (*multiply_matrix)(const Factor& a, int64_t rows, const float* b, int64_t b_stride, int64_t inner, float* c,
                            int64_t c_stride, int64_t columns, bool onto);
    // φ, for the elementwise maps; `count` is rounded up to a multiple of 16. `from` may be `to`, and unaligned.
    void (*map_row)(const float* from, int64_t count, Map map, float* to);
    // to[r][i] = prefix[r] · x[r][i] (· weights[i]), with `count` rounded up to a multiple of 16.
    void (*form_features)(const float* x, int64_t stride, int64_t rows, int64_t count, const float* prefix,
                          const float* weights, float* to, int64_t to_stride);
    // sums[i] += Σ_r matrix[r][i].
    void (*add_columns)(const float* matrix, int64_t stride, int64_t rows, int64_t count, float* sums);
    // sums[r] += Σ_i matrix[r][i] · vector[i].
    void (*add_dots)(const float* matrix, int64_t stride, int64_t rows, int64_t count, const float* vector,
                     float* sums);
    // to[i] = from[i] · factor; `to` may be unaligned.
    void (*scale_row)(const float* from, int64_t count, float factor, float* to);
    // x becomes (x + offset)^degree.
    void (*raise_row)(float* row, int64_t count, float offset, int degree);

    // A row of a transformer, which need not be aligned.
    // to = (x - mean) / sqrt(mean square + eps) · weight + bias; the mean is 0 unless `centred`. `to` may be x.
    void (*normalize_row)(const float* x, int64_t count, const float* weight, const float* bias, float eps, bool centred,
                          float* to);
    // Rotates pairs of features: 2i and 2i + 1 if interleaved, otherwise i and i + pairs.
    void (*rotate_pairs)(float* vector, int64_t pairs, const float* cosines, const float* sines, bool interleaved);
    // x becomes activation(x), times `factors` unless nullptr.
    void (*activate_row)(float* x, const float* factors, int64_t count, Activation activation);

    // A state that decays and is corrected. Chunks have rows of tokens; matrices of tokens by tokens are lower triangular.
    void (*advance_state)(float* state, int64_t stride, const StateToken& token);
    // products[i][j] = Π factors[t] over j < t <= i, for j <= i; 0 where that is subnormal.
    void (*multiply_factors)(const float* factors, int64_t rows, float* products, int64_t stride);
    // The same with factors for each channel: before[i] = Π factors[t] over t <= i, after[i] over t > i.
    void (*scan_factors)(const float* factors, int64_t stride, int64_t rows, int64_t width, float* before, float* after);
    // Rows first ..: scores[r][j] becomes row_factors[r] · scores[r][j] · weights[r][j], and 0 from j = r + 1 - strict on,
    // up to a multiple of 16; without weights or row_factors these are 1.
    void (*mask_scores)(float* scores, int64_t stride, int64_t first, int64_t rows, int strict, const float* weights,
                        const float* row_factors);
    // scores[i][j] = Σ_c left[i][c] · keys[c][j] · Π factors[t][c] over j < t <= i, for j <= i, and 0 after that. At most
    // kGroupTokens rows; a line of `keys` has as many tokens.
    void (*score_channels)(const float* left, int64_t left_stride, const float* keys, const float* factors,
                           int64_t factors_stride, int64_t rows, int64_t width, float* scores, int64_t stride);
    // to[r][i] = a[r][i] · b[r][i]
    void (*multiply_pairs)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t count,
                           float* to, int64_t to_stride);
    // sums[r] becomes factors[r] · (values[r] - sums[r]).
    void (*correct_rows)(const float* values, int64_t values_stride, const float* factors, int64_t rows, int64_t count,
                         float* sums, int64_t stride);
    // u[i] += Σ_{j<i} lower[i][j] · u[j], from the first row on, for at most kGroupTokens rows.
    void (*solve_lower)(const float* lower, int64_t lower_stride, int64_t rows, float* u, int64_t stride, int64_t count);
    // odd[n] = whether columns 16n .. 16n + 15 have a number that is not finite, or a sum that overflows.
    bool (*find_odd_columns)(const float* matrix, int64_t stride, int64_t rows, int64_t count, uint8_t* odd);
};

namespace portable {
const KernelTable& table();
}
#ifdef QKV_X86
namespace avx2 {
const KernelTable& table();
}
namespace avx512 {
const KernelTable& table();
}
#endif

}  // namespace qkv
