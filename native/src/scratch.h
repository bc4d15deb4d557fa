#pragma once

// Scratch memory, aligned to cache lines, and products of sizes with a check for overflow.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace qkv {

inline int64_t checked_product(int64_t a, int64_t b) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
    return product;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

inline Floats allocate(int64_t floats) {
    const int64_t bytes = round_up(checked_product(std::max<int64_t>(floats, 1), sizeof(float)), 64);
    void* memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return Floats(static_cast<float*>(memory));
}

// Memory that calls use one after the other: it grows to what the largest of them needs.
class Scratch {
public:
    float* reserve(int64_t floats) {
        if (floats > size_) {
            size_ = 0;
            memory_ = nullptr;
            memory_ = allocate(floats);
            size_ = floats;
        }
        return memory_.get();
    }

private:
    Floats memory_;
    int64_t size_ = 0;
};

}  // namespace qkv
