#pragma once

// Shared by the files of the bindings.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>

#include "src/kernel_table.h"
#include "src/packed_table.h"

namespace qkv::python {

// The kernels that calls run on: those of the instruction set that `use` chose, with or without counting. Both give the
// same bits, so it does not matter which of them a call sees while another thread switches.
extern std::atomic<const KernelTable*> active;
inline const KernelTable& kernels() { return *active.load(std::memory_order_acquire); }
void use(const KernelTable& table);
// The kernels of packed products.
const PackedKernels& products();

// How often each function ran, for tests.
struct Calls {
    std::atomic<int64_t> finite{0}, argmax{0}, append{0}, attend{0}, plain{0}, linear{0}, state{0}, product{0}, program{0};
};
extern Calls calls;

template <typename T>
T* address(uintptr_t number) {
    return reinterpret_cast<T*>(number);
}

// The class DecodeStep, in step.cpp.
void bind_step(nanobind::module_& m);
// Counters and sizes, in counted.cpp.
void bind_counting(nanobind::module_& m);
// Products of packed weights, and whole transformers, in program_bindings.cpp.
void bind_program(nanobind::module_& m);

}  // namespace qkv::python
