// Writes new tokens into the pages of a cache: rounded to the storage format, with keys transposed.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cache.h"
#include "parallel.h"
#include "rotation.h"
#include "scalar.h"
#include "scratch.h"

namespace qkv {

namespace {

constexpr int64_t kBytesPerThread = 256 << 10;

template <Dtype dtype>
float read_as_float(const char* from) {
    if constexpr (dtype == Dtype::float64) return static_cast<float>(read<double>(from));
    return widen(from, dtype);
}

template <Dtype storage>
void write_number(char* to, float x) {
    const typename Format<storage>::Bits number = Format<storage>::narrow(x);
    std::memcpy(to, &number, sizeof number);
}

// The marks of a page's header for the numbers of a token.
template <Dtype storage>
char marks_of(const char* written, int64_t count) {
    using Bits = typename Format<storage>::Bits;
    constexpr Bits ones = Format<storage>::exponent, large = Format<storage>::large;
    const auto exponent = [&](int64_t c) {
        return static_cast<Bits>(read<Bits>(written + c * static_cast<int64_t>(sizeof(Bits))) & ones);
    };
    Bits any = 0;
    for (int64_t c = 0; c < count; ++c) any |= exponent(c) >= large;
    if (any == 0) return 0;
    char marks = 0;
    for (int64_t c = 0; c < count; ++c) {
        if (exponent(c) >= large) marks |= exponent(c) == ones ? kNonfinite : kLarge;
    }
    return marks;
}

// The rows of some tokens in a tensor.
struct Rows {
    const char* data;
    int64_t token_bytes, channel_bytes;

    const char* at(int64_t token, int64_t channel) const { return data + token * token_bytes + channel * channel_bytes; }
};

// A row of a format with scales: its numbers, and a scale for each group, the largest magnitude over that of the format.
// Scales 0 and NaN define the group alone; a non-finite number makes all scales of the token NaN.
template <Dtype storage>
class ScaledRow {
public:
    using F = Format<storage>;
    using Scale = typename F::Scale;

    ScaledRow(int64_t width, int64_t slots)
        : width_(width), group_(F::group == kWholeRow ? slots : F::group), row_(width), numbers(slots), scales(ceil_div(slots, group_)) {}

    template <Dtype dtype>
    void read(const Rows& rows, int64_t token) {
        bool finite = true;
        for (int64_t c = 0; c < width_; ++c) {
            row_[c] = read_as_float<dtype>(rows.at(token, c));
            finite = finite && std::fabs(row_[c]) <= std::numeric_limits<float>::max();
        }
        if (F::rotated && finite) rotate(row_.data(), width_, 1);
        largest_scale = 0.0f;
        for (int64_t g = 0, first = 0; first < width_; ++g, first += group_) {
            const int64_t end = std::min(first + group_, width_);
            float most = 0.0f;
            for (int64_t c = first; c < end; ++c) most = std::max(most, std::fabs(row_[c]));
            const float scale = rounded_scale(finite ? most / F::largest : std::numeric_limits<float>::quiet_NaN(), &scales[g]);
            for (int64_t c = first; c < end; ++c) numbers[c] = scale > 0.0f ? F::narrow(row_[c] / scale) : 0;
            largest_scale = largest_scale < scale || scale != scale ? scale : largest_scale;
        }
    }

private:
    static float rounded_scale(float scale, Scale* to) {
        if constexpr (sizeof(Scale) == sizeof(float)) return *to = scale;
        *to = narrow_to_bfloat16(scale);
        return widen_one_bfloat16(*to);
    }

    const int64_t width_, group_;
    std::vector<float> row_;

public:
    std::vector<typename F::Bits> numbers;  // 0 from the width on
    std::vector<Scale> scales;
    float largest_scale;  // NaN if one is
};

class Slab {
public:
    Slab(const PageLayout& layout, char* slab) : layout_(layout), slab_(slab) {}

    void clear_marks() { slab_[0] = 0; }

