// Attention with a state against its recurrence in float64.

#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "isa.h"
#include "problem.h"
#include "scratch.h"
#include "state.h"

using qkv::Dtype;
using qkv::StateProblem;

namespace {

struct Case {
    int64_t batch, heads_kv, group, length, width, value_width, gate_width;
    bool delta, masked = false;
};

struct Inputs {
    explicit Inputs(const Case& c) : c(c) {
        std::mt19937 source(static_cast<unsigned>(c.length * 131 + c.width));
        std::normal_distribution<float> normal;
        const int64_t tokens = c.batch * c.heads_kv * c.length;
        const auto fill = [&](std::vector<float>& to, int64_t count, float scale) {
            for (int64_t i = 0; i < count; ++i) to.push_back(scale * normal(source));
        };
        fill(query, tokens * c.group * c.width, 1.0f);
        fill(key, tokens * c.width, 1.0f / std::sqrt(static_cast<float>(c.width)));
        fill(value, tokens * c.value_width, 1.0f);
        fill(gate, tokens * c.gate_width, 1.0f);
        fill(state, c.batch * c.heads_kv * c.width * c.value_width, 1.0f);
        for (int64_t i = 0; i < tokens; ++i) beta.push_back(static_cast<float>(source() % 9) / 8.0f);
        for (float& g : gate) g = source() % 19 == 0 ? -INFINITY : source() % 19 == 1 ? -90.0f : -0.3f * g * g;
        for (int64_t i = 0; i < c.batch * c.length; ++i) {
            keep.push_back(!c.masked || source() % 5 != 0);
            resets.push_back(c.masked && source() % 23 == 0);
            if (keep.back() != 0) continue;
            for (int64_t h = 0; h < c.heads_kv; ++h) {  // dropped tokens may have any contents
                const int64_t token = (i / c.length * c.heads_kv + h) * c.length + i % c.length;
                key[token * c.width] = value[token * c.value_width] = beta[token] = NAN;
                if (c.gate_width > 0) gate[token * c.gate_width] = NAN;
            }
        }
    }

    StateProblem problem(float* out, float* held) const {
        const int64_t hq = c.heads_kv * c.group, n = c.length, hk = c.heads_kv;
        const auto tensor = [&](const std::vector<float>& x, int64_t heads, int64_t width) {
            return qkv::Tensor4{x.data(), {heads * n * width, n * width, width, 1}};
        };
        return {Dtype::float32, c.batch, hq, hk, n, c.width, c.value_width, tensor(query, hq, c.width),
                tensor(key, hk, c.width), tensor(value, hk, c.value_width), c.gate_width, Dtype::float32,
                tensor(gate, hk, c.gate_width), c.delta, Dtype::float32, tensor(beta, hk, 1),
                c.masked ? keep.data() : nullptr, c.masked ? resets.data() : nullptr, held, out,
                {hq * n * c.value_width, n * c.value_width, c.value_width}};
    }

