#include "argmax.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#include "parallel.h"

namespace qkv {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kLineFloats = 16;          // scratch is handed out in cache lines
constexpr int64_t kQueryFloats = 28 * 256;  // 28 KB: a job's query tiles stay in the first cache beside a panel
constexpr int64_t kPanelsPerPackingJob = 8;
constexpr int64_t kJobsPerWorker = 4;
constexpr double kProductsPerThread = 1 << 20;  // below some ten microseconds' work another thread does not pay

int64_t checked_product(int64_t a, int64_t b) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
    return product;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

Floats allocate(int64_t floats) {
    const int64_t bytes = round_up(checked_product(std::max<int64_t>(floats, 1), sizeof(float)), 64);
    void* memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return Floats(static_cast<float*>(memory));
}

// The query rows of one tile on their way along the keys. A row that is decided (nothing in range, or a NaN) is
// dropped: its queries become 0 and its best infinity, so that it never stops the others.
struct Tile {
    float* queries;
    int64_t first_row;
    int rows;
    uint32_t open;  // one bit for each row that still looks
    int64_t any_from, any_to;  // keys that some open row looks at
    int64_t all_from, all_to;  // keys that every open row looks at
    float best[kMaxTileRows];
    int64_t index[kMaxTileRows], start[kMaxTileRows], stop[kMaxTileRows];
};

class Sweep {
public:
    Sweep(const KernelTable& kernels, const ArgmaxProblem& problem, int threads)
        : kernels_(kernels),
          problem_(problem),
          threads_(threads),
          group_(problem.heads_q / problem.heads_kv),
          rows_(checked_product(group_, problem.len_q)),
          panels_(ceil_div(problem.len_k, kernels.tile_keys)),
          panel_floats_(round_up(checked_product(problem.width, kernels.tile_keys), kLineFloats)),
          tile_floats_(round_up(checked_product(problem.width, kernels.tile_rows), kLineFloats)) {}

    // A unit is one batch row and key head, with the query heads that read it side by side as its rows.
    void run() {
        const int64_t units = problem_.batch * problem_.heads_kv;
        const int64_t unit_floats = checked_product(panels_, panel_floats_);
        const int64_t at_once =
            std::clamp<int64_t>(kPackedBytes / 4 / std::max<int64_t>(unit_floats, 1), 1, units);
        packed_ = allocate(checked_product(unit_floats, at_once));
        plan_jobs(at_once);
        for (int64_t first = 0; first < units; first += at_once) {
            const int64_t count = std::min(at_once, units - first);
            pack_units(first, count);
            sweep_units(first, count);
        }
    }

private:
    void plan_jobs(int64_t units) {
        const int64_t tiles = ceil_div(rows_, kernels_.tile_rows);
        const int64_t fair = ceil_div(tiles * units, kJobsPerWorker * threads_);
        tiles_per_job_ = std::clamp<int64_t>(kQueryFloats / std::max<int64_t>(tile_floats_, 1), 1,
                                            std::min<int64_t>(fair, kMaxTiles));
        jobs_per_unit_ = ceil_div(tiles, tiles_per_job_);
        workers_ = worker_limit(jobs_per_unit_ * units, threads_);
        scratch_floats_ = tiles_per_job_ * tile_floats_ + score_floats();
        scratch_ = allocate(checked_product(scratch_floats_, workers_));
    }

    int64_t score_floats() const { return round_up(kernels_.tile_rows * kernels_.tile_keys, kLineFloats); }

    const char* row_address(const Tensor4& tensor, int64_t batch, int64_t head, int64_t position) const {
        const int64_t offset =
            batch * tensor.stride[0] + head * tensor.stride[1] + position * tensor.stride[2];
        return static_cast<const char*>(tensor.data) + offset * element_size(problem_.dtype);
    }

    float* panel_address(int64_t unit, int64_t panel) const {
        return packed_.get() + (unit * panels_ + panel) * panel_floats_;
    }

