#include <atomic>
#include <cmath>
#include <limits>

#include "cache.h"
#include "parallel.h"
#include "query_rows.h"
#include "rotation.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

namespace {

// The best key of each row so far, the first of equal ones; a NaN score decides a row.
struct Best {
    float score[kMaxRows];
    int64_t key[kMaxRows];
    bool has_nan[kMaxRows];
};

class AttendHard {
public:
    AttendHard(const KernelTable& kernels, const AttendProblem& problem)
        : kernels_(kernels),
          problem_(problem),
          layout_(problem.cache.layout),
          rows_(checked_product(problem.heads_q / layout_.heads, problem.tokens.given)),
          tiles_(ceil_div(rows_, kMaxRows)),
          max_rows_(std::min<int64_t>(rows_, kMaxRows)),
          query_floats_(round_up(checked_product(layout_.width_slots(), max_rows_), 16)) {}

    void run(int threads) {
        const int64_t units = checked_product(checked_product(problem_.tokens.batch, layout_.heads), tiles_);
        int64_t tokens = 0;
        for (int64_t b = 0; b < problem_.tokens.batch; ++b) tokens += problem_.tokens.positions[b] + problem_.tokens.count(b);
        const int64_t bytes = tokens * layout_.heads * stored_bytes(layout_.storage.keys, layout_.width_slots());
        const int workers = worker_limit(units, static_cast<int>(std::clamp<int64_t>(bytes / kReadBytesPerThread, 1, threads)));
        const int64_t floats = query_floats_ + max_rows_ * kPageTokens +
                               std::max(kPageTokens * layout_.width_slots(), layout_.value_slots());
        const Floats scratch = allocate(checked_product(floats, workers));
        auto work = [&](int64_t unit, int worker) {
            const QueryRows rows(problem_, unit / tiles_ / layout_.heads, unit / tiles_ % layout_.heads,
                                 unit % tiles_ * kMaxRows);
            attend_unit(rows, scratch.get() + worker * floats);
        };
        for_each_job(units, workers, work);
    }

private:
    void attend_unit(const QueryRows& rows, float* scratch) const {
        float* scores = scratch + query_floats_;
        float* widened = scores + max_rows_ * kPageTokens;
        Best best;
        for (int r = 0; r < rows.count(); ++r) {
            best.score[r] = -std::numeric_limits<float>::infinity();
            best.key[r] = -1;
            best.has_nan[r] = false;
        }
        if (rows.any_to() > 0) rows.pack(kernels_, scratch);
        for (int64_t page = rows.any_from() / kPageTokens; page * kPageTokens < rows.any_to(); ++page) {
            if (rows.skips(page * kPageTokens, (page + 1) * kPageTokens)) continue;
            const char* slab = problem_.cache.slab(rows.batch(), page, rows.head());
            const int tokens = static_cast<int>(std::min<int64_t>(kPageTokens, rows.any_to() - page * kPageTokens));
            rows.score(kernels_, slab, scratch, tokens, scores, kPageTokens, keys_of(rows, page + 1), widened);
            for (int r = 0; r < rows.count(); ++r) {
                float* row = scores + r * kPageTokens;
                rows.mask_scores(r, page * kPageTokens, kPageTokens, row);
                update(best, r, page, row);
            }
        }
        for (int r = 0; r < rows.count(); ++r) write(rows, best, r, widened);
    }

    NextRead keys_of(const QueryRows& rows, int64_t page) const {
        if (page * kPageTokens >= rows.any_to()) return {nullptr, 0};
        return {problem_.cache.slab(rows.batch(), page, rows.head()) + PageLayout::kHeaderBytes,
                layout_.keys_end() - PageLayout::kHeaderBytes};
    }

    void update(Best& best, int r, int64_t page, const float* row) const {
        float sum = 0.0f;  // NaN if a score is NaN or infinite; which of the two is then checked
        for (int t = 0; t < kPageTokens; ++t) sum += row[t] * 0.0f;
        if (sum != sum) {
            for (int t = 0; t < kPageTokens; ++t) best.has_nan[r] = best.has_nan[r] || row[t] != row[t];
        }
        const float highest = kernels_.largest_score(row, kPageTokens);
        if (!(highest > best.score[r])) return;
        best.score[r] = highest;
        int64_t t = 0;
        while (row[t] != highest) ++t;
        best.key[r] = page * kPageTokens + t;
    }

    void write(const QueryRows& rows, const Best& best, int r, float* value) const {
        if (best.has_nan[r]) {
            std::fill(value, value + layout_.value_width, std::numeric_limits<float>::quiet_NaN());
            rows.write(r, value, 0.0f);
            return;
        }
        if (best.key[r] < 0) {
            rows.write(r, nullptr, 0.0f);
            return;
        }
        const char* slab = problem_.cache.slab(rows.batch(), best.key[r] / kPageTokens, rows.head());
        const int64_t token = best.key[r] % kPageTokens;
        const char* stored = slab + layout_.values_at() + token * layout_.row_bytes();
        const float one = 1.0f;
        std::fill(value, value + layout_.value_slots(), -0.0f);  // plus -0 is any number itself
        kernels_.weigh_page(&one, 1, 1, stored, layout_.storage.values, layout_.value_slots(),
                            layout_.row_slots(), layout_.value_scales(slab, token), 1, value, {}, nullptr);
        if (is_rotated(layout_.storage.values)) rotate_back(value, layout_.value_width);
        rows.write(r, value, 0.0f);
    }

    const KernelTable& kernels_;
    const AttendProblem& problem_;
    const PageLayout layout_;
    const int64_t rows_, tiles_, max_rows_, query_floats_;
};

}  // namespace

void attend_argmax(const KernelTable& kernels, const AttendProblem& problem, int threads) {
    if (problem.tokens.batch == 0 || problem.heads_q == 0 || problem.tokens.given == 0) return;
    AttendHard(kernels, problem).run(threads);
}

}  // namespace qkv
