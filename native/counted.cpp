// Bindings of the work counters, and of the sizes that determine the work.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "src/counting.h"
#include "src/linear_unit.h"
#include "src/cache.h"
#include "src/query_rows.h"

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

nb::dict geometry() {
    const KernelTable& table = kernels();
    const PageLayout paired = {Dtype::bfloat16, 1, 1, 1};
    std::vector<std::pair<int64_t, int64_t>> chunks;
    for (const Chunk& chunk : kChunks) chunks.emplace_back(chunk.max_features, chunk.tokens);
    nb::dict sizes;
    sizes["isa"] = table.name;
    sizes["lanes"] = table.lanes;
    sizes["tile_rows"] = table.tile_rows;
    sizes["tile_keys"] = table.tile_keys;
    sizes["query_rows"] = kMaxRows;
    sizes["page_tokens"] = kPageTokens;
    sizes["part_tokens"] = kPartTokens;
    sizes["group_tokens"] = kGroupTokens;
    sizes["value_line"] = paired.value_slots();
    sizes["bfloat16_pair"] = paired.pair();
    sizes["linear_line"] = kLine;
    sizes["linear_rows"] = kMaxBlockRows;
    sizes["chunks"] = nb::tuple(nb::cast(chunks));
    sizes["segment_chunks"] = kChunksInSegment;
    sizes["most_segments"] = kMaxSegments;
    sizes["enough_heads"] = kEnoughHeads;
    return sizes;
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
    m.def("geometry", &geometry);
    m.def("chunk_tokens", &qkv::chunk_tokens, nb::arg("features"));
}

}  // namespace qkv::python
