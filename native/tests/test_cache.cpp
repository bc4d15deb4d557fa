#include "cache_problem.h"

namespace {

using qkv::Dtype;

std::vector<MemoryShape> shapes(qkv::Storage storage) {
    return {
        {storage, 1, 1, 1, 0, 1, 1, 1},     {storage, 2, 3, 3, 63, 1, 7, 5},   {storage, 2, 6, 3, 64, 1, 13, 17},
        {storage, 1, 6, 2, 130, 3, 16, 32}, {storage, 1, 4, 1, 255, 1, 8, 48},  {storage, 1, 5, 1, 256, 2, 19, 80},
        {storage, 1, 12, 2, 300, 1, 11, 3}, {storage, 1, 7, 1, 517, 1, 33, 130}, {storage, 1, 2, 1, 0, 71, 5, 16},
        {storage, 1, 32, 1, 100, 2, 24, 64},    {storage, 1, 16, 1, 330, 1, 21, 19},
    };
}

}  // namespace

TEST(cache, agrees_with_double_precision) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const qkv::Storage storage : qkv::kStorageFormats) {
            for (const MemoryShape& shape : shapes(storage)) {
                check::setting() = std::string(table->name) + " " + shape.text();
                FilledCache cache(shape);
                cache.fill((shape.past + shape.given) / 2);
                CHECK(largest_difference(cache.attend(*table), cache.answer()) < 6e-6);
            }
        }
    }
}

TEST(cache, same_bits_for_any_threads_and_division) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const qkv::Storage storage : qkv::kStorageFormats) {
            const MemoryShape shape = {storage, 1, 6, 2, 1200, 5, 24, 40};
            check::setting() = std::string(table->name) + " " + shape.text();
            FilledCache cache(shape);
            cache.fill(77, 3);
            const std::vector<float> together = cache.attend(*table, 1);
            CHECK(cache.attend(*table, 3) == together);
            // The queries one at a time.
            for (int64_t i = 0; i < shape.given; ++i) {
                std::vector<float> out(shape.heads_q * shape.value_width);
                qkv::AttendProblem problem = cache.problem(out.data());
                const int64_t position = shape.past + i;
                problem.tokens = {1, 1, &position, nullptr, false};
                problem.query.data = cache.query.data() + i * cache.shape.width;
                qkv::attend(*table, problem, 2);
                for (int64_t h = 0; h < shape.heads_q; ++h) {
                    for (int64_t c = 0; c < shape.value_width; ++c) {
                        CHECK_EQUAL(out[h * shape.value_width + c],
                                    together[(h * shape.given + i) * shape.value_width + c]);
                    }
                }
            }
        }
    }
}

TEST(cache, window_bounds_and_bands) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        FilledCache cache({Dtype::bfloat16, 2, 4, 2, 400, 3, 9, 21});
        cache.fill(100);
        std::vector<float> out(cache.out_size());
        const std::vector<int64_t> starts(2, 20), stops(2, 390);
        qkv::AttendProblem problem = cache.problem(out.data());
        problem.window = 300;
        problem.starts = starts.data();
        problem.stops = stops.data();
        problem.lower = -350;
        problem.upper = -5;
        qkv::attend(*table, problem, 1);
        CHECK(largest_difference(out, cache.answer([](int64_t, int64_t p, int64_t j) {
                  return j <= p && j > p - 300 && j >= 20 && j < 390 && j >= p - 350 && j < p - 5;
              })) < 3e-6);
    }
}

TEST(cache, keep_bias_and_sink) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        const MemoryShape shape = {Dtype::float32, 1, 2, 1, 90, 2, 6, 10};
        FilledCache cache(shape);
        cache.fill(10);
        std::vector<float> out(cache.out_size()), lse(4);
        std::vector<char> keep(92);
        std::vector<float> bias(92), sink = {-1e30f, -1e30f};
        for (int64_t j = 0; j < 92; ++j) {
            keep[j] = j % 3 != 0;
            bias[j] = j % 5 == 0 ? -INFINITY : 0.0f;
        }
        qkv::AttendProblem problem = cache.problem(out.data());
        problem.keep = {keep.data(), {0, 0, 0, 1}};
        problem.bias = {bias.data(), {0, 0, 0, 1}};
        problem.sink = sink.data();
        problem.lse = lse.data();
        qkv::attend(*table, problem, 1);
        CHECK(largest_difference(out, cache.answer([](int64_t, int64_t p, int64_t j) {
                  return j <= p && j % 3 != 0 && j % 5 != 0;
              })) < 3e-6);
        // A sink of weight e^lse halves the answer.
        const std::vector<float> before = out;
        sink = {lse[0], lse[2]};
        qkv::attend(*table, problem, 1);
        for (int64_t c = 0; c < shape.value_width; ++c) CHECK(std::fabs(2 * out[c] - before[c]) < 1e-6f);
    }
}

TEST(cache, sigmoid_has_no_denominator) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const qkv::Storage storage : qkv::kStorageFormats) {
            const MemoryShape shape = {storage, 2, 6, 2, 700, 5, 24, 40};
            check::setting() = std::string(table->name) + " " + shape.text();
            FilledCache cache(shape);
            cache.fill(77);
            cache.offset = -6.5;
            const std::vector<double> wanted = cache.answer();
            std::vector<float> first;
            for (const int threads : {1, 3}) {
                std::vector<float> out(cache.out_size());
                qkv::AttendProblem problem = cache.problem(out.data());
                problem.sigmoid = true;
                problem.offset = -6.5f;
                qkv::attend(*table, problem, threads);
                CHECK(largest_difference(out, wanted) < 6e-6);
                CHECK(first.empty() || first == out);
                first = out;
            }
        }
    }
}

