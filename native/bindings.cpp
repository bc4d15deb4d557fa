// The functions of the Python extension; step.cpp and counted.cpp have the rest. qkv.ops and qkv.cache have checked
// their arguments.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <sys/mman.h>
#include <unistd.h>

#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "src/argmax.h"
#include "src/finite.h"
#include "src/guard.h"
#include "src/isa.h"
#include "src/linear.h"
#include "src/parallel.h"
#include "src/state.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

Calls calls;

}  // namespace qkv::python

namespace {

using qkv::dlpack::View;
using namespace qkv::python;

const qkv::KernelTable& find(const std::string& name) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        if (name == table->name) return *table;
    }
    throw nb::value_error("not an instruction set of this build and this machine");
}

// all_finite alone is given an address: it scans each tensor of many calls, and this is the fastest way.
bool all_finite(uintptr_t data, int64_t count, int dtype, int threads) {
    if (data == 0 && count != 0) throw nb::value_error("a tensor without memory");
    calls.finite.fetch_add(1, std::memory_order_relaxed);
    const auto kind = static_cast<qkv::Dtype>(dtype);
    // Releasing the GIL costs more than a small scan.
    if (count * qkv::element_size(kind) < qkv::kFiniteParallelBytes) {
        return kernels().all_finite(address<void>(data), count, kind);
    }
    const qkv::python::Unlocked unlocked;
    return qkv::all_finite(kernels(), address<void>(data), count, kind, threads);
}

void argmax_scores(const Tensor& query, const Tensor& key, const Tensor& result, const MaybeTensor& starts,
                   const MaybeTensor& stops, int threads) {
    const View q = view_of(query, 4), k = view_of(key, 4);
    const qkv::ArgmaxProblem problem = {dtype_of(q), q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2],
                                        q.shape[3], tensor_of(q), tensor_of(k), data_of<const int64_t>(starts),
                                        data_of<const int64_t>(stops), static_cast<int64_t*>(data_of(view_of(result)))};
    calls.argmax.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::argmax_scores(kernels(), problem, threads);
}

qkv::PagedCache paged_cache(const Four& layout, uintptr_t table, int64_t slots) {
    return {{qkv::Storage::of_code(layout[0]), layout[1], layout[2], layout[3]}, address<const int64_t>(table), slots};
}

void cache_append(const Tensor& key, const Tensor& value, const Four& layout, uintptr_t table, int64_t slots,
                  const std::vector<int64_t>& positions, const Numbers& counts, bool left, int threads) {
    const View k = view_of(key, 4), v = view_of(value, 4);
    const qkv::AppendProblem problem = {paged_cache(layout, table, slots),
                                        {k.shape[0], k.shape[2], positions.data(), data_of(counts), left},
                                        dtype_of(k),
                                        tensor_of(k),
                                        tensor_of(v)};
    calls.append.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::append(problem, threads);
}

// The mask and how scores become weights, for a cache and for plain tensors.
struct Rules {
    const Numbers& starts;
    const Numbers& stops;
    std::optional<int64_t> lower, upper;
    const MaybeTensor& keep;
    const MaybeTensor& bias;
    int64_t first_key;  // of keep and bias
    float scale, softcap;
    const MaybeTensor& sink;
};

// What is asked for in addition to the output.
void add_weights(qkv::AttendProblem& problem, const MaybeTensor& weights, const MaybeTensor& importance,
                 const Numbers& importance_from) {
    problem.weights = data_of<float>(weights);
    problem.weight_columns = weights ? view_of(*weights, 4).shape[3] : 0;
    problem.importance = data_of<float>(importance);
    problem.importance_columns = importance ? view_of(*importance, 3).shape[2] : 0;
    problem.importance_from = data_of(importance_from);
}

// A tensor over the keys from `first_key` on, addressed by the position of a key.
qkv::Tensor4 over_keys(const MaybeTensor& tensor, int64_t first_key) {
    if (!tensor) return {};
    const View view = view_of(*tensor, 4);
    qkv::Tensor4 keys = tensor_of(view);
    const int64_t skipped = first_key * keys.stride[3] * (view.kind.bits / 8);
    keys.data = address<const void>(reinterpret_cast<uintptr_t>(keys.data) - static_cast<uintptr_t>(skipped));
    return keys;
}

