// A decode step whose arguments have been checked: later steps with equal shapes and dtypes are compared with it and
// run without another check.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>

#include "bindings.h"
#include "dlpack.h"
#include "src/cache.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

namespace {

using Four = std::array<int64_t, 4>;

Four four(nb::tuple numbers) {
    if (numbers.size() != 4) throw nb::value_error("expected four numbers");
    Four result;
    for (size_t i = 0; i < 4; ++i) result[i] = nb::cast<int64_t>(numbers[i]);
    return result;
}

const dlpack::ExchangeApi* exchange_of(nb::handle tensor_type) {
    const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__");
    const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (api == nullptr) throw nb::python_error();
    if (api->major != dlpack::kMajor || api->view_tensor == nullptr) {
        throw nb::value_error("expected version 1 of DLPack");
    }
    return api;
}

dlpack::Kind kind_of(Dtype dtype) {
    const uint8_t code = dtype == Dtype::bfloat16 ? dlpack::kBfloat : dlpack::kFloat;
    return {code, static_cast<uint8_t>(8 * element_size(dtype)), 1};
}

Tensor4 tensor_of(const dlpack::View& view) {
    const int64_t* s = view.strides;
    return {static_cast<const char*>(view.data) + view.byte_offset, {s[0], s[1], s[2], s[3]}};
}

class DecodeStep {
public:
    DecodeStep(nb::object tensor_type, nb::tuple layout, int dtype, nb::tuple query, nb::tuple key, nb::tuple value,
         int64_t window, float scale, float softcap, uintptr_t sink, bool argmax)
        : tensor_type_(std::move(tensor_type)),
          requires_grad_(nb::str("requires_grad")),
          is_neg_(nb::str("is_neg")),
          exchange_(exchange_of(tensor_type_)),
          dtype_(static_cast<Dtype>(dtype)),
          kind_(kind_of(dtype_)),
          query_(four(query)),
          key_(four(key)),
          value_(four(value)),
          window_(window > 0 ? window : kNoBound),
          scale_(scale),
          softcap_(softcap),
          sink_(address<const float>(sink)),
          argmax_(argmax) {
        const Four numbers = four(layout);
        layout_ = {static_cast<Dtype>(numbers[0]), numbers[1], numbers[2], numbers[3]};
    }

    // Whether the tensors have the class, shape, dtype and device of those that were checked.
    bool fits(nb::handle query, nb::handle key, nb::handle value) const {
        dlpack::View view;
        return view_tensor(query, query_, view) && view_tensor(key, key_, view) && view_tensor(value, value_, view);
    }

    // Appends, attends, and updates both copies of the lengths. Returns false, and does nothing, if the tensors do not
    // fit, or if `out` is neither contiguous nor a transposed contiguous (batch, n, heads, width).
    bool run(nb::handle query, nb::handle key, nb::handle value, nb::handle out, uintptr_t table, int64_t slots,
             uintptr_t lengths_at, uintptr_t copy_at, int threads) const {
        dlpack::View q, k, v, o;
        const Four answer = {query_[0], query_[1], query_[2], layout_.value_width};
        if (!view_tensor(query, query_, q) || !view_tensor(key, key_, k) || !view_tensor(value, value_, v) ||
            !view_tensor(out, answer, o)) {
            return false;
        }
        const bool heads_last = !in_order(o, answer, {0, 1, 2, 3});
        if (heads_last && !in_order(o, answer, {0, 2, 1, 3})) return false;
        auto* lengths = address<int64_t>(lengths_at);
        auto* copy = address<int64_t>(copy_at);
        const PagedCache cache = {layout_, address<const int64_t>(table), slots};
        const Tokens tokens = {query_[0], query_[2], lengths, nullptr, false};
        const AppendProblem append = {cache, tokens, dtype_, tensor_of(k), tensor_of(v)};
        const AttendProblem attend = {cache, tokens, query_[1], dtype_, tensor_of(q),
                                      static_cast<char*>(o.data) + o.byte_offset, nullptr, window_, nullptr, nullptr,
                                      kNoBound, kNoBound, {}, {}, scale_, softcap_, sink_, nullptr, heads_last};
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
    static bool in_order(const dlpack::View& view, const Four& shape, const std::array<int, 4>& axes) {
        int64_t step = 1;
        for (int place = 3; place >= 0; step *= shape[axes[place--]]) {
            if (shape[axes[place]] != 1 && view.strides[axes[place]] != step) return false;
        }
        return true;
    }

    bool view_tensor(nb::handle tensor, const Four& shape, dlpack::View& view) const {
        if (!tensor.type().is(tensor_type_) || !tensor.attr(requires_grad_).is(false_) ||
            !tensor.attr(is_neg_)().is(false_)) {
            return false;
        }
        if (exchange_->view_tensor(tensor.ptr(), &view) != 0) {  // no memory; the caller reports it
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
    const dlpack::ExchangeApi* exchange_;
    PageLayout layout_;
    const Dtype dtype_;
    const dlpack::Kind kind_;
    const Four query_, key_, value_;
    const int64_t window_;
    const float scale_, softcap_;
    const float* sink_;
    const bool argmax_;
};

}  // namespace

void bind_step(nb::module_& m) {
    nb::class_<DecodeStep>(m, "DecodeStep")
        .def(nb::init<nb::object, nb::tuple, int, nb::tuple, nb::tuple, nb::tuple, int64_t, float, float, uintptr_t,
                      bool>())
        .def("fits", &DecodeStep::fits)
        .def("run", &DecodeStep::run);
}

}  // namespace qkv::python
