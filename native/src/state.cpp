#include "state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "parallel.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

namespace {

constexpr int64_t kLine = kGroupTokens;  // rows are padded to a multiple of this many floats
constexpr int64_t kFewTokens = 4;        // up to which tokens are processed one by one, without copying the state
constexpr int64_t kParallelFloats = 1 << 16;  // of all states, from which on one token is worth several threads

// Sizes common to all jobs. A job is a key/value head of a batch row and a range of columns of values.
struct StatePlan {
    StatePlan(const KernelTable& kernels, const StateProblem& problem, int threads)
        : kernels(kernels),
          problem(problem),
          delta(problem.delta),
          gated(problem.gate_width > 0),
          channels(problem.gate_width > 1),
          one_by_one(problem.length <= kFewTokens),
          chunk(one_by_one ? kFewTokens : channels ? kChannelChunk : kStateChunk),
          group(problem.heads_kv == 0 ? 0 : problem.heads_q / problem.heads_kv),
          units(checked_product(problem.batch, problem.heads_kv)),
          slots(round_up(problem.width, kLine)),
          lines(std::max<int64_t>(ceil_div(problem.value_width, kLine), 1)),
          slices(count_slices(threads)),
          value_slots(ceil_div(lines, slices) * kLine) {
        scratch_floats = checked_product(slots, 7 * chunk + value_slots) + 3 * chunk * (value_slots + chunk) +
                         (group + 1) * (slots + value_slots) + value_slots + chunk + 8 * kLine;
    }

    int64_t first_column(int64_t slice) const { return std::min(lines * slice / slices * kLine, problem.value_width); }

    const KernelTable& kernels;
    const StateProblem& problem;
    const bool delta, gated, channels, one_by_one;
    const int64_t chunk, group, units, slots, lines, slices, value_slots;
    int64_t scratch_floats;

private:
    // Slices repeat the work on keys and queries, so there are only as many as give every thread a job.
    int64_t count_slices(int threads) const {
        if (one_by_one && units * problem.width * problem.value_width < kParallelFloats) return 1;
        if (units == 0 || units >= 4 * threads || units % threads == 0) return 1;
        int64_t count = 1;
        while (count < threads && units * count % threads != 0) ++count;
        return std::min(count, lines);
    }
};

struct Rows {
    const float* at;
    int64_t stride;
};

class StateUnit {
public:
    StateUnit(const StatePlan& all, int64_t unit, int64_t slice, float* scratch)
        : all_(all),
          problem_(all.problem),
          kernels_(all.kernels),
          batch_(unit / all.problem.heads_kv),
          head_(unit % all.problem.heads_kv),
          first_(all.first_column(slice)),
          columns_(all.first_column(slice + 1) - first_),
          value_slots_(round_up(columns_, kLine)) {
        const auto take = [&](int64_t floats) {
            float* taken = scratch;
            scratch += round_up(floats, kLine);
            return taken;
        };
        const int64_t chunk = all.chunk, rows = chunk * all.slots;
        keys_ = take(rows);
        queries_ = take(rows);
        turned_ = take(rows);
        scaled_ = take(rows);
        factors_ = take(rows);
        before_ = take(rows);
        after_ = take(rows);
        values_ = take(chunk * value_slots_);
        changes_ = take(chunk * value_slots_);
        sums_ = take(chunk * value_slots_);
        lower_ = take(chunk * chunk);
        scores_ = take(chunk * chunk);
        weights_ = take(chunk * chunk);
        betas_ = take(chunk);
        token_queries_ = take((all.group + 1) * all.slots);
        token_out_ = take((all.group + 1) * value_slots_);
        marks_ = reinterpret_cast<uint8_t*>(take(value_slots_));
        own_state_ = take(all.slots * value_slots_);
        std::fill(keys_, keys_ + rows, 0.0f);
        std::fill(queries_, queries_ + rows, 0.0f);
        std::fill(factors_, factors_ + rows, 1.0f);
        std::fill(values_, values_ + chunk * value_slots_, 0.0f);
        std::fill(token_queries_, token_queries_ + all.slots, 0.0f);
        given_ = problem_.state == nullptr ? nullptr
                                           : problem_.state + unit * problem_.width * problem_.value_width + first_;
    }

