#pragma once

// Runs jobs on the threads of torch. No OpenMP runtime is linked (two of them in one process gave wrong results): the
// one that torch has loaded is found at run time.

#include <cstdint>
#include <functional>
#include <string>

namespace qkv {

// The number of workers for the jobs: allocate scratch for each of them, then call for_each_job.
int worker_limit(int64_t jobs, int threads);

using JobBody = void (*)(void* context, int64_t job, int worker);

// Runs body(context, job, worker) once for each job in [0, jobs), neighbouring jobs on the same worker, with worker in
// [0, workers) and one job at a time for each worker; `workers` is the result of worker_limit. The body must not throw.
// It runs with IEEE rounding and subnormals, whatever the caller or a pool thread has set.
void for_each_job(int64_t jobs, int workers, JobBody body, void* context) noexcept;

template <typename Body>
void for_each_job(int64_t jobs, int workers, Body& body) noexcept {
    for_each_job(
        jobs, workers,
        [](void* context, int64_t job, int worker) { (*static_cast<Body*>(context))(job, worker); }, &body);
}

// Runs body() while the other threads of one team wait for its calls of for_each_job: these then take no new team, and
// need not wait for a thread that the system has not run meanwhile. Rethrows what the body throws.
void with_team(int threads, const std::function<void()>& body);

// Why jobs run on one thread whatever number is requested; empty if they do not.
std::string why_one_thread();

// Starts a team that runs entry(data) on up to `threads` threads and waits for all: libgomp's GOMP_parallel.
using StartTeam = void (*)(void (*entry)(void*), void* data, unsigned threads, unsigned flags);

// For tests, which run without torch. nullptr: search for that of torch again.
void set_team_starter(StartTeam start);

}  // namespace qkv
