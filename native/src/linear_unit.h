#pragma once

// Linear attention on one key/value head of one batch row: adds chunks of keys to the state, answers chunks of queries.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "linear.h"
#include "monomials.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

// Tokens in a chunk. The cost of scores grows with the length of a chunk, and the cost of passes over the state with
// the number of chunks: large states need long chunks.
struct Chunk {
    int64_t max_features, tokens;
};
constexpr int64_t kMostChunk = 256;
constexpr Chunk kChunks[] = {{512, 64}, {8192, 128}, {INT64_MAX, kMostChunk}};

inline int64_t chunk_tokens(int64_t features) {
    const Chunk* chunk = kChunks;
    while (features > chunk->max_features) ++chunk;
    return chunk->tokens;
}

// The least number of chunks in a segment of keys, and the most segments, whose states must stay small.
constexpr int64_t kChunksInSegment = 8, kMaxSegments = 16;
constexpr int64_t kEnoughHeads = 4;
// A query of elu + 1 with all coordinates below this is shifted so that the largest is 0: e^x underflows at -87, and
// products of such numbers earlier.
constexpr float kLowest = -20.0f;

// Sizes common to all units.
struct LinearPlan {
    LinearPlan(const KernelTable& kernels, const LinearProblem& problem)
        : kernels(kernels),
          problem(problem),
          rule(problem.rule),
          power(rule.map == Map::power),
          features(rule.count()),
          has_state(!problem.direct || problem.state != nullptr),
          chunk(chunk_tokens(has_state ? features : 1)),
          group(problem.heads_q / problem.heads_kv),
          width_slots(round_up(rule.coordinates(), kLine)),
          value_slots(linear_value_slots(problem.value_width)),
          state_floats(linear_state_size(rule, problem.value_width)),
          x_floats(chunk * (width_slots + kLine)),
          v_floats(chunk * value_slots),
          // For a chunk: keys, transposed keys, queries, features; values and sums; scores.
          scratch_floats(4 * x_floats + 2 * v_floats + chunk * chunk + 3 * chunk) {
        if (power && has_state) monomials = std::make_unique<Monomials>(rule);
    }

    const KernelTable& kernels;
    const LinearProblem& problem;
    const FeatureRule rule;
    const bool power;
    const int64_t features;
    const bool has_state;
    const int64_t chunk, group, width_slots, value_slots, state_floats, x_floats, v_floats, scratch_floats;
    std::unique_ptr<Monomials> monomials;
};

// One key/value head of one batch row, and the query heads that read it.
class LinearUnit {
public:
    LinearUnit(const LinearPlan& all, int64_t unit, float* state, float* scratch)
        : all_(all),
          problem_(all.problem),
          kernels_(all.kernels),
          batch_(unit / all.problem.heads_kv),
          head_(unit % all.problem.heads_kv),
          state_(state) {
        z_ = state == nullptr ? nullptr : state + all.features * all.value_slots;
        const auto take = [&](int64_t floats) {
            float* taken = scratch;
            scratch += round_up(floats, kLine);
            return taken;
        };
        keys_ = take(all.x_floats);
        turned_ = take(all.x_floats);
        queries_ = take(all.x_floats);
        features_ = take(all.x_floats);
        own_values_ = take(all.v_floats);
        sums_ = take(all.v_floats);
        scores_ = take(all.chunk * all.chunk);
        below_ = take(all.chunk);
        prefix_ = take(all.chunk);
        counts_ = take(all.chunk);
    }

    int64_t absorbed() const { return absorbed_; }

    void absorb_range(int64_t from, int64_t to) {
        for (absorbed_ = from; absorbed_ < to;) {
            const int64_t stop = std::min(absorbed_ + all_.chunk, to);
            load_keys(absorbed_, stop);
            absorb();
            absorbed_ = stop;
        }
    }

    // Queries begin .. end, with a state of the keys before `absorbed`.
    void answer_range(int64_t begin, int64_t end, int64_t absorbed) {
        absorbed_ = absorbed;
        for (int64_t i0 = begin; i0 < end; i0 += all_.chunk) {
            const int64_t i1 = std::min(i0 + all_.chunk, end);
            absorb_range(absorbed_, seen_from(i0));
            const int64_t some = seen_from(i1);
            if (some > absorbed_) load_keys(absorbed_, some);
            for (int64_t g = 0; g < all_.group; ++g) answer(head_ * all_.group + g, i0, i1, absorbed_, some);
        }
    }