    void run() {
        const bool in_place = all_.one_by_one && given_ != nullptr;
        state_ = in_place ? given_ : own_state_;
        stride_ = in_place ? problem_.value_width : value_slots_;
        if (!in_place) {
            std::fill(state_, state_ + problem_.width * stride_, 0.0f);
            if (given_ != nullptr) copy_state(given_, problem_.value_width, state_, stride_);
        }
        for (int64_t begin = 0; begin < problem_.length;) {
            int64_t end = std::min(begin + all_.chunk, problem_.length);
            if (resets(begin)) clear_state();
            for (int64_t t = begin + 1; t < end; ++t) {
                if (resets(t)) end = t;
            }
            load(begin, end);
            advance();
            begin = end;
        }
        if (!in_place && given_ != nullptr) copy_state(state_, stride_, given_, problem_.value_width);
    }

private:
    bool resets(int64_t t) const {
        return problem_.resets != nullptr && problem_.resets[batch_ * problem_.length + t] != 0;
    }

    bool kept(int64_t t) const { return problem_.keep == nullptr || problem_.keep[batch_ * problem_.length + t] != 0; }

    void clear_state() {
        for (int64_t c = 0; c < problem_.width; ++c) std::memset(state_ + c * stride_, 0, columns_ * sizeof(float));
    }

    void copy_state(const float* from, int64_t from_stride, float* to, int64_t to_stride) const {
        for (int64_t c = 0; c < problem_.width; ++c) {
            std::memcpy(to + c * to_stride, from + c * from_stride, columns_ * sizeof(float));
        }
    }

    const char* address(const Tensor4& tensor, Dtype dtype, int64_t head, int64_t t) const {
        return static_cast<const char*>(row_address(tensor, dtype, batch_, head, t));
    }

    // Rows of the chunk as float32: the tensor's own memory if it has that form and no row is dropped, otherwise `to`.
    Rows rows_of(const Tensor4& tensor, int64_t head, int64_t first, int64_t count, int64_t slots, float* to) const {
        const bool ready = problem_.dtype == Dtype::float32 && tensor.stride[3] == 1 && problem_.keep == nullptr;
        const int64_t element = element_size(problem_.dtype), step = tensor.stride[3] * element;
        const char* from = address(tensor, problem_.dtype, head, begin_) + first * step;
        if (ready && count == slots && reinterpret_cast<uintptr_t>(from) % sizeof(float) == 0) {
            return {reinterpret_cast<const float*>(from), tensor.stride[2]};
        }
        for (int64_t t = 0; t < rows_; ++t, from += tensor.stride[2] * element, to += slots) {
            if (kept(begin_ + t)) {
                kernels_.widen_row(from, step, count, problem_.dtype, to);
            } else {
                std::fill(to, to + count, 0.0f);
            }
        }
        return {to - rows_ * slots, slots};
    }

    // Gates of head or token become a vector over tokens; gates of channels a row for each token.
    void load_gates() {
        const Tensor4& gate = problem_.gate;
        const int64_t count = all_.channels ? problem_.width : 1, row = all_.channels ? all_.slots : 1;
        const int64_t step = gate.stride[3] * element_size(problem_.gate_dtype);
        for (int64_t t = 0; t < rows_; ++t) {
            float* to = factors_ + t * row;
            std::fill(to, to + row, 0.0f);
            if (!kept(begin_ + t)) continue;
            const char* from = address(gate, problem_.gate_dtype, head_, begin_ + t);
            kernels_.widen_row(from, step, count, problem_.gate_dtype, to);
            for (int64_t c = 0; c < count; ++c) closed_ = closed_ | (to[c] == -INFINITY);
        }
        if (!all_.channels) std::fill(factors_ + rows_, factors_ + round_up(rows_, kLine), 0.0f);
        kernels_.exponentials(factors_, round_up(rows_ * row, kLine), 1.0f, 0.0f);
    }

    void load(int64_t begin, int64_t end) {
        begin_ = begin;
        rows_ = end - begin;
        key_ = rows_of(problem_.key, head_, 0, problem_.width, all_.slots, keys_);
        value_ = rows_of(problem_.value, head_, first_, columns_, value_slots_, values_);
        closed_ = false;
        if (all_.gated) load_gates();
        for (int64_t t = 0; all_.delta && t < rows_; ++t) {
            const char* from = address(problem_.beta, problem_.beta_dtype, head_, begin + t);
            betas_[t] = kept(begin + t) ? widen(from, problem_.beta_dtype) : 0.0f;
        }
    }

