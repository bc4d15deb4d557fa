// A decoding step that was checked before, as one object: what comes again is compared with what was checked, and run.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>

#include "bindings.h"
#include "dlpack.h"
#include "src/memory.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace qkv::python {

namespace {

using Four = std::array<int64_t, 4>;

Four four(nb::tuple numbers) {
    if (numbers.size() != 4) throw nb::value_error("wanted four numbers");
    Four result;
    for (size_t i = 0; i < 4; ++i) result[i] = nb::cast<int64_t>(numbers[i]);
    return result;
}

const dlpack::ExchangeApi* exchange_of(nb::handle tensor_type) {
    const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__");
    const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (api == nullptr) throw nb::python_error();
    if (api->major != dlpack::kMajor || api->look == nullptr) throw nb::value_error("another DLPack than version 1");
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

class Step {
public:
    Step(nb::object tensor_type, nb::tuple layout, int dtype, nb::tuple query, nb::tuple key, nb::tuple value,
         int64_t window, float scale, float softcap, uintptr_t sink, bool hard)
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
          hard_(hard) {
        const Four numbers = four(layout);
        layout_ = {static_cast<Dtype>(numbers[0]), numbers[1], numbers[2], numbers[3]};
    }

    // Whether tensors look like those that were checked: nothing else about them can be wrong.
    bool fits(nb::handle query, nb::handle key, nb::handle value) const {
        dlpack::View view;
        return look(query, query_, view) && look(key, key_, view) && look(value, value_, view);
    }

    // Append and attend, then count the tokens in both copies of the lengths. False, and nothing has happened: the
    // tensors do not fit, or `out` is neither in plain order nor (batch, n, heads, width) seen as (batch, heads, n, width).
    bool run(nb::handle query, nb::handle key, nb::handle value, nb::handle out, uintptr_t table, int64_t slots,
             uintptr_t lengths_at, uintptr_t copy_at, int threads) const {
        dlpack::View q, k, v, o;
        const Four answer = {query_[0], query_[1], query_[2], layout_.value_width};
        if (!look(query, query_, q) || !look(key, key_, k) || !look(value, value_, v) || !look(out, answer, o)) {
            return false;
        }
        const bool heads_last = !in_order(o, answer, {0, 1, 2, 3});
        if (heads_last && !in_order(o, answer, {0, 2, 1, 3})) return false;
        auto* lengths = address<int64_t>(lengths_at);
        auto* copy = address<int64_t>(copy_at);
        const Memory memory = {layout_, address<const int64_t>(table), slots};
        const Tokens tokens = {query_[0], query_[2], lengths, nullptr, false};
        const AppendProblem append = {memory, tokens, dtype_, tensor_of(k), tensor_of(v)};
        const AttendProblem attend = {memory, tokens, query_[1], dtype_, tensor_of(q),
                                      static_cast<char*>(o.data) + o.byte_offset, nullptr, window_, nullptr, nullptr,
                                      kNoBound, kNoBound, {}, {}, scale_, softcap_, sink_, nullptr, heads_last};
        calls.append.fetch_add(1, std::memory_order_relaxed);
        calls.attend.fetch_add(1, std::memory_order_relaxed);
        {
            const qkv::python::Unlocked unlocked;
            if (hard_) {
                qkv::append(append, threads);
                qkv::attend_hard(kernels(), attend, threads);
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

    bool look(nb::handle tensor, const Four& shape, dlpack::View& view) const {
        if (!tensor.type().is(tensor_type_) || !tensor.attr(requires_grad_).is(false_) ||
            !tensor.attr(is_neg_)().is(false_)) {
            return false;
        }
        if (exchange_->look(tensor.ptr(), &view) != 0) {  // a tensor without memory; what is wrong is said elsewhere
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
    MemoryLayout layout_;
    const Dtype dtype_;
    const dlpack::Kind kind_;
    const Four query_, key_, value_;
    const int64_t window_;
    const float scale_, softcap_;
    const float* sink_;
    const bool hard_;
};

}  // namespace

void bind_step(nb::module_& m) {
    nb::class_<Step>(m, "Step")
        .def(nb::init<nb::object, nb::tuple, int, nb::tuple, nb::tuple, nb::tuple, int64_t, float, float, uintptr_t,
                      bool>())
        .def("fits", &Step::fits)
        .def("run", &Step::run);
}

}  // namespace qkv::python
