// A decode step whose arguments have been checked: later steps with equal shapes and dtypes are compared with it and
// run without another check.

#include <nanobind/nanobind.h>

#include "arguments.h"
#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

namespace {

dlpack::Kind kind_of(Dtype dtype) {
    const uint8_t code = dtype == Dtype::bfloat16 ? dlpack::kBfloat : dlpack::kFloat;
    return {code, static_cast<uint8_t>(8 * element_size(dtype)), 1};
}

class DecodeStep {
public:
    DecodeStep(const Tensor& query, const Tensor& key, const Tensor& value, const Four& layout,
               std::optional<int64_t> window, int64_t sinks, float scale, float softcap, MaybeTensor sink, bool argmax,
               bool sigmoid, float offset)
        : tensor_type_(nb::module_::import_("torch").attr("Tensor")),
          requires_grad_(nb::str("requires_grad")),
          is_neg_(nb::str("is_neg")),
          interface_(interface_of(query)),
          layout_{Storage::of_code(layout[0]), layout[1], layout[2], layout[3]},
          dtype_(dtype_of(view_of(query, 4))),
          kind_(kind_of(dtype_)),
          query_(shape_of(view_of(query, 4))),
          key_(shape_of(view_of(key, 4))),
          value_(shape_of(view_of(value, 4))),
          window_(window.value_or(kNoBound)),
          sinks_(sinks),
          scale_(scale),
          softcap_(softcap),
          sink_(std::move(sink)),
          argmax_(argmax),
          sigmoid_(sigmoid),
          offset_(offset) {}

    // Whether the tensors have the class, shape, dtype and device of those that were checked.
    bool fits(nb::handle query, nb::handle key, nb::handle value) const {
        dlpack::View view;
        return view_tensor(query, query_, view) && view_tensor(key, key_, view) && view_tensor(value, value_, view);
    }

    // Appends, attends, and updates both copies of the lengths. Returns false, and does nothing, if the tensors do not
    // fit, or if `out` is neither contiguous nor a transposed contiguous (batch, n, heads, width).
    bool run(nb::handle query, nb::handle key, nb::handle value, nb::handle out, uintptr_t table, int64_t slots,
             uintptr_t lengths_at, uintptr_t copy_at, int threads, uintptr_t importance, int64_t importance_columns) const {
        dlpack::View q, k, v, o;
        const Four answer = {query_[0], query_[1], query_[2], layout_.value_width};
        if (!view_tensor(query, query_, q) || !view_tensor(key, key_, k) || !view_tensor(value, value_, v) ||
            !view_tensor(out, answer, o)) {
            return false;
        }
        const bool heads_last = !in_order(o, {0, 1, 2, 3});
        if (heads_last && !in_order(o, {0, 2, 1, 3})) return false;
        auto* lengths = address<int64_t>(lengths_at);
        auto* copy = address<int64_t>(copy_at);
        const PagedCache cache = {layout_, address<const int64_t>(table), slots};
        const Tokens tokens = {query_[0], query_[2], lengths, nullptr, false};
        const AppendProblem append = {cache, tokens, dtype_, tensor_of(k), tensor_of(v)};
        AttendProblem attend = {cache, tokens, query_[1], dtype_, tensor_of(q),
                                      data_of(o), nullptr, window_, nullptr, nullptr, kNoBound, kNoBound, {}, {},
                                      scale_, softcap_, data_of<const float>(sink_), nullptr, heads_last, sinks_};
        attend.importance = address<float>(importance);
        attend.importance_columns = importance_columns;
        attend.sigmoid = sigmoid_;
        attend.offset = offset_;
        calls.append.fetch_add(1, std::memory_order_relaxed);
        calls.attend.fetch_add(1, std::memory_order_relaxed);
        {
            const qkv::python::Unlocked unlocked;
            if (argmax_) {
                qkv::append(append, threads);
                qkv::attend_argmax(kernels(), attend, threads);
            } else {
                qkv::append_and_attend(kernels(), append, attend, threads);
            }
        }
        for (int64_t b = 0; b < query_[0]; ++b) {
            lengths[b] += query_[2];
            copy[b] = lengths[b];
        }
        return true;
    }

private:
    bool view_tensor(nb::handle tensor, const Four& shape, dlpack::View& view) const {
        if (!tensor.type().is(tensor_type_) || !tensor.attr(requires_grad_).is(false_) ||
            !tensor.attr(is_neg_)().is(false_)) {
            return false;
        }
        if (interface_->view_tensor(tensor.ptr(), &view) != 0) {  // no memory; the caller reports it
            PyErr_Clear();
            return false;
        }
        if (view.rank != 4 || view.data == nullptr || view.device.type != dlpack::kCpu) return false;
        if (view.kind.code != kind_.code || view.kind.bits != kind_.bits || view.kind.lanes != 1) return false;
        for (int axis = 0; axis < 4; ++axis) {
            if (view.shape[axis] != shape[axis]) return false;
        }
        return true;
    }

    const nb::object tensor_type_, requires_grad_, is_neg_;
    const nb::handle false_{Py_False};
    const dlpack::ExchangeApi* interface_;
    const PageLayout layout_;
    const Dtype dtype_;
    const dlpack::Kind kind_;
    const Four query_, key_, value_;
    const int64_t window_, sinks_;
    const float scale_, softcap_;
    const MaybeTensor sink_;
    const bool argmax_, sigmoid_;
    const float offset_;
};

}  // namespace

void bind_step(nb::module_& m) {
    nb::class_<DecodeStep>(m, "DecodeStep")
        .def(nb::init<const Tensor&, const Tensor&, const Tensor&, const Four&, std::optional<int64_t>, int64_t,
                      float, float, MaybeTensor, bool, bool, float>(),
             nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::kw_only(), nb::arg("layout"),
             nb::arg("window") = nb::none(), nb::arg("sinks") = 0, nb::arg("scale") = 1.0f, nb::arg("softcap") = 0.0f,
             nb::arg("sink") = nb::none(), nb::arg("argmax") = false, nb::arg("sigmoid") = false, nb::arg("offset") = 0.0f)
        // Called for each token: positional arguments are faster, and `object` is not checked twice.
        .def("fits", &DecodeStep::fits, nb::arg("query"), nb::arg("key"), nb::arg("value"))
        .def("run", &DecodeStep::run, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("out"),
             nb::arg("table"), nb::arg("slots"), nb::arg("lengths"), nb::arg("lengths_copy"), nb::arg("threads"),
             nb::arg("importance"), nb::arg("importance_columns"));
}

}  // namespace qkv::python