    void advance() {
        if (rows_ <= kFewTokens || odd_chunk()) {
            one_by_one(0, columns_);
            return;
        }
        prepare();
        if (all_.delta) solve();
        const Rows change = all_.delta ? Rows{changes_, value_slots_} : value_;
        bool any = kernels_.find_odd_columns(change.at, change.stride, rows_, value_slots_, marks_);
        // A gate of -inf forgets a state that is not finite, which a factor of 0 would not.
        uint8_t* held = marks_ + value_slots_ / kLine;
        if (closed_ && kernels_.find_odd_columns(state_, stride_, problem_.width, value_slots_, held)) {
            any = true;
            for (int64_t n = 0; n < value_slots_ / kLine; ++n) marks_[n] = marks_[n] | held[n];
        }
        for (int64_t g = 0; g < all_.group; ++g) answer(g, change, any ? marks_ : nullptr);
        update(change, any ? marks_ : nullptr);
    }

    // Whether numbers that all columns of values depend on are not finite.
    bool odd_chunk() {
        uint8_t marks[64];
        const int64_t width = problem_.width;
        for (int64_t c = 0; c < all_.slots; c += 64 * kLine) {
            const int64_t count = std::min(all_.slots - c, 64 * kLine);
            if (kernels_.find_odd_columns(key_.at + c, key_.stride, rows_, count, marks)) return true;
            if (all_.channels && kernels_.find_odd_columns(factors_ + c, all_.slots, rows_, std::min(count, width - c), marks)) {
                return true;
            }
        }
        if (all_.gated && !all_.channels && !kernels_.all_finite(factors_, rows_, Dtype::float32)) return true;
        return all_.delta && !kernels_.all_finite(betas_, rows_, Dtype::float32);
    }

    // Products of the factors of gates, and transposed keys.
    void prepare() {
        const int64_t chunk = all_.chunk;
        const void* rows[kStateChunk];
        for (int64_t t = 0; t < rows_; ++t) rows[t] = key_.at + t * key_.stride;
        kernels_.pack_rows(rows, static_cast<int>(rows_), static_cast<int>(chunk), Dtype::float32, problem_.width, 1,
                           turned_);
        if (!all_.gated) return;
        if (all_.channels) {
            kernels_.scan_factors(factors_, all_.slots, rows_, all_.slots, before_, after_);
            return;
        }
        // Often the same as for the last chunk: a constant decay.
        if (known_ == rows_ && std::memcmp(known_factors_, factors_, rows_ * sizeof(float)) == 0) return;
        known_ = rows_;
        std::memcpy(known_factors_, factors_, rows_ * sizeof(float));
        kernels_.multiply_factors(factors_, rows_, weights_, chunk);
        float product = 1.0f;
        for (int64_t t = 0; t < rows_; ++t) {
            product *= factors_[t];
            if (product < 0x1p-126f) product = 0.0f;
            before_[t] = product;
            after_[t] = weights_[(rows_ - 1) * chunk + t];
        }
    }

    // Rows times the factors of all gates up to their token, or after it.
    Rows decayed(const Rows& x, const float* factors) {
        if (!all_.gated) return x;
        if (all_.channels) {
            kernels_.multiply_pairs(x.at, x.stride, factors, all_.slots, rows_, all_.slots, scaled_, all_.slots);
        } else {
            kernels_.form_features(x.at, x.stride, rows_, all_.slots, factors, nullptr, scaled_, all_.slots);
        }
        return {scaled_, all_.slots};
    }

