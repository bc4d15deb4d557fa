// The functions of the Python extension; step.cpp and counted.cpp have the rest. Tensors arrive as addresses and sizes,
// which qkv.ops has checked.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "bindings.h"
#include "src/argmax.h"
#include "src/finite.h"
#include "src/isa.h"
#include "src/linear.h"
#include "src/cache.h"
#include "src/parallel.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

Calls calls;

}  // namespace qkv::python

namespace {

using qkv::python::address;
using qkv::python::calls;
using qkv::python::kernels;

const qkv::KernelTable& find(const std::string& name) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        if (name == table->name) return *table;
    }
    throw nb::value_error("not an instruction set of this build and this machine");
}

// Tensors without memory (meta, fake) have address 0.
void require_memory(uintptr_t data, bool empty) {
    if (data == 0 && !empty) throw nb::value_error("a tensor without memory");
}

bool all_finite(uintptr_t data, int64_t count, int dtype, int threads) {
    require_memory(data, count == 0);
    calls.finite.fetch_add(1, std::memory_order_relaxed);
    const auto kind = static_cast<qkv::Dtype>(dtype);
    // Releasing the GIL costs more than a small scan.
    if (count * qkv::element_size(kind) < qkv::kFiniteParallelBytes) {
        return kernels().all_finite(address<void>(data), count, kind);
    }
    const qkv::python::Unlocked unlocked;
    return qkv::all_finite(kernels(), address<void>(data), count, kind, threads);
}

using Four = std::array<int64_t, 4>;

Four four(nb::tuple numbers) {
    if (numbers.size() != 4) throw nb::value_error("expected four numbers");
    return {nb::cast<int64_t>(numbers[0]), nb::cast<int64_t>(numbers[1]), nb::cast<int64_t>(numbers[2]),
            nb::cast<int64_t>(numbers[3])};
}

qkv::Tensor4 tensor(uintptr_t data, nb::tuple strides) {
    const Four s = four(strides);
    return {address<const void>(data), {s[0], s[1], s[2], s[3]}};
}

void argmax_scores(int dtype, nb::tuple query_shape, nb::tuple key_shape, uintptr_t query, nb::tuple query_strides,
                   uintptr_t key, nb::tuple key_strides, uintptr_t starts, uintptr_t stops, uintptr_t result,
                   int threads) {
    const Four q = four(query_shape), k = four(key_shape);
    const qkv::ArgmaxProblem problem = {static_cast<qkv::Dtype>(dtype), q[0], q[1], k[1], q[2], k[2], q[3],
                                        tensor(query, query_strides), tensor(key, key_strides),
                                        address<const int64_t>(starts), address<const int64_t>(stops),
                                        address<int64_t>(result)};
    require_memory(query, q[0] * q[1] * q[2] * q[3] == 0);
    require_memory(key, k[0] * k[1] * k[2] * k[3] == 0);
    calls.argmax.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::argmax_scores(kernels(), problem, threads);
}

qkv::PagedCache cache(int storage, int64_t heads, int64_t width, int64_t value_width, uintptr_t table, int64_t slots) {
    return {{static_cast<qkv::Dtype>(storage), heads, width, value_width}, address<const int64_t>(table), slots};
}

void cache_append(int storage, int64_t heads, int64_t width, int64_t value_width, uintptr_t table, int64_t slots,
                   nb::tuple shape, uintptr_t positions, uintptr_t counts, bool left, int dtype, uintptr_t key,
                   nb::tuple key_strides, uintptr_t value, nb::tuple value_strides, int threads) {
    const Four k = four(shape);
    const qkv::Tokens tokens = {k[0], k[2], address<const int64_t>(positions), address<const int64_t>(counts), left};
    const qkv::AppendProblem problem = {cache(storage, heads, width, value_width, table, slots), tokens,
                                        static_cast<qkv::Dtype>(dtype), tensor(key, key_strides),
                                        tensor(value, value_strides)};
    require_memory(key, k[0] * k[1] * k[2] * k[3] == 0);
    require_memory(value, k[0] * k[1] * k[2] * value_width == 0);
    calls.append.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::append(problem, threads);
}

