#pragma once

// A paged cache, each page a separate allocation, and a record of the tokens that it must contain.

#include "../tests/kept.h"
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
        : layout_(layout), first_(first), length_(first), rows_(first.size()), stored_(first.size()) {
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
                    const bool latent = layout_.storage.latent;
                    store(layout_.storage.keys, key, b, g, t, layout_.width, layout_.width);
                    store(layout_.storage.values, latent ? key : value, b, g, t, layout_.row_width(), layout_.value_width);
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
    // The first `count` numbers of a row.
    void store(Dtype storage, const Strided& from, int64_t b, int64_t g, int64_t token, int64_t width, int64_t count) {
        std::vector<float> row;
        for (int64_t c = 0; c < width; ++c) row.push_back(static_cast<float>(from.get(b, g, token, c)));
        const std::vector<double> stored = stored_numbers(storage, row.data(), width);
        const std::vector<double> kept = kept_numbers(storage, row.data(), width);
        stored_[b].insert(stored_[b].end(), stored.begin(), stored.begin() + count);
        rows_[b].insert(rows_[b].end(), kept.begin(), kept.begin() + count);
    }

    // The number of channel c of a token, whose row or column of words begins at `from`, before it is scaled.
    static float number_at(Dtype storage, const char* from, int64_t c, int64_t step) {
        if (storage != Dtype::int4) {
            const int64_t pair = qkv::pair_of(storage) * qkv::element_size(storage);
            const int64_t at = step == 0 ? c * qkv::element_size(storage)
                                         : c * qkv::element_size(storage) / pair * step + c * qkv::element_size(storage) % pair;
            return qkv::widen(from + at, storage);
        }
        const int64_t byte = c / 32 * 16 + c % 16;
        const auto both = static_cast<uint8_t>(from[step == 0 ? byte : byte / 4 * step + byte % 4]);
        return static_cast<float>(c / 16 % 2 == 0 ? both & 15 : both >> 4) - 7.5f;
    }

    static float scale_at(Dtype storage, const char* scales, int64_t c) {
        if (scales == nullptr) return 1.0f;
        if (storage == Dtype::int8) return qkv::read<float>(scales);
        return qkv::widen_one_bfloat16(qkv::read<uint16_t>(scales + c / 32 * qkv::kPageTokens * 2));
    }

    void check_token(int64_t b, int64_t g, int64_t j) const {
        const int64_t t = j % qkv::kPageTokens;
        const char* slab = cache_.slab(b, j / qkv::kPageTokens, g);
        const double* wanted = stored_[b].data() + (key(b, g, j) - rows_[b].data());
        const auto same = [](float found, double number) {
            const bool right = std::isnan(number) ? std::isnan(found) : found == static_cast<float>(number);
            require(right, "a page holds another number");
        };
        const Dtype keys = layout_.storage.keys, values = layout_.storage.values;
        const int64_t pair = qkv::stored_bytes(keys, qkv::pair_of(keys)), step = qkv::kPageTokens * pair;
        const char* scales = layout_.key_scales(slab);
        if (scales != nullptr) scales += t * qkv::scale_size(keys);
        for (int64_t c = 0; c < layout_.width && !layout_.storage.latent; ++c) {
            same(number_at(keys, slab + layout_.keys_at() + t * pair, c, step) * scale_at(keys, scales, c), wanted[c]);
        }
        bool finite = true;
        const char* row = slab + layout_.values_at() + t * layout_.row_bytes();
        scales = layout_.value_scales(slab, t);
        const double* numbers = layout_.storage.latent ? wanted : wanted + layout_.width;
        for (int64_t c = 0; c < layout_.row_slots(); ++c) {
            if (c >= layout_.row_width() && scales != nullptr) break;
            const double number = c < layout_.row_width() ? numbers[c] : 0.0;
            same(number_at(values, row, c, 0) * scale_at(values, scales, c), number);
            finite = finite && std::isfinite(number);
        }
        require(finite || (slab[0] & qkv::kNonfinite) != 0, "a page does not say that its values are not all finite");
    }

    const qkv::PageLayout layout_;
    const std::vector<int64_t> first_;
    std::vector<int64_t> length_;
    std::vector<std::vector<double>> rows_, stored_;  // token after token: for each head a key and a value
    std::vector<std::unique_ptr<char, qkv::Free>> pages_;
    std::vector<int64_t> table_;
    qkv::PagedCache cache_ = {};
};

}  // namespace fuzz
