#include "linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "monomials.h"
#include "parallel.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

namespace {

// Tokens in a chunk. Scores inside a chunk cost as the chunk is long, going over the state costs as often as there are
// chunks: large states want long ones.
constexpr int64_t kMostChunk = 256;
int64_t chunk_tokens(int64_t features) { return features <= 512 ? 64 : features <= 8192 ? 128 : kMostChunk; }

class Linear {
public:
    Linear(const KernelTable& kernels, const LinearProblem& problem)
        : kernels_(kernels),
          problem_(problem),
          rule_(problem.rule),
          power_(rule_.map == Map::power),
          features_(rule_.count()),
          chunk_(chunk_tokens(features_)),
          group_(problem.heads_kv == 0 ? 0 : problem.heads_q / problem.heads_kv),
          width_slots_(round_up(rule_.coordinates(), kLine)),
          value_slots_(linear_value_slots(problem.value_width)),
          state_floats_(linear_state_floats(rule_, problem.value_width)),
          // Of a chunk: vectors and values of the keys, the keys turned, vectors of the queries, features, scores, sums.
          x_floats_(chunk_ * (width_slots_ + kLine)),
          v_floats_(chunk_ * value_slots_),
          scratch_floats_(3 * x_floats_ + 2 * v_floats_ + x_floats_ + chunk_ * chunk_ + 3 * chunk_ + 2 * kLine) {
        if (power_) monomials_ = std::make_unique<Monomials>(rule_);
    }

    void run(int threads) {
        const int64_t units = checked_product(problem_.batch, problem_.heads_kv);
        const int workers = worker_limit(units, threads);
        const bool makes_state = problem_.state == nullptr && !problem_.direct;
        const int64_t own_state = makes_state ? round_up(state_floats_, kLine) : 0;
        const int64_t floats = round_up(scratch_floats_, kLine) + own_state;
        const Floats scratch = allocate(checked_product(floats, workers));
        auto work = [&](int64_t unit, int worker) {
            float* memory = scratch.get() + worker * floats;
            float* state = memory;
            if (problem_.state != nullptr) {
                state = problem_.state + unit * state_floats_;
            } else if (problem_.direct) {
                state = nullptr;
            } else {
                std::fill(state, state + state_floats_, 0.0f);
            }
            Unit(*this, unit / problem_.heads_kv, unit % problem_.heads_kv, state, memory + own_state).run();
        };
        for_each_job(units, workers, work);
    }

private:
    // One key/value head of one batch row, and the query heads that read it.
    class Unit {
    public:
        Unit(const Linear& all, int64_t batch, int64_t head, float* state, float* scratch)
            : all_(all), problem_(all.problem_), kernels_(all.kernels_), batch_(batch), head_(head), state_(state) {
            z_ = state == nullptr ? nullptr : state + all.features_ * all.value_slots_;
            const auto take = [&](int64_t floats) {
                float* taken = scratch;
                scratch += round_up(floats, kLine);
                return taken;
            };
            keys_ = take(all.x_floats_);
            turned_ = take(all.x_floats_);
            queries_ = take(all.x_floats_);
            features_ = take(all.x_floats_);
            own_values_ = take(all.v_floats_);
            sums_ = take(all.v_floats_);
            scores_ = take(all.chunk_ * all.chunk_);
            below_ = take(all.chunk_);
            prefix_ = take(all.chunk_);
            counts_ = take(all.chunk_);
        }

        void run() {
            if (problem_.direct) {
                score_everything();
                return;
            }
            const int64_t chunk = all_.chunk_, len_q = problem_.out == nullptr ? 0 : problem_.len_q;
            int64_t absorbed = 0;
            const auto absorb_up_to = [&](int64_t end) {
                while (absorbed < end) {
                    const int64_t stop = std::min(absorbed + chunk, end);
                    load_keys(absorbed, stop);
                    absorb();
                    absorbed = stop;
                }
            };
            for (int64_t i0 = 0; i0 < len_q; i0 += chunk) {
                const int64_t i1 = std::min(i0 + chunk, len_q);
                absorb_up_to(seen_from(i0));
                const int64_t some = seen_from(i1);
                if (some > absorbed) load_keys(absorbed, some);
                for (int64_t g = 0; g < all_.group_; ++g) answer(head_ * all_.group_ + g, i0, i1, absorbed, some);
            }
            if (problem_.state != nullptr) absorb_up_to(problem_.len_k);
        }

