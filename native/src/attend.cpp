#include <atomic>
#include <cmath>
#include <limits>

#include "cache.h"
#include "isa.h"
#include "parallel.h"
#include "query_rows.h"
#include "rotation.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

namespace {

// The least number of jobs for each thread: few, so that each is long enough to benefit from prefetching.
constexpr int64_t kJobsPerThread = 2;
// Units that have sums of weights at a time.
constexpr int64_t kSumsAtOnce = 64;
constexpr double kFlopsPerThread = 1 << 20;
constexpr int64_t kSmallSlab = 12 << 10;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
// The factor of weights in a sum that would overflow; there are fewer than 2^32 tokens.
constexpr float kShrink = 0x1p-32f;

// Partial results of rows over some of their keys: Σ e^(s - highest) v, Σ e^(s - highest), highest.
struct Sums {
    float* values;  // rows × value_slots
    float* weight;
    float* highest;
};

// What rotated keys and queries were divided by, twice but for one rotation (rotation.h).
float rotated_block_of(const PageLayout& layout) {
    return is_rotated(layout.storage.keys) ? static_cast<float>(rotated_block(layout.width)) : 1.0f;
}
// What is kept of rows for their weights: e^(s - peak), from the first key of the first part on, and the peak of each
// part.
struct Kept {
    float* powers;  // rows × columns; nullptr if nothing is kept
    float* peaks;   // parts × rows
};

float finite_or_zero(float highest) { return highest == kNegInf ? 0.0f : highest; }

class Attend {
public:
    // new_tokens: the tokens of the queries, if they are still to be appended; or nullptr.
    Attend(const KernelTable& kernels, const AttendProblem& problem, const AppendProblem* new_tokens, int threads)
        : kernels_(kernels),
          problem_(problem),
          new_tokens_(new_tokens),
          append_row_(new_tokens == nullptr ? nullptr : append_row(*new_tokens)),
          layout_(problem.cache.layout),
          rows_(checked_product(problem.heads_q / layout_.heads, problem.tokens.given)),
          max_rows_(std::min<int64_t>(rows_, kMaxRows)),
          tiles_(ceil_div(rows_, kMaxRows)),
          tiles_at_once_(problem.importance == nullptr
                             ? tiles_
                             : std::clamp<int64_t>(kSumsAtOnce / (problem.tokens.batch * layout_.heads), 1, tiles_)),
          units_(checked_product(checked_product(problem.tokens.batch, layout_.heads), tiles_at_once_)),
          value_slots_(layout_.value_slots()),
          query_floats_(round_up(checked_product(layout_.width_slots(), max_rows_), 16)),
          score_floats_(max_rows_ * kPartTokens),
          sums_floats_(round_up(checked_product(value_slots_ + 2, max_rows_), 16)),
          page_floats_(shares_pages() || problem.plain ? kPageTokens * std::max(layout_.width_slots(), value_slots_) : 0) {
        int64_t tokens = 0;
        for (int64_t b = 0; b < problem.tokens.batch; ++b) {
            const int64_t seen = attended_keys(b);
            tokens += seen;
            max_parts_ = std::max(max_parts_, seen / kPartTokens + 2);
            whole_parts_ = std::max(whole_parts_, (seen + kPartTokens / 2) / kPartTokens);
        }
        if (problem.weights != nullptr || problem.importance != nullptr) {
            kept_columns_ = max_parts_ * kPartTokens;
            kept_floats_ = round_up(checked_product(kept_columns_ + max_parts_, max_rows_), 16);
        }
        const int64_t bytes = tokens * layout_.head_bytes() / kPageTokens * layout_.heads * tiles_;
        // Prompts are bound by flops rather than bytes; a double, since the product may exceed 2^63.
        const double flops = 2.0 * tokens * layout_.heads * rows_ * (layout_.width_slots() + value_slots_);
        const int64_t wanted = std::max(bytes / kReadBytesPerThread, static_cast<int64_t>(std::min(flops / kFlopsPerThread, 1e6)));
        threads_ = static_cast<int>(std::clamp<int64_t>(wanted, 1, threads));
    }

