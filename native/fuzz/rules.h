#pragma once

// The mask and how scores become weights, for a cache and for plain tensors.

#include <optional>

#include "cache.h"
#include "softmax.h"

namespace fuzz {

// keep or bias: some axes broadcast.
class Broadcast {
public:
    Broadcast(Bytes& bytes, Dtype dtype, Sizes sizes, Random& random) : sizes_(sizes) {
        const int64_t shared = bytes.between("broadcast axes", 0, 7);
        for (int axis = 0; axis < 3; ++axis) {
            if ((shared >> axis & 1) != 0 || sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3] > 2000) sizes_[axis] = 1;
        }
        numbers_.emplace(bytes, dtype, sizes_, random, Fill::common, dtype == Dtype::int8);
        tensor_ = numbers_->tensor();
        for (int axis = 0; axis < 3; ++axis) tensor_.stride[axis] *= sizes_[axis] > 1;
    }

    const qkv::Tensor4& tensor() const { return tensor_; }

    double get(int64_t b, int64_t h, int64_t i, int64_t j) const {
        return numbers_->get(b % sizes_[0], h % sizes_[1], i % sizes_[2], j);
    }

    template <typename Value>
    void set_all(Value value) {
        for (int64_t b = 0; b < sizes_[0]; ++b) {
            for (int64_t h = 0; h < sizes_[1]; ++h) {
                for (int64_t i = 0; i < sizes_[2]; ++i) {
                    for (int64_t j = 0; j < sizes_[3]; ++j) numbers_->set(b, h, i, j, value());
                }
            }
        }
    }

private:
    Sizes sizes_;
    std::optional<Strided> numbers_;
    qkv::Tensor4 tensor_;
};

class Rules {
public:
    // Keys 0 .. keys; row b has none before first[b].
    Rules(Bytes& bytes, const Sizes& query_shape, int64_t keys, const std::vector<int64_t>& first, Random& random) {
        const auto bound = [&](const char* name) {
            const int64_t near = bytes.between(name, -4, 70);
            return std::array<int64_t, 8>{near, near, -near, keys - near, keys, 0, INT64_MIN, INT64_MAX - 1}[
                bytes.between("kind of bound", 0, 7)];
        };
        const bool bounded = bytes.flag("bounded"), begins = *std::max_element(first.begin(), first.end()) > 0;
        if (begins || (bounded && bytes.flag("has starts"))) {
            for (const int64_t least : first) starts.push_back(bounded ? std::max(bound("start"), least) : least);
        }
        if (bounded && bytes.flag("has stops")) {
            for (size_t b = 0; b < first.size(); ++b) stops.push_back(bound("stop"));
        }
        if (bounded && bytes.flag("has lower")) lower = bound("lower");
        if (bounded && bytes.flag("has upper")) upper = bound("upper");
        const Sizes shape = {query_shape[0], query_shape[1], query_shape[2], keys};
        if (keys > 0 && bytes.seldom("has keep", 4)) {
            keep.emplace(bytes, Dtype::int8, shape, random);
            const int64_t times = bytes.between("keeps one of", 1, 4);
            keep->set_all([&] { return static_cast<double>(random.below(4) >= times || random.below(times) == 0); });
        }
        if (keys > 0 && bytes.seldom("has bias", 4)) {
            bias.emplace(bytes, Dtype::float32, shape, random);
            const bool hides = bytes.flag("bias hides"), poisons = bytes.seldom("bias poisons", 8);
            bias->set_all([&] {
                const int64_t kind = random.below(8);
                return hides && kind == 0 ? -kInfinity : poisons && kind == 1 ? kNan : draw(random, Fill::common);
            });
        }
        rule.scale = std::array<float, 6>{0.37f, 1, 0.125f, 0, -0.5f, 8}[bytes.between("scale", 0, 5)];
        rule.softcap = std::array<float, 4>{0, 0, 0.7f, 30}[bytes.between("softcap", 0, 3)];
        if (bytes.seldom("has sink", 4)) {
            for (int64_t h = 0; h < query_shape[1]; ++h) {
                sinks.push_back(static_cast<float>(random.below(6) == 0 ? -kInfinity : draw(random, Fill::large)));
            }
        }
    }

    void apply(qkv::AttendProblem& problem) const {
        problem.window = window;
        problem.starts = starts.empty() ? nullptr : starts.data();
        problem.stops = stops.empty() ? nullptr : stops.data();
        problem.lower = lower;
        problem.upper = upper;
        if (keep) problem.keep = keep->tensor();
        if (bias) problem.bias = bias->tensor();
        problem.scale = static_cast<float>(rule.scale);
        problem.softcap = static_cast<float>(rule.softcap);
        problem.sink = sinks.empty() ? nullptr : sinks.data();
    }

    // Without the causal condition.
    bool sees(int64_t b, int64_t h, int64_t i, int64_t position, int64_t j) const {
        const auto beyond = [&](__int128 distance) { return position + distance; };  // which may be anything
        if (window != qkv::kNoBound && j <= beyond(-static_cast<__int128>(window))) return false;
        if (!starts.empty() && j < starts[b]) return false;
        if (!stops.empty() && j >= stops[b]) return false;
        if (lower != qkv::kNoBound && j < beyond(lower)) return false;
        if (upper != qkv::kNoBound && j >= beyond(upper)) return false;
        return !keep || keep->get(b, h, i, j) != 0;
    }

    double bias_of(int64_t b, int64_t h, int64_t i, int64_t j) const { return bias ? bias->get(b, h, i, j) : 0.0; }

    Rule rule_of(int64_t h) const { return {rule.scale, rule.softcap, sinks.empty() ? -kInfinity : sinks[h]}; }

    bool is_bounded() const {
        return !starts.empty() || !stops.empty() || lower != qkv::kNoBound || upper != qkv::kNoBound;
    }

    int64_t window = qkv::kNoBound;
    std::vector<int64_t> starts, stops;
    int64_t lower = qkv::kNoBound, upper = qkv::kNoBound;
    std::optional<Broadcast> keep, bias;
    Rule rule = {};
    std::vector<float> sinks;
};

}  // namespace fuzz
