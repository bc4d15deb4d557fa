#pragma once

// A target is TARGET(name) { ... } over `bytes`: the entry point of libFuzzer, or a function that replay.cpp finds by
// name.

#include <thread>
#include <vector>

#include "bytes.h"
#include "counting.h"
#include "isa.h"
#include "parallel.h"

namespace fuzz {

struct Target {
    const char* name;
    void (*body)(Bytes& bytes);
};

inline std::vector<Target>& targets() {
    static std::vector<Target> all;
    return all;
}

struct Register {
    Register(const char* name, void (*body)(Bytes&)) { targets().push_back({name, body}); }
};

// GOMP_parallel, since torch is not loaded.
inline void start_threads(void (*entry)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned n = 1; n < threads; ++n) others.emplace_back(entry, data);
    entry(data);
    for (std::thread& other : others) other.join();
}

// The instruction set that a call runs on, with or without counting: both give the same bits.
inline const qkv::KernelTable& kernels_of(Bytes& bytes) {
    static const std::vector<const qkv::KernelTable*> tables = qkv::runnable_kernels();
    const qkv::KernelTable& table = *tables[bytes.between("isa", 0, static_cast<int64_t>(tables.size()) - 1)];
    return bytes.seldom("counted", 8) ? qkv::counting(table) : table;
}

inline int threads_of(Bytes& bytes) {
    qkv::set_team_starter(start_threads);
    return static_cast<int>(bytes.one_of<int64_t>("threads", {1, 1, 1, 1, 1, 1, 2, 3}));
}

}  // namespace fuzz

#ifdef QKV_LIBFUZZER
#define TARGET(name)                                                         \
    static void run_target(fuzz::Bytes& bytes);                              \
    extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
        fuzz::Bytes bytes(data, size);                                       \
        run_target(bytes);                                                   \
        return 0;                                                            \
    }                                                                        \
    static void run_target(fuzz::Bytes& bytes)
#else
#define TARGET(name)                                               \
    static void run_target(fuzz::Bytes& bytes);                    \
    static const fuzz::Register register_target(#name, run_target); \
    static void run_target(fuzz::Bytes& bytes)
#endif