    void pack_units(int64_t first_unit, int64_t count) {
        const int64_t jobs_per_unit = ceil_div(panels_, kPanelsPerPackingJob);
        auto pack = [&](int64_t job, int) {
            const int64_t unit = job / jobs_per_unit;
            const int64_t from = job % jobs_per_unit * kPanelsPerPackingJob;
            for (int64_t p = from; p < std::min(from + kPanelsPerPackingJob, panels_); ++p) {
                pack_panel(first_unit + unit, p, panel_address(unit, p));
            }
        };
        const int64_t jobs = count * jobs_per_unit;
        for_each_job(jobs, std::min(workers_, worker_limit(jobs, threads_)), pack);
    }

    // Behind the last key it is repeated: a repetition can never win, since it ties with a lower index.
    void pack_panel(int64_t unit, int64_t panel, float* out) const {
        const int64_t first = panel * kernels_.tile_keys;
        const int count = static_cast<int>(std::min<int64_t>(kernels_.tile_keys, problem_.len_k - first));
        const void* rows[kMaxTileKeys];
        for (int j = 0; j < count; ++j) {
            rows[j] = row_address(problem_.key, unit / problem_.heads_kv, unit % problem_.heads_kv, first + j);
        }
        kernels_.pack_rows(rows, count, kernels_.tile_keys, problem_.dtype, problem_.width, problem_.key.stride[3],
                           out);
    }

    void sweep_units(int64_t first_unit, int64_t count) {
        auto sweep = [&](int64_t job, int worker) {
            // Last rows first: under a causal mask they are the long ones.
            const int64_t unit = job / jobs_per_unit_;
            const int64_t block = jobs_per_unit_ - 1 - job % jobs_per_unit_;
            sweep_block(first_unit + unit, panel_address(unit, 0), block * tiles_per_job_ * kernels_.tile_rows,
                        scratch_.get() + worker * scratch_floats_);
        };
        for_each_job(count * jobs_per_unit_, workers_, sweep);
    }

    void sweep_block(int64_t unit, const float* panels, int64_t first_row, float* scratch) const {
        Tile tiles[kMaxTiles];
        float* scores = scratch + tiles_per_job_ * tile_floats_;
        int count = 0;
        int64_t from = problem_.len_k, to = 0;
        for (; count < tiles_per_job_ && first_row < rows_; ++count, first_row += kernels_.tile_rows) {
            Tile& tile = tiles[count];
            tile.queries = scratch + count * tile_floats_;
            open_tile(tile, unit, first_row);
            from = std::min(from, tile.any_from);
            to = std::max(to, tile.any_to);
        }
        for (int64_t p = from / kernels_.tile_keys; p * kernels_.tile_keys < to; ++p) {
            for (int t = 0; t < count; ++t) advance(tiles[t], panels + p * panel_floats_, p, scores);
        }
        for (int t = 0; t < count; ++t) write_result(tiles[t], unit);
    }

    int64_t query_head(int64_t unit, int64_t row) const {
        return unit % problem_.heads_kv * group_ + row / problem_.len_q;
    }

    void open_tile(Tile& tile, int64_t unit, int64_t first_row) const {
        const int64_t batch = unit / problem_.heads_kv;
        const void* rows[kMaxTileRows];
        tile.first_row = first_row;
        tile.rows = static_cast<int>(std::min<int64_t>(kernels_.tile_rows, rows_ - first_row));
        tile.open = 0;
        for (int r = 0; r < tile.rows; ++r) {
            const int64_t row = first_row + r, position = row % problem_.len_q;
            const int64_t at = batch * problem_.len_q + position;
            rows[r] = row_address(problem_.query, batch, query_head(unit, row), position);
            tile.start[r] = problem_.starts == nullptr ? 0 : std::max<int64_t>(problem_.starts[at], 0);
            tile.stop[r] = problem_.stops == nullptr ? problem_.len_k : std::min(problem_.stops[at], problem_.len_k);
            tile.best[r] = -kInfinity;
            tile.index[r] = kNoKey;
            tile.open |= uint32_t{1} << r;
        }
        kernels_.pack_rows(rows, tile.rows, kernels_.tile_rows, problem_.dtype, problem_.width,
                           problem_.query.stride[3], tile.queries);
        for (int r = 0; r < kernels_.tile_rows; ++r) {
            if (r >= tile.rows || tile.start[r] >= tile.stop[r]) drop(tile, r);
        }
        find_bounds(tile);
    }

