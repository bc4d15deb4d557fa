#pragma once

// What the storage formats keep of a row of numbers, by their definitions.

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats.h"
#include "rotation.h"

// s·H·x, one product at a time.
inline std::vector<double> rotated_back(const std::vector<double>& x) {
    const auto width = static_cast<int64_t>(x.size()), block = qkv::rotated_block(width);
    std::vector<double> back(x.size(), 0.0);
    for (int64_t c = 0; c < width; ++c) {
        const int64_t within = c % block;
        for (int64_t j = 0; j < block; ++j) {
            const double term = x[c - within + j];
            back[c] += __builtin_popcountll(within & j) % 2 == 0 ? term : -term;
        }
        if (__builtin_popcountll(within & within / 2) % 2 == 1) back[c] = -back[c];
    }
    return back;
}

// The numbers as they are stored, times their scales; for int4 they are rotated.
inline std::vector<double> stored_numbers(qkv::Dtype storage, const float* numbers, int64_t width) {
    using qkv::Dtype;
    std::vector<float> row(numbers, numbers + width);
    const bool finite = std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
    if (storage == Dtype::int4 && finite) qkv::rotate(row.data(), width, 1);
    const int64_t group = storage == Dtype::int4 ? 32 : width;
    std::vector<double> kept;
    for (int64_t c = 0; c < width; ++c) {
        const float x = row[c];
        if (storage == Dtype::float32) kept.push_back(x);
        if (storage == Dtype::bfloat16) kept.push_back(qkv::widen_one_bfloat16(qkv::narrow_to_bfloat16(x)));
        if (storage == Dtype::float16) kept.push_back(qkv::widen_one_float16(qkv::narrow_to_float16(x)));
        if (storage != Dtype::int8 && storage != Dtype::int4) continue;
        float most = 0;
        for (int64_t n = c / group * group; n < std::min(width, c / group * group + group); ++n) {
            most = std::max(most, std::fabs(row[n]));
        }
        float scale = most / (storage == Dtype::int8 ? 127.0f : 7.5f);
        if (storage == Dtype::int4) scale = qkv::widen_one_bfloat16(qkv::narrow_to_bfloat16(scale));
        const float quotient = scale == 0 ? 0 : x / scale;
        const float number = storage == Dtype::int8 ? std::clamp(std::nearbyint(quotient), -127.0f, 127.0f)
                                                    : std::clamp(std::floor(quotient), -8.0f, 7.0f) + 0.5f;
        kept.push_back(!finite ? NAN : static_cast<double>(number) * scale);
    }
    return kept;
}

inline std::vector<double> kept_numbers(qkv::Dtype storage, const float* numbers, int64_t width) {
    const std::vector<double> stored = stored_numbers(storage, numbers, width);
    return storage == qkv::Dtype::int4 ? rotated_back(stored) : stored;
}
