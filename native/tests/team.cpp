// GOMP_parallel on new threads, loaded before that of torch: the thread sanitizer understands creating and joining
// threads, but not the synchronisation inside torch's OpenMP. The symbol has another version (team.map), so that torch
// keeps using its own.

#include <thread>
#include <vector>

extern "C" __attribute__((visibility("default"))) void GOMP_parallel(void (*entry)(void*), void* data, unsigned threads,
                                                                     unsigned) {
    std::vector<std::thread> others;
    for (unsigned n = 1; n < threads; ++n) others.emplace_back(entry, data);
    entry(data);
    for (std::thread& other : others) other.join();
}
