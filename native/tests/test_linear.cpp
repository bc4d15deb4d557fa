// Linear attention against its definition in float64, pair by pair.

#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "isa.h"
#include "linear.h"
#include "problem.h"
#include "scratch.h"

using qkv::Dtype;
using qkv::FeatureRule;
using qkv::LinearProblem;
using qkv::Map;

namespace {

struct Case {
    FeatureRule rule;
    int64_t batch, heads_kv, group, len_q, len_k, value_width;
    bool causal;
    int64_t offset;
    bool normalize = true, masked = false;
};

struct Inputs {
    std::vector<float> query, key, value;
    std::vector<uint8_t> keep;

    explicit Inputs(const Case& c) {
        std::mt19937 source(static_cast<unsigned>(c.len_q * 131 + c.len_k));
        std::normal_distribution<float> normal;
        const auto fill = [&](std::vector<float>& to, int64_t count) {
            for (int64_t i = 0; i < count; ++i) to.push_back(normal(source));
        };
        fill(query, c.batch * c.heads_kv * c.group * c.len_q * c.rule.width);
        fill(key, c.batch * c.heads_kv * c.len_k * c.rule.width);
        fill(value, c.batch * c.heads_kv * c.len_k * c.value_width);
        for (int64_t i = 0; i < c.batch * c.len_k; ++i) keep.push_back(!c.masked || source() % 3 != 0);
        if (!c.masked) return;
        // Dropped keys and values may have any contents.
        for (int64_t b = 0; b < c.batch; ++b) {
            for (int64_t h = 0; h < c.heads_kv; ++h) {
                for (int64_t j = 0; j < c.len_k; ++j) {
                    if (keep[b * c.len_k + j]) continue;
                    key[((b * c.heads_kv + h) * c.len_k + j) * c.rule.width] = NAN;
                    value[((b * c.heads_kv + h) * c.len_k + j) * c.value_width] = INFINITY;
                }
            }
        }
    }

    LinearProblem problem(const Case& c, float* out, float* state = nullptr, bool direct = false) const {
        const int64_t w = c.rule.width, v = c.value_width, hq = c.heads_kv * c.group;
        return {c.rule, Dtype::float32, c.batch, hq, c.heads_kv, c.len_q, c.len_k, v,
                {query.data(), {hq * c.len_q * w, c.len_q * w, w, 1}},
                {key.data(), {c.heads_kv * c.len_k * w, c.len_k * w, w, 1}},
                {value.data(), {c.heads_kv * c.len_k * v, c.len_k * v, v, 1}},
                c.masked ? keep.data() : nullptr, c.causal, c.offset, c.normalize, out, state, direct};
    }
};

double feature(Map map, double x) {
    if (map == Map::elu1) return x > 0 ? x + 1 : std::exp(x);
    if (map == Map::relu) return x > 0 ? x : 0;
    return map == Map::squared ? x * x : x;
}

double similarity(const FeatureRule& rule, const float* q, const float* k) {
    double sum = 0;
    for (int64_t c = 0; c < rule.width; ++c) sum += feature(rule.map, q[c]) * feature(rule.map, k[c]);
    return rule.map == Map::power ? std::pow(sum + rule.offset, rule.degree) : sum;
}

void check_against_definition(const Case& c, const qkv::KernelTable& kernels, bool direct) {
    const Inputs in(c);
    const int64_t w = c.rule.width, v = c.value_width;
    std::vector<float> out(c.batch * c.heads_kv * c.group * c.len_q * v, NAN);
    qkv::linear(kernels, in.problem(c, out.data(), nullptr, direct), 1);
    for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t h = 0; h < c.heads_kv * c.group; ++h) {
            for (int64_t i = 0; i < c.len_q; ++i) {
                const int64_t row = (b * c.heads_kv * c.group + h) * c.len_q + i, head = b * c.heads_kv + h / c.group;
                std::vector<double> above(v, 0.0), size(v, 0.0);
                double below = 0, below_size = 0;
                for (int64_t j = 0; j < c.len_k; ++j) {
                    if ((c.causal && j > i + c.offset) || !in.keep[b * c.len_k + j]) continue;
                    const double sim = similarity(c.rule, &in.query[row * w], &in.key[(head * c.len_k + j) * w]);
                    below += sim;
                    below_size += std::fabs(sim);
                    for (int64_t n = 0; n < v; ++n) {
                        above[n] += sim * in.value[(head * c.len_k + j) * v + n];
                        size[n] += std::fabs(sim * in.value[(head * c.len_k + j) * v + n]);
                    }
                }
                for (int64_t n = 0; n < v; ++n) {
                    double wanted = above[n], slack = size[n];
                    if (c.normalize) {
                        wanted = below == 0 ? 0 : above[n] / below;
                        slack = below == 0 ? 0 : (size[n] + std::fabs(wanted) * below_size) / std::fabs(below);
                    }
                    const float found = out[row * v + n];
                    // The terms of a power are larger than their sum.
                    const double digits = c.rule.map == Map::power ? 3e-5 : 4e-6;
                    if (!(std::fabs(found - wanted) <= digits * slack + 1e-6)) {
                        check::setting() += ", row " + std::to_string(row) + ", below " + std::to_string(below);
                        CHECK_EQUAL(found, wanted);
                    }
                }
            }
        }
    }
}

