// Packed products and whole transformers. qkv.runtime has checked the arguments and keeps the memory of the weights.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <string>
#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "src/program.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

namespace {

// Address, format, rows, columns and bytes of a row.
using MatrixArgs = std::tuple<uintptr_t, int, int64_t, int64_t, int64_t>;
// Matrix and address of the bias.
using LinearArgs = std::tuple<MatrixArgs, uintptr_t>;
// Addresses of weight and bias, width, eps, whether LayerNorm.
using NormArgs = std::optional<std::tuple<uintptr_t, uintptr_t, int64_t, float, bool>>;
// Frequencies, scale, whether interleaved.
using RotaryArgs = std::tuple<std::vector<double>, double, bool>;

PackedMatrix matrix_of(const MatrixArgs& args) {
    const auto [data, format, rows, columns, row_bytes] = args;
    return {address<const void>(data), static_cast<WeightFormat>(format), rows, columns, row_bytes};
}

Linear linear_of(const LinearArgs& args) {
    return {matrix_of(std::get<0>(args)), address<const float>(std::get<1>(args))};
}

Norm norm_of(const NormArgs& args) {
    if (!args) return {};
    const auto [weight, bias, width, eps, centred] = *args;
    return {address<const float>(weight), address<const float>(bias), width, eps, centred};
}

TransformerLayer layer_of(const std::vector<NormArgs>& norms, const std::vector<LinearArgs>& linears,
                          const std::optional<LinearArgs>& gate, int64_t heads, int64_t kv_heads, int64_t width,
                          float scale, float softcap, uintptr_t sinks, int rotary, int activation, bool parallel) {
    if (norms.size() != 6 || linears.size() != 6) throw nb::value_error("expected six norms and six products");
    TransformerLayer layer = {};
    Norm* const norm_places[] = {&layer.attention_norm,    &layer.attention_post_norm,
                                 &layer.query_norm,        &layer.key_norm,
                                 &layer.feed_forward_norm, &layer.feed_forward_post_norm};
    Linear* const linear_places[] = {&layer.query, &layer.key, &layer.value, &layer.output, &layer.up, &layer.down};
    for (int n = 0; n < 6; ++n) {
        *norm_places[n] = norm_of(norms[n]);
        *linear_places[n] = linear_of(linears[n]);
    }
    if (gate) layer.gate = linear_of(*gate);
    layer.heads = heads;
    layer.kv_heads = kv_heads;
    layer.width = width;
    layer.scale = scale;
    layer.softcap = softcap;
    layer.sinks = address<const float>(sinks);
    layer.rotary = rotary;
    layer.activation = static_cast<Activation>(activation);
    layer.parallel = parallel;
    return layer;
}

Program* new_program(const MatrixArgs& embedding, float embedding_scale, uintptr_t positions,
                     const std::vector<RotaryArgs>& rotaries,
                     const std::vector<TransformerLayer>& layers, const NormArgs& norm, const LinearArgs& logits,
                     float logits_softcap, int activations) {
    Transformer transformer = {matrix_of(embedding), embedding_scale, address<const float>(positions), {}, layers,
                               norm_of(norm), linear_of(logits), logits_softcap,
                               static_cast<Activations>(activations)};
    for (const auto& [frequencies, scale, interleaved] : rotaries) {
        transformer.rotaries.push_back({frequencies, scale, interleaved});
    }
    return new Program(std::move(transformer));
}

// What a step is told of a layer's cache, as numbers: address of the table, slots, the page layout, address of what was
// evicted, window (negative: none), sinks, then address and columns of the importance and from where it counts.
constexpr int64_t kCacheNumbers = 12;

void run_program(Program& program, const Tensor& tokens, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& positions, const Tensor& caches, const std::vector<int64_t>& wanted,
                 const Tensor& logits, int threads) {
    const Transformer& t = program.transformer();
    const dlpack::View given = view_of(tokens, 1), pages = view_of(caches, 2), out = view_of(logits, 2);
    if (counts.size() != positions.size() || out.shape[0] != static_cast<int64_t>(wanted.size()) ||
        out.shape[1] != t.logits.weight.rows ||
        given.shape[0] != std::accumulate(counts.begin(), counts.end(), int64_t{0})) {
        throw nb::value_error("sizes that differ");
    }
    if (pages.shape[0] != static_cast<int64_t>(t.layers.size()) || pages.shape[1] != kCacheNumbers) {
        throw nb::value_error("expected a row of numbers for the cache of each layer");
    }
    std::vector<LayerCache> tables;
    for (int64_t n = 0; n < pages.shape[0]; ++n) {
        const int64_t* c = static_cast<const int64_t*>(data_of(pages)) + n * kCacheNumbers;
        tables.push_back({{{static_cast<Dtype>(c[2]), c[3], c[4], c[5]}, address<const int64_t>(c[0]), c[1]},
                          address<const int64_t>(c[6]),
                          c[7] < 0 ? kNoBound : c[7],
                          c[8],
                          address<float>(c[9]),
                          c[10],
                          address<const int64_t>(c[11])});
    }
    const TokenStep step = {static_cast<int64_t>(counts.size()),
                            static_cast<const int64_t*>(data_of(given)),
                            counts.data(),
                            positions.data(),
                            tables.data(),
                            wanted.data(),
                            static_cast<int64_t>(wanted.size()),
                            static_cast<float*>(data_of(out))};
    calls.program.fetch_add(1, std::memory_order_relaxed);
    const Unlocked unlocked;
    program.run(kernels(), products(), step, threads);
}

void run_product(const std::vector<MatrixArgs>& matrices, const Tensor& x, const std::vector<Tensor>& ys,
                 const std::vector<MaybeTensor>& biases, int activations, int threads) {
    std::vector<PackedMatrix> packed;
    std::vector<float*> outs;
    std::vector<const float*> added;
    for (const MatrixArgs& matrix : matrices) packed.push_back(matrix_of(matrix));
    for (const Tensor& y : ys) outs.push_back(static_cast<float*>(data_of(view_of(y, 2))));
    for (const MaybeTensor& bias : biases) added.push_back(data_of<const float>(bias));
    const dlpack::View rows = view_of(x, 2);
    const auto* data = static_cast<const float*>(data_of(rows));
    calls.product.fetch_add(1, std::memory_order_relaxed);
    const Unlocked unlocked;
    Scratch memory;
    packed_product(products(), packed.data(), static_cast<int>(packed.size()), data, rows.shape[0], outs.data(),
                   added.data(), static_cast<Activations>(activations), threads, memory);
}

}  // namespace