// The mask and how scores become weights, for a cache and for plain tensors.
struct Rules {
    uintptr_t starts, stops;
    std::optional<int64_t> lower, upper;
    uintptr_t keep;
    nb::tuple keep_strides;
    uintptr_t bias;
    nb::tuple bias_strides;
    float scale, softcap;
    uintptr_t sink;
};

qkv::AttendProblem attend_problem(const qkv::PagedCache& pages, const qkv::PlainKeyValues* plain,
                                  const qkv::Tokens& tokens, const Four& query_shape, qkv::Dtype dtype, const qkv::Tensor4& query, uintptr_t out,
                                  uintptr_t lse, int64_t window, const Rules& rules) {
    const int64_t value_width = pages.layout.value_width;
    require_memory(reinterpret_cast<uintptr_t>(query.data), query_shape[0] * query_shape[1] * query_shape[2] *
                                                                    query_shape[3] == 0);
    require_memory(out, query_shape[0] * query_shape[1] * query_shape[2] * value_width == 0);
    return {pages,
            tokens,
            query_shape[1],
            dtype,
            query,
            address<void>(out),
            address<float>(lse),
            window > 0 ? window : qkv::kNoBound,
            address<const int64_t>(rules.starts),
            address<const int64_t>(rules.stops),
            rules.lower.value_or(qkv::kNoBound),
            rules.upper.value_or(qkv::kNoBound),
            rules.keep == 0 ? qkv::Tensor4{} : tensor(rules.keep, rules.keep_strides),
            rules.bias == 0 ? qkv::Tensor4{} : tensor(rules.bias, rules.bias_strides),
            rules.scale,
            rules.softcap,
            address<const float>(rules.sink),
            plain};
}

void cache_attend(int storage, int64_t heads, int64_t width, int64_t value_width, uintptr_t table, int64_t slots,
                   int dtype, nb::tuple query_shape, uintptr_t query, nb::tuple query_strides, uintptr_t out,
                   uintptr_t lse, uintptr_t positions, uintptr_t counts, bool left, int64_t window, uintptr_t starts,
                   uintptr_t stops, std::optional<int64_t> lower, std::optional<int64_t> upper, uintptr_t keep,
                   nb::tuple keep_strides, uintptr_t bias, nb::tuple bias_strides, float scale, float softcap,
                   uintptr_t sink, bool argmax, int threads) {
    const Four q = four(query_shape);
    const qkv::Tokens tokens = {q[0], q[2], address<const int64_t>(positions), address<const int64_t>(counts), left};
    const qkv::AttendProblem problem = attend_problem(
        cache(storage, heads, width, value_width, table, slots), nullptr, tokens, q, static_cast<qkv::Dtype>(dtype),
        tensor(query, query_strides), out, lse, window,
        {starts, stops, lower, upper, keep, keep_strides, bias, bias_strides, scale, softcap, sink});
    calls.attend.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    (argmax ? qkv::attend_argmax : qkv::attend)(kernels(), problem, threads);
}

void softmax_attention(int dtype, nb::tuple query_shape, nb::tuple key_shape, int64_t value_width, uintptr_t query,
                  nb::tuple query_strides, uintptr_t key, nb::tuple key_strides, uintptr_t value,
                  nb::tuple value_strides, uintptr_t out, uintptr_t lse, uintptr_t starts, uintptr_t stops,
                  std::optional<int64_t> lower, std::optional<int64_t> upper, uintptr_t keep, nb::tuple keep_strides,
                  uintptr_t bias, nb::tuple bias_strides, float scale, float softcap, uintptr_t sink, bool heads_last,
                  int threads) {
    const Four q = four(query_shape), k = four(key_shape);
    const auto kind = static_cast<qkv::Dtype>(dtype);
    require_memory(key, k[0] * k[1] * k[2] * k[3] == 0);
    require_memory(value, k[0] * k[1] * k[2] * value_width == 0);
    const std::vector<int64_t> positions(q[0], 0);
    const qkv::PlainKeyValues past = {kind, k[2], tensor(key, key_strides), tensor(value, value_strides)};
    qkv::AttendProblem problem = attend_problem(
        {{qkv::Dtype::float32, k[1], q[3], value_width}, nullptr, 0}, &past,
        {q[0], q[2], positions.data(), nullptr, false}, q, kind, tensor(query, query_strides), out, lse, 0,
        {starts, stops, lower, upper, keep, keep_strides, bias, bias_strides, scale, softcap, sink});
    problem.heads_last = heads_last;
    calls.plain.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::attend(kernels(), problem, threads);
}

