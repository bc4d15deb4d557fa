#pragma once

// The monomials of (q·k + offset)^degree, in the order in which they are formed.

#include <cstdint>
#include <vector>

#include "linear.h"

namespace qkv {

constexpr int64_t kLine = 16;  // rows are padded to a multiple of this many floats

// A block of monomials that share all factors but the last (the prefix); the last factor runs from the last one of the
// prefix to the end. first: the index of the block's first feature.
struct Block {
    int64_t first, begin, count;
    int64_t prefix[8];
};

class Monomials {
public:
    explicit Monomials(const FeatureRule& rule) : coordinates_(rule.coordinates()), degree_(rule.degree) {
        weights.reserve(rule.count() + kLine);
        Block block = {};
        enter(rule, block, 0, 0);
        weights.resize(weights.size() + kLine, 0.0f);  // vectors are read beyond the last weight
    }

    std::vector<Block> blocks;
    // The coefficient of each monomial in the power, times the power of the offset in it.
    std::vector<float> weights;

private:
    void enter(const FeatureRule& rule, Block& block, int chosen, int64_t from) {
        if (chosen < degree_ - 1) {
            for (int64_t c = from; c < coordinates_; ++c) {
                block.prefix[chosen] = c;
                enter(rule, block, chosen + 1, c);
            }
            return;
        }
        block.first = static_cast<int64_t>(weights.size());
        block.begin = from;
        block.count = coordinates_ - from;
        blocks.push_back(block);
        for (int64_t c = from; c < coordinates_; ++c) {
            block.prefix[chosen] = c;
            weights.push_back(weight_of(rule, block.prefix));
        }
    }

    float weight_of(const FeatureRule& rule, const int64_t* factors) const {
        double weight = 1.0;
        int64_t equal = 0;
        for (int i = 0; i < degree_; ++i) {
            equal = i > 0 && factors[i] == factors[i - 1] ? equal + 1 : 1;
            weight *= static_cast<double>(i + 1) / static_cast<double>(equal);
            if (factors[i] == rule.width) weight *= static_cast<double>(rule.offset);
        }
        return static_cast<float>(weight);
    }

    const int64_t coordinates_;
    const int degree_;
};

}  // namespace qkv
