#include "parallel.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>

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

// Each worker has a stretch of neighbouring jobs, so that it reads neighbouring memory, and then takes those that others
// have left.
struct Team {
    Team(int64_t jobs, int workers, JobBody body, void* context)
        : workers_(workers), stretches_(std::min(workers, kMostStretches)), body_(body), context_(context) {
        for (int n = 0; n < stretches_; ++n) {
            stretch_[n].next.store(jobs * n / stretches_, std::memory_order_relaxed);
            stretch_[n].end = jobs * (n + 1) / stretches_;
        }
    }

    void work() {
        const IeeeArithmetic arithmetic;
        const int worker = next_worker_.fetch_add(1, std::memory_order_relaxed);
        if (worker >= workers_) return;
        for (int n = 0; n < stretches_; ++n) {
            Stretch& stretch = stretch_[(worker + n) % stretches_];
            for (int64_t job; (job = stretch.next.fetch_add(1, std::memory_order_relaxed)) < stretch.end;) {
                body_(context_, job, worker);
            }
        }
    }

private:
    static constexpr int kMostStretches = 16;
    struct alignas(64) Stretch {
        std::atomic<int64_t> next;
        int64_t end;
    };

    const int workers_, stretches_;
    const JobBody body_;
    void* const context_;
    std::atomic<int> next_worker_{0};
    Stretch stretch_[kMostStretches];
};

inline void pause_briefly() {
#ifdef QKV_X86
    _mm_pause();
#endif
}

// Threads that wait for teams of one thread, the leader, which takes part in them.
class WaitingTeam {
public:
    // The leader. A thread that arrives later finds no work.
    void run(Team& team) {
        work_.store(&team);
        rounds_.fetch_add(1);
        team.work();
        work_.store(nullptr);
        // A thread that has not arrived by now sees no work: each stores before it reads what the other stores.
        while (inside_.load() != 0) pause_briefly();
    }

    void finish() { finished_.store(true); }

    // All other threads.
    void serve() {
        constexpr int kPauses = 4000;  // about 100 microseconds; then other threads of the machine may run
        for (int64_t seen = 0; !finished_.load();) {
            int pauses = 0;
            for (; rounds_.load() == seen && !finished_.load(); ++pauses) {
                if (pauses < kPauses) {
                    pause_briefly();
                } else {
                    sched_yield();
                }
            }
            seen = rounds_.load();
            inside_.fetch_add(1);
            if (Team* const team = work_.load()) team->work();
            inside_.fetch_sub(1);
        }
    }

private:
    std::atomic<Team*> work_{nullptr};
    std::atomic<int64_t> rounds_{0};
    std::atomic<int> inside_{0};
    std::atomic<bool> finished_{false};
};

thread_local WaitingTeam* waiting_team = nullptr;  // of the leader

}  // namespace

void with_team(int threads, const std::function<void()>& body) {
    const int workers = worker_limit(threads, threads);
    if (workers <= 1 || waiting_team != nullptr) {
        body();
        return;
    }
    struct Call {
        const std::function<void()>& body;
        const pthread_t leader;
        WaitingTeam team;
        std::exception_ptr error;
    } call{body, pthread_self(), {}, nullptr};
    const auto entry = [](void* data) {
        Call& call = *static_cast<Call*>(data);
        if (!pthread_equal(pthread_self(), call.leader)) {
            call.team.serve();
            return;
        }
        waiting_team = &call.team;
        try {
            call.body();
        } catch (...) {  // must not leave the C code of the team
            call.error = std::current_exception();
        }
        waiting_team = nullptr;
        call.team.finish();
    };
    find_team_starter()(entry, &call, workers, 0);
    if (call.error) std::rethrow_exception(call.error);
}

int worker_limit(int64_t jobs, int threads) {
    const int64_t wanted = std::min<int64_t>(jobs, threads);
    if (wanted <= 1 || getpid() != pid_at_load || find_team_starter() == nullptr) return 1;
    return static_cast<int>(wanted);
}

void for_each_job(int64_t jobs, int workers, JobBody body, void* context) noexcept {
    if (jobs <= 0) return;
    Team team{jobs, workers, body, context};
    if (workers <= 1) {
        team.work();
        return;
    }
    if (waiting_team != nullptr) {
        waiting_team->run(team);
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
