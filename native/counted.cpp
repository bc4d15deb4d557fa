// Bindings of the work counters, and of the size of a chunk.

#include <nanobind/nanobind.h>

#include "bindings.h"
#include "src/counting.h"
#include "src/linear_unit.h"

namespace nb = nanobind;

namespace qkv::python {

std::atomic<const KernelTable*> active = &portable::table();

namespace {

// Changed only with the GIL held.
const KernelTable* chosen = &portable::table();
bool counts_work = false;

void activate() { active.store(counts_work ? &counting(*chosen) : chosen, std::memory_order_release); }

void set_counting(bool on) {
    counts_work = on;
    activate();
}

bool is_counting() { return &kernels() != chosen; }

nb::dict executed_work() {
    const Counts counts = qkv::counts();
    nb::dict work;
    work["score_flops"] = counts.score_flops;
    work["value_flops"] = counts.value_flops;
    work["other_flops"] = counts.other_flops;
    work["feature_flops"] = counts.feature_flops;
    work["exponentials"] = counts.exponentials;
    work["tiles"] = counts.tiles;
    return work;
}

}  // namespace

void use(const KernelTable& table) {
    chosen = &table;
    activate();
}

void bind_counting(nb::module_& m) {
    m.def("set_counting", &set_counting, nb::arg("on"));
    m.def("is_counting", &is_counting);
    m.def("counts", &executed_work);
    m.def("chunk_tokens", &qkv::chunk_tokens, nb::arg("features"));
}

}  // namespace qkv::python