    // Tokens first .. first + count of the page.
    template <Dtype dtype, Dtype storage>
    void write_keys(const Rows& keys, int64_t first, int64_t count) {
        // Kernels read whole vectors, beyond the last token: subnormal numbers there would cost a hundred times as
        // much.
        const int64_t end = first + count, begin = std::max(first, end / kGroupTokens * kGroupTokens);
        if (end % kGroupTokens != 0 && begin % kGroupTokens == 0) {
            clear_keys<storage>(begin, round_up(end, kGroupTokens));
        }
        if constexpr (kScaled<storage>) {
            write_scaled_keys<dtype, storage>(keys, first, count);
        } else {
            write_plain_keys<dtype, storage>(keys, first, count);
        }
    }

    template <Dtype dtype, Dtype storage>
    void write_values(const Rows& values, int64_t first, int64_t count) {
        if constexpr (kScaled<storage>) {
            write_scaled_values<dtype, storage>(values, first, count);
        } else {
            write_plain_values<dtype, storage>(values, first, count);
        }
    }

private:
    template <Dtype storage>
    static constexpr int64_t kPair = Format<storage>::pair;
    // The distance from one channel, or pair of channels, to the next.
    template <Dtype storage>
    static constexpr int64_t kRowBytes = kPageTokens * kPair<storage> * Format<storage>::bits / 8;

    template <Dtype storage>
    void clear_keys(int64_t first, int64_t last) {
        char* to = key_at<storage>(first, 0);
        const int64_t bytes = (last - first) * kPair<storage> * Format<storage>::bits / 8;
        for (int64_t c = 0; c < layout_.width_slots(); c += kPair<storage>, to += kRowBytes<storage>) {
            std::memset(to, 0, bytes);
        }
        for (int64_t g = 0; g < scales_of(storage, layout_.width); ++g) {
            std::memset(scale_at<storage>(slab_ + PageLayout::kHeaderBytes, g, first), 0,
                        (last - first) * scale_size(storage));
        }
    }

    template <Dtype storage>
    static char* scale_at(char* scales, int64_t group, int64_t token) {
        return scales + (group * kPageTokens + token) * scale_size(storage);
    }

    template <Dtype storage>
    char* key_at(int64_t token, int64_t channel) const {
        constexpr int64_t pair = kPair<storage>;
        return slab_ + layout_.keys_at() + channel / pair * kRowBytes<storage> +
               (token * pair + channel % pair) * Format<storage>::bits / 8;
    }

    char* value_at(int64_t token) const { return slab_ + layout_.values_at() + token * layout_.row_bytes(); }

    template <Dtype dtype, Dtype storage>
    void write_plain_keys(const Rows& keys, int64_t first, int64_t count) {
        constexpr int64_t element = element_size(storage);
        constexpr int64_t step = kPair<storage> * element;
        for (int64_t c = 0; c < layout_.width; ++c) {
            char* to = key_at<storage>(first, c);
            const char* from = keys.at(0, c);
            for (int64_t t = 0; t < count; ++t, to += step, from += keys.token_bytes) {
                write_number<storage>(to, read_as_float<dtype>(from));
            }
        }
        for (int64_t c = layout_.width; c < layout_.width_slots(); ++c) {
            char* to = key_at<storage>(first, c);
            for (int64_t t = 0; t < count; ++t, to += step) std::memset(to, 0, element);
        }
    }

    template <Dtype dtype, Dtype storage>
    void write_plain_values(const Rows& values, int64_t first, int64_t count) {
        constexpr int64_t element = element_size(storage);
        for (int64_t t = 0; t < count; ++t) {
            char* to = value_at(first + t);
            if (dtype == storage && values.channel_bytes == element) {
                std::memcpy(to, values.at(t, 0), layout_.row_width() * element);
            } else {
                for (int64_t c = 0; c < layout_.row_width(); ++c) {
                    write_number<storage>(to + c * element, read_as_float<dtype>(values.at(t, c)));
                }
            }
            slab_[0] |= marks_of<storage>(to, layout_.row_width());
            std::memset(to + layout_.row_width() * element, 0, (layout_.row_slots() - layout_.row_width()) * element);
        }
    }

    template <Dtype storage>
    static void write_scales(const ScaledRow<storage>& row, char* scales, int64_t token) {
        for (size_t g = 0; g < row.scales.size(); ++g) {
            std::memcpy(scale_at<storage>(scales, g, token), &row.scales[g], scale_size(storage));
        }
    }