// What is added to scores for each token: sums of gates of the queries and keys, and the first keys (forgetting.py).
void add_decay(qkv::AttendProblem& problem, const MaybeTensor& query, const MaybeTensor& key, const MaybeTensor& starts) {
    problem.decay_query = data_of<const double>(query);
    problem.decay_key = data_of<const double>(key);
    problem.decay_starts = data_of<const int64_t>(starts);
    problem.decay_columns = key ? view_of(*key, 3).shape[2] : 0;
}

qkv::AttendProblem attend_problem(const qkv::PagedCache& pages, const qkv::PlainKeyValues* plain,
                                  const qkv::Tokens& tokens, const View& query, const View& out,
                                  const MaybeTensor& lse, std::optional<int64_t> window, const Rules& rules) {
    return {pages,
            tokens,
            query.shape[1],
            dtype_of(query),
            tensor_of(query),
            data_of(out),
            data_of<float>(lse),
            window.value_or(qkv::kNoBound),
            data_of(rules.starts),
            data_of(rules.stops),
            rules.lower.value_or(qkv::kNoBound),
            rules.upper.value_or(qkv::kNoBound),
            over_keys(rules.keep, rules.first_key),
            over_keys(rules.bias, rules.first_key),
            rules.scale,
            rules.softcap,
            data_of<const float>(rules.sink),
            plain,
            qkv::python::heads_last(out)};
}

void cache_attend(const Tensor& query, const Tensor& out, const Four& layout, uintptr_t table, int64_t slots,
                  const std::vector<int64_t>& positions, const Numbers& counts, bool left, const MaybeTensor& lse,
                  std::optional<int64_t> window, const Numbers& starts, const Numbers& stops,
                  std::optional<int64_t> lower, std::optional<int64_t> upper, const MaybeTensor& keep,
                  const MaybeTensor& bias, int64_t first_key, float scale, float softcap, const MaybeTensor& sink,
                  bool argmax, int threads, int64_t sinks, bool cross, const MaybeTensor& weights,
                  const MaybeTensor& importance, const Numbers& importance_from, bool sigmoid, float offset,
                  const MaybeTensor& decay_query, const MaybeTensor& decay_key, const MaybeTensor& decay_starts) {
    const View q = view_of(query, 4);
    const qkv::Tokens tokens = {q.shape[0], q.shape[2], positions.data(), data_of(counts), left};
    qkv::AttendProblem problem =
        attend_problem(paged_cache(layout, table, slots), nullptr, tokens, q, view_of(out, 4), lse, window,
                       {starts, stops, lower, upper, keep, bias, first_key, scale, softcap, sink});
    problem.sinks = sinks;
    problem.cross = cross;
    problem.sigmoid = sigmoid;
    problem.offset = offset;
    add_decay(problem, decay_query, decay_key, decay_starts);
    add_weights(problem, weights, importance, importance_from);
    calls.attend.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    (argmax ? qkv::attend_argmax : qkv::attend)(kernels(), problem, threads);
}

void softmax_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
                       const MaybeTensor& lse, const Numbers& starts, const Numbers& stops,
                       std::optional<int64_t> lower, std::optional<int64_t> upper, const MaybeTensor& keep,
                       const MaybeTensor& bias, float scale, float softcap, const MaybeTensor& sink, bool sigmoid,
                       float offset, const MaybeTensor& decay_query, const MaybeTensor& decay_key,
                       const MaybeTensor& decay_starts, int threads) {
    const View q = view_of(query, 4), k = view_of(key, 4), v = view_of(value, 4);
    const std::vector<int64_t> positions(q.shape[0], 0);
    const qkv::PlainKeyValues past = {dtype_of(k), k.shape[2], tensor_of(k), tensor_of(v)};
    qkv::AttendProblem problem = attend_problem(
        {{qkv::Dtype::float32, k.shape[1], q.shape[3], v.shape[3]}, nullptr, 0}, &past,
        {q.shape[0], q.shape[2], positions.data(), nullptr, false}, q, view_of(out, 4), lse, std::nullopt,
        {starts, stops, lower, upper, keep, bias, 0, scale, softcap, sink});
    problem.sigmoid = sigmoid;
    problem.offset = offset;
    add_decay(problem, decay_query, decay_key, decay_starts);
    calls.plain.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::attend(kernels(), problem, threads);
}

// Map, width, degree and offset.
using Rule = std::tuple<int, int64_t, int, float>;

