#pragma once

// What the files that know Python share.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>

#include "src/kernel_table.h"

namespace qkv::python {

// What calls run on: the instruction set that `use` chose, or the same, counted. Either gives the same bits, so that it
// does not matter which of them a call finds while another thread changes it.
extern std::atomic<const KernelTable*> active;
inline const KernelTable& kernels() { return *active.load(std::memory_order_acquire); }
void use(const KernelTable& table);

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
// Counts and sizes, in counted.cpp.
void bind_counted(nanobind::module_& m);

}  // namespace qkv::python
