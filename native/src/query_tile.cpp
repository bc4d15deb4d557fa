#include "query_tile.h"

#include <algorithm>
#include <limits>

namespace qkv {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}

int64_t QueryTile::head_of(int64_t row) const {
    const int64_t group = problem_->heads_q / problem_->heads_kv;
    return unit_.head * group + row / problem_->len_q;
}

void QueryTile::open(const KernelTable& kernels, const ArgmaxProblem& problem, const Unit& unit, int64_t first_row,
                     float* queries) {
    kernels_ = &kernels;
    problem_ = &problem;
    unit_ = unit;
    queries_ = queries;
    first_row_ = first_row;
    const int64_t rows_of_unit = problem.heads_q / problem.heads_kv * problem.len_q;
    rows_ = static_cast<int>(std::min<int64_t>(kernels.tile_rows, rows_of_unit - first_row));
    open_ = 0;
    const void* rows[kMaxTileRows];
    for (int r = 0; r < rows_; ++r) {
        const int64_t position = (first_row + r) % problem.len_q, at = unit.batch * problem.len_q + position;
        rows[r] = row_address(problem.query, problem.dtype, unit.batch, head_of(first_row + r), position);
        start_[r] = problem.starts == nullptr ? 0 : std::clamp<int64_t>(problem.starts[at], 0, problem.len_k);
        stop_[r] = problem.stops == nullptr ? problem.len_k : std::clamp<int64_t>(problem.stops[at], 0, problem.len_k);
        best_[r] = -kInfinity;
        index_[r] = kNoKey;
        open_ |= uint32_t{1} << r;
    }
    kernels.pack_rows(rows, rows_, kernels.tile_rows, problem.dtype, problem.width, problem.query.stride[3], queries);
    for (int r = 0; r < kernels.tile_rows; ++r) {
        if (r >= rows_ || start_[r] >= stop_[r]) drop(r);
    }
    find_bounds();
}

void QueryTile::drop(int row) {
    open_ &= ~(uint32_t{1} << row);
    best_[row] = kInfinity;
    for (int64_t c = 0; c < problem_->width; ++c) queries_[c * kernels_->tile_rows + row] = 0.0f;
}

void QueryTile::find_bounds() {
    any_from_ = all_to_ = problem_->len_k;
    any_to_ = all_from_ = 0;
    for (uint32_t left = open_; left != 0; left &= left - 1) {
        const int r = __builtin_ctz(left);
        any_from_ = std::min(any_from_, start_[r]);
        any_to_ = std::max(any_to_, stop_[r]);
        all_from_ = std::max(all_from_, start_[r]);
        all_to_ = std::min(all_to_, stop_[r]);
    }
}

void QueryTile::advance(const float* panel, int64_t first_key, float* scores) {
    const int64_t end_key = std::min(first_key + kernels_->tile_keys, problem_->len_k);
    if (first_key >= any_to_ || end_key <= any_from_) return;
    uint32_t nan_rows;
    if (first_key >= all_from_ && end_key <= all_to_) {
        nan_rows = kernels_->sweep_tile(queries_, panel, problem_->width, scores, first_key, best_, index_);
    } else {
        kernels_->score_tile(queries_, panel, problem_->width, scores);
        mask_out_of_range(first_key, scores);
        nan_rows = kernels_->update_rows(scores, first_key, best_, index_);
    }
    nan_rows &= open_;
    if (nan_rows == 0) return;
    for (; nan_rows != 0; nan_rows &= nan_rows - 1) {
        const int r = __builtin_ctz(nan_rows);
        index_[r] = kNan;
        drop(r);
    }
    find_bounds();
}

// -inf never wins, so a score out of range has no influence, even if it is NaN.
void QueryTile::mask_out_of_range(int64_t first_key, float* scores) const {
    const int64_t keys = kernels_->tile_keys;
    for (int r = 0; r < rows_; ++r) {
        float* row = scores + r * keys;
        const int64_t from = std::clamp<int64_t>(start_[r] - first_key, 0, keys);
        const int64_t to = std::clamp<int64_t>(stop_[r] - first_key, from, keys);
        std::fill(row, row + from, -kInfinity);
        std::fill(row + to, row + keys, -kInfinity);
    }
}

void QueryTile::write_result() const {
    for (int r = 0; r < rows_; ++r) {
        const int64_t row = first_row_ + r, head = unit_.batch * problem_->heads_q + head_of(row);
        problem_->result[head * problem_->len_q + row % problem_->len_q] = index_[r];
    }
}

}  // namespace qkv