    // Scores of rows of queries or keys (`strict`: with earlier keys only), times the factors of the gates in between.
    void score(const Rows& left, int strict, const float* row_factors, float* scores) {
        const int64_t chunk = all_.chunk;
        if (all_.channels) {
            kernels_.score_channels(left.at, left.stride, turned_, factors_, all_.slots, rows_, problem_.width, scores,
                                    chunk);
            kernels_.mask_scores(scores, chunk, 0, rows_, strict, nullptr, row_factors);
            return;
        }
        for (int64_t r = 0; r < rows_; r += kGroupTokens) {
            const int64_t count = std::min<int64_t>(kGroupTokens, rows_ - r);
            float* block = scores + r * chunk;
            kernels_.multiply_matrix({left.at + r * left.stride, left.stride, 1}, count, turned_, chunk, problem_.width,
                                     block, chunk, round_up(r + count, kLine), false);
            kernels_.mask_scores(block, chunk, r, count, strict, all_.gated ? weights_ + r * chunk : nullptr,
                                 row_factors == nullptr ? nullptr : row_factors + r);
        }
    }

    // u of the delta rule: u_i + β_i Σ_{j<i} (k_i·k_j) u_j = β_i (v_i - k_i·S), with the gates in between.
    void solve() {
        const int64_t chunk = all_.chunk, stride = value_slots_;
        float negative[kStateChunk];
        for (int64_t t = 0; t < rows_; ++t) negative[t] = -betas_[t];
        score(key_, 1, negative, lower_);
        const Rows keys = decayed(key_, before_);
        kernels_.multiply_matrix({keys.at, keys.stride, 1}, rows_, state_, stride_, problem_.width, changes_, stride,
                                 stride, false);
        kernels_.correct_rows(value_.at, value_.stride, betas_, rows_, stride, changes_, stride);
        for (int64_t r = 0; r < rows_; r += kGroupTokens) {
            const int64_t count = std::min<int64_t>(kGroupTokens, rows_ - r);
            float* to = changes_ + r * stride;
            if (r > 0) {
                kernels_.multiply_matrix({lower_ + r * chunk, chunk, 1}, count, changes_, stride, r, to, stride, stride,
                                         true);
            }
            kernels_.solve_lower(lower_ + r * chunk + r, chunk, count, to, stride, stride);
        }
    }

    // The outputs of a query head, except for columns that are processed token by token.
    void answer(int64_t g, const Rows& change, const uint8_t* odd) {
        const int64_t head = head_ * all_.group + g, chunk = all_.chunk, stride = value_slots_;
        const Rows query = rows_of(problem_.query, head, 0, problem_.width, all_.slots, queries_);
        score(query, 0, nullptr, scores_);
        const Rows asked = decayed(query, before_);
        kernels_.multiply_matrix({asked.at, asked.stride, 1}, rows_, state_, stride_, problem_.width, sums_, stride, stride,
                                 false);
        for (int64_t r = 0; r < rows_; r += kGroupTokens) {
            const int64_t count = std::min<int64_t>(kGroupTokens, rows_ - r);
            kernels_.multiply_matrix({scores_ + r * chunk, chunk, 1}, count, change.at, change.stride, r + count,
                                     sums_ + r * stride, stride, stride, true);
        }
        for (int64_t t = 0; t < rows_; ++t) {
            if (odd == nullptr) {
                write(head, t, 0, columns_, sums_ + t * stride);
                continue;
            }
            for (int64_t c = 0; c < columns_; c += kLine) {
                if (odd[c / kLine] == 0) write(head, t, c, std::min(c + kLine, columns_), sums_ + t * stride + c);
            }
        }
    }

    void update(const Rows& change, const uint8_t* odd) {
        if (odd == nullptr) {
            add_changes(change, 0, value_slots_);
            return;
        }
        for (int64_t c = 0; c < columns_; c += kLine) {
            if (odd[c / kLine] != 0) {
                one_by_one(c, std::min(c + kLine, columns_));
            } else {
                add_changes(change, c, c + kLine);
            }
        }
    }

    // S = e^(all gates) S + Σ_j e^(gates after j) k_j u_jᵀ.
    void add_changes(const Rows& change, int64_t from, int64_t to) {
        const Rows keys = decayed(key_, after_);
        const float* last = before_ + (rows_ - 1) * (all_.channels ? all_.slots : 1);
        for (int64_t c = 0; all_.gated && c < problem_.width; ++c) {
            const float factor = all_.channels ? last[c] : *last;
            if (factor != 1.0f) kernels_.scale_row(state_ + c * stride_ + from, to - from, factor, state_ + c * stride_ + from);
        }
        kernels_.multiply_matrix({keys.at, 1, keys.stride}, problem_.width, change.at + from, change.stride, rows_,
                                 state_ + from, stride_, to - from, true);
    }