    // The 16 bytes of a group of int4.
    static void join_halves(const uint8_t* numbers, char* to) {
        for (int i = 0; i < 16; ++i) to[i] = static_cast<char>(numbers[i] | numbers[16 + i] << 4);
    }

    template <Dtype dtype, Dtype storage>
    void write_scaled_keys(const Rows& keys, int64_t first, int64_t count) {
        ScaledRow<storage> row(layout_.width, layout_.width_slots());
        for (int64_t t = 0; t < count; ++t) {
            row.template read<dtype>(keys, t);
            write_scales(row, slab_ + PageLayout::kHeaderBytes, first + t);
            char* to = key_at<storage>(first + t, 0);
            if constexpr (storage == Dtype::int4) {
                for (int64_t c = 0; c < layout_.width_slots(); c += 32) {
                    char joined[16];
                    join_halves(&row.numbers[c], joined);
                    for (int w = 0; w < 4; ++w, to += kRowBytes<storage>) std::memcpy(to, joined + 4 * w, 4);
                }
            } else {
                for (int64_t c = 0; c < layout_.width; ++c, to += kRowBytes<storage>) *to = row.numbers[c];
            }
        }
    }

    template <Dtype dtype, Dtype storage>
    void write_scaled_values(const Rows& values, int64_t first, int64_t count) {
        ScaledRow<storage> row(layout_.row_width(), layout_.row_slots());
        for (int64_t t = 0; t < count; ++t) {
            row.template read<dtype>(values, t);
            write_scales(row, slab_ + layout_.value_scales_at(), first + t);
            char* to = value_at(first + t);
            if constexpr (storage == Dtype::int4) {
                for (int64_t c = 0; c < layout_.row_slots(); c += 32, to += 16) join_halves(&row.numbers[c], to);
            } else {
                std::memcpy(to, row.numbers.data(), layout_.row_slots());
            }
            if (row.largest_scale != row.largest_scale) slab_[0] |= kNonfinite;
            if (row.largest_scale * Format<storage>::largest >= kLargeValue) slab_[0] |= kLarge;
        }
    }

    const PageLayout& layout_;
    char* slab_;
};

template <Dtype dtype>
void append_rows(const AppendProblem& problem, int64_t b, int64_t head) {
    const Tokens& tokens = problem.tokens;
    const PageLayout& layout = problem.cache.layout;
    const int64_t given = tokens.first(b), count = tokens.count(b), position = tokens.positions[b];
    const auto rows = [&](const Tensor4& tensor, int64_t token) {
        const int64_t element = element_size(dtype);
        return Rows{static_cast<const char*>(row_address(tensor, dtype, b, head, token)), tensor.stride[2] * element,
                    tensor.stride[3] * element};
    };
    for (int64_t done = 0; done < count;) {
        const int64_t first = (position + done) % kPageTokens, here = std::min(kPageTokens - first, count - done);
        Slab slab(layout, problem.cache.slab(b, (position + done) / kPageTokens, head));
        if (first == 0) slab.clear_marks();
        if (!layout.storage.latent) {
            with_format(layout.storage.keys, [&](auto format) {
                slab.template write_keys<dtype, format()>(rows(problem.key, given + done), first, here);
            });
        }
        const Tensor4& values = layout.storage.latent ? problem.key : problem.value;
        with_format(layout.storage.values, [&](auto format) {
            slab.template write_values<dtype, format()>(rows(values, given + done), first, here);
        });
        done += here;
    }
}

}  // namespace

AppendRow append_row(const AppendProblem& problem) {
    switch (problem.dtype) {
        case Dtype::float64: return append_rows<Dtype::float64>;
        case Dtype::float16: return append_rows<Dtype::float16>;
        case Dtype::bfloat16: return append_rows<Dtype::bfloat16>;
        default: return append_rows<Dtype::float32>;
    }
}

void append(const AppendProblem& problem, int threads) {
    const PageLayout& layout = problem.cache.layout;
    const AppendRow row = append_row(problem);
    const int64_t jobs = checked_product(problem.tokens.batch, layout.heads);
    const int64_t bytes = jobs * problem.tokens.given * layout.head_bytes() / kPageTokens;
    auto work = [&](int64_t job, int) { row(problem, job / layout.heads, job % layout.heads); };
    for_each_job(jobs, worker_limit(jobs, static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, threads))),
                 work);
}

}  // namespace qkv