const std::vector<Case>& cases() {
    static const std::vector<Case> all = {
        {{Map::elu1, 5, 1, 0}, 2, 3, 1, 7, 11, 13, false, 0},
        {{Map::elu1, 64, 1, 0}, 1, 2, 1, 200, 200, 64, true, 0},
        {{Map::elu1, 17, 1, 0}, 1, 1, 3, 131, 67, 5, true, -64},
        {{Map::relu, 16, 1, 0}, 2, 1, 2, 70, 150, 33, true, 80, true, true},
        {{Map::squared, 3, 1, 0}, 1, 1, 1, 1, 1, 1, true, 0},
        {{Map::identity, 80, 1, 0}, 1, 2, 1, 65, 130, 48, true, 65, false, true},
        {{Map::power, 5, 2, 1}, 1, 2, 2, 140, 140, 7, true, 0},
        {{Map::power, 16, 2, -0.5}, 1, 1, 1, 66, 129, 16, false, 0, true, true},
        {{Map::power, 7, 3, 0.25}, 2, 1, 1, 131, 131, 9, true, 0, true, true},
        {{Map::power, 9, 1, 2}, 1, 1, 1, 80, 80, 4, true, 3},
        {{Map::power, 4, 2, 0}, 1, 1, 1, 70, 70, 4, true, 0, false},
        {{Map::power, 40, 2, 1}, 1, 1, 1, 300, 300, 20, true, 0},
        // Long enough for segments.
        {{Map::elu1, 6, 1, 0}, 1, 2, 2, 1201, 1201, 5, true, 0},
        {{Map::elu1, 6, 1, 0}, 2, 1, 1, 130, 1303, 5, false, 0, true, true},
        {{Map::squared, 3, 1, 0}, 1, 1, 1, 1501, 1100, 2, true, -300, true, true},
        {{Map::relu, 3, 1, 0}, 1, 3, 1, 700, 1409, 2, true, 709},
    };
    return all;
}

}  // namespace

TEST(linear, agrees_with_its_definition) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (size_t n = 0; n < cases().size(); ++n) {
            check::setting() = std::string(kernels->name) + ", case " + std::to_string(n);
            for (const bool direct : {false, true}) check_against_definition(cases()[n], *kernels, direct);
        }
    }
}

// The keys in two calls, through a state, and the queries of the second call.
TEST(linear, continues_from_a_state) {
    for (const Case& whole : cases()) {
        if (!whole.causal || whole.offset != 0 || whole.len_k < 60 || whole.batch != 1 || whole.masked) continue;
        const qkv::KernelTable& kernels = *qkv::runnable_kernels().front();
        const Inputs in(whole);
        const int64_t w = whole.rule.width, v = whole.value_width, first = 37, heads = whole.heads_kv * whole.group;
        std::vector<float> wanted(heads * whole.len_q * v), found(heads * (whole.len_q - first) * v);
        qkv::linear(kernels, in.problem(whole, wanted.data()), 1);
        const int64_t floats = whole.heads_kv * qkv::linear_state_size(whole.rule, v);
        const qkv::Floats state = qkv::allocate(floats);
        std::fill(state.get(), state.get() + floats, 0.0f);
        LinearProblem before = in.problem(whole, nullptr, state.get());
        before.len_k = first;
        qkv::linear(kernels, before, 1);
        LinearProblem after = in.problem(whole, found.data(), state.get());
        after.len_q -= first;
        after.len_k -= first;
        after.query.data = in.query.data() + first * w;
        after.key.data = in.key.data() + first * w;
        after.value.data = in.value.data() + first * v;
        qkv::linear(kernels, after, 1);
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = 0; i < (whole.len_q - first) * v; ++i) {
                const float one = found[h * (whole.len_q - first) * v + i];
                const float other = wanted[(h * whole.len_q + first) * v + i];
                CHECK(std::fabs(one - other) <= 1e-3f * (1 + std::fabs(other)));
            }
        }
    }
}

TEST(linear, a_denominator_of_zero_hides_no_value) {
    const Case c = {{Map::relu, 3, 1, 0}, 1, 1, 2, 67, 71, 19, true, 4};
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            for (const bool direct : {false, true}) {
                Inputs in(c);
                for (float& number : in.query) number = -std::fabs(number);
                in.value[c.value_width + 17] = bad;  // every query attends to the second key
                std::vector<float> out(c.group * c.len_q * c.value_width, 3.0f);
                qkv::linear(*kernels, in.problem(c, out.data(), nullptr, direct), 1);
                for (size_t n = 0; n < out.size(); ++n) {
                    CHECK(n % c.value_width == 17 ? std::isnan(out[n]) : out[n] == 0 && !std::signbit(out[n]));
                }
            }
        }
    }
}

TEST(linear, has_the_same_bits_for_any_number_of_threads) {
    const WithThreads threads;
    for (const Case& c : cases()) {
        for (const bool direct : {false, true}) {
            const Inputs in(c);
            std::vector<float> one(c.batch * c.heads_kv * c.group * c.len_q * c.value_width), other(one.size());
            const qkv::KernelTable& kernels = *qkv::runnable_kernels().front();
            qkv::linear(kernels, in.problem(c, one.data(), nullptr, direct), 1);
            qkv::linear(kernels, in.problem(c, other.data(), nullptr, direct), 3);
            CHECK(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
        }
    }
}

// The position after the largest integer.
TEST(linear, the_largest_offset_masks_nothing) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        const auto answer = [&](bool causal, int64_t offset, bool direct) {
            const Case c = {{Map::elu1, 3, 1, 0}, 1, 1, 1, 5, 7, 2, causal, offset};
            std::vector<float> out(10, NAN);
            qkv::linear(*kernels, Inputs(c).problem(c, out.data(), nullptr, direct), 1);
            return out;
        };
        for (const bool direct : {false, true}) {
            CHECK(answer(true, INT64_MAX, direct) == answer(true, 7, direct));
            CHECK(answer(true, INT64_MIN, direct) == std::vector<float>(10, 0.0f));
        }
    }
}
