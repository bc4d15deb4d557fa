#pragma once

#include "argmax.h"

namespace qkv {

// One batch row and key head; the query heads that read it are its rows.
struct Unit {
    int64_t batch, head;
};

// The query rows of one tile as they pass over the keys. A row that is decided (no key in range, or a NaN) is dropped:
// its queries become 0 and its best infinity, so that it never causes an update.
class QueryTile {
public:
    // Packs the rows from `first_row` on into `queries`, which holds width × tile_rows floats.
    void open(const KernelTable& kernels, const ArgmaxProblem& problem, const Unit& unit, int64_t first_row,
              float* queries);

    // Processes a packed panel of keys that starts with `first_key`. Panels come in ascending order.
    void advance(const float* panel, int64_t first_key, float* scores);

    void write_result() const;

    // The range of keys of all rows that are not dropped.
    int64_t any_from() const { return any_from_; }
    int64_t any_to() const { return any_to_; }

private:
    void drop(int row);
    void find_bounds();
    void mask_out_of_range(int64_t first_key, float* scores) const;
    int64_t head_of(int64_t row) const;

    const KernelTable* kernels_;
    const ArgmaxProblem* problem_;
    Unit unit_;
    float* queries_;
    int64_t first_row_;
    int rows_;
    uint32_t open_;  // one bit for each row that is not dropped
    int64_t any_from_, any_to_;
    int64_t all_from_, all_to_;  // the keys in range of every open row
    float best_[kMaxTileRows];
    int64_t index_[kMaxTileRows], start_[kMaxTileRows], stop_[kMaxTileRows];
};

}  // namespace qkv
