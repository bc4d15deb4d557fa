#include <atomic>
#include <new>

#include "problem.h"

#ifdef QKV_X86
#include <xmmintrin.h>
#endif

TEST(parallel, runs_every_job_once_with_workers_in_range) {
    const WithThreads with;
    for (int threads = 1; threads <= 4; ++threads) {
        for (int64_t jobs : {0, 1, 2, 3, 100}) {
            std::vector<std::atomic<int>> runs(jobs);
            std::atomic<bool> in_range{true};
            const int workers = qkv::worker_limit(jobs, threads);
            auto body = [&](int64_t job, int worker) {
                runs[job].fetch_add(1);
                if (worker < 0 || worker >= workers) in_range = false;
            };
            qkv::for_each_job(jobs, workers, body);
            for (const std::atomic<int>& count : runs) CHECK_EQUAL(count.load(), 1);
            CHECK(in_range.load());
        }
    }
}

TEST(parallel, one_team_runs_the_jobs_of_many_calls) {
    const WithThreads with;
    for (int threads = 1; threads <= 4; ++threads) {
        std::vector<std::atomic<int>> runs(50);
        std::atomic<bool> in_range{true};
        qkv::with_team(threads, [&] {
            for (int round = 0; round < 2000; ++round) {
                const int workers = qkv::worker_limit(round % 5, 1 + round % threads);
                auto body = [&](int64_t job, int worker) {
                    runs[round % 10 * 5 + job].fetch_add(1, std::memory_order_relaxed);
                    if (worker < 0 || worker >= workers) in_range = false;
                };
                qkv::for_each_job(round % 5, workers, body);
            }
        });
        CHECK(in_range.load());
        for (int n = 0; n < 50; ++n) CHECK_EQUAL(runs[n].load(), n % 5 < n / 5 % 5 ? 200 : 0);
    }
}

TEST(parallel, what_is_thrown_in_a_team_reaches_the_caller) {
    const WithThreads with;
    for (int time = 0; time < 3; ++time) {
        bool caught = false;
        try {
            qkv::with_team(3, [] { throw std::bad_alloc(); });
        } catch (const std::bad_alloc&) {
            caught = true;
        }
        CHECK(caught);
    }
}

TEST(parallel, stays_on_one_thread_without_a_team_and_says_so) {
    CHECK_EQUAL(qkv::worker_limit(10, 4), 1);
    CHECK(!qkv::why_one_thread().empty());
    const WithThreads with;
    CHECK_EQUAL(qkv::worker_limit(10, 4), 4);
    CHECK_EQUAL(qkv::worker_limit(3, 4), 3);
    CHECK(qkv::why_one_thread().empty());
}

#ifdef QKV_X86
TEST(parallel, jobs_keep_subnormals_though_the_caller_flushes_them) {
    const unsigned before = _mm_getcsr(), flushing = before | 0x8040;
    _mm_setcsr(flushing);
    unsigned inside = 0;
    auto body = [&](int64_t, int) { inside = _mm_getcsr(); };
    qkv::for_each_job(1, 1, body);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_EQUAL(inside & 0x8040, 0u);
    CHECK_EQUAL(after, flushing);
}
#endif
