#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace qkv {

namespace {

constexpr int kMappings = 1024;

struct Range {
    std::atomic<uintptr_t> first{0}, last{0};
};
Range ranges[kMappings];  // those in use have first > 0; no lock, which a fork of the process could leave locked
size_t system_page;
struct sigaction earlier;

bool is_guarded(uintptr_t at) {
    for (const Range& range : ranges) {
        if (range.first.load(std::memory_order_acquire) <= at && at < range.last.load(std::memory_order_acquire)) {
            return true;
        }
    }
    return false;
}

// Puts a page of ones where the file has ended, and lets the read happen again.
void on_bus_error(int number, siginfo_t* info, void*) {
    const int error = errno;
    if (info->si_code > 0 && is_guarded(reinterpret_cast<uintptr_t>(info->si_addr))) {
        const uintptr_t page = reinterpret_cast<uintptr_t>(info->si_addr) / system_page * system_page;
        void* const place = mmap(reinterpret_cast<void*>(page), system_page, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (place != MAP_FAILED) {
            std::memset(place, 255, system_page);
            errno = error;
            return;
        }
    }
    // Not ours: the signal comes again, to those who handled it before.
    sigaction(number, &earlier, nullptr);
    if (info->si_code <= 0) raise(number);
    errno = error;
}

bool install() {
    system_page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &earlier) == 0;
}

}  // namespace

bool guard_mapping(uintptr_t data, size_t size) {
    static const bool installed = install();
    for (Range& range : ranges) {
        uintptr_t unused = 0;
        if (!installed || !range.first.compare_exchange_strong(unused, data)) continue;
        range.last.store(data + size, std::memory_order_release);
        return true;
    }
    return false;
}

void unguard_mapping(uintptr_t data) {
    for (Range& range : ranges) {
        if (range.first.load() != data) continue;
        range.last.store(0, std::memory_order_release);
        range.first.store(0, std::memory_order_release);
        return;
    }
}

}  // namespace qkv
