#pragma once

// Argmax problems in integers, which float32 sums exactly in any order, with the answer by definition.

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "argmax.h"
#include "check.h"
#include "isa.h"
#include "parallel.h"

struct Shape {
    int64_t batch, heads_q, heads_kv, len_q, len_k, width;

    std::string text() const {
        std::string all;
        for (int64_t n : {batch, heads_q, heads_kv, len_q, len_k, width}) all += std::to_string(n) + " ";
        return all;
    }
};

struct Problem {
    Shape shape;
    std::vector<float> query, key;
    std::vector<int64_t> starts, stops;  // empty: all keys

    explicit Problem(const Shape& s, unsigned seed = 1, int largest = 3)
        : shape(s), query(s.batch * s.heads_q * s.len_q * s.width), key(s.batch * s.heads_kv * s.len_k * s.width) {
        std::mt19937 random(seed);
        std::uniform_int_distribution<int> number(-largest, largest);
        for (float& x : query) x = static_cast<float>(number(random));
        for (float& x : key) x = static_cast<float>(number(random));
    }

    void random_ranges(unsigned seed) {
        std::mt19937 random(seed);
        std::uniform_int_distribution<int64_t> bound(-2, shape.len_k + 2);
        for (int64_t n = 0; n < shape.batch * shape.len_q; ++n) {
            starts.push_back(bound(random) / 2);
            stops.push_back(bound(random));
        }
    }

    float* key_row(int64_t batch, int64_t head, int64_t position) {
        return key.data() + ((batch * shape.heads_kv + head) * shape.len_k + position) * shape.width;
    }

    float* query_row(int64_t batch, int64_t head, int64_t position) {
        return query.data() + ((batch * shape.heads_q + head) * shape.len_q + position) * shape.width;
    }

    std::vector<int64_t> answer() {
        std::vector<int64_t> indices;
        const int64_t group = shape.heads_q / shape.heads_kv;
        for (int64_t b = 0; b < shape.batch; ++b) {
            for (int64_t h = 0; h < shape.heads_q; ++h) {
                for (int64_t i = 0; i < shape.len_q; ++i) indices.push_back(answer_for(b, h, h / group, i));
            }
        }
        return indices;
    }

    std::vector<int64_t> run(const qkv::KernelTable& kernels, int threads = 1) {
        std::vector<int64_t> result(shape.batch * shape.heads_q * shape.len_q, 12345);
        const int64_t w = shape.width;
        const qkv::ArgmaxProblem problem = {
            qkv::Dtype::float32,
            shape.batch, shape.heads_q, shape.heads_kv, shape.len_q, shape.len_k, w,
            {query.data(), {shape.heads_q * shape.len_q * w, shape.len_q * w, w, 1}},
            {key.data(), {shape.heads_kv * shape.len_k * w, shape.len_k * w, w, 1}},
            starts.empty() ? nullptr : starts.data(),
            stops.empty() ? nullptr : stops.data(),
            result.data()};
        qkv::argmax_scores(kernels, problem, threads);
        return result;
    }

private:
    int64_t answer_for(int64_t b, int64_t h, int64_t g, int64_t i) {
        const int64_t from = starts.empty() ? 0 : std::max<int64_t>(starts[b * shape.len_q + i], 0);
        const int64_t to = stops.empty() ? shape.len_k : std::min(stops[b * shape.len_q + i], shape.len_k);
        int64_t best = qkv::kNoKey;
        double record = -std::numeric_limits<double>::infinity();
        for (int64_t j = from; j < to; ++j) {
            double score = 0;
            for (int64_t c = 0; c < shape.width; ++c) {
                score += static_cast<double>(query_row(b, h, i)[c]) * static_cast<double>(key_row(b, g, j)[c]);
            }
            if (std::isnan(score)) return qkv::kNan;
            if (score > record) {
                record = score;
                best = j;
            }
        }
        return best;
    }
};

inline void check_answer(Problem& problem, const qkv::KernelTable& kernels) {
    check::setting() = std::string(kernels.name) + ", shape " + problem.shape.text();
    const std::vector<int64_t> found = problem.run(kernels), wanted = problem.answer();
    for (size_t n = 0; n < wanted.size(); ++n) {
        if (found[n] != wanted[n]) check::setting() += ", row " + std::to_string(n);
        CHECK_EQUAL(found[n], wanted[n]);
    }
}

// GOMP_parallel, since torch is not loaded.
inline void start_threads(void (*entry)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned n = 1; n < threads; ++n) others.emplace_back(entry, data);
    entry(data);
    for (std::thread& other : others) other.join();
}

struct WithThreads {
    WithThreads() { qkv::set_team_starter(start_threads); }
    ~WithThreads() { qkv::set_team_starter(nullptr); }
};
