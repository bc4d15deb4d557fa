#pragma once

// A row of softmax attention by its definition, in float64, and how far float32 may be from it.

#include <vector>

#include "tensors.h"

namespace fuzz {

constexpr double kRound = 0x1p-24;  // half a unit in the last place of 1, in float32

struct Rule {
    double scale, softcap;
    double sink = -kInfinity;
};

class SoftmaxRow {
public:
    // Rotated values: an error of one channel is one of all channels.
    SoftmaxRow(const Rule& rule, int64_t value_width, bool rotated = false)
        : rule_(rule), width_(value_width), rotated_(rotated) {}

    // Adds an attended key; `size` is Σ |q||k| over `terms` channels.
    void see(double dot, double size, int64_t terms, double bias, const double* value) {
        double score = dot * rule_.scale;
        if (rule_.softcap != 0) score = rule_.softcap * std::tanh(score / rule_.softcap);
        // A bias of -inf masks a key, even one whose score is NaN.
        score = bias == -kInfinity ? bias : score + bias;
        if (score == -kInfinity) return;
        const double sums = static_cast<double>(terms + 4) * kRound * size * std::fabs(rule_.scale);
        const double others = std::fabs(dot * rule_.scale) + std::fabs(score) + rule_.softcap + std::fabs(bias);
        keys_.push_back({score, value});
        lost_ = lost_ || std::isnan(score) || score == kInfinity;
        highest_ = std::max(highest_, score);
        error_ = std::max(error_, sums + 16 * kRound * others + 1e-37);
    }

    void check(const char* out, Dtype dtype, const float* lse) const {
        const int64_t element = qkv::element_size(dtype);
        if (keys_.empty() || lost_) {
            for (int64_t c = 0; c < width_; ++c) {
                const double found = read_as(out + c * element, dtype);
                if (lost_ && !std::isnan(found)) fail("out " + number(found) + ", wanted NaN");
                if (!lost_ && found != 0) fail("out " + number(found) + ", wanted 0");
            }
            const bool right = lse == nullptr || (lost_ ? !std::isfinite(*lse) : *lse == -kInfinity);
            return require(right, "lse of a row that sees no key, or a NaN");
        }
        // The maximum includes the sink, which may be far above all scores.
        const double top = std::max(highest_, rule_.sink);
        double total = std::exp(rule_.sink - top);
        std::vector<double> weights;
        for (const Key& key : keys_) {
            weights.push_back(std::exp(key.score - top));
            total += weights.back();
        }
        const auto count = static_cast<double>(keys_.size());
        const double digits = std::expm1(2 * error_) + (2 * count + 48) * kRound * std::exp(2 * error_);
        for (int64_t c = 0; c < width_; ++c) {
            double sum = 0, size = 0, most = 0;
            for (size_t n = 0; n < keys_.size(); ++n) {
                const double value = keys_[n].value[c];
                sum += std::isfinite(value) ? weights[n] * value : kNan;
                double norm = 0;
                for (int64_t other = 0; rotated_ && other < width_; ++other) {
                    norm = std::hypot(norm, keys_[n].value[other]);
                }
                norm = std::max(norm, std::fabs(value));
                size += weights[n] * norm;
                most = std::max(most, norm);
            }
            // Subnormal weights are 0. Even scores without a correct digit give a mean of the values.
            const double slack = (error_ < 1 ? digits * size / total : 2 * most) + count * 1e-37 * (1 + most);
            compare(read_as(out + c * element, dtype), sum / total, slack, dtype, "out");
        }
        if (lse == nullptr) return;
        const double wanted = top + std::log(total);
        compare(*lse, wanted, 2 * error_ + (2 * count + 48 + 8 * std::fabs(wanted)) * kRound, Dtype::float32, "lse");
    }

private:
    struct Key {
        double score;
        const double* value;
    };

    const Rule rule_;
    const int64_t width_;
    const bool rotated_;
    std::vector<Key> keys_;
    bool lost_ = false;
    double highest_ = -kInfinity, error_ = 0;
};

}  // namespace fuzz