    // Tiles that add to the importance of the same keys run with sums for each of them, which are added in order.
    void run() {
        const int64_t runs = threads_ == 1 ? 1 : runs_for_even_shares();
        const bool separate = problem_.importance != nullptr && tiles_ > 1;
        if (separate) sums_of_units_ = allocate(checked_product(units_, problem_.importance_columns));
        for (first_tile_ = 0; first_tile_ < tiles_; first_tile_ += tiles_at_once_) {
            float* const sums = sums_of_units_.get();
            if (separate) std::fill(sums, sums + units_ * problem_.importance_columns, 0.0f);
            if (runs == 1) {
                one_job_per_unit();
            } else {
                one_job_per_run(ceil_div(whole_parts_, runs));
            }
            for (int64_t unit = 0; unit < units_ && separate; ++unit) {
                kernels_.merge_row(problem_.importance + unit / tiles_at_once_ * problem_.importance_columns, 1.0f,
                                   sums + unit * problem_.importance_columns, 1.0f, problem_.importance_columns);
            }
        }
    }

private:
    // The number of runs of parts in a unit such that no thread has over a tenth more work than the others.
    int64_t runs_for_even_shares() const {
        for (int64_t runs = 1; runs < whole_parts_; ++runs) {
            const int64_t jobs = units_ * runs;
            if (jobs >= kJobsPerThread * threads_ && 10 * round_up(jobs, threads_) <= 11 * jobs) return runs;
        }
        return whole_parts_;
    }

    // Whether several blocks of rows read a page, which is then widened once, into scratch.
    bool shares_pages() const { return rows_ > kMaxBlockRows && (layout_.storage.keys != Dtype::float32 || layout_.storage.values != Dtype::float32); }

    // An upper bound of the number of keys that any query of the batch row attends to.
    int64_t attended_keys(int64_t b) const {
        const int64_t count = problem_.tokens.count(b);
        if (count == 0) return 0;
        if (problem_.plain != nullptr) return problem_.plain->length;
        const int64_t end = problem_.tokens.positions[b] + count;
        int64_t from = 0;
        if (problem_.cross) return problem_.tokens.positions[b];
        if (problem_.window != kNoBound && problem_.sinks == 0) from = end - count + 1 - problem_.window;
        return end - std::max<int64_t>(from, 0);
    }

    QueryRows rows_of(int64_t unit) const {
        const int64_t tile = first_tile_ + unit % tiles_at_once_, head = unit / tiles_at_once_ % layout_.heads;
        return QueryRows(problem_, unit / tiles_at_once_ / layout_.heads, head, std::min(tile * kMaxRows, rows_));
    }

    // What is kept of the rows, in this memory.
    Kept kept_at(const QueryRows& rows, float* memory) const {
        bool wanted = problem_.weights != nullptr;
        for (int r = 0; r < rows.count() && !wanted; ++r) wanted = rows.is_counted(r);
        return wanted ? Kept{memory, memory + kept_columns_ * max_rows_} : Kept{};
    }

    Sums sums_at(float* memory) const {
        float* weight = memory + value_slots_ * max_rows_;
        return {memory, weight, weight + max_rows_};
    }

    void one_job_per_unit() {
        const int workers = worker_limit(units_, threads_);
        const int64_t floats = query_floats_ + score_floats_ + 2 * sums_floats_ + round_up(page_floats_, 16) + kept_floats_;
        const Floats scratch = allocate(checked_product(floats, workers));
        auto work = [&](int64_t unit, int worker) {
            float* queries = scratch.get() + worker * floats;
            float* scores = queries + query_floats_;
            const Sums total = sums_at(scores + score_floats_), part = sums_at(scores + score_floats_ + sums_floats_);
            float* page = scores + score_floats_ + 2 * sums_floats_;
            const QueryRows rows = rows_of(unit);
            if (rows.any_to() > 0) rows.pack(kernels_, queries);
            const Kept kept = kept_at(rows, queries + floats - kept_floats_);
            const char marks = attend_parts(rows, queries, scores, page, total, part, 1.0f, kept);
            finish(rows, total, queries, marks, kept, unit);
        };
        for_each_job(units_, workers, work);
    }

    char attend_parts(const QueryRows& rows, const float* queries, float* scores, float* page, const Sums& total,
                      const Sums& part, float shrink, const Kept& kept) const {
        const int64_t begin = rows.any_from() / kPartTokens * kPartTokens;
        char marks = 0;
        for (int64_t at = begin; at < rows.any_to(); at += kPartTokens) {
            if (rows.skips(at, at + kPartTokens)) continue;
            marks |= attend_part(rows, at, queries, scores, page, at == begin ? total : part, shrink, kept);
            if (at != begin) fold(total, part, rows.count());
        }
        return marks;
    }

