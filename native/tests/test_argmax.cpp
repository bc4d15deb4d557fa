#include <algorithm>

#include "problem.h"

using qkv::KernelTable;

TEST(argmax, equals_its_definition_over_prime_shapes) {
    const Shape shapes[] = {{1, 1, 1, 1, 1, 1},    {2, 3, 3, 5, 7, 11},   {1, 1, 1, 13, 31, 2},
                            {1, 2, 1, 29, 97, 3},  {3, 5, 1, 17, 101, 7}, {2, 6, 3, 43, 67, 13},
                            {1, 1, 1, 113, 257, 64}, {1, 7, 7, 2, 499, 5},  {1, 1, 1, 3, 64, 601},
                            {5, 2, 2, 1, 33, 17},  {1, 3, 1, 211, 131, 19}};
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        for (const Shape& shape : shapes) {
            Problem problem(shape);
            check_answer(problem, *kernels);
            for (unsigned seed = 0; seed < 3; ++seed) {
                Problem ranged(shape, seed);
                ranged.random_ranges(seed);
                check_answer(ranged, *kernels);
                ranged.starts.clear();
                check_answer(ranged, *kernels);
            }
        }
    }
}

TEST(argmax, is_causal_when_the_ranges_are) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem problem({2, 3, 3, 127, 127, 5});
        for (int64_t b = 0; b < 2; ++b) {
            for (int64_t i = 0; i < 127; ++i) problem.stops.push_back(i + 1);
        }
        check_answer(problem, *kernels);
        for (int64_t n = 0; n < 2 * 127; ++n) problem.starts.push_back(n % 127 - 23);
        check_answer(problem, *kernels);
    }
}

TEST(argmax, gives_the_same_bits_for_any_number_of_threads) {
    const WithThreads threads;
    // Each is enough work for four threads; the keys of the first are packed in advance, those of the second per job.
    for (const Shape& shape : {Shape{2, 6, 2, 139, 211, 23}, Shape{5, 4, 2, 31, 211, 61}}) {
        for (const KernelTable* kernels : qkv::runnable_kernels()) {
            check::setting() = kernels->name;
            Problem problem(shape);
            problem.random_ranges(5);
            std::mt19937 random(7);
            std::normal_distribution<float> normal;
            for (float& x : problem.query) x = normal(random);
            for (float& x : problem.key) x = normal(random);
            const std::vector<int64_t> wanted = problem.run(*kernels, 1);
            for (int count = 2; count <= 4; ++count) CHECK(problem.run(*kernels, count) == wanted);
        }
    }
}

// Three batch rows of 32 MB of packed keys each do not fit into 64 MB; each of them alone does.
TEST(argmax, packs_the_keys_in_several_rounds_when_they_are_large) {
    static_assert(qkv::kPackedBytes == 64 << 20);
    const int64_t rows = 131, keys = 2 * 4096 * 1024;
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem together({3, 2, 2, rows, 4096, 1024}, 3, 1);
        const std::vector<int64_t> found = together.run(*kernels);
        for (int64_t b = 0; b < 3; ++b) {
            check::setting() = std::string(kernels->name) + ", batch " + std::to_string(b);
            Problem alone({1, 2, 2, rows, 4096, 1024});
            std::copy_n(together.query.begin() + b * 2 * rows * 1024, alone.query.size(), alone.query.begin());
            std::copy_n(together.key.begin() + b * keys, keys, alone.key.begin());
            CHECK(std::equal(found.begin() + b * 2 * rows, found.begin() + (b + 1) * 2 * rows,
                             alone.run(*kernels).begin()));
        }
    }
}

// The score of a pair does not depend on its position, so a repeated key never wins.
TEST(argmax, ties_exactly_between_equal_keys) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        const int64_t distinct = 37, repeats = 9;
        Problem problem({1, 2, 1, 89, distinct * repeats, 61});
        for (float& x : problem.query) x = normal(random);
        for (int64_t j = 0; j < distinct * repeats; ++j) {
            for (int64_t c = 0; c < 61; ++c) {
                problem.key_row(0, 0, j)[c] = j < distinct ? normal(random) : problem.key_row(0, 0, j - distinct)[c];
            }
        }
        for (int64_t index : problem.run(*kernels)) CHECK(index >= 0 && index < distinct);
    }
}

TEST(argmax, does_not_depend_on_the_layout) {
    const int64_t batch = 2, heads = 3, len_q = 41, len_k = 59, width = 7;
    std::mt19937 random(13);
    std::normal_distribution<float> normal;
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        Problem problem({batch, heads, heads, len_q, len_k, width});
        for (float& x : problem.query) x = normal(random);
        for (float& x : problem.key) x = normal(random);
        const std::vector<int64_t> wanted = problem.run(*kernels);

        // Width outermost, batch innermost, one unused element after each.
        const int64_t air = 2;
        std::vector<float> query(problem.query.size() * air, NAN), key(problem.key.size() * air, NAN);
        const qkv::Tensor4 q = {query.data(), {air, batch * air, heads * batch * air, len_q * heads * batch * air}};
        const qkv::Tensor4 k = {key.data(), {air, batch * air, heads * batch * air, len_k * heads * batch * air}};
        for (int64_t b = 0; b < batch; ++b) {
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t c = 0; c < width; ++c) {
                    const int64_t corner = b * q.stride[0] + h * q.stride[1];
                    for (int64_t i = 0; i < len_q; ++i) {
                        query[corner + i * q.stride[2] + c * q.stride[3]] = problem.query_row(b, h, i)[c];
                    }
                    for (int64_t j = 0; j < len_k; ++j) {
                        key[corner + j * k.stride[2] + c * k.stride[3]] = problem.key_row(b, h, j)[c];
                    }
                }
            }
        }
        std::vector<int64_t> found(wanted.size());
        const qkv::ArgmaxProblem turned = {qkv::Dtype::float32, batch, heads,   heads,   len_q, len_k, width,
                                           q,                   k,     nullptr, nullptr, found.data()};
        qkv::argmax_scores(*kernels, turned, 1);
        CHECK(found == wanted);
    }
}