// Gates: the same as a bias of their differences, and a mask from the first keys on.
TEST(cache, decay_is_a_bias_of_differences) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        const MemoryShape shape = {Dtype::float32, 2, 6, 2, 600, 50, 24, 16};
        FilledCache cache(shape);
        cache.fill(77);
        const int64_t keys = shape.past + shape.given, rows = shape.batch * shape.heads_q;
        std::vector<double> by_key(rows * keys), by_query(rows * shape.given);
        std::vector<int64_t> starts(rows * shape.given);
        std::vector<float> bias(rows * shape.given * keys), wanted(cache.out_size()), out(cache.out_size());
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t j = 0; j < keys; ++j) {
                by_key[row * keys + j] = (j == 0 ? -1000.0 : by_key[row * keys + j - 1]) - 0.01 * static_cast<double>((row + j) % 7);
            }
            for (int64_t i = 0; i < shape.given; ++i) {
                const int64_t query = row * shape.given + i, position = shape.past + i;
                by_query[query] = by_key[row * keys + position];
                starts[query] = i < 20 ? 13 * row : 600;
                for (int64_t j = 0; j < keys; ++j) {
                    const double sum = by_query[query] - by_key[row * keys + j];
                    bias[query * keys + j] = j < starts[query] ? -INFINITY : static_cast<float>(sum);
                }
            }
        }
        qkv::AttendProblem problem = cache.problem(wanted.data());
        problem.bias = {bias.data(), {shape.heads_q * shape.given * keys, shape.given * keys, keys, 1}};
        qkv::attend(*table, problem, 1);
        problem = cache.problem(out.data());
        problem.decay_query = by_query.data();
        problem.decay_key = by_key.data();
        problem.decay_starts = starts.data();
        problem.decay_columns = keys;
        qkv::attend(*table, problem, 2);
        CHECK(out == wanted);
    }
}

TEST(cache, argmax_takes_the_best_key) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const qkv::Storage storage : qkv::kStorageFormats) {
            const MemoryShape shape = {storage, 1, 8, 1, 200, 2, 11, 9};
            check::setting() = std::string(table->name) + " " + shape.text();
            FilledCache cache(shape);
            for (float& x : cache.query) x *= 1000;  // softmax with a large scale is argmax
            cache.fill(64);
            std::vector<float> out(cache.out_size());
            qkv::AttendProblem problem = cache.problem(out.data());
            qkv::attend_argmax(*table, problem, 2);
            for (float& x : cache.query) x /= 1000;
            std::vector<float> soft(cache.out_size());
            problem.out = soft.data();
            problem.scale = 1e5f;
            qkv::attend(*table, problem, 1);
            CHECK(largest_difference(out, std::vector<double>(soft.begin(), soft.end())) < 1e-6);
        }
    }
}

// Weights: times the values they give the output, and over the queries they give the importance; 0 where the sinks and
// the window end.
TEST(cache, weights_importance_and_sinks) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const int64_t given : {int64_t{1}, int64_t{40}}) {
            const MemoryShape shape = {Dtype::float32, 1, 6, 2, 900, given, 24, 16};
            check::setting() = std::string(table->name) + " " + shape.text();
            FilledCache cache(shape);
            cache.fill(77, 3);
            const int64_t keys = shape.past + given, columns = qkv::round_up(keys, qkv::kPageTokens);
            const auto attended = [](int64_t, int64_t position, int64_t j) {
                return j <= position && (j < 3 || j > position - 500);
            };
            const std::vector<double> wanted = cache.answer(attended);
            std::vector<float> first;
            for (const int threads : {1, 3}) {
                std::vector<float> out(cache.out_size()), weights(shape.heads_q * given * keys, 0.0f);
                const qkv::Floats importance = qkv::allocate(shape.heads_kv * columns);
                std::fill(importance.get(), importance.get() + shape.heads_kv * columns, 0.0f);
                qkv::AttendProblem problem = cache.problem(out.data());
                problem.window = 500;
                problem.sinks = 3;
                problem.weights = weights.data();
                problem.weight_columns = keys;
                problem.importance = importance.get();
                problem.importance_columns = columns;
                const int64_t from = keys - 2;  // the last two queries count
                problem.importance_from = &from;
                qkv::attend(*table, problem, threads);
                CHECK(largest_difference(out, wanted) < 6e-6);
                if (first.empty()) first = weights;
                CHECK(weights == first);
                std::vector<double> counted(shape.heads_kv * columns, 0.0);
                for (int64_t h = 0; h < shape.heads_q; ++h) {
                    for (int64_t i = 0; i < given; ++i) {
                        const float* row = weights.data() + (h * given + i) * keys;
                        double sum = 0.0;
                        for (int64_t j = 0; j < keys; ++j) {
                            sum += row[j];
                            CHECK((row[j] != 0.0f) == attended(i, shape.past + i, j));
                            if (i + 2 >= given) counted[h / 3 * columns + j] += row[j];
                        }
                        CHECK(std::fabs(sum - 1.0) < 1e-5);
                    }
                }
                const std::vector<float> found(importance.get(), importance.get() + shape.heads_kv * columns);
                CHECK(largest_difference(found, counted) < 1e-6);
            }
        }
    }
}