    // For few units with many keys: a run of parts is a job, and the worker that finishes the last one of a unit merges
    // all its parts in order. The number of parts in a run does not change the result.
    void one_job_per_run(int64_t parts_per_run) {
        const int64_t runs = ceil_div(max_parts_, parts_per_run), jobs = checked_product(units_, runs);
        const int workers = worker_limit(jobs, threads_);
        const int64_t floats = score_floats_ + page_floats_;
        const Floats scratch = allocate(checked_product(floats, workers));
        const Floats queries = allocate(checked_product(query_floats_, units_));
        const Floats parts = allocate(checked_product(sums_floats_, checked_product(units_, max_parts_)));
        const Floats powers = kept_floats_ == 0 ? Floats() : allocate(checked_product(kept_floats_, units_));
        const std::unique_ptr<std::atomic<int64_t>[]> left(new std::atomic<int64_t>[units_]);
        const std::unique_ptr<std::atomic<char>[]> marks(new std::atomic<char>[units_]);
        for (int64_t unit = 0; unit < units_; ++unit) {
            left[unit] = runs;
            marks[unit] = 0;
            const QueryRows rows = rows_of(unit);
            if (rows.any_to() > 0) rows.pack(kernels_, queries.get() + unit * query_floats_);
        }
        auto work = [&](int64_t job, int worker) {
            const int64_t unit = job / runs, begin = job % runs * parts_per_run;
            float* scores = scratch.get() + worker * floats;
            const QueryRows rows = rows_of(unit);
            const int64_t first = rows.any_from() / kPartTokens;
            const auto part_of = [&](int64_t n) { return sums_at(parts.get() + (unit * max_parts_ + n) * sums_floats_); };
            const auto skips = [&](int64_t n) { return rows.skips((first + n) * kPartTokens, (first + n + 1) * kPartTokens); };
            const Kept kept = kept_at(rows, powers.get() + unit * kept_floats_);
            for (int64_t n = begin; n < begin + parts_per_run; ++n) {
                if ((first + n) * kPartTokens >= rows.any_to()) break;
                if (skips(n)) continue;
                marks[unit] |= attend_part(rows, (first + n) * kPartTokens, queries.get() + unit * query_floats_, scores,
                                           scores + score_floats_, part_of(n), 1.0f, kept);
            }
            if (left[unit].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
            const Sums total = part_of(0);
            for (int64_t n = 1; (first + n) * kPartTokens < rows.any_to(); ++n) {
                if (!skips(n)) fold(total, part_of(n), rows.count());
            }
            finish(rows, total, queries.get() + unit * query_floats_, marks[unit], kept, unit);
        };
        for_each_job(jobs, workers, work);
    }

    // Attends to the keys of the part that starts at position `at`, with weights times `shrink` in the sum of values.
    // Returns the marks of its pages.
    char attend_part(const QueryRows& rows, int64_t at, const float* queries, float* scores, float* page,
                     const Sums& part, float shrink, const Kept& kept) const {
        const int64_t from = std::max(rows.any_from(), at), to = std::min(rows.any_to(), at + kPartTokens);
        const int64_t first_page = from / kPageTokens, last_page = (to - 1) / kPageTokens;
        // Whole groups of tokens: the rest of the last page is not read.
        const int64_t first_key = first_page * kPageTokens, keys = round_up(to - first_key, kGroupTokens);
        // The keys, then the values of the pages of this part, then the keys of the next one.
        const int64_t pages = last_page - first_page + 1;
        const auto read_at = [&](int64_t place) {
            if (layout_.storage.latent) return half_page(rows, at / kPageTokens + kPartTokens / kPageTokens, place - ahead_);
            if (place < pages) return keys_of(rows, first_page + place);
            if (place < 2 * pages) {
                return part_of_page(rows, first_page + place - pages, layout_.values_at(), layout_.head_bytes());
            }
            const int64_t page = (at + kPartTokens) / kPageTokens + place - 2 * pages;
            return page * kPageTokens < rows.any_to() ? keys_of(rows, page) : NextRead{};
        };
        for (int64_t p = first_page; p <= last_page; ++p) {
            if (append_row_ != nullptr && p == last_page && to == rows.any_to()) {
                append_row_(*new_tokens_, rows.batch(), rows.head());
            }
            score(rows, p, static_cast<int>(std::min<int64_t>(kPageTokens, to - p * kPageTokens)), queries, page,
                  scores + (p * kPageTokens - first_key), read_at(p - first_page + ahead_));
        }
        char marks = problem_.plain != nullptr ? kNonfinite : 0;
        for (int64_t p = first_page; p <= last_page && problem_.plain == nullptr; ++p) {
            marks |= problem_.cache.slab(rows.batch(), p, rows.head())[0];
        }
        bool masked[kMaxRows * kPartTokens];  // only set if a value may be non-finite
        for (int r = 0; r < rows.count(); ++r) {
            float* row = scores + r * kPartTokens;
            if (!scales_after_max_) kernels_.scale_scores(row, keys, scale_, problem_.softcap);
            rows.add_bias(r, first_key, keys, row);
            rows.mask_scores(r, first_key, keys, row);
            const float factor = scales_after_max_ ? scale_ : 1.0f;
            const float highest = kernels_.largest_score(row, keys);
            if (marks & kNonfinite) mark_masked(row, keys, masked + r * kPartTokens);
            part.highest[r] = problem_.sigmoid ? 0.0f : highest * factor;
            if (problem_.sigmoid) {  // of the sum, only whether anything is attended counts, and whether it is NaN
                const float sum = kernels_.sigmoids(row, keys, problem_.offset);
                part.weight[r] = sum == 0.0f && highest != kNegInf ? 1.0f : sum;
            } else {
                part.weight[r] = kernels_.exponentials(row, keys, factor, finite_or_zero(highest));
            }
            if (kept.powers != nullptr) {
                const int64_t number = at / kPartTokens - rows.any_from() / kPartTokens;
                kept.peaks[number * max_rows_ + r] = part.highest[r];
                std::copy(row, row + keys, kept.powers + r * kept_columns_ + number * kPartTokens + (first_key - at));
            }
            if (shrink != 1.0f) {
                for (int64_t t = 0; t < keys; ++t) row[t] *= shrink;
            }
        }
        std::fill(part.values, part.values + rows.count() * value_slots_, 0.0f);
        for (int64_t p = first_page; p <= last_page; ++p) {
            const int64_t column = p * kPageTokens - first_key;
            weigh(rows, p, from, to, scores + column, masked + column, page, part.values,
                  read_at(pages + p - first_page + ahead_));
        }
        return marks;
    }

    NextRead part_of_page(const QueryRows& rows, int64_t page, int64_t from, int64_t to) const {
        if (problem_.plain != nullptr) return {};
        return {problem_.cache.slab(rows.batch(), page, rows.head()) + from, to - from, near_};
    }

    NextRead keys_of(const QueryRows& rows, int64_t page) const {
        return part_of_page(rows, page, PageLayout::kHeaderBytes, layout_.keys_end());
    }

    // Latents are read from memory once, for their scores: half a page of the next part in each step of this one.
    NextRead half_page(const QueryRows& rows, int64_t first_page, int64_t step) const {
        const int64_t page = first_page + step / 2, half = round_up(layout_.head_bytes() / 2, 64);
        if (page * kPageTokens >= rows.any_to()) return {};
        return part_of_page(rows, page, step % 2 * half, step % 2 == 0 ? half : layout_.head_bytes());
    }

    void score(const QueryRows& rows, int64_t page, int tokens, const float* queries, float* widened, float* scores,
               const NextRead& ahead) const {
        if (problem_.plain != nullptr) {
            pack_plain_keys(rows, page, widened);
            kernels_.score_page(queries, rows.count(), reinterpret_cast<const char*>(widened), Dtype::float32,
                                layout_.width_slots(), nullptr, scores, kPartTokens, tokens, ahead, nullptr);
            return;
        }
        const char* slab = problem_.cache.slab(rows.batch(), page, rows.head());
        rows.score(kernels_, slab, queries, tokens, scores, kPartTokens, ahead, widened);
    }

    void weigh(const QueryRows& rows, int64_t page, int64_t from, int64_t to, const float* weights, const bool* masked,
               float* widened, float* sums, const NextRead& ahead) const {
        if (problem_.plain != nullptr) {
            weigh_plain(rows, page, from, to, weights, masked, widened, sums);
            return;
        }
        const char* slab = problem_.cache.slab(rows.batch(), page, rows.head());
        const int64_t first = std::max<int64_t>(from - page * kPageTokens, 0);
        const int64_t last = std::min<int64_t>(to - page * kPageTokens, kPageTokens);
        const char* values = slab + layout_.values_at() + first * layout_.row_bytes();
        const char* scales = layout_.value_scales(slab, first);
        if (slab[0] & kNonfinite) {
            weigh_nonfinite(rows.count(), last - first, weights + first, masked + first, values, layout_.row_bytes(),
                            layout_.storage.values, scales, sums);
            return;
        }
        kernels_.weigh_page(weights + first, kPartTokens, rows.count(), values, layout_.storage.values, value_slots_,
                            layout_.row_slots(), scales, static_cast<int>(last - first), sums, ahead, widened);
    }

    // Transposes and widens keys into the layout of a page.
    void pack_plain_keys(const QueryRows& rows, int64_t page, float* widened) const {
        const PlainKeyValues& past = *problem_.plain;
        const int64_t first = page * kPageTokens;
        const int count = static_cast<int>(std::min<int64_t>(kPageTokens, past.length - first));
        const void* tokens[kPageTokens];
        for (int t = 0; t < count; ++t) {
            tokens[t] = row_address(past.key, past.dtype, rows.batch(), rows.head(), first + t);
        }
        kernels_.pack_rows(tokens, count, kPageTokens, past.dtype, layout_.width, past.key.stride[3], widened);
    }

    void weigh_plain(const QueryRows& rows, int64_t page, int64_t from, int64_t to, const float* weights,
                     const bool* masked, float* widened, float* sums) const {
        const PlainKeyValues& past = *problem_.plain;
        const int64_t first = std::max(from, page * kPageTokens), last = std::min(to, (page + 1) * kPageTokens);
        const int64_t begin = first - page * kPageTokens, count = last - first;
        const auto* values = static_cast<const char*>(row_address(past.value, past.dtype, rows.batch(), rows.head(), first));
        const int64_t element = element_size(past.dtype);
        const bool as_they_are = past.dtype == Dtype::float32 && value_slots_ == layout_.value_width &&
                                 past.value.stride[3] == 1 && past.value.stride[2] == value_slots_;
        if (!as_they_are) {
            for (int64_t t = 0; t < count; ++t) {
                float* row = widened + t * value_slots_;
                kernels_.widen_row(values + t * past.value.stride[2] * element, past.value.stride[3] * element,
                                   layout_.value_width, past.dtype, row);
                std::fill(row + layout_.value_width, row + value_slots_, 0.0f);
            }
            values = reinterpret_cast<const char*>(widened);
        }
        if (!kernels_.all_finite(values, count * value_slots_, Dtype::float32)) {
            weigh_nonfinite(rows.count(), count, weights + begin, masked + begin, values, value_slots_ * 4, Dtype::float32,
                            nullptr, sums);
            return;
        }
        kernels_.weigh_page(weights + begin, kPartTokens, rows.count(), values, Dtype::float32, value_slots_, value_slots_,
                            nullptr, static_cast<int>(count), sums, {}, nullptr);
    }

    static void mark_masked(const float* scores, int64_t count, bool* masked) {
        for (int64_t t = 0; t < count; ++t) masked[t] = scores[t] == kNegInf;
    }

    // 0 · NaN is NaN: if a value may be non-finite, a row adds only tokens with a score above -inf, one by one in the
    // same order of operations, so that a masked NaN changes no bit.
    void weigh_nonfinite(int rows, int64_t tokens, const float* weights, const bool* masked, const char* values,
                         int64_t row_bytes, Dtype storage, const char* scales, float* sums) const {
        for (int r = 0; r < rows; ++r) {
            for (int64_t t = 0; t < tokens; ++t) {
                if (masked[r * kPartTokens + t]) continue;
                float weight = weights[r * kPartTokens + t];
                const char* value = values + t * row_bytes;
                if (weight == 0.0f && scales == nullptr) weight = positive_if_nonfinite(value, storage);
                kernels_.weigh_page(&weight, 1, 1, value, storage, value_slots_, value_slots_,
                                    scales == nullptr ? nullptr : scales + t * scale_size(storage), 1,
                                    sums + r * value_slots_, {}, nullptr);
            }
        }
    }

    // A factor that underflows to 0 is positive in truth: it leaves an infinity infinite, and 0 · ∞ would be NaN.
    float positive_if_nonfinite(const void* values, Dtype dtype) const {
        return kernels_.all_finite(values, value_slots_, dtype) ? 0.0f : std::numeric_limits<float>::min();
    }

    void fold(const Sums& total, const Sums& part, int rows) const {
        // One of the two factors is e^0. Vectors process whole groups of rows.
        alignas(64) float smaller[kMaxRows + kGroupTokens];
        const int64_t count = round_up(rows, kGroupTokens);
        for (int64_t r = 0; r < count; ++r) {
            const bool is_row = r < rows;
            const float one = is_row ? total.highest[r] : 0.0f, other = is_row ? part.highest[r] : 0.0f;
            smaller[r] = std::min(one, other) - finite_or_zero(std::max(one, other));
        }
        kernels_.exponentials(smaller, count, 1.0f, 0.0f);
        for (int r = 0; r < rows; ++r) {
            const bool rises = part.highest[r] > total.highest[r];
            float kept = rises ? smaller[r] : 1.0f, taken = rises ? 1.0f : smaller[r];
            if (kept == 0.0f) kept = positive_if_nonfinite(total.values + r * value_slots_, Dtype::float32);
            if (taken == 0.0f) taken = positive_if_nonfinite(part.values + r * value_slots_, Dtype::float32);
            kernels_.merge_row(total.values + r * value_slots_, kept, part.values + r * value_slots_, taken,
                              value_slots_);
            // A NaN weight (a NaN score among -inf) must not be lost to the factor 0 of its part.
            total.weight[r] = total.weight[r] * kept + part.weight[r] * taken;
            total.highest[r] = std::max(total.highest[r], part.highest[r]);
        }
    }

    // The weights of row r, whose powers are multiplied by e^(peak - highest) · factor.
    void write_weights(const QueryRows& rows, int r, const Kept& kept, float highest, float factor, int64_t unit) const {
        float* const weights = rows.weights(r);
        float* sums = sums_of_units_ == nullptr ? problem_.importance : sums_of_units_.get();
        sums = rows.is_counted(r) ? sums + unit * problem_.importance_columns : nullptr;
        const int64_t begin = rows.any_from() / kPartTokens * kPartTokens;
        for (int64_t at = begin; at < rows.any_to(); at += kPartTokens) {
            if (rows.skips(at, at + kPartTokens)) continue;
            const int64_t from = std::max(rows.any_from(), at) / kPageTokens * kPageTokens;
            const int64_t to = std::min(rows.any_to(), at + kPartTokens);
            const float* powers = kept.powers + r * kept_columns_ + (from - begin);
            const float peak = kept.peaks[(at - begin) / kPartTokens * max_rows_ + r];
            const float scale = std::exp(peak - finite_or_zero(highest)) * factor;
            if (scale != scale) {  // a NaN or an infinity that is attended: all weights of the row
                for (int64_t key = from; key < to; ++key) {
                    if (!rows.attends(r, key)) continue;
                    if (weights != nullptr) weights[key] = scale;
                    if (sums != nullptr) sums[key] = scale;
                }
                continue;
            }
            for (int64_t key = from; key < to && weights != nullptr; ++key) weights[key] = powers[key - from] * scale;
            if (sums != nullptr) kernels_.merge_row(sums + from, 1.0f, powers, scale, round_up(to - from, kGroupTokens));
        }
    }

    void finish(const QueryRows& rows, const Sums& total, const float* queries, char marks, const Kept& kept_powers,
                int64_t unit) const {
        Floats memory;
        const float* again = nullptr;
        if ((marks & kLarge) && !problem_.sigmoid) {  // a sum that overflows is infinite
            memory = attend_again(rows, total, queries);
            again = memory.get();
        }
        for (int r = 0; r < rows.count(); ++r) {
            // Checked before the sums are read: they are not set if no row attends to any key.
            float weight = rows.from(r) == rows.to(r) ? 0.0f : total.weight[r];
            if (weight == 0.0f) {
                rows.write(r, nullptr, kNegInf);
                continue;
            }
            float* values = total.values + r * value_slots_;
            float highest = total.highest[r], kept = 1.0f;
            const float sink = rows.sink(r);
            if (sink != kNegInf) {
                const float top = finite_or_zero(std::max(highest, sink));
                kept = std::exp(highest - top);
                weight = weight * kept + std::exp(sink - top);
                highest = std::max(highest, sink);
            }
            float factor = problem_.sigmoid ? 1.0f : kept / weight;
            if (kept_powers.powers != nullptr) write_weights(rows, r, kept_powers, total.highest[r], factor, unit);
            if (factor == 0.0f) factor = positive_if_nonfinite(values, Dtype::float32);
            for (int64_t c = 0; c < value_slots_; ++c) values[c] *= factor;
            if (again != nullptr) replace_overflows(values, again + r * value_slots_, factor);
            if (is_rotated(layout_.storage.values)) rotate_back(values, layout_.value_width);
            rows.write(r, values, problem_.lse == nullptr ? 0.0f : finite_or_zero(highest) + std::log(weight));
        }
    }

    // A sum of weighted values near the largest number overflows before it is divided by the weight. The sums of
    // shrunken weights, if a sum is not finite.
    Floats attend_again(const QueryRows& rows, const Sums& total, const float* queries) const {
        if (kernels_.all_finite(total.values, rows.count() * value_slots_, Dtype::float32)) return {};
        Floats memory = allocate(2 * sums_floats_ + score_floats_ + page_floats_);
        float* scores = memory.get() + 2 * sums_floats_;
        attend_parts(rows, queries, scores, scores + score_floats_, sums_at(memory.get()),
                     sums_at(memory.get() + sums_floats_), kShrink, {});
        return memory;
    }

    // A mean of finite numbers is at most the largest one.
    void replace_overflows(float* values, const float* again, float factor) const {
        for (int64_t c = 0; c < value_slots_; ++c) {
            if (std::isfinite(values[c])) continue;
            const float mean = again[c] * factor;
            values[c] = std::isfinite(mean) ? std::clamp(mean / kShrink, -kLargest, kLargest) : mean;
        }
    }

    const KernelTable& kernels_;
    const AttendProblem& problem_;
    const AppendProblem* const new_tokens_;
    const AppendRow append_row_;
    const PageLayout layout_;
    const int64_t rows_, max_rows_, tiles_, tiles_at_once_, units_, value_slots_;
    const int64_t query_floats_, score_floats_, sums_floats_, page_floats_;
    const float scale_ = problem_.scale * rotated_block_of(layout_);
    // What is prefetched: the keys or values after the next ones, if those are computed with before memory answers.
    const int64_t ahead_ = layout_.head_bytes() < kSmallSlab ? 2 : 1;
    const bool near_ = fetches_near();
    // A positive scale without softcap is applied inside the exponential, where it costs nothing.
    const bool scales_after_max_ =
        problem_.scale > 0.0f && problem_.softcap == 0.0f && problem_.bias.data == nullptr &&
        problem_.decay_key == nullptr && !problem_.sigmoid;
    int64_t max_parts_ = 1, whole_parts_ = 1, first_tile_ = 0;
    int64_t kept_columns_ = 0, kept_floats_ = 0;
    Floats sums_of_units_;
    int threads_ = 1;
};

}  // namespace

void attend(const KernelTable& kernels, const AttendProblem& problem, int threads) {
    if (problem.tokens.batch == 0 || problem.heads_q == 0 || problem.tokens.given == 0) return;
    Attend(kernels, problem, nullptr, threads).run();
}

void append_and_attend(const KernelTable& kernels, const AppendProblem& tokens, const AttendProblem& problem,
                       int threads) {
    const bool one_reader = problem.tokens.given == 1 && problem.tokens.counts == nullptr &&
                            problem.heads_q / problem.cache.layout.heads <= kMaxRows;
    if (one_reader && problem.tokens.batch > 0 && problem.heads_q > 0) {
        Attend(kernels, problem, &tokens, threads).run();
        return;
    }
    append(tokens, threads);
    attend(kernels, problem, threads);
}

}  // namespace qkv