qkv::FeatureRule feature_rule(const Rule& rule) {
    const auto [map, width, degree, offset] = rule;
    return {static_cast<qkv::Map>(map), width, degree, offset};
}

int64_t linear_state_size(const Rule& rule, int64_t value_width) {
    return qkv::linear_state_size(feature_rule(rule), value_width);
}

void linear_attention(const Rule& rule, const MaybeTensor& query, const Tensor& key, const Tensor& value,
                      const MaybeTensor& out, const MaybeTensor& keep, std::optional<int64_t> offset, bool normalize,
                      const MaybeTensor& state, bool direct, int threads) {
    const View k = view_of(key, 4), v = view_of(value, 4), q = query ? view_of(*query, 4) : View{};
    const qkv::LinearProblem problem = {feature_rule(rule),
                                        dtype_of(k),
                                        k.shape[0],
                                        query ? q.shape[1] : k.shape[1],
                                        k.shape[1],
                                        query ? q.shape[2] : 0,
                                        k.shape[2],
                                        v.shape[3],
                                        query ? tensor_of(q) : qkv::Tensor4{},
                                        tensor_of(k),
                                        tensor_of(v),
                                        data_of<const uint8_t>(keep),
                                        offset.has_value(),
                                        offset.value_or(0),
                                        normalize,
                                        data_of<void>(out),
                                        data_of<float>(state),
                                        direct};
    calls.linear.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::linear(kernels(), problem, threads);
}

// Gates and β as a tensor of four dimensions: (heads), (batch, heads, n) or (batch, heads, n, width).
qkv::Tensor4 per_token(const View& view) {
    const int64_t* s = view.strides;
    if (view.rank == 1) return {data_of(view), {0, s[0], 0, 0}};
    if (view.rank == 3) return {data_of(view), {s[0], s[1], s[2], 0}};
    if (view.rank != 4) throw nb::value_error("a tensor of another number of dimensions");
    return tensor_of(view);
}

void state_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
                     const MaybeTensor& log_gate, const MaybeTensor& beta, const MaybeTensor& keep,
                     const MaybeTensor& resets, const MaybeTensor& state, int threads) {
    const View q = view_of(query, 4), k = view_of(key, 4), v = view_of(value, 4), o = view_of(out, 4);
    const View g = log_gate ? view_of(*log_gate) : View{}, b = beta ? view_of(*beta) : View{};
    const qkv::StateProblem problem = {dtype_of(k),
                                       k.shape[0],
                                       q.shape[1],
                                       k.shape[1],
                                       k.shape[2],
                                       k.shape[3],
                                       v.shape[3],
                                       tensor_of(q),
                                       tensor_of(k),
                                       tensor_of(v),
                                       !log_gate        ? 0
                                       : g.rank == 4 ? g.shape[3]
                                                     : 1,
                                       log_gate ? dtype_of(g) : qkv::Dtype::float32,
                                       log_gate ? per_token(g) : qkv::Tensor4{},
                                       beta.has_value(),
                                       beta ? dtype_of(b) : qkv::Dtype::float32,
                                       beta ? per_token(b) : qkv::Tensor4{},
                                       data_of<const uint8_t>(keep),
                                       data_of<const uint8_t>(resets),
                                       data_of<float>(state),
                                       data_of(o),
                                       {o.strides[0], o.strides[1], o.strides[2]}};
    calls.state.fetch_add(1, std::memory_order_relaxed);
    const qkv::python::Unlocked unlocked;
    qkv::state_attention(kernels(), problem, threads);
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
    counts["state_attention"] = calls.state.load();
    counts["packed_product"] = calls.product.load();
    counts["program"] = calls.program.load();
    return counts;
}

