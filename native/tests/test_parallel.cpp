#include <atomic>

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