    // The queries of a chunk, from i0 on.
    void score_everything(int64_t i0) {
        const int64_t i1 = std::min(i0 + all_.chunk, problem_.len_q), seen_by_some = seen_from(i1);
        for (int64_t g = 0; g < all_.group; ++g) {
            const int64_t head = head_ * all_.group + g;
            ask(head, i0, i1);
            for (int64_t j0 = 0; j0 < seen_by_some; j0 += all_.chunk) {
                const int64_t j1 = std::min(j0 + all_.chunk, seen_by_some);
                load_keys(j0, j1);
                score_keys(i0, i1 - i0, j0, j1);
            }
            write(head, i0, i1 - i0);
        }
    }

private:
    // Query i and all later ones attend to the keys before this one.
    int64_t seen_from(int64_t i) const {
        return problem_.causal ? std::clamp<int64_t>(shifted(i), 0, problem_.len_k) : problem_.len_k;
    }

    // i + offset, clamped to just before the first key and just after the last, so that adding to it cannot overflow.
    int64_t shifted(int64_t i) const {
        int64_t position;
        if (__builtin_add_overflow(i, problem_.offset, &position)) position = problem_.offset > 0 ? problem_.len_k : -1;
        return std::clamp<int64_t>(position, -1, problem_.len_k);
    }

    // Row t of a tensor as float32; the tensor's own memory if it is contiguous float32.
    const float* row_of(const Tensor4& tensor, int64_t head, int64_t t, int64_t width, float* widened) const {
        const auto* row = static_cast<const char*>(row_address(tensor, problem_.dtype, batch_, head, t));
        if (problem_.dtype == Dtype::float32 && tensor.stride[3] == 1) return reinterpret_cast<const float*>(row);
        kernels_.widen_row(row, tensor.stride[3] * element_size(problem_.dtype), width, problem_.dtype, widened);
        return widened;
    }

    // The features of vectors, or for `power` the vectors and the 1 for the offset, padded with zeros. If only the
    // ratio of a row's features matters (`relative`), rows of very small e^x are scaled to avoid underflow.
    void load_vectors(const Tensor4& tensor, int64_t head, int64_t from, int64_t to, float* rows,
                      bool relative = false) const {
        const int64_t width = all_.rule.width, slots = all_.width_slots;
        for (int64_t t = from; t < to; ++t, rows += slots) {
            const float* row = row_of(tensor, head, t, width, rows);
            if (relative) {
                if (row != rows) std::memcpy(rows, row, width * sizeof(float));  // rows may be far apart
                raise(rows, width);
                row = rows;
            }
            if (!all_.power && width % kLine == 0) {
                kernels_.map_row(row, width, all_.rule.map, rows);
                continue;
            }
            if (row != rows) std::memcpy(rows, row, width * sizeof(float));
            if (!all_.power) kernels_.map_row(rows, width, all_.rule.map, rows);
            std::fill(rows + width, rows + slots, 0.0f);  // φ(0) need not be 0
            if (all_.rule.coordinates() > width) rows[width] = 1.0f;
        }
    }

    // Shifts a row of very low numbers so that its highest is 0, unless that is -inf or NaN.
    static void raise(float* row, int64_t width) {
        if (std::any_of(row, row + width, [](float x) { return x > kLowest; })) return;
        float highest = -INFINITY;
        for (int64_t c = 0; c < width; ++c) highest = row[c] > highest ? row[c] : highest;
        if (highest == -INFINITY) return;
        for (int64_t c = 0; c < width; ++c) row[c] -= highest;
    }