    const Case c;
    std::vector<float> query, key, value, gate, beta, state;
    std::vector<uint8_t> keep, resets;
};

// Outputs, then states.
std::vector<double> recurrence(const Inputs& in) {
    const Case& c = in.c;
    const int64_t w = c.width, v = c.value_width, hq = c.heads_kv * c.group;
    std::vector<double> out(c.batch * hq * c.length * v, 0.0), states;
    for (int64_t unit = 0; unit < c.batch * c.heads_kv; ++unit) {
        const int64_t b = unit / c.heads_kv, h = unit % c.heads_kv;
        std::vector<double> now(in.state.begin() + unit * w * v, in.state.begin() + (unit + 1) * w * v);
        for (int64_t t = 0; t < c.length; ++t) {
            const int64_t token = unit * c.length + t;
            if (in.resets[b * c.length + t] != 0) std::fill(now.begin(), now.end(), 0.0);
            if (in.keep[b * c.length + t] == 0) continue;
            for (int64_t i = 0; i < w && c.gate_width > 0; ++i) {
                const double gate = in.gate[token * c.gate_width + (c.gate_width > 1 ? i : 0)];
                for (int64_t n = 0; n < v; ++n) now[i * v + n] *= std::exp(gate);
            }
            for (int64_t n = 0; n < v; ++n) {
                double u = in.value[token * v + n];
                if (c.delta) {
                    for (int64_t i = 0; i < w; ++i) u -= in.key[token * w + i] * now[i * v + n];
                    u *= in.beta[token];
                }
                for (int64_t i = 0; i < w; ++i) now[i * v + n] += in.key[token * w + i] * u;
                for (int64_t g = 0; g < c.group; ++g) {
                    const int64_t row = (b * hq + h * c.group + g) * c.length + t;
                    for (int64_t i = 0; i < w; ++i) out[row * v + n] += in.query[row * w + i] * now[i * v + n];
                }
            }
        }
        states.insert(states.end(), now.begin(), now.end());
    }
    out.insert(out.end(), states.begin(), states.end());
    return out;
}

std::vector<float> run(const qkv::KernelTable& kernels, const Inputs& in, int threads) {
    const Case& c = in.c;
    std::vector<float> out(c.batch * c.heads_kv * c.group * c.length * c.value_width, NAN), held = in.state;
    qkv::state_attention(kernels, in.problem(out.data(), held.data()), threads);
    out.insert(out.end(), held.begin(), held.end());
    return out;
}

const std::vector<Case>& cases() {
    static const std::vector<Case> all = {
        {1, 1, 1, 1, 5, 3, 1, true},        {2, 3, 2, 3, 7, 37, 7, true},       {1, 2, 3, 4, 16, 160, 0, false},
        {2, 1, 1, 1, 33, 65, 1, false},     {1, 2, 2, 131, 16, 16, 0, false},   {2, 1, 2, 97, 7, 33, 1, false},
        {1, 1, 1, 70, 19, 5, 19, false},    {1, 2, 1, 150, 32, 48, 0, true},    {1, 1, 2, 200, 17, 65, 1, true},
        {1, 2, 1, 53, 16, 21, 16, true},    {2, 1, 2, 140, 5, 11, 1, true, true}, {1, 1, 1, 90, 11, 16, 11, true, true},
        {1, 2, 1, 110, 16, 32, 0, false, true},
    };
    return all;
}

}  // namespace

TEST(state, agrees_with_the_recurrence) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (size_t n = 0; n < cases().size(); ++n) {
            check::setting() = std::string(kernels->name) + ", case " + std::to_string(n);
            const Inputs in(cases()[n]);
            const std::vector<float> found = run(*kernels, in, 1);
            const std::vector<double> wanted = recurrence(in);
            double size = 1.0;
            for (const double x : wanted) size = std::fmax(size, std::fabs(x));
            for (size_t i = 0; i < found.size(); ++i) {
                if (!(std::fabs(found[i] - wanted[i]) <= 2e-5 * size)) CHECK_EQUAL(found[i], wanted[i]);
            }
        }
    }
}

TEST(state, has_the_same_bits_for_any_number_of_threads) {
    const WithThreads threads;
    for (const Case& c : cases()) {
        Inputs in(c);
        // An infinity makes some columns go token by token.
        in.value[(c.length / 2) * c.value_width + c.value_width - 1] = INFINITY;
        const qkv::KernelTable& kernels = *qkv::runnable_kernels().front();
        const std::vector<float> one = run(kernels, in, 1), other = run(kernels, in, 3);
        CHECK(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
    }
}

TEST(state, an_infinity_reaches_no_earlier_token) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (const Case& c : cases()) {
            if (c.masked || c.length < 50) continue;
            check::setting() = kernels->name;
            Inputs in(c);
            const std::vector<float> before = run(*kernels, in, 1);
            const int64_t odd = c.length - 7;
            in.value[odd * c.value_width] = INFINITY;
            in.key[odd * c.width] = NAN;
            const std::vector<float> after = run(*kernels, in, 1);
            for (int64_t t = 0; t < odd; ++t) {
                for (int64_t n = 0; n < c.value_width; ++n) {
                    const float one = before[t * c.value_width + n], other = after[t * c.value_width + n];
                    CHECK(std::fabs(one - other) <= 1e-4f * (1.0f + std::fabs(one)));
                }
            }
            CHECK(std::isnan(after[odd * c.value_width]));
        }
    }
}
