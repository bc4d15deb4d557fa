#pragma once

#include "cache.h"

namespace qkv {

// The most query rows that pass over the keys together.
constexpr int kMaxRows = 48;

// Keys are divided into parts at multiples of this many positions: each part has its own highest score, and parts are
// merged in ascending order. The division is the same for every call, which keeps the bits the same.
constexpr int64_t kPartTokens = 256;

// Up to kMaxRows query rows that read one key/value head of one batch row, ordered by query and then by head of the
// group, and the keys that each of them attends to.
class QueryRows {
public:
    QueryRows(const AttendProblem& problem, int64_t batch, int64_t head, int64_t first_row);

    int count() const { return count_; }
    // The range of keys that any row attends to, and that of row r, apart from `keep`.
    int64_t any_from() const { return any_from_; }
    int64_t any_to() const { return any_to_; }
    int64_t from(int r) const { return from_[r]; }
    int64_t to(int r) const { return to_[r]; }
    // Whether no row attends to any of these keys, which are between the sinks and the window of every row.
    bool skips(int64_t begin, int64_t end) const { return begin >= problem_.sinks && end <= any_window_from_; }
    // Whether row r attends to the key; mask_scores and add_bias for one score.
    bool attends(int r, int64_t key) const;

    // out[c][r], rotated if the keys are, or out[r][c] for latents; channels beyond the width are 0.
    void pack(const KernelTable& kernels, float* out) const;
    // The scores of the first tokens of a slab, by the kernel for its layout; `queries` from `pack`.
    void score(const KernelTable& kernels, const char* slab, const float* queries, int tokens, float* scores,
               int64_t stride, const NextRead& ahead, float* widened) const;

    // Sets the scores of row r for masked keys, counted from `first_key`, to -inf.
    void mask_scores(int r, int64_t first_key, int64_t count, float* scores) const;
    void add_bias(int r, int64_t first_key, int64_t count, float* scores) const;

    float sink(int r) const;
    // Rounds `value_width` numbers to the dtype of the result; nullptr means zeros.
    void write(int r, const float* values, float lse) const;

    // The weights of row r; nullptr if they are not asked for.
    float* weights(int r) const;
    bool is_counted(int r) const;  // whether its weights are added to the importance of keys

    int64_t batch() const { return batch_; }
    int64_t head() const { return head_; }

private:
    int64_t head_of(int r) const { return head_ * group_ + (first_row_ + r) % group_; }
    int64_t query_of(int r) const { return (first_row_ + r) / group_; }
    int64_t row_of(int r) const {
        return (batch_ * problem_.heads_q + head_of(r)) * problem_.tokens.given + query_of(r);
    }
    int64_t offset(const Tensor4& tensor, int r, int64_t key) const;

    const AttendProblem& problem_;
    int64_t batch_, head_, first_row_, group_;
    int count_;
    int64_t any_from_, any_to_, any_window_from_;
    int64_t from_[kMaxRows], to_[kMaxRows];
    int64_t window_from_[kMaxRows];  // after the sinks
};

}  // namespace qkv