    void load_keys(int64_t from, int64_t to) {
        if (from == loaded_from_ && to == loaded_to_) return;
        loaded_from_ = from;
        loaded_to_ = to;
        is_turned_ = false;
        load_vectors(problem_.key, head_, from, to, keys_);
        const int64_t count = to - from, width = problem_.value_width;
        const Tensor4& value = problem_.value;
        // Values are used in place if their rows have the padded length and none is dropped.
        const bool as_they_are = problem_.keep == nullptr && problem_.dtype == Dtype::float32 &&
                                 value.stride[3] == 1 && width == all_.value_slots;
        if (as_they_are) {
            values_ = row_of(value, head_, from, width, nullptr);
            values_stride_ = value.stride[2];
        } else {
            for (int64_t t = 0; t < count; ++t) {
                float* to_row = own_values_ + t * all_.value_slots;
                const float* row = row_of(value, head_, from + t, width, to_row);
                if (row != to_row) std::memcpy(to_row, row, width * sizeof(float));
                std::fill(to_row + width, to_row + all_.value_slots, 0.0f);
            }
            values_ = own_values_;
            values_stride_ = all_.value_slots;
        }
        std::fill(counts_, counts_ + count, 1.0f);
        std::fill(counts_ + count, counts_ + all_.chunk, 0.0f);
        if (problem_.keep == nullptr) return;
        const uint8_t* keep = problem_.keep + batch_ * problem_.len_k + from;
        for (int64_t t = 0; t < count; ++t) {
            if (keep[t] != 0) continue;
            counts_[t] = 0.0f;
            std::fill(keys_ + t * all_.width_slots, keys_ + (t + 1) * all_.width_slots, 0.0f);
            std::fill(own_values_ + t * all_.value_slots, own_values_ + (t + 1) * all_.value_slots, 0.0f);
        }
    }

    // Transposed keys for the scores: channel c of token t is at c · chunk + t.
    void turn_keys() {
        if (is_turned_) return;
        is_turned_ = true;
        const int64_t count = loaded_to_ - loaded_from_, chunk = all_.chunk;
        const void* rows[kMostChunk];
        for (int64_t t = 0; t < count; ++t) rows[t] = keys_ + t * all_.width_slots;
        kernels_.pack_rows(rows, static_cast<int>(count), static_cast<int>(chunk), Dtype::float32,
                           all_.rule.width, 1, turned_);
    }

    // S += Σ_t φ(k_t) v_tᵀ and z += Σ_t φ(k_t), over the loaded keys.
    void absorb() {
        const int64_t count = loaded_to_ - loaded_from_, slots = all_.width_slots;
        if (!all_.power) {
            add_to_state(keys_, slots, 0, all_.features, count);
            return;
        }
        for (const Block& block : all_.monomials->blocks) {
            form(keys_, block, count, all_.monomials->weights.data() + block.first);
            add_to_state(features_, slots, block.first, block.count, count);
        }
    }

    void add_to_state(const float* features, int64_t stride, int64_t first, int64_t count, int64_t tokens) {
        const int64_t columns = all_.value_slots;
        kernels_.multiply_matrix({features, 1, stride}, count, values_, values_stride_, tokens, state_ + first * columns,
                                 columns, columns, true);
        kernels_.add_columns(features, stride, tokens, count, z_ + first);
    }

    // The features of a block of monomials, for rows of vectors.
    void form(const float* x, const Block& block, int64_t rows, const float* weights) {
        const int64_t slots = all_.width_slots;
        for (int64_t r = 0; r < rows; ++r) {
            float factor = 1.0f;
            for (int i = 0; i + 1 < all_.rule.degree; ++i) factor *= x[r * slots + block.prefix[i]];
            prefix_[r] = factor;
        }
        kernels_.form_features(x + block.begin, slots, rows, block.count, prefix_, weights, features_, slots);
    }

    // Queries i0 .. i1 of a head, from the state and from those of the loaded keys from .. to that each attends to.
    void answer(int64_t head, int64_t i0, int64_t i1, int64_t from, int64_t to) {
        ask(head, i0, i1);
        if (to > from) score_keys(i0, i1 - i0, from, to);
        write(head, i0, i1 - i0);
    }

    // The contribution of the state for queries i0 .. i1 of a head.
    void ask(int64_t head, int64_t i0, int64_t i1) {
        const int64_t rows = i1 - i0;
        load_vectors(problem_.query, head, i0, i1, queries_, problem_.normalize && all_.rule.map == Map::elu1);
        std::fill(below_, below_ + rows, 0.0f);
        if (state_ == nullptr) {
            std::fill(sums_, sums_ + rows * all_.value_slots, 0.0f);
            return;
        }
        if (!all_.power) {
            read_state(queries_, 0, all_.features, rows);
        } else {
            for (const Block& block : all_.monomials->blocks) {
                form(queries_, block, rows, nullptr);
                read_state(features_, block.first, block.count, rows);
            }
        }
    }

