#include "query_rows.h"

#include <algorithm>
#include <limits>

#include "rotation.h"
#include "scalar.h"

namespace qkv {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

int64_t plus(int64_t position, int64_t distance) {
    int64_t sum;
    if (!__builtin_add_overflow(position, distance, &sum)) return sum;
    return distance > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

}  // namespace

QueryRows::QueryRows(const AttendProblem& problem, int64_t batch, int64_t head, int64_t first_row)
    : problem_(problem),
      batch_(batch),
      head_(head),
      first_row_(first_row),
      group_(problem.heads_q / problem.cache.layout.heads),
      count_(static_cast<int>(std::min<int64_t>(kMaxRows, problem.tokens.given * group_ - first_row))),
      any_from_(std::numeric_limits<int64_t>::max()),
      any_to_(0),
      any_window_from_(std::numeric_limits<int64_t>::max()) {
    const Tokens& tokens = problem.tokens;
    const int64_t first = tokens.first(batch), last = first + tokens.count(batch);
    for (int r = 0; r < count_; ++r) {
        const int64_t query = query_of(r);
        from_[r] = to_[r] = window_from_[r] = 0;
        if (query < first || query >= last) continue;
        const int64_t index = query - first, position = problem.cross ? index : tokens.positions[batch] + index;
        int64_t from = 0, to = problem.cross ? tokens.positions[batch] : position + 1;
        if (problem.plain != nullptr) to = problem.plain->length;
        const int64_t window_from = problem.window == kNoBound ? 0 : to - problem.window;
        if (problem.starts != nullptr) from = std::max(from, problem.starts[batch]);
        if (problem.stops != nullptr) to = std::min(to, problem.stops[batch]);
        if (problem.lower != kNoBound) from = std::max(from, plus(position, problem.lower));
        if (problem.upper != kNoBound) to = std::min(to, plus(position, problem.upper));
        if (problem.decay_starts != nullptr) from = std::max(from, problem.decay_starts[row_of(r)]);
        if (from >= problem.sinks) from = std::max(from, window_from);
        if (from >= to) continue;
        from_[r] = from;
        to_[r] = to;
        window_from_[r] = std::max(from, window_from);
        any_from_ = std::min(any_from_, from);
        any_to_ = std::max(any_to_, to);
        any_window_from_ = std::min(any_window_from_, window_from_[r]);
    }
    if (any_to_ == 0) any_from_ = 0;
}

void QueryRows::pack(const KernelTable& kernels, float* out) const {
    const void* rows[kMaxRows];
    for (int r = 0; r < count_; ++r) {
        rows[r] = row_address(problem_.query, problem_.dtype, batch_, head_of(r), query_of(r));
    }
    const PageLayout& layout = problem_.cache.layout;
    if (layout.storage.latent) {
        const int64_t stride = problem_.query.stride[3] * element_size(problem_.dtype);
        for (int r = 0; r < count_; ++r, out += layout.width_slots()) {
            kernels.widen_row(static_cast<const char*>(rows[r]), stride, layout.width, problem_.dtype, out);
            std::fill(out + layout.width, out + layout.width_slots(), 0.0f);
        }
        return;
    }
    kernels.pack_rows(rows, count_, count_, problem_.dtype, layout.width, problem_.query.stride[3], out);
    std::fill(out + layout.width * count_, out + layout.width_slots() * count_, 0.0f);
    if (is_rotated(layout.storage.keys)) {
        lose_odd_rows(out, layout.width, count_);
        rotate(out, layout.width, count_);
    }
}

void QueryRows::score(const KernelTable& kernels, const char* slab, const float* queries, int tokens, float* scores,
                      int64_t stride, const NextRead& ahead, float* widened) const {
    const PageLayout& layout = problem_.cache.layout;
    const auto kernel = layout.storage.latent ? kernels.score_latents : kernels.score_page;
    kernel(queries, count_, slab + layout.keys_at(), layout.storage.keys, layout.width_slots(), layout.key_scales(slab),
           scores, stride, tokens, ahead, widened);
}

int64_t QueryRows::offset(const Tensor4& tensor, int r, int64_t key) const {
    return batch_ * tensor.stride[0] + head_of(r) * tensor.stride[1] + query_of(r) * tensor.stride[2] +
           key * tensor.stride[3];
}

void QueryRows::mask_scores(int r, int64_t first_key, int64_t count, float* scores) const {
    const int64_t from = std::clamp<int64_t>(from_[r] - first_key, 0, count);
    const int64_t to = std::clamp<int64_t>(to_[r] - first_key, from, count);
    std::fill(scores, scores + from, kNegInf);
    std::fill(scores + to, scores + count, kNegInf);
    for (int64_t t = std::max(from, problem_.sinks - first_key); t < std::min(to, window_from_[r] - first_key); ++t) {
        scores[t] = kNegInf;
    }
    if (problem_.keep.data == nullptr || from == to) return;
    const bool* keep = static_cast<const bool*>(problem_.keep.data) + offset(problem_.keep, r, first_key + from);
    const int64_t stride = problem_.keep.stride[3];
    for (int64_t t = from; t < to; ++t, keep += stride) scores[t] = *keep ? scores[t] : kNegInf;
}

void QueryRows::add_bias(int r, int64_t first_key, int64_t count, float* scores) const {
    if (problem_.bias.data == nullptr && problem_.decay_key == nullptr) return;
    const int64_t from = std::clamp<int64_t>(from_[r] - first_key, 0, count);
    const int64_t to = std::clamp<int64_t>(to_[r] - first_key, from, count);
    if (from == to) return;
    if (problem_.decay_key != nullptr) {
        const double own = problem_.decay_query[row_of(r)];
        const double* sums =
            problem_.decay_key + (batch_ * problem_.heads_q + head_of(r)) * problem_.decay_columns + first_key;
        for (int64_t t = from; t < to; ++t) scores[t] += static_cast<float>(own - sums[t]);
        if (problem_.bias.data == nullptr) return;
    }
    const float* bias = static_cast<const float*>(problem_.bias.data) + offset(problem_.bias, r, first_key + from);
    const int64_t stride = problem_.bias.stride[3];
    // A bias of -inf masks a key, even one whose score is NaN.
    for (int64_t t = from; t < to; ++t, bias += stride) scores[t] = *bias == kNegInf ? kNegInf : scores[t] + *bias;
}

bool QueryRows::attends(int r, int64_t key) const {
    if (key < from_[r] || key >= to_[r] || (key >= problem_.sinks && key < window_from_[r])) return false;
    if (problem_.keep.data != nullptr && !static_cast<const bool*>(problem_.keep.data)[offset(problem_.keep, r, key)]) {
        return false;
    }
    return problem_.bias.data == nullptr ||
           static_cast<const float*>(problem_.bias.data)[offset(problem_.bias, r, key)] != kNegInf;
}

float* QueryRows::weights(int r) const {
    if (problem_.weights == nullptr) return nullptr;
    return problem_.weights + row_of(r) * problem_.weight_columns;
}

bool QueryRows::is_counted(int r) const {
    if (problem_.importance == nullptr || from_[r] == to_[r]) return false;
    const Tokens& tokens = problem_.tokens;
    return problem_.importance_from == nullptr ||
           tokens.positions[batch_] + query_of(r) - tokens.first(batch_) >= problem_.importance_from[batch_];
}

float QueryRows::sink(int r) const {
    return problem_.sink == nullptr ? kNegInf : problem_.sink[head_of(r)];
}

void QueryRows::write(int r, const float* values, float lse) const {
    const int64_t width = problem_.cache.layout.value_width;
    const int64_t row = row_of(r);
    if (problem_.lse != nullptr) problem_.lse[row] = lse;
    const int64_t place = !problem_.heads_last
                              ? row
                              : (batch_ * problem_.tokens.given + query_of(r)) * problem_.heads_q + head_of(r);
    char* out = static_cast<char*>(problem_.out) + place * width * element_size(problem_.dtype);
    if (values == nullptr) {
        std::memset(out, 0, width * element_size(problem_.dtype));
    } else {
        narrow_row(values, width, problem_.dtype, out);
    }
}

}  // namespace qkv
