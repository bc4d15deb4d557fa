#pragma once

// A paged cache filled with random tokens, and attention over what it stores, in double precision.

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "isa.h"
#include "cache.h"
#include "kept.h"
#include "parallel.h"
#include "scalar.h"
#include "scratch.h"

struct MemoryShape {
    qkv::Storage storage;
    int64_t batch, heads_q, heads_kv, past, given, width, value_width;

    std::string text() const {
        std::string all = "storage " + std::to_string(static_cast<int>(storage.keys)) + "/" +
                          std::to_string(static_cast<int>(storage.values)) + (storage.latent ? ", latents:" : ":");
        for (int64_t n : {batch, heads_q, heads_kv, past, given, width, value_width}) all += " " + std::to_string(n);
        return all;
    }
};

inline qkv::Tensor4 plain(const void* data, int64_t heads, int64_t length, int64_t width) {
    return {data, {heads * length * width, length * width, width, 1}};
}

class FilledCache {
public:
    MemoryShape shape;
    std::vector<float> query, key, value;
    std::vector<int64_t> positions;
    qkv::PagedCache cache;
    double offset = NAN;  // of sigmoid; NaN: softmax

    // Latents are at least as wide as their values.
    explicit FilledCache(const MemoryShape& given, unsigned seed = 7)
        : shape(given), positions(given.batch, given.past) {
        if (given.storage.latent) shape.width = std::max(given.width, given.value_width);
        const MemoryShape& s = shape;
        const int64_t total = s.past + s.given, pages = qkv::ceil_div(total, qkv::kPageTokens);
        int64_t slots = 1;
        while (slots < pages) slots *= 2;
        cache = {{s.storage, s.heads_kv, s.width, s.value_width}, nullptr, slots};
        const int64_t floats = cache.layout.head_bytes() * s.heads_kv / 4;
        storage_ = qkv::allocate(s.batch * pages * floats);
        // Unwritten slots are NaN in every format.
        std::memset(storage_.get(), 0xff, s.batch * pages * floats * 4);
        for (int64_t b = 0; b < s.batch; ++b) {
            for (int64_t p = 0; p < slots; ++p) {
                table_.push_back(p < pages ? reinterpret_cast<int64_t>(storage_.get() + (b * pages + p) * floats) : 0);
            }
        }
        cache.table = table_.data();
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        query.resize(s.batch * s.heads_q * s.given * s.width);
        key.resize(s.batch * s.heads_kv * total * s.width);
        value.resize(s.batch * s.heads_kv * total * s.value_width);
        for (auto* numbers : {&query, &key, &value}) {
            for (float& x : *numbers) x = normal(random);
        }
    }

    float* key_row(int64_t b, int64_t g, int64_t j) { return key.data() + row(b, g, j) * shape.width; }
    float* value_row(int64_t b, int64_t g, int64_t j) {
        if (shape.storage.latent) return key_row(b, g, j);
        return value.data() + row(b, g, j) * shape.value_width;
    }

    // In two calls that meet at `cut`.
    void fill(int64_t cut, int threads = 1) {
        const int64_t total = shape.past + shape.given;
        for (const auto& [from, to] : {std::pair<int64_t, int64_t>{0, cut}, {cut, total}}) {
            const std::vector<int64_t> at(shape.batch, from);
            qkv::AppendProblem problem = {cache, {shape.batch, to - from, at.data(), nullptr, false},
                                          qkv::Dtype::float32, plain(key.data(), shape.heads_kv, total, shape.width),
                                          plain(value.data(), shape.heads_kv, total, shape.value_width)};
            problem.key.data = static_cast<const float*>(problem.key.data) + from * shape.width;
            problem.value.data = static_cast<const float*>(problem.value.data) + from * shape.value_width;
            qkv::append(problem, threads);
        }
    }

    qkv::AttendProblem problem(float* out) {
        return {cache, {shape.batch, shape.given, positions.data(), nullptr, false}, shape.heads_q,
                qkv::Dtype::float32, plain(query.data(), shape.heads_q, shape.given, shape.width), out, nullptr,
                qkv::kNoBound, nullptr, nullptr, qkv::kNoBound, qkv::kNoBound, {}, {}, 0.37f, 0.0f, nullptr, nullptr};
    }

    int64_t out_size() const { return shape.batch * shape.heads_q * shape.given * shape.value_width; }

    std::vector<float> attend(const qkv::KernelTable& kernels, int threads = 1) {
        std::vector<float> out(out_size(), 1e9f);
        qkv::attend(kernels, problem(out.data()), threads);
        return out;
    }

    // Over the keys that sees(i, position, j) allows.
    template <typename Sees>
    std::vector<double> answer(Sees sees) {
        std::vector<double> out;
        for (int64_t b = 0; b < shape.batch; ++b) {
            for (int64_t h = 0; h < shape.heads_q; ++h) {
                for (int64_t i = 0; i < shape.given; ++i) {
                    const std::vector<double> one = answer_for(b, h, i, sees);
                    out.insert(out.end(), one.begin(), one.end());
                }
            }
        }
        return out;
    }

    std::vector<double> answer() {
        return answer([](int64_t, int64_t position, int64_t j) { return j <= position; });
    }

private:
    int64_t row(int64_t b, int64_t g, int64_t j) const {
        return (b * shape.heads_kv + g) * (shape.past + shape.given) + j;
    }

    template <typename Sees>
    std::vector<double> answer_for(int64_t b, int64_t h, int64_t i, Sees sees) {
        const int64_t g = h / (shape.heads_q / shape.heads_kv);
        const float* q = query.data() + ((b * shape.heads_q + h) * shape.given + i) * shape.width;
        std::vector<double> sums(shape.value_width, 0.0);
        double weights = 0.0;
        for (int64_t j = 0; j < shape.past + shape.given; ++j) {
            if (!sees(i, shape.past + i, j)) continue;
            const std::vector<double> k = kept_numbers(shape.storage.keys, key_row(b, g, j), shape.width);
            double score = 0;
            for (int64_t c = 0; c < shape.width; ++c) score += static_cast<double>(q[c]) * k[c];
            const double weight = std::isnan(offset) ? std::exp(0.37 * score) : 1 / (1 + std::exp(-0.37 * score - offset));
            const int64_t wide = shape.storage.latent ? shape.width : shape.value_width;
            const std::vector<double> v = kept_numbers(shape.storage.values, value_row(b, g, j), wide);
            for (int64_t c = 0; c < shape.value_width; ++c) sums[c] += weight * v[c];
            weights += weight;
        }
        for (double& x : sums) x = !std::isnan(offset) ? x : weights == 0 ? 0 : x / weights;
        return sums;
    }

    qkv::Floats storage_{nullptr};
    std::vector<int64_t> table_;
};

inline double largest_difference(const std::vector<float>& found, const std::vector<double>& wanted) {
    double most = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(found[i]) - wanted[i]);
        most = difference <= most ? most : difference;  // NaN is kept
    }
    return most;
}
