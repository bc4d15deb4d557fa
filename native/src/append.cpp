// Writes new tokens into the pages of a cache: rounded to the storage format, with keys transposed.

#include <cmath>
#include <cstring>
#include <limits>

#include "cache.h"
#include "parallel.h"
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

// The scale of a token, its largest magnitude over that of the format; NaN if a number of the token is non-finite.
template <Dtype dtype, Dtype storage>
float scale_of(const Rows& rows, int64_t token, int64_t width) {
    float most = 0.0f;
    bool finite = true;
    for (int64_t c = 0; c < width; ++c) {
        const float size = std::fabs(read_as_float<dtype>(rows.at(token, c)));
        finite = finite && size <= std::numeric_limits<float>::max();
        most = size > most ? size : most;
    }
    return finite ? most / Format<storage>::largest : std::numeric_limits<float>::quiet_NaN();
}

class Slab {
public:
    Slab(const PageLayout& layout, char* slab) : layout_(layout), slab_(slab) {}

    // Tokens first .. first + count of the page.
    template <Dtype dtype, Dtype storage>
    void write(const Rows& keys, const Rows& values, int64_t first, int64_t count) {
        if (first == 0) slab_[0] = 0;
        // Kernels read whole vectors, beyond the last token: subnormal numbers there would cost a hundred times as
        // much.
        const int64_t end = first + count, begin = std::max(first, end / kGroupTokens * kGroupTokens);
        if (end % kGroupTokens != 0 && begin % kGroupTokens == 0) {
            clear_keys<storage>(begin, round_up(end, kGroupTokens));
        }
        if constexpr (Format<storage>::scaled) {
            write_scaled<dtype, storage>(keys, values, first, count);
        } else {
            write_keys<dtype, storage>(keys, first, count);
            write_values<dtype, storage>(values, first, count);
        }
    }

private:
    template <Dtype storage>
    static constexpr int64_t kPair = Format<storage>::pair;
    // The distance from one channel, or pair of channels, to the next.
    template <Dtype storage>
    static constexpr int64_t kRowBytes = kPageTokens * kPair<storage> * element_size(storage);

    template <Dtype storage>
    void clear_keys(int64_t first, int64_t last) {
        char* to = key_at<storage>(first, 0);
        const int64_t bytes = (last - first) * kPair<storage> * element_size(storage);
        for (int64_t c = 0; c < layout_.width_slots(); c += kPair<storage>, to += kRowBytes<storage>) {
            std::memset(to, 0, bytes);
        }
    }

    template <Dtype storage>
    char* key_at(int64_t token, int64_t channel) const {
        constexpr int64_t pair = kPair<storage>, element = element_size(storage);
        return slab_ + layout_.keys_at() + channel / pair * kRowBytes<storage> +
               (token * pair + channel % pair) * element;
    }

    char* value_at(int64_t token) const {
        return slab_ + layout_.values_at() + token * layout_.value_slots() * element_size(layout_.storage);
    }

    template <Dtype dtype, Dtype storage>
    void write_keys(const Rows& keys, int64_t first, int64_t count) {
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
    void write_values(const Rows& values, int64_t first, int64_t count) {
        constexpr int64_t element = element_size(storage);
        for (int64_t t = 0; t < count; ++t) {
            char* to = value_at(first + t);
            if (dtype == storage && values.channel_bytes == element) {
                std::memcpy(to, values.at(t, 0), layout_.value_width * element);
            } else {
                for (int64_t c = 0; c < layout_.value_width; ++c) {
                    write_number<storage>(to + c * element, read_as_float<dtype>(values.at(t, c)));
                }
            }
            slab_[0] |= marks_of<storage>(to, layout_.value_width);
            std::memset(to + layout_.value_width * element, 0, (layout_.value_slots() - layout_.value_width) * element);
        }
    }

    template <Dtype dtype, Dtype storage>
    void write_scaled(const Rows& keys, const Rows& values, int64_t first, int64_t count) {
        constexpr int64_t element = element_size(storage);
        auto* key_scales = reinterpret_cast<float*>(slab_ + PageLayout::kHeaderBytes) + first;
        float* value_scales = key_scales + kPageTokens;
        for (int64_t t = 0; t < count; ++t) {
            const float key_scale = scale_of<dtype, storage>(keys, t, layout_.width);
            for (int64_t c = 0; c < layout_.width; ++c) {
                write_number<storage>(key_at<storage>(first + t, c),
                                      over_scale(read_as_float<dtype>(keys.at(t, c)), key_scale));
            }
            const float value_scale = scale_of<dtype, storage>(values, t, layout_.value_width);
            char* to = value_at(first + t);
            for (int64_t c = 0; c < layout_.value_width; ++c) {
                write_number<storage>(to + c * element,
                                      over_scale(read_as_float<dtype>(values.at(t, c)), value_scale));
            }
            std::memset(to + layout_.value_width * element, 0, (layout_.value_slots() - layout_.value_width) * element);
            key_scales[t] = key_scale;
            value_scales[t] = value_scale;
            if (value_scale != value_scale) slab_[0] |= kNonfinite;
            if (value_scale * Format<storage>::largest >= kLargeValue) slab_[0] |= kLarge;
        }
    }

    // Scales 0 and NaN define the token alone.
    static float over_scale(float x, float scale) { return scale > 0.0f ? x / scale : 0.0f; }

    const PageLayout& layout_;
    char* slab_;
};

template <Dtype dtype, Dtype storage>
void append_rows(const AppendProblem& problem, int64_t b, int64_t head) {
    const Tokens& tokens = problem.tokens;
    const int64_t given = tokens.first(b), count = tokens.count(b), position = tokens.positions[b];
    const auto rows = [&](const Tensor4& tensor, int64_t token) {
        const int64_t element = element_size(dtype);
        return Rows{static_cast<const char*>(row_address(tensor, dtype, b, head, token)), tensor.stride[2] * element,
                    tensor.stride[3] * element};
    };
    for (int64_t done = 0; done < count;) {
        const int64_t first = (position + done) % kPageTokens, here = std::min(kPageTokens - first, count - done);
        Slab slab(problem.cache.layout, problem.cache.slab(b, (position + done) / kPageTokens, head));
        slab.write<dtype, storage>(rows(problem.key, given + done), rows(problem.value, given + done), first, here);
        done += here;
    }
}

template <Dtype dtype>
AppendRow into(Dtype storage) {
    return with_format(storage, [](auto format) -> AppendRow { return append_rows<dtype, format()>; });
}

AppendRow from_into(Dtype dtype, Dtype storage) {
    switch (dtype) {
        case Dtype::float64: return into<Dtype::float64>(storage);
        case Dtype::float16: return into<Dtype::float16>(storage);
        case Dtype::bfloat16: return into<Dtype::bfloat16>(storage);
        default: return into<Dtype::float32>(storage);
    }
}

}  // namespace

AppendRow append_row(const AppendProblem& problem) { return from_into(problem.dtype, problem.cache.layout.storage); }

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