    private:
        void score_everything() {
            for (int64_t i0 = 0; i0 < problem_.len_q; i0 += all_.chunk_) {
                const int64_t i1 = std::min(i0 + all_.chunk_, problem_.len_q), seen_by_some = seen_from(i1);
                for (int64_t g = 0; g < all_.group_; ++g) {
                    const int64_t head = head_ * all_.group_ + g;
                    ask(head, i0, i1);
                    for (int64_t j0 = 0; j0 < seen_by_some; j0 += all_.chunk_) {
                        const int64_t j1 = std::min(j0 + all_.chunk_, seen_by_some);
                        load_keys(j0, j1);
                        score_keys(i0, i1 - i0, j0, j1);
                    }
                    write(head, i0, i1 - i0);
                }
            }
        }

        // The keys before this one are seen by query i and by those that follow it.
        int64_t seen_from(int64_t i) const {
            return problem_.causal ? std::clamp<int64_t>(shifted(i), 0, problem_.len_k) : problem_.len_k;
        }

        // i + offset, at most as far as there are keys.
        int64_t shifted(int64_t i) const {
            int64_t position;
            if (!__builtin_add_overflow(i, problem_.offset, &position)) return position;
            return problem_.offset > 0 ? problem_.len_k : 0;
        }

        // Row t of a tensor as float32; in the tensor itself where it already is that.
        const float* row_of(const Tensor4& tensor, int64_t head, int64_t t, int64_t width, float* widened) const {
            const auto* row = static_cast<const char*>(row_address(tensor, problem_.dtype, batch_, head, t));
            if (problem_.dtype == Dtype::float32 && tensor.stride[3] == 1) return reinterpret_cast<const float*>(row);
            kernels_.widen_row(row, tensor.stride[3] * element_size(problem_.dtype), width, problem_.dtype, widened);
            return widened;
        }

        // Vectors as they are needed: their features, or themselves and the 1 that stands for the offset; then zeros.
        void load_vectors(const Tensor4& tensor, int64_t head, int64_t from, int64_t to, float* rows) const {
            const int64_t width = all_.rule_.width, slots = all_.width_slots_;
            for (int64_t t = from; t < to; ++t, rows += slots) {
                const float* row = row_of(tensor, head, t, width, rows);
                if (!all_.power_ && width % kLine == 0) {
                    kernels_.map_row(row, width, all_.rule_.map, rows);
                    continue;
                }
                if (row != rows) std::memcpy(rows, row, width * sizeof(float));
                if (!all_.power_) kernels_.map_row(rows, width, all_.rule_.map, rows);
                std::fill(rows + width, rows + slots, 0.0f);  // φ(0) need not be 0
                if (all_.rule_.coordinates() > width) rows[width] = 1.0f;
            }
        }

        void load_keys(int64_t from, int64_t to) {
            if (from == loaded_from_ && to == loaded_to_) return;
            loaded_from_ = from;
            loaded_to_ = to;
            is_turned_ = false;
            load_vectors(problem_.key, head_, from, to, keys_);
            const int64_t count = to - from, width = problem_.value_width;
            const Tensor4& value = problem_.value;
            // Values can stay where they are when their rows are as long as ours and all of them count.
            const bool as_they_are = problem_.keep == nullptr && problem_.dtype == Dtype::float32 &&
                                     value.stride[3] == 1 && width == all_.value_slots_;
            if (as_they_are) {
                values_ = row_of(value, head_, from, width, nullptr);
                values_stride_ = value.stride[2];
            } else {
                for (int64_t t = 0; t < count; ++t) {
                    float* to_row = own_values_ + t * all_.value_slots_;
                    const float* row = row_of(value, head_, from + t, width, to_row);
                    if (row != to_row) std::memcpy(to_row, row, width * sizeof(float));
                    std::fill(to_row + width, to_row + all_.value_slots_, 0.0f);
                }
                values_ = own_values_;
                values_stride_ = all_.value_slots_;
            }
            std::fill(counts_, counts_ + count, 1.0f);
            std::fill(counts_ + count, counts_ + all_.chunk_, 0.0f);
            if (problem_.keep == nullptr) return;
            const uint8_t* keep = problem_.keep + batch_ * problem_.len_k + from;
            for (int64_t t = 0; t < count; ++t) {
                if (keep[t] != 0) continue;
                counts_[t] = 0.0f;
                std::fill(keys_ + t * all_.width_slots_, keys_ + (t + 1) * all_.width_slots_, 0.0f);
                std::fill(own_values_ + t * all_.value_slots_, own_values_ + (t + 1) * all_.value_slots_, 0.0f);
            }
        }

