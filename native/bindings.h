#pragma once

// What the two files that know Python share.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>

#include "src/kernel_table.h"

namespace qkv::python {

// The instruction set that `use` chose.
extern const KernelTable* kernels;

// How often each function ran, for tests that want to know.
struct Calls {
    std::atomic<int64_t> finite{0}, argmax{0}, append{0}, attend{0}, plain{0}, linear{0};
};
extern Calls calls;

template <typename T>
T* address(uintptr_t number) {
    return reinterpret_cast<T*>(number);
}

// class Step, in step.cpp.
void bind_step(nanobind::module_& m);

}  // namespace qkv::python
