#include "argmax.h"

#include <algorithm>

#include "parallel.h"
#include "query_tile.h"
#include "scratch.h"

namespace qkv {

namespace {

constexpr int64_t kLineFloats = 16;         // scratch is allocated in cache lines
constexpr int64_t kQueryFloats = 28 * 256;  // 28 KB: the query tiles of a job and a panel fit into the L1 cache
constexpr int64_t kMaxTiles = 16;
constexpr int64_t kPanelsPerPackingJob = 8;
constexpr int64_t kJobsPerWorker = 4;
constexpr double kProductsPerThread = 1 << 20;  // with less work another thread does not pay off

class Sweep {
public:
    Sweep(const KernelTable& kernels, const ArgmaxProblem& problem, int threads)
        : kernels_(kernels),
          problem_(problem),
          threads_(threads),
          units_(checked_product(problem.batch, problem.heads_kv)),
          rows_(checked_product(problem.heads_q / problem.heads_kv, problem.len_q)),
          tiles_(ceil_div(rows_, kernels.tile_rows)),
          panels_(ceil_div(problem.len_k, kernels.tile_keys)),
          panel_floats_(round_up(checked_product(problem.width, kernels.tile_keys), kLineFloats)),
          tile_floats_(round_up(checked_product(problem.width, kernels.tile_rows), kLineFloats)) {}

    void run() {
        const bool one_job_per_unit = tiles_ <= kMaxTiles && (threads_ == 1 || units_ >= 2 * threads_);
        if (one_job_per_unit) {
            pack_per_job();
        } else {
            pack_in_advance();
        }
    }

private:
    // A panel that only one job reads is packed just before, and stays in the L1 cache.
    void pack_per_job() {
        tiles_per_job_ = tiles_;
        allocate_scratch(units_, panel_floats_);
        auto sweep = [&](int64_t unit, int worker) {
            float* scratch = scratch_of(worker);
            float* panel = scratch + scratch_floats_ - panel_floats_;
            sweep_block(unit, 0, scratch, [&](int64_t number) {
                pack_panel(unit, number, panel);
                return panel;
            });
        };
        for_each_job(units_, workers_, sweep);
    }

    // Panels that many jobs read are packed once, for as many units as fit.
    void pack_in_advance() {
        const int64_t unit_floats = checked_product(panels_, panel_floats_);
        const int64_t fitting = kPackedBytes / 4 / std::max<int64_t>(unit_floats, 1);
        const int64_t at_once = std::clamp<int64_t>(fitting, 1, units_);
        packed_ = allocate(checked_product(unit_floats, at_once));

        const int64_t cached = std::min(kQueryFloats / std::max<int64_t>(tile_floats_, 1), kMaxTiles);
        const int64_t fair = ceil_div(tiles_ * at_once, kJobsPerWorker * threads_);
        tiles_per_job_ = std::clamp<int64_t>(cached, 1, fair);
        allocate_scratch(at_once * blocks_per_unit(), 0);
        for (int64_t first = 0; first < units_; first += at_once) {
            const int64_t count = std::min(at_once, units_ - first);
            pack_units(first, count);
            sweep_units(first, count);
        }
    }

    int64_t blocks_per_unit() const { return ceil_div(tiles_, tiles_per_job_); }

    void allocate_scratch(int64_t jobs, int64_t more) {
        workers_ = worker_limit(jobs, threads_);
        scratch_floats_ = tiles_per_job_ * tile_floats_ + kMaxTileRows * kMaxTileKeys + more;
        scratch_ = allocate(checked_product(scratch_floats_, workers_));
    }

    float* scratch_of(int worker) const { return scratch_.get() + worker * scratch_floats_; }

    float* packed_unit(int64_t place) const { return packed_.get() + place * panels_ * panel_floats_; }

    Unit unit_at(int64_t number) const { return {number / problem_.heads_kv, number % problem_.heads_kv}; }

    void pack_units(int64_t first_unit, int64_t count) const {
        const int64_t jobs_per_unit = ceil_div(panels_, kPanelsPerPackingJob);
        auto pack = [&](int64_t job, int) {
            const int64_t place = job / jobs_per_unit, first = job % jobs_per_unit * kPanelsPerPackingJob;
            for (int64_t p = first; p < std::min(first + kPanelsPerPackingJob, panels_); ++p) {
                pack_panel(first_unit + place, p, packed_unit(place) + p * panel_floats_);
            }
        };
        for_each_job(count * jobs_per_unit, workers_, pack);
    }

    // The last key is repeated to fill the panel: a repetition never wins, since it ties with a lower index.
    void pack_panel(int64_t unit_number, int64_t panel, float* out) const {
        const Unit unit = unit_at(unit_number);
        const int64_t first = panel * kernels_.tile_keys;
        const int count = static_cast<int>(std::min<int64_t>(kernels_.tile_keys, problem_.len_k - first));
        const void* rows[kMaxTileKeys];
        for (int j = 0; j < count; ++j) {
            rows[j] = row_address(problem_.key, problem_.dtype, unit.batch, unit.head, first + j);
        }
        kernels_.pack_rows(rows, count, kernels_.tile_keys, problem_.dtype, problem_.width, problem_.key.stride[3],
                           out);
    }

    void sweep_units(int64_t first_unit, int64_t count) const {
        const int64_t blocks = blocks_per_unit();
        auto sweep = [&](int64_t job, int worker) {
            // Last rows first: under a causal mask they take longest.
            const int64_t place = job / blocks, block = blocks - 1 - job % blocks;
            sweep_block(first_unit + place, block * tiles_per_job_, scratch_of(worker),
                        [&](int64_t panel) { return packed_unit(place) + panel * panel_floats_; });
        };
        for_each_job(count * blocks, workers_, sweep);
    }

    // Each panel is used for all tiles of the block before the next panel.
    template <typename PanelAt>
    void sweep_block(int64_t unit, int64_t first_tile, float* scratch, PanelAt panel_at) const {
        QueryTile tiles[kMaxTiles];
        const int64_t count = std::min(tiles_per_job_, tiles_ - first_tile);
        float* scores = scratch + tiles_per_job_ * tile_floats_;
        int64_t from = problem_.len_k, to = 0;
        for (int64_t t = 0; t < count; ++t) {
            tiles[t].open(kernels_, problem_, unit_at(unit), (first_tile + t) * kernels_.tile_rows,
                          scratch + t * tile_floats_);
            from = std::min(from, tiles[t].any_from());
            to = std::max(to, tiles[t].any_to());
        }
        for (int64_t p = from / kernels_.tile_keys; p * kernels_.tile_keys < to; ++p) {
            const float* panel = panel_at(p);
            for (int64_t t = 0; t < count; ++t) tiles[t].advance(panel, p * kernels_.tile_keys, scores);
        }
        for (int64_t t = 0; t < count; ++t) tiles[t].write_result();
    }

    const KernelTable& kernels_;
    const ArgmaxProblem& problem_;
    const int threads_;
    const int64_t units_, rows_, tiles_, panels_, panel_floats_, tile_floats_;
    int64_t tiles_per_job_ = 1, scratch_floats_ = 0;
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