        // Channels outermost, for the scores: channel c of token t is at c · chunk + t.
        void turn_keys() {
            if (is_turned_) return;
            is_turned_ = true;
            const int64_t count = loaded_to_ - loaded_from_, chunk = all_.chunk_;
            const void* rows[kMostChunk];
            for (int64_t t = 0; t < count; ++t) rows[t] = keys_ + t * all_.width_slots_;
            kernels_.pack_rows(rows, static_cast<int>(count), static_cast<int>(chunk), Dtype::float32,
                               all_.rule_.width, 1, turned_);
        }

        // S += Σ_t φ(k_t) v_tᵀ and z += Σ_t φ(k_t), over the keys that are loaded.
        void absorb() {
            const int64_t count = loaded_to_ - loaded_from_, slots = all_.width_slots_;
            if (!all_.power_) {
                add_to_state(keys_, slots, 0, all_.features_, count);
                return;
            }
            for (const Block& block : all_.monomials_->blocks) {
                form(keys_, block, count, all_.monomials_->weights.data() + block.first);
                add_to_state(features_, slots, block.first, block.count, count);
            }
        }

        void add_to_state(const float* features, int64_t stride, int64_t first, int64_t count, int64_t tokens) {
            const int64_t columns = all_.value_slots_;
            kernels_.multiply_matrix({features, 1, stride}, count, values_, values_stride_, tokens, state_ + first * columns,
                                     columns, columns, true);
            kernels_.add_columns(features, stride, tokens, count, z_ + first);
        }

        // The features of a block, for rows of vectors.
        void form(const float* x, const Block& block, int64_t rows, const float* weights) {
            const int64_t slots = all_.width_slots_;
            for (int64_t r = 0; r < rows; ++r) {
                float factor = 1.0f;
                for (int i = 0; i + 1 < all_.rule_.degree; ++i) factor *= x[r * slots + block.prefix[i]];
                prefix_[r] = factor;
            }
            kernels_.form_features(x + block.begin, slots, rows, block.count, prefix_, weights, features_, slots);
        }

        // Queries i0 .. i1 of a head: what the state holds, and the loaded keys from .. to that each of them sees.
        void answer(int64_t head, int64_t i0, int64_t i1, int64_t from, int64_t to) {
            ask(head, i0, i1);
            if (to > from) score_keys(i0, i1 - i0, from, to);
            write(head, i0, i1 - i0);
        }

        // What the state has for queries i0 .. i1 of a head.
        void ask(int64_t head, int64_t i0, int64_t i1) {
            const int64_t rows = i1 - i0;
            load_vectors(problem_.query, head, i0, i1, queries_);
            std::fill(below_, below_ + rows, 0.0f);
            if (state_ == nullptr) {
                std::fill(sums_, sums_ + rows * all_.value_slots_, 0.0f);
                return;
            }
            if (!all_.power_) {
                read_state(queries_, 0, all_.features_, rows);
            } else {
                for (const Block& block : all_.monomials_->blocks) {
                    form(queries_, block, rows, nullptr);
                    read_state(features_, block.first, block.count, rows);
                }
            }
        }

        void read_state(const float* features, int64_t first, int64_t count, int64_t rows) {
            const int64_t columns = all_.value_slots_, stride = all_.width_slots_;
            kernels_.multiply_matrix({features, stride, 1}, rows, state_ + first * columns, columns, count, sums_,
                                     columns, columns, first > 0);
            kernels_.add_dots(features, stride, rows, count, z_ + first, below_);
        }