void reset_calls() {
    calls.finite = 0;
    calls.argmax = 0;
    calls.append = 0;
    calls.attend = 0;
    calls.plain = 0;
    calls.linear = 0;
    calls.state = 0;
    calls.product = 0;
    calls.program = 0;
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) names.emplace_back(table->name);
    return names;
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("isas", &isas);
    m.def("self_check", [](const std::string& isa) { return qkv::self_check(find(isa)); }, nb::arg("isa"));
    m.def("use", [](const std::string& isa) { qkv::python::use(find(isa)); }, nb::arg("isa"));
    m.def("why_one_thread", &qkv::why_one_thread);
    m.def("calls", &count_calls);
    m.def("reset_calls", &reset_calls);
    m.def("before_exit", &qkv::python::before_exit);
    m.def("all_finite", &all_finite, nb::arg("data"), nb::arg("count"), nb::arg("dtype"), nb::arg("threads"));
    m.def("argmax_scores", &argmax_scores, nb::arg("query"), nb::arg("key"), nb::arg("result"), nb::kw_only(),
          nb::arg("starts") = nb::none(), nb::arg("stops") = nb::none(), nb::arg("threads"));
    m.def("cache_append", &cache_append, nb::arg("key"), nb::arg("value"), nb::kw_only(), nb::arg("layout"),
          nb::arg("table"), nb::arg("slots"), nb::arg("positions"), nb::arg("counts") = nb::none(),
          nb::arg("left") = false, nb::arg("threads"));
    m.def("cache_attend", &cache_attend, nb::arg("query"), nb::arg("out"), nb::kw_only(), nb::arg("layout"),
          nb::arg("table"), nb::arg("slots"), nb::arg("positions"), nb::arg("counts") = nb::none(),
          nb::arg("left") = false, nb::arg("lse") = nb::none(), nb::arg("window") = nb::none(),
          nb::arg("starts") = nb::none(), nb::arg("stops") = nb::none(), nb::arg("lower") = nb::none(),
          nb::arg("upper") = nb::none(), nb::arg("keep") = nb::none(), nb::arg("bias") = nb::none(),
          nb::arg("first_key") = 0, nb::arg("scale") = 1.0f, nb::arg("softcap") = 0.0f, nb::arg("sink") = nb::none(),
          nb::arg("argmax") = false, nb::arg("threads"), nb::arg("sinks") = 0, nb::arg("cross") = false,
          nb::arg("weights") = nb::none(), nb::arg("importance") = nb::none(), nb::arg("importance_from") = nb::none(),
          nb::arg("sigmoid") = false, nb::arg("offset") = 0.0f, nb::arg("decay_query") = nb::none(),
          nb::arg("decay_key") = nb::none(), nb::arg("decay_starts") = nb::none());
    m.def("softmax_attention", &softmax_attention, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("out"),
          nb::kw_only(), nb::arg("lse") = nb::none(), nb::arg("starts") = nb::none(), nb::arg("stops") = nb::none(),
          nb::arg("lower") = nb::none(), nb::arg("upper") = nb::none(), nb::arg("keep") = nb::none(),
          nb::arg("bias") = nb::none(), nb::arg("scale"), nb::arg("softcap") = 0.0f, nb::arg("sink") = nb::none(),
          nb::arg("sigmoid") = false, nb::arg("offset") = 0.0f,
          nb::arg("decay_query") = nb::none(), nb::arg("decay_key") = nb::none(), nb::arg("decay_starts") = nb::none(),
          nb::arg("threads"));
    m.def("linear_attention", &linear_attention, nb::arg("rule"), nb::arg("query").none(), nb::arg("key"),
          nb::arg("value"), nb::arg("out").none(), nb::kw_only(), nb::arg("keep") = nb::none(),
          nb::arg("offset") = nb::none(), nb::arg("normalize") = true, nb::arg("state") = nb::none(),
          nb::arg("direct") = false, nb::arg("threads"));
    m.def("state_attention", &state_attention, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("out"),
          nb::kw_only(), nb::arg("log_gate") = nb::none(), nb::arg("beta") = nb::none(), nb::arg("keep") = nb::none(),
          nb::arg("resets") = nb::none(), nb::arg("state") = nb::none(), nb::arg("threads"));
    m.def("linear_state_size", &linear_state_size, nb::arg("rule"), nb::arg("value_width"));
    m.def("advise_huge_pages", &advise_huge_pages, nb::arg("data"), nb::arg("size"));
    m.def("populate_memory", &populate_memory, nb::arg("data"), nb::arg("size"));
    m.def("guard_mapping", &qkv::guard_mapping, nb::arg("data"), nb::arg("size"));
    m.def("unguard_mapping", &qkv::unguard_mapping, nb::arg("data"));
    qkv::python::bind_step(m);
    qkv::python::bind_counting(m);
    qkv::python::bind_program(m);
    m.attr("finite_parallel_bytes") = qkv::kFiniteParallelBytes;
}
