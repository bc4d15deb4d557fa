#include "counting.h"

#include <atomic>
#include <stdexcept>

#include "scratch.h"

namespace qkv {

namespace {

using Counter = std::atomic<int64_t>;

Counter score_flops{0}, value_flops{0}, other_flops{0}, feature_flops{0}, exponential_count{0}, tile_count{0};

void add(Counter& counter, int64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

// A table for each instruction set, which is the template argument of its functions.
template <const KernelTable& (*real)()>
struct Counting {
    static int64_t in_vectors(int64_t count) { return round_up(count, real().lanes); }

    static void count_tile(int64_t width) {
        add(score_flops, 2 * real().tile_rows * real().tile_keys * width);
        add(tile_count, 1);
    }

    static void score_tile(const float* queries, const float* panel, int64_t width, float* scores) {
        count_tile(width);
        real().score_tile(queries, panel, width, scores);
    }

    static uint32_t sweep_tile(const float* queries, const float* panel, int64_t width, float* scores,
                               int64_t first_key, float* best, int64_t* index) {
        count_tile(width);
        return real().sweep_tile(queries, panel, width, scores, first_key, best, index);
    }

    static void score_page(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                           const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead,
                           float* widened) {
        add(score_flops, 2 * rows * in_vectors(tokens) * width_slots);
        add(tile_count, 1);
        real().score_page(queries, rows, keys, storage, width_slots, scales, scores, stride, tokens, ahead, widened);
    }

    static void score_latents(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                              const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead,
                              float* widened) {
        add(score_flops, 2 * rows * tokens * width_slots);
        add(tile_count, 1);
        real().score_latents(queries, rows, keys, storage, width_slots, scales, scores, stride, tokens, ahead, widened);
    }

    static void weigh_page(const float* weights, int64_t stride, int rows, const char* values, Dtype storage,
                           int64_t value_slots, int64_t row_slots, const char* scales, int tokens, float* sums,
                           const NextRead& ahead, float* widened) {
        add(value_flops, 2 * rows * tokens * value_slots);
        real().weigh_page(weights, stride, rows, values, storage, value_slots, row_slots, scales, tokens, sums, ahead,
                          widened);
    }

    static void scale_scores(float* scores, int64_t count, float scale, float softcap) {
        if (softcap != 0.0f) add(exponential_count, in_vectors(count));
        real().scale_scores(scores, count, scale, softcap);
    }

    static float exponentials(float* scores, int64_t count, float scale, float highest) {
        add(exponential_count, in_vectors(count));
        return real().exponentials(scores, count, scale, highest);
    }

    static float sigmoids(float* scores, int64_t count, float offset) {
        add(exponential_count, in_vectors(count));
        return real().sigmoids(scores, count, offset);
    }

    static void multiply_matrix(const Factor& a, int64_t rows, const float* b, int64_t b_stride, int64_t inner,
                                float* c, int64_t c_stride, int64_t columns, bool onto) {
        add(other_flops, 2 * rows * columns * inner);
        real().multiply_matrix(a, rows, b, b_stride, inner, c, c_stride, columns, onto);
    }

    static void add_columns(const float* matrix, int64_t stride, int64_t rows, int64_t count, float* sums) {
        add(other_flops, rows * in_vectors(count));
        real().add_columns(matrix, stride, rows, count, sums);
    }

    // Elements that do not fill a vector are computed one by one.
    static void add_dots(const float* matrix, int64_t stride, int64_t rows, int64_t count, const float* vector,
                         float* sums) {
        add(other_flops, 2 * rows * count);
        real().add_dots(matrix, stride, rows, count, vector, sums);
    }

    // e^x is computed for every x, negative or not.
    static void map_row(const float* from, int64_t count, Map map, float* to) {
        if (map == Map::elu1) add(exponential_count, in_vectors(count));
        if (map == Map::squared) add(feature_flops, in_vectors(count));
        real().map_row(from, count, map, to);
    }

    static void form_features(const float* x, int64_t stride, int64_t rows, int64_t count, const float* prefix,
                              const float* weights, float* to, int64_t to_stride) {
        add(feature_flops, (weights == nullptr ? 1 : 2) * rows * in_vectors(count));
        real().form_features(x, stride, rows, count, prefix, weights, to, to_stride);
    }

    static void raise_row(float* row, int64_t count, float offset, int degree) {
        add(feature_flops, degree * in_vectors(count));
        real().raise_row(row, count, offset, degree);
    }

    // Decays, corrections and outputs of one token.
    static void advance_state(float* state, int64_t stride, const StateToken& token) {
        const int64_t cells = token.width * in_vectors(token.columns);
        add(other_flops, cells * (token.delta ? 6 : 3) + 2 * cells * token.query_count);
        real().advance_state(state, stride, token);
    }

    static void score_channels(const float* left, int64_t left_stride, const float* keys, const float* factors,
                               int64_t factors_stride, int64_t rows, int64_t width, float* scores, int64_t stride) {
        add(other_flops, 4 * rows * kGroupTokens * width);
        real().score_channels(left, left_stride, keys, factors, factors_stride, rows, width, scores, stride);
    }

    static void solve_lower(const float* lower, int64_t lower_stride, int64_t rows, float* u, int64_t stride,
                            int64_t count) {
        add(other_flops, rows * (rows - 1) * in_vectors(count));
        real().solve_lower(lower, lower_stride, rows, u, stride, count);
    }

    static const KernelTable& table() {
        static const KernelTable kernels = [] {
            KernelTable copy = real();
            copy.score_tile = score_tile;
            copy.sweep_tile = sweep_tile;
            copy.score_page = score_page;
            copy.score_latents = score_latents;
            copy.weigh_page = weigh_page;
            copy.scale_scores = scale_scores;
            copy.exponentials = exponentials;
            copy.sigmoids = sigmoids;
            copy.multiply_matrix = multiply_matrix;
            copy.add_columns = add_columns;
            copy.add_dots = add_dots;
            copy.map_row = map_row;
            copy.form_features = form_features;
            copy.raise_row = raise_row;
            copy.advance_state = advance_state;
            copy.score_channels = score_channels;
            copy.solve_lower = solve_lower;
            return copy;
        }();
        return kernels;
    }
};

}  // namespace

const KernelTable& counting(const KernelTable& kernels) {
    if (&kernels == &portable::table()) return Counting<portable::table>::table();
#ifdef QKV_X86
    if (&kernels == &avx2::table()) return Counting<avx2::table>::table();
    if (&kernels == &avx512::table()) return Counting<avx512::table>::table();
#endif
    throw std::invalid_argument("not the kernels of an instruction set");
}

Counts counts() {
    return {score_flops.load(), value_flops.load(), other_flops.load(), feature_flops.load(), exponential_count.load(),
            tile_count.load()};
}

}  // namespace qkv