    void drop(Tile& tile, int row) const {
        tile.open &= ~(uint32_t{1} << row);
        tile.best[row] = kInfinity;
        for (int64_t c = 0; c < problem_.width; ++c) tile.queries[c * kernels_.tile_rows + row] = 0.0f;
    }

    void find_bounds(Tile& tile) const {
        tile.any_from = tile.all_to = problem_.len_k;
        tile.any_to = tile.all_from = 0;
        for (uint32_t left = tile.open; left != 0; left &= left - 1) {
            const int r = __builtin_ctz(left);
            tile.any_from = std::min(tile.any_from, tile.start[r]);
            tile.any_to = std::max(tile.any_to, tile.stop[r]);
            tile.all_from = std::max(tile.all_from, tile.start[r]);
            tile.all_to = std::min(tile.all_to, tile.stop[r]);
        }
    }

    void advance(Tile& tile, const float* panel, int64_t number, float* scores) const {
        const int64_t first = number * kernels_.tile_keys;
        const int64_t last = std::min(first + kernels_.tile_keys, problem_.len_k);
        if (first >= tile.any_to || last <= tile.any_from) return;
        uint32_t nan_rows;
        if (first >= tile.all_from && last <= tile.all_to) {
            nan_rows = kernels_.sweep_tile(tile.queries, panel, problem_.width, scores, first, tile.best, tile.index);
        } else {
            kernels_.score_tile(tile.queries, panel, problem_.width, scores);
            hide_out_of_range(tile, first, scores);
            nan_rows = kernels_.update_rows(scores, first, tile.best, tile.index);
        }
        nan_rows &= tile.open;
        if (nan_rows == 0) return;
        for (; nan_rows != 0; nan_rows &= nan_rows - 1) {
            const int r = __builtin_ctz(nan_rows);
            tile.index[r] = kNan;
            drop(tile, r);
        }
        find_bounds(tile);
    }

    // -inf beats nothing, so a score out of range cannot matter, NaN neither.
    void hide_out_of_range(const Tile& tile, int64_t first, float* scores) const {
        const int64_t keys = kernels_.tile_keys;
        for (int r = 0; r < tile.rows; ++r) {
            float* row = scores + r * keys;
            const int64_t from = std::clamp<int64_t>(tile.start[r] - first, 0, keys);
            const int64_t to = std::clamp<int64_t>(tile.stop[r] - first, from, keys);
            std::fill(row, row + from, -kInfinity);
            std::fill(row + to, row + keys, -kInfinity);
        }
    }

    void write_result(const Tile& tile, int64_t unit) const {
        const int64_t batch = unit / problem_.heads_kv;
        for (int r = 0; r < tile.rows; ++r) {
            const int64_t row = tile.first_row + r;
            const int64_t head = batch * problem_.heads_q + query_head(unit, row);
            problem_.result[head * problem_.len_q + row % problem_.len_q] = tile.index[r];
        }
    }

    static constexpr int kMaxTiles = 16;

    const KernelTable& kernels_;
    const ArgmaxProblem& problem_;
    const int threads_;
    const int64_t group_, rows_, panels_, panel_floats_, tile_floats_;
    int64_t tiles_per_job_ = 1, jobs_per_unit_ = 0, scratch_floats_ = 0;
    int workers_ = 1;
    Floats packed_, scratch_;
};

}  // namespace

void argmax_scores(const KernelTable& kernels, const ArgmaxProblem& problem, int threads) {
    if (problem.batch == 0 || problem.heads_q == 0 || problem.len_q == 0) return;
    if (problem.len_k == 0) {
        std::fill_n(problem.result, problem.batch * problem.heads_q * problem.len_q, kNoKey);
        return;
    }
    const double products = static_cast<double>(problem.batch) * problem.heads_q * problem.len_q * problem.len_k *
                            problem.width;
    const double worth = std::min<double>(threads, products / kProductsPerThread);
    Sweep(kernels, problem, std::max(static_cast<int>(worth), 1)).run();
}

}  // namespace qkv
