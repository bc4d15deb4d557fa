#pragma once

// A paged cache, each page a separate allocation, and a record of the tokens that it must contain.

#include "cache.h"
#include "scratch.h"
#include "tensors.h"

namespace fuzz {

// Which of the given tokens of a row are real: `counts` of them, the last ones with `left` padding.
struct Counted {
    int64_t first, count;

    Counted(const qkv::Tokens& tokens, int64_t row)
        : first(0), count(tokens.counts == nullptr ? tokens.given : tokens.counts[row]) {
        if (tokens.left) first = tokens.given - count;
    }
};

class Past {
public:
    // Row b begins at position first[b]; only the last `slots` pages of a row are kept.
    Past(const qkv::PageLayout& layout, const std::vector<int64_t>& first, int64_t slots)
        : layout_(layout), first_(first), length_(first), rows_(first.size()) {
        const auto batch = static_cast<int64_t>(first.size());
        const auto bytes = static_cast<size_t>(qkv::round_up(layout.head_bytes() * layout.heads, 64));
        for (int64_t n = 0; n < batch * slots; ++n) {
            pages_.emplace_back(static_cast<char*>(std::aligned_alloc(64, bytes)));
            std::memset(pages_.back().get(), 0xff, bytes);  // NaN in every format
            table_.push_back(reinterpret_cast<int64_t>(pages_.back().get()));
        }
        cache_ = {layout, table_.data(), slots};
    }

    const qkv::PagedCache& cache() const { return cache_; }
    const std::vector<int64_t>& lengths() const { return length_; }

    // The append problem for these tokens; and the same in the record.
    void enter(const qkv::Tokens& tokens, const Strided& key, const Strided& value) {
        for (int64_t b = 0; b < tokens.batch; ++b) {
            const Counted counted(tokens, b);
            for (int64_t t = counted.first; t < counted.first + counted.count; ++t) {
                for (int64_t g = 0; g < layout_.heads; ++g) {
                    store(key, b, g, t, layout_.width);
                    store(value, b, g, t, layout_.value_width);
                }
            }
            length_[b] += counted.count;
        }
    }

    // The key of row b's position j for head g, then its value.
    const double* key(int64_t b, int64_t g, int64_t j) const {
        const int64_t token = (j - first_[b]) * layout_.heads + g;
        return rows_[b].data() + token * (layout_.width + layout_.value_width);
    }
    const double* value(int64_t b, int64_t g, int64_t j) const { return key(b, g, j) + layout_.width; }

    int64_t oldest(int64_t b) const {
        const int64_t pages = qkv::ceil_div(length_[b], qkv::kPageTokens) - cache_.slots;
        return std::max(first_[b], pages * qkv::kPageTokens);
    }

    // Checks that pages have the recorded contents in the layout of cache.h.
    void check() const {
        for (int64_t b = 0; b < static_cast<int64_t>(rows_.size()); ++b) {
            for (int64_t j = oldest(b); j < length_[b]; ++j) {
                for (int64_t g = 0; g < layout_.heads; ++g) check_token(b, g, j);
            }
        }
    }

private:
    void store(const Strided& from, int64_t b, int64_t g, int64_t token, int64_t width) {
        float most = 0;
        bool finite = true;
        for (int64_t c = 0; c < width; ++c) {
            const auto x = std::fabs(static_cast<float>(from.get(b, g, token, c)));
            finite = finite && std::isfinite(x);
            most = std::max(most, x);
        }
        const float scale = finite ? most / 127.0f : NAN;
        for (int64_t c = 0; c < width; ++c) {
            const auto x = static_cast<float>(from.get(b, g, token, c));
            float kept = x;
            if (layout_.storage == Dtype::float16) kept = qkv::widen_one_float16(qkv::narrow_to_float16(x));
            if (layout_.storage == Dtype::bfloat16) kept = qkv::widen_one_bfloat16(qkv::narrow_to_bfloat16(x));
            if (layout_.storage == Dtype::int8) {
                kept = scale == 0 ? 0 : std::clamp(std::nearbyint(x / scale), -127.0f, 127.0f) * scale;
            }
            rows_[b].push_back(kept);
        }
    }

    void check_token(int64_t b, int64_t g, int64_t j) const {
        const int64_t t = j % qkv::kPageTokens, element = qkv::element_size(layout_.storage), pair = layout_.pair();
        const char* slab = cache_.slab(b, j / qkv::kPageTokens, g);
        const bool whole = layout_.storage == Dtype::int8;
        const auto* scales = reinterpret_cast<const float*>(slab + qkv::PageLayout::kHeaderBytes);
        const auto same = [&](const char* at, float scale, double wanted) {
            const float found = qkv::widen(at, layout_.storage) * (whole ? scale : 1.0f);
            const bool right = std::isnan(wanted) ? std::isnan(found) : found == static_cast<float>(wanted);
            require(right, "a page holds another number");
        };
        bool finite = true;
        for (int64_t c = 0; c < layout_.width; ++c) {
            const int64_t place = c / pair * qkv::kPageTokens * pair + t * pair + c % pair;
            same(slab + layout_.keys_at() + place * element, scales[t], key(b, g, j)[c]);
        }
        for (int64_t c = 0; c < layout_.value_slots(); ++c) {
            const char* at = slab + layout_.values_at() + (t * layout_.value_slots() + c) * element;
            const double wanted = c < layout_.value_width ? value(b, g, j)[c] : 0.0;
            if (c < layout_.value_width || !whole) same(at, scales[qkv::kPageTokens + t], wanted);
            finite = finite && std::isfinite(wanted);
        }
        require(finite || (slab[0] & qkv::kNonfinite) != 0, "a page does not say that its values are not all finite");
    }

    const qkv::PageLayout layout_;
    const std::vector<int64_t> first_;
    std::vector<int64_t> length_;
    std::vector<std::vector<double>> rows_;  // token after token: for each head a key and a value
    std::vector<std::unique_ptr<char, qkv::Free>> pages_;
    std::vector<int64_t> table_;
    qkv::PagedCache cache_ = {};
};

}  // namespace fuzz
