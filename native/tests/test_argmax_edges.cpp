#include <new>

#include "problem.h"

using qkv::KernelTable;

namespace {
constexpr float kNanValue = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

TEST(edges, nan_in_range_is_always_visible) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        for (int64_t poisoned : {0, 1, 31, 32, 57, 96, 102}) {
            Problem problem({1, 2, 1, 31, 103, 5});
            problem.key_row(0, 0, poisoned)[3] = kNanValue;
            check_answer(problem, *kernels);
            problem.random_ranges(static_cast<unsigned>(poisoned));
            check_answer(problem, *kernels);
        }
    }
}

TEST(edges, nan_in_a_query_affects_that_query_only) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem problem({1, 1, 1, 47, 103, 5});
        problem.query_row(0, 0, 19)[2] = kNanValue;
        problem.query_row(0, 0, 46)[0] = kInfinity;
        check_answer(problem, *kernels);
        problem.stops.assign(47, 0);
        check_answer(problem, *kernels);
    }
}

TEST(edges, everything_nan_is_found_at_once) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem problem({1, 1, 1, 53, 211, 3});
        std::fill(problem.key.begin(), problem.key.end(), kNanValue);
        check_answer(problem, *kernels);
    }
}

TEST(edges, keys_out_of_range_cannot_matter) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        Problem clean({1, 1, 1, 37, 101, 7});
        for (int64_t i = 0; i < 37; ++i) {
            clean.starts.push_back(20 + i / 9);
            clean.stops.push_back(70 - i / 5);
        }
        const std::vector<int64_t> wanted = clean.run(*kernels);
        for (float poison : {kNanValue, kInfinity, -kInfinity}) {
            Problem poisoned = clean;
            for (int64_t j = 0; j < 101; ++j) {
                if (j < 20 || j >= 70) std::fill_n(poisoned.key_row(0, 0, j), 7, poison);
            }
            CHECK(poisoned.run(*kernels) == wanted);
        }
    }
}

TEST(edges, infinities_rank_as_they_should) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem problem({1, 1, 1, 29, 67, 1});
        for (float& x : problem.query) x = std::abs(x) + 1;
        problem.key_row(0, 0, 40)[0] = kInfinity;
        problem.key_row(0, 0, 50)[0] = kInfinity;
        problem.key_row(0, 0, 3)[0] = -kInfinity;
        check_answer(problem, *kernels);
        std::fill(problem.key.begin(), problem.key.end(), -kInfinity);
        check_answer(problem, *kernels);
        for (int64_t index : problem.run(*kernels)) CHECK_EQUAL(index, qkv::kNoKey);
    }
}

TEST(edges, an_empty_range_has_no_key) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        for (const auto& [start, stop] : {std::pair{5, 5}, {7, 3}, {-9, 0}, {90, 95}, {83, 83}}) {
            Problem problem({1, 1, 1, 17, 83, 3});
            problem.starts.assign(17, start);
            problem.stops.assign(17, stop);
            check_answer(problem, *kernels);
            for (int64_t index : problem.run(*kernels)) CHECK_EQUAL(index, qkv::kNoKey);
        }
        Problem no_keys({2, 1, 1, 3, 0, 5});
        check_answer(no_keys, *kernels);
    }
}

TEST(edges, ranges_that_end_at_the_largest_integer) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        Problem problem({1, 1, 1, 31, 83, 3});
        for (int64_t i = 0; i < 31; ++i) {
            problem.starts.push_back(i % 3 == 0 ? INT64_MIN : i % 3 == 1 ? i : INT64_MAX);
            problem.stops.push_back(i % 4 == 0 ? INT64_MIN : i % 4 == 1 ? INT64_MAX : 2 * i);
        }
        check_answer(problem, *kernels);
    }
}

TEST(edges, empty_axes) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        const Shape shapes[] = {{0, 2, 1, 3, 5, 7}, {2, 0, 1, 3, 5, 7}, {2, 2, 1, 0, 5, 7}, {2, 2, 1, 3, 5, 0}};
        for (const Shape& shape : shapes) {
            Problem problem(shape);
            check_answer(problem, *kernels);
        }
    }
}

// One key repeated by a stride of 0, as expand() makes them: more than memory holds, and more than int64 counts.
TEST(edges, more_keys_than_memory_is_bad_alloc) {
    float one = 1;
    std::vector<int64_t> found(1009);
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        for (int64_t many : {int64_t{1} << 55, int64_t{1} << 62}) {
            const qkv::Tensor4 repeated = {&one, {0, 0, 0, 0}};
            const qkv::ArgmaxProblem problem = {qkv::Dtype::float32, 1, 1, 1, 1009, many, 1, repeated, repeated,
                                                nullptr, nullptr, found.data()};
            bool refused = false;
            try {
                qkv::argmax_scores(*kernels, problem, 1);
            } catch (const std::bad_alloc&) {
                refused = true;
            }
            CHECK(refused);
        }
    }
}
