#include "finite.h"

#include <algorithm>
#include <atomic>

#include "parallel.h"

namespace qkv {

namespace {
constexpr int64_t kJobBytes = int64_t{1} << 17;
}

bool all_finite(const KernelTable& kernels, const void* data, int64_t count, Dtype dtype, int threads) {
    const int64_t size = element_size(dtype);
    if (threads <= 1 || count * size < kFiniteParallelBytes) return kernels.all_finite(data, count, dtype);

    const int64_t per_job = kJobBytes / size;
    std::atomic<bool> fine{true};
    auto scan = [&](int64_t job, int) {
        if (!fine.load(std::memory_order_relaxed)) return;
        const int64_t first = job * per_job;
        const char* from = static_cast<const char*>(data) + first * size;
        if (!kernels.all_finite(from, std::min(per_job, count - first), dtype)) {
            fine.store(false, std::memory_order_relaxed);
        }
    };
    const int64_t jobs = (count + per_job - 1) / per_job;
    for_each_job(jobs, worker_limit(jobs, threads), scan);
    return fine.load();
}

}  // namespace qkv