const PackedKernels& products() {
    static const std::vector<const PackedKernels*> runnable = packed_kernels();
    const std::string isa = kernels().name;
    for (const PackedKernels* table : runnable) {
        if (isa == table->name) return *table;
    }
    return isa == "avx512" ? *runnable.front() : *runnable.back();  // that of AVX-512 is named after VNNI
}

void bind_program(nb::module_& m) {
    m.def("packed_product", &run_product, nb::arg("matrices"), nb::arg("x"), nb::arg("ys"), nb::arg("biases"),
          nb::kw_only(), nb::arg("activations"), nb::arg("threads"));
    nb::class_<TransformerLayer>(m, "TransformerLayer");
    m.def("transformer_layer", &layer_of, nb::kw_only(), nb::arg("norms"), nb::arg("linears"),
          nb::arg("gate") = nb::none(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("width"), nb::arg("scale"),
          nb::arg("softcap"), nb::arg("sinks"), nb::arg("rotary"), nb::arg("activation"), nb::arg("parallel"));
    nb::class_<Program>(m, "Program")
        .def(nb::new_(&new_program), nb::kw_only(), nb::arg("embedding"), nb::arg("embedding_scale"),
             nb::arg("positions"), nb::arg("rotaries"), nb::arg("layers"), nb::arg("norm").none(),
             nb::arg("logits"), nb::arg("logits_softcap"), nb::arg("activations"))
        .def("run", &run_program, nb::arg("tokens"), nb::arg("counts"), nb::arg("positions"), nb::arg("caches"),
             nb::arg("wanted"), nb::arg("logits"), nb::arg("threads"));
}

}  // namespace qkv::python