    // The recurrence, for columns from .. to of values.
    void one_by_one(int64_t from, int64_t to) {
        const int64_t slots = all_.slots, width = problem_.width, element = element_size(problem_.dtype);
        float* factors = token_queries_ + all_.group * slots;
        std::fill(factors, factors + slots, 1.0f);
        for (int64_t t = 0; t < rows_; ++t) {
            if (!kept(begin_ + t)) {
                for (int64_t g = 0; g < all_.group; ++g) write(head_ * all_.group + g, t, from, to, token_out_);
                continue;
            }
            if (all_.channels) {
                factors = factors_ + t * slots;
            } else if (all_.gated) {
                std::fill(factors, factors + width, factors_[t]);
            }
            if (closed_) forget(t, from, to);
            for (int64_t g = 0; g < all_.group; ++g) {
                kernels_.widen_row(address(problem_.query, problem_.dtype, head_ * all_.group + g, begin_ + t),
                                   problem_.query.stride[3] * element, width, problem_.dtype, token_queries_ + g * slots);
            }
            kernels_.advance_state(state_ + from, stride_,
                                   {width, to - from, factors, key_.at + t * key_.stride,
                                    value_.at + t * value_.stride + from, all_.delta, all_.delta ? betas_[t] : 1.0f,
                                    token_queries_, slots, all_.group, token_out_, value_slots_});
            for (int64_t g = 0; g < all_.group; ++g) {
                write(head_ * all_.group + g, t, from, to, token_out_ + g * value_slots_);
            }
        }
    }

    // A gate of -inf leaves 0, whatever the state was.
    void forget(int64_t t, int64_t from, int64_t to) {
        const char* gate = address(problem_.gate, problem_.gate_dtype, head_, begin_ + t);
        const int64_t step = problem_.gate.stride[3] * element_size(problem_.gate_dtype);
        for (int64_t c = 0; c < problem_.width; ++c) {
            if (widen(gate + (all_.channels ? c * step : 0), problem_.gate_dtype) != -INFINITY) continue;
            std::fill(state_ + c * stride_ + from, state_ + c * stride_ + to, 0.0f);
        }
    }

    // Columns from .. to of the output of a token.
    void write(int64_t head, int64_t t, int64_t from, int64_t to, const float* row) const {
        const int64_t* s = problem_.out_stride;
        const int64_t at = batch_ * s[0] + head * s[1] + (begin_ + t) * s[2] + first_ + from;
        char* out = static_cast<char*>(problem_.out) + at * element_size(problem_.dtype);
        if (!kept(begin_ + t)) {
            std::memset(out, 0, (to - from) * element_size(problem_.dtype));
        } else {
            narrow_row(row, to - from, problem_.dtype, out);
        }
    }

    const StatePlan& all_;
    const StateProblem& problem_;
    const KernelTable& kernels_;
    const int64_t batch_, head_, first_, columns_, value_slots_;
    float *keys_, *queries_, *turned_, *scaled_, *factors_, *before_, *after_, *values_, *changes_, *sums_, *lower_,
        *scores_, *weights_, *betas_, *token_queries_, *token_out_, *own_state_, *given_, *state_;
    uint8_t* marks_;
    Rows key_ = {}, value_ = {};
    int64_t stride_ = 0, begin_ = 0, rows_ = 0, known_ = 0;
    bool closed_ = false;  // whether a gate of the chunk is -inf
    float known_factors_[kStateChunk];
};

}  // namespace

void state_attention(const KernelTable& kernels, const StateProblem& problem, int threads) {
    const StatePlan plan(kernels, problem, threads);
    const int64_t jobs = checked_product(plan.units, plan.slices);
    if (jobs == 0) return;
    const bool small = plan.one_by_one && plan.units * problem.width * problem.value_width < kParallelFloats;
    const int workers = worker_limit(jobs, small ? 1 : threads);
    const int64_t floats = round_up(plan.scratch_floats, kLine);
    const Floats scratch = allocate(checked_product(floats, workers));
    auto work = [&](int64_t job, int worker) {
        StateUnit(plan, job / plan.slices, job % plan.slices, scratch.get() + worker * floats).run();
    };
    for_each_job(jobs, workers, work);
}

}  // namespace qkv