qkv::FeatureRule feature_rule(int map, int64_t width, int degree, float offset) {
    return {static_cast<qkv::Map>(map), width, degree, offset};
}

int64_t linear_state_size(int map, int64_t width, int degree, float offset, int64_t value_width) {
    return qkv::linear_state_size(feature_rule(map, width, degree, offset), value_width);
}

void linear_attention(int map, int64_t width, int degree, float power_offset, int dtype, nb::tuple sizes,
            nb::tuple lengths, uintptr_t query, nb::tuple query_strides, uintptr_t key, nb::tuple key_strides, uintptr_t value,
            nb::tuple value_strides, uintptr_t keep, std::optional<int64_t> offset, bool normalize, uintptr_t out,
            uintptr_t state, bool direct, int threads) {
    const Four size = four(sizes);
    const auto len_k = nb::cast<int64_t>(lengths[0]), value_width = nb::cast<int64_t>(lengths[1]);
    require_memory(query, out == 0 || size[0] * size[1] * size[3] * width == 0);
    require_memory(key, size[0] * size[2] * len_k * width == 0);
    require_memory(value, size[0] * size[2] * len_k * value_width == 0);
    const qkv::LinearProblem problem = {feature_rule(map, width, degree, power_offset),
                                        static_cast<qkv::Dtype>(dtype),
                                        size[0],
                                        size[1],
                                        size[2],
                                        size[3],
                                        len_k,
                                        value_width,
                                        tensor(query, query_strides),
                                        tensor(key, key_strides),
                                        tensor(value, value_strides),
                                        address<const uint8_t>(keep),
                                        offset.has_value(),
                                        offset.value_or(0),
                                        normalize,
                                        address<void>(out),
                                        address<float>(state),
                                        direct};
    calls.linear.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::linear(kernels(), problem, threads);
}

// Huge pages save a long cache most of its address translations. Only advice: it may be ignored.
void advise_huge_pages(uintptr_t data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(address<void>(data), bytes, MADV_HUGEPAGE);
#endif
}

// Let the system allocate and clear the memory behind these bytes now. Only advice: it may be ignored.
void populate_memory(uintptr_t data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (data + page - 1) / page * page, last = (data + bytes) / page * page;
    if (first < last) madvise(address<void>(first), last - first, MADV_POPULATE_WRITE);
#endif
}

nb::dict count_calls() {
    nb::dict counts;
    counts["all_finite"] = calls.finite.load();
    counts["argmax_scores"] = calls.argmax.load();
    counts["cache_append"] = calls.append.load();
    counts["cache_attend"] = calls.attend.load();
    counts["softmax_attention"] = calls.plain.load();
    counts["linear_attention"] = calls.linear.load();
    return counts;
}

void reset_calls() {
    calls.finite = 0;
    calls.argmax = 0;
    calls.append = 0;
    calls.attend = 0;
    calls.plain = 0;
    calls.linear = 0;
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) names.emplace_back(table->name);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("isas", &isas);
    m.def("self_check", [](const std::string& isa) { return qkv::self_check(find(isa)); });
    m.def("use", [](const std::string& isa) { qkv::python::use(find(isa)); });
    m.def("why_one_thread", &qkv::why_one_thread);
    m.def("calls", &count_calls);
    m.def("reset_calls", &reset_calls);
    m.def("before_exit", &qkv::python::before_exit);
    m.def("all_finite", &all_finite);
    m.def("argmax_scores", &argmax_scores);
    m.def("cache_append", &cache_append);
    m.def("cache_attend", &cache_attend);
    m.def("softmax_attention", &softmax_attention);
    m.def("linear_attention", &linear_attention);
    m.def("linear_state_size", &linear_state_size);
    m.def("advise_huge_pages", &advise_huge_pages);
    m.def("populate_memory", &populate_memory);
    qkv::python::bind_step(m);
    qkv::python::bind_counting(m);
    m.attr("finite_parallel_bytes") = qkv::kFiniteParallelBytes;
}
