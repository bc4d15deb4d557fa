#pragma once

#include "memory.h"

namespace qkv {

// Most query rows that are taken along the keys together.
constexpr int kMostRows = 48;

// A past is divided at multiples of this many positions, whoever asks: each part has its own highest score, and the
// parts are folded together in ascending order. That the division never changes keeps the bits the same.
constexpr int64_t kPartTokens = 256;

// Up to kMostRows query rows that read one key/value head of one batch row: the heads of a group side by side, query
// after query. Knows which keys each of them sees.
class QueryRows {
public:
    QueryRows(const AttendProblem& problem, int64_t batch, int64_t head, int64_t first_row);

    int count() const { return count_; }
    // The keys that some row sees, and those that row r sees, but for `keep`.
    int64_t any_from() const { return any_from_; }
    int64_t any_to() const { return any_to_; }
    int64_t from(int r) const { return from_[r]; }
    int64_t to(int r) const { return to_[r]; }

    // out[c][r]; channels behind the width are 0.
    void pack(const KernelTable& kernels, float* out) const;

    // Scores of row r for the keys from `first_key` on become -inf where it does not see them.
    void hide(int r, int64_t first_key, int64_t count, float* scores) const;
    void add_bias(int r, int64_t first_key, int64_t count, float* scores) const;

    float sink(int r) const;
    // Rounds `value_width` numbers to the result's dtype; nullptr stands for zeros.
    void write(int r, const float* values, float lse) const;

    int64_t batch() const { return batch_; }
    int64_t head() const { return head_; }

private:
    int64_t head_of(int r) const { return head_ * group_ + (first_row_ + r) % group_; }
    int64_t query_of(int r) const { return (first_row_ + r) / group_; }
    int64_t offset(const Tensor4& tensor, int r, int64_t key) const;

    const AttendProblem& problem_;
    int64_t batch_, head_, first_row_, group_;
    int count_;
    int64_t any_from_, any_to_;
    int64_t from_[kMostRows], to_[kMostRows];
};

}  // namespace qkv