    void read_state(const float* features, int64_t first, int64_t count, int64_t rows) {
        const int64_t columns = all_.value_slots, stride = all_.width_slots;
        kernels_.multiply_matrix({features, stride, 1}, rows, state_ + first * columns, columns, count, sums_,
                                 columns, columns, first > 0);
        kernels_.add_dots(features, stride, rows, count, z_ + first, below_);
    }

    // In blocks of rows, up to the last key that any of them attends to.
    void score_keys(int64_t i0, int64_t rows, int64_t from, int64_t to) {
        turn_keys();
        const int64_t chunk = all_.chunk, slots = all_.width_slots, columns = all_.value_slots;
        for (int64_t r = 0; r < rows; r += kMaxBlockRows) {
            const int64_t end = std::min<int64_t>(r + kMaxBlockRows, rows);
            const int64_t most = seen(i0 + end - 1, from, to);
            if (most == 0) continue;
            const int64_t filled = round_up(most, kLine);
            float* block = scores_ + r * chunk;
            kernels_.multiply_matrix({queries_ + r * slots, slots, 1}, end - r, turned_, chunk, all_.rule.width,
                                     block, chunk, filled, false);
            for (int64_t n = r; n < end; ++n) {
                float* row = scores_ + n * chunk;
                if (all_.power) kernels_.raise_row(row, filled, all_.rule.offset, all_.rule.degree);
                const int64_t own = seen(i0 + n, from, to);
                std::fill(row + own, row + filled, 0.0f);
                if (problem_.keep != nullptr) kernels_.multiply_rows(row, filled, counts_);
            }
            kernels_.add_dots(block, chunk, end - r, most, counts_, below_ + r);
            kernels_.multiply_matrix({block, chunk, 1}, end - r, values_, values_stride_, most, sums_ + r * columns,
                                     columns, columns, true);
        }
    }

    // The number of keys from .. to that query i attends to.
    int64_t seen(int64_t i, int64_t from, int64_t to) const {
        return problem_.causal ? std::clamp<int64_t>(shifted(i) + 1 - from, 0, to - from) : to - from;
    }

    void write(int64_t head, int64_t i0, int64_t rows) const {
        const int64_t width = problem_.value_width, element = element_size(problem_.dtype);
        char* out = static_cast<char*>(problem_.out) +
                    ((batch_ * problem_.heads_q + head) * problem_.len_q + i0) * width * element;
        for (int64_t r = 0; r < rows; ++r, out += width * element) {
            const float below = problem_.normalize ? below_[r] : 1.0f, size = std::fabs(below);
            float* row = sums_ + r * all_.value_slots;
            float factor = 1.0f;
            if (below == 0.0f) {
                // 0, but NaN where an attended value is not finite; never -0.
                for (int64_t c = 0; c < width; ++c) row[c] = row[c] * 0.0f + 0.0f;
            } else if (size > 1e-37f && size < 1e37f) {
                factor = 1.0f / below;
            } else {
                // The reciprocal of a very small or very large number would overflow or underflow.
                for (int64_t c = 0; c < width; ++c) row[c] /= below;
            }
            if (problem_.dtype == Dtype::float32) {
                kernels_.scale_row(row, width, factor, reinterpret_cast<float*>(out));
            } else {
                kernels_.scale_row(row, width, factor, row);
                narrow_row(row, width, problem_.dtype, out);
            }
        }
    }

    const LinearPlan& all_;
    const LinearProblem& problem_;
    const KernelTable& kernels_;
    const int64_t batch_, head_;
    float *state_, *z_;
    float *keys_, *turned_, *queries_, *features_, *own_values_, *sums_, *scores_, *below_, *prefix_, *counts_;
    const float* values_ = nullptr;
    int64_t values_stride_ = 0;
    int64_t absorbed_ = 0, loaded_from_ = 0, loaded_to_ = 0;
    bool is_turned_ = false;
};

}  // namespace qkv
