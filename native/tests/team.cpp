// GOMP_parallel on threads of its own, to be loaded before torch's: the thread sanitizer sees how threads that are made
// and joined wait for each other, and does not see it inside torch's OpenMP. The symbol has a version of its own
// (team.map), so that torch, which asks for another, keeps its team.

#include <thread>
#include <vector>

extern "C" __attribute__((visibility("default"))) void GOMP_parallel(void (*entry)(void*), void* data, unsigned threads,
                                                                     unsigned) {
    std::vector<std::thread> others;
    for (unsigned n = 1; n < threads; ++n) others.emplace_back(entry, data);
    entry(data);
    for (std::thread& other : others) other.join();
}
