#include "linear.h"

#include <algorithm>

#include "linear_unit.h"
#include "parallel.h"
#include "scratch.h"

namespace qkv {

namespace {

class Linear {
public:
    Linear(const KernelTable& kernels, const LinearProblem& problem)
        : kernels_(kernels), problem_(problem), plan_(kernels, problem), chunk_(plan_.chunk),
          units_(checked_product(problem.batch, problem.heads_kv)) {}

    void run(int threads) {
        if (problem_.direct) {
            score_in_strips(threads);
        } else if (problem_.state == nullptr && problem_.out != nullptr && segments() > 1) {
            sum_in_segments(threads);
        } else {
            one_job_per_unit(threads);
        }
    }

private:
    // Keys are split into segments that are summed independently. Without a causal mask that costs nothing; with one it
    // costs another pass over the keys, so it is used for few heads. The batch size must not decide, since the bits
    // depend on the split.
    int64_t segments() const {
        if (problem_.causal && problem_.heads_kv >= kEnoughHeads) return 1;
        return std::min<int64_t>(kMaxSegments, problem_.len_k / (kChunksInSegment * chunk_));
    }

    int64_t segment_begin(int64_t segment) const {
        const int64_t chunks = ceil_div(problem_.len_k, chunk_), all = segments();
        return std::min(problem_.len_k, (chunks * segment / all) * chunk_);
    }

    // Jobs for (unit, part): fn(unit, part, scratch of the worker).
    template <typename Work>
    void share(int64_t parts, int threads, int64_t more_floats, Work fn) {
        const int64_t jobs = checked_product(units_, parts);
        const int workers = worker_limit(jobs, threads);
        const int64_t floats = round_up(plan_.scratch_floats, kLine) + round_up(more_floats, kLine);
        const Floats scratch = allocate(checked_product(floats, workers));
        auto work = [&](int64_t job, int worker) { fn(job / parts, job % parts, scratch.get() + worker * floats); };
        for_each_job(jobs, workers, work);
    }

    void one_job_per_unit(int threads) {
        const bool own = problem_.state == nullptr;
        share(1, threads, own ? plan_.state_floats : 0, [&](int64_t unit, int64_t, float* scratch) {
            float* state = own ? scratch : problem_.state + unit * plan_.state_floats;
            if (own) std::fill(state, state + plan_.state_floats, 0.0f);
            LinearUnit work(plan_, unit, state, own ? scratch + round_up(plan_.state_floats, kLine) : scratch);
            if (problem_.out != nullptr) work.answer_range(0, problem_.len_q, 0);
            if (!own) work.absorb_range(work.absorbed(), problem_.len_k);
        });
    }

    // Scores every pair; strips of queries are independent.
    void score_in_strips(int threads) {
        const int64_t strips = ceil_div(problem_.len_q, chunk_);
        share(strips, threads, 0, [&](int64_t unit, int64_t strip, float* scratch) {
            float* state = problem_.state == nullptr ? nullptr : problem_.state + unit * plan_.state_floats;
            LinearUnit(plan_, unit, state, scratch).score_everything(strip * chunk_);
        });
    }

    void sum_in_segments(int threads) {
        const int64_t all = segments(), stride = round_up(plan_.state_floats, kLine);
        const Floats states = allocate(checked_product(stride, checked_product(units_, all)));
        const auto state_of = [&](int64_t unit, int64_t segment) { return states.get() + (unit * all + segment) * stride; };
        // With a causal mask the sums of the last segment are not needed.
        share(all, threads, 0, [&](int64_t unit, int64_t segment, float* scratch) {
            float* state = state_of(unit, segment);
            std::fill(state, state + stride, 0.0f);
            if (problem_.causal && segment == all - 1) return;
            LinearUnit(plan_, unit, state, scratch).absorb_range(segment_begin(segment), segment_begin(segment + 1));
        });
        // From sums over segments to prefix sums; without a causal mask, to the sum over all segments.
        for (int64_t unit = 0; unit < units_; ++unit) {
            for (int64_t segment = 1; segment < all; ++segment) {
                kernels_.merge_row(state_of(unit, segment), 1.0f, state_of(unit, segment - 1), 1.0f, stride);
            }
        }
        if (!problem_.causal) {
            const int64_t strips = ceil_div(problem_.len_q, chunk_);
            share(strips, threads, 0, [&](int64_t unit, int64_t strip, float* scratch) {
                const int64_t begin = strip * chunk_, end = std::min(begin + chunk_, problem_.len_q);
                LinearUnit(plan_, unit, state_of(unit, all - 1), scratch).answer_range(begin, end, problem_.len_k);
            });
            return;
        }
        share(all, threads, stride, [&](int64_t unit, int64_t segment, float* scratch) {
            float* state = scratch;
            if (segment == 0) {
                std::fill(state, state + stride, 0.0f);
            } else {
                std::copy_n(state_of(unit, segment - 1), stride, state);
            }
            const int64_t from = segment_begin(segment), to = segment_begin(segment + 1);
            const int64_t begin = segment == 0 ? 0 : first_query_past(from);
            const int64_t end = segment == all - 1 ? problem_.len_q : first_query_past(to);
            LinearUnit(plan_, unit, state, scratch + stride).answer_range(begin, end, from);
        });
    }

    // The first query that attends to all keys up to and including this one.
    int64_t first_query_past(int64_t key) const {
        int64_t query;
        if (__builtin_sub_overflow(key, problem_.offset, &query)) return problem_.offset > 0 ? 0 : problem_.len_q;
        return std::clamp<int64_t>(query, 0, problem_.len_q);
    }

    const KernelTable& kernels_;
    const LinearProblem& problem_;
    const LinearPlan plan_;
    const int64_t chunk_, units_;
};

}  // namespace

int64_t FeatureRule::count() const {
    if (map != Map::power) return width;
    // C(coordinates + degree - 1, degree); every intermediate result is an integer.
    int64_t count = 1;
    for (int n = 1; n <= degree; ++n) count = checked_product(count, coordinates() + n - 1) / n;
    return count;
}

int64_t linear_value_slots(int64_t value_width) { return round_up(std::max<int64_t>(value_width, 1), kLine); }

int64_t linear_state_size(const FeatureRule& rule, int64_t value_width) {
    // Vectors are read beyond the end of z.
    return checked_product(rule.count(), linear_value_slots(value_width)) + round_up(rule.count(), kLine) + kLine;
}

void linear(const KernelTable& kernels, const LinearProblem& problem, int threads) {
    if (problem.batch == 0 || problem.heads_kv == 0) return;
    Linear(kernels, problem).run(threads);
}

}  // namespace qkv