        // Block by block of rows, as far as the last of them sees.
        void score_keys(int64_t i0, int64_t rows, int64_t from, int64_t to) {
            turn_keys();
            const int64_t chunk = all_.chunk_, slots = all_.width_slots_, columns = all_.value_slots_;
            for (int64_t r = 0; r < rows; r += kMostBlockRows) {
                const int64_t end = std::min<int64_t>(r + kMostBlockRows, rows);
                const int64_t most = seen(i0 + end - 1, from, to);
                if (most == 0) continue;
                const int64_t filled = round_up(most, kLine);
                float* block = scores_ + r * chunk;
                kernels_.multiply_matrix({queries_ + r * slots, slots, 1}, end - r, turned_, chunk, all_.rule_.width,
                                         block, chunk, filled, false);
                for (int64_t n = r; n < end; ++n) {
                    float* row = scores_ + n * chunk;
                    if (all_.power_) kernels_.raise_row(row, filled, all_.rule_.offset, all_.rule_.degree);
                    const int64_t own = seen(i0 + n, from, to);
                    std::fill(row + own, row + filled, 0.0f);
                    if (problem_.keep != nullptr) kernels_.multiply_rows(row, filled, counts_);
                }
                kernels_.add_dots(block, chunk, end - r, most, counts_, below_ + r);
                kernels_.multiply_matrix({block, chunk, 1}, end - r, values_, values_stride_, most, sums_ + r * columns,
                                         columns, columns, true);
            }
        }

        // How many of the keys from .. to query i sees.
        int64_t seen(int64_t i, int64_t from, int64_t to) const {
            return problem_.causal ? std::clamp<int64_t>(shifted(i) + 1 - from, 0, to - from) : to - from;
        }

        void write(int64_t head, int64_t i0, int64_t rows) const {
            const int64_t width = problem_.value_width, element = element_size(problem_.dtype);
            char* out = static_cast<char*>(problem_.out) +
                        ((batch_ * problem_.heads_q + head) * problem_.len_q + i0) * width * element;
            for (int64_t r = 0; r < rows; ++r, out += width * element) {
                const float below = problem_.normalize ? below_[r] : 1.0f, size = std::fabs(below);
                float* row = sums_ + r * all_.value_slots_;
                if (below == 0.0f) {
                    std::memset(out, 0, width * element);
                    continue;
                }
                // The reciprocal of what is very small or very large would leave the normal numbers.
                float factor = 1.0f / below;
                if (!(size > 1e-37f && size < 1e37f)) {
                    for (int64_t c = 0; c < width; ++c) row[c] /= below;
                    factor = 1.0f;
                }
                if (problem_.dtype == Dtype::float32) {
                    kernels_.scale_row(row, width, factor, reinterpret_cast<float*>(out));
                } else {
                    kernels_.scale_row(row, width, factor, row);
                    narrow_row(row, width, problem_.dtype, out);
                }
            }
        }

        const Linear& all_;
        const LinearProblem& problem_;
        const KernelTable& kernels_;
        const int64_t batch_, head_;
        float *state_, *z_;
        float *keys_, *turned_, *queries_, *features_, *own_values_, *sums_, *scores_, *below_, *prefix_, *counts_;
        const float* values_ = nullptr;
        int64_t values_stride_ = 0;
        int64_t loaded_from_ = 0, loaded_to_ = 0;
        bool is_turned_ = false;
    };

    const KernelTable& kernels_;
    const LinearProblem& problem_;
    const FeatureRule rule_;
    const bool power_;
    const int64_t features_, chunk_, group_, width_slots_, value_slots_, state_floats_;
    const int64_t x_floats_, v_floats_, scratch_floats_;
    std::unique_ptr<Monomials> monomials_;
};

}  // namespace

int64_t FeatureRule::count() const {
    if (map != Map::power) return width;
    // C(coordinates + degree - 1, degree), each step of which is a whole number.
    int64_t count = 1;
    for (int n = 1; n <= degree; ++n) count = checked_product(count, coordinates() + n - 1) / n;
    return count;
}

int64_t linear_value_slots(int64_t value_width) { return round_up(std::max<int64_t>(value_width, 1), kLine); }

int64_t linear_state_floats(const FeatureRule& rule, int64_t value_width) {
    // Vectors reach beyond the last of z.
    return checked_product(rule.count(), linear_value_slots(value_width)) + round_up(rule.count(), kLine) + kLine;
}

void linear(const KernelTable& kernels, const LinearProblem& problem, int threads) {
    if (problem.batch == 0 || problem.heads_kv == 0) return;
    Linear(kernels, problem).run(threads);
}

}  // namespace qkv
