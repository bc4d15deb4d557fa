#include "parallel.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#ifdef QKV_X86
#include <xmmintrin.h>
#endif

namespace qkv {

namespace {

// A forked child inherits the state of libgomp but not its threads, and would wait for them forever.
const pid_t pid_at_load = getpid();

std::atomic<StartTeam> team_starter{nullptr};

// Searched again until found: torch may be imported after this library.
StartTeam find_team_starter() {
    StartTeam start = team_starter.load(std::memory_order_acquire);
    if (start == nullptr) {
        start = reinterpret_cast<StartTeam>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        team_starter.store(start, std::memory_order_release);
    }
    return start;
}

// If one thread flushes subnormals and another keeps them, results would depend on the thread.
class IeeeArithmetic {
public:
#if defined(QKV_X86)
    IeeeArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~IeeeArithmetic() { _mm_setcsr(saved_); }

private:
    const unsigned saved_;
#elif defined(__aarch64__)
    IeeeArithmetic() {
        const uint64_t plain = 0;
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(plain));
    }
    ~IeeeArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

private:
    uint64_t saved_;
#endif
};

struct Team {
    const int64_t jobs;
    const JobBody body;
    void* const context;
    std::atomic<int64_t> next_job{0};
    std::atomic<int> next_worker{0};

    void work() {
        const IeeeArithmetic arithmetic;
        const int worker = next_worker.fetch_add(1, std::memory_order_relaxed);
        for (int64_t job; (job = next_job.fetch_add(1, std::memory_order_relaxed)) < jobs;) {
            body(context, job, worker);
        }
    }
};

}  // namespace

int worker_limit(int64_t jobs, int threads) {
    const int64_t wanted = std::min<int64_t>(jobs, threads);
    if (wanted <= 1 || getpid() != pid_at_load || find_team_starter() == nullptr) return 1;
    return static_cast<int>(wanted);
}

void for_each_job(int64_t jobs, int workers, JobBody body, void* context) noexcept {
    if (jobs <= 0) return;
    Team team{jobs, body, context};
    if (workers <= 1) {
        team.work();
        return;
    }
    find_team_starter()([](void* data) { static_cast<Team*>(data)->work(); }, &team, workers, 0);
}

std::string why_one_thread() {
    if (getpid() != pid_at_load) return "this process was forked: OpenMP's threads did not come along";
    if (find_team_starter() == nullptr) {
        return "no OpenMP runtime is loaded (GOMP_parallel was not found): import torch first";
    }
    return "";
}

void set_team_starter(StartTeam start) { team_starter.store(start, std::memory_order_release); }

}  // namespace qkv
