#include "arguments.h"

namespace nb = nanobind;

namespace qkv::python {

namespace {

// Changed only with the GIL held. Subclasses of a tensor class have its interface.
PyTypeObject* known = nullptr;
const dlpack::ExchangeApi* interface = nullptr;

bool find_interface(PyTypeObject* type) {
    if (type == known) return true;
    const nb::handle given(reinterpret_cast<PyObject*>(type));
    const nb::object capsule = nb::getattr(given, "__dlpack_c_exchange_api__", nb::none());
    if (capsule.is_none()) return false;
    const auto* found = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
    if (found == nullptr) throw nb::python_error();
    if (found->major != dlpack::kMajor || found->view_tensor == nullptr) {
        throw nb::value_error("expected version 1 of DLPack");
    }
    known = type;
    interface = found;
    return true;
}

}  // namespace

bool Tensor::is_tensor(PyObject* object) { return find_interface(Py_TYPE(object)); }

const dlpack::ExchangeApi* interface_of(const Tensor& tensor) {
    find_interface(Py_TYPE(tensor.ptr()));
    return interface;
}

dlpack::View view_of(const Tensor& tensor) {
    dlpack::View view;
    if (interface_of(tensor)->view_tensor(tensor.ptr(), &view) != 0) {
        PyErr_Clear();
        throw nb::value_error("a tensor without memory");
    }
    bool empty = false;
    for (int axis = 0; axis < view.rank; ++axis) empty = empty || view.shape[axis] == 0;
    if ((view.data == nullptr && !empty) || view.device.type != dlpack::kCpu) {
        throw nb::value_error("a tensor without memory");
    }
    return view;
}

dlpack::View view_of(const Tensor& tensor, int rank) {
    const dlpack::View view = view_of(tensor);
    if (view.rank != rank) throw nb::value_error("a tensor of another number of dimensions");
    return view;
}

Dtype dtype_of(const dlpack::View& view) {
    if (view.kind.code == dlpack::kBfloat) return Dtype::bfloat16;
    if (view.kind.code != dlpack::kFloat) throw nb::value_error("expected a floating-point dtype");
    return view.kind.bits == 64 ? Dtype::float64 : view.kind.bits == 32 ? Dtype::float32 : Dtype::float16;
}

bool in_order(const dlpack::View& view, const std::array<int, 4>& axes) {
    int64_t step = 1;
    for (int axis = 0; axis < 4; ++axis) {
        if (view.shape[axis] == 0) return true;
    }
    for (int place = 3; place >= 0; step *= view.shape[axes[place--]]) {
        if (view.shape[axes[place]] > 1 && view.strides[axes[place]] != step) return false;
    }
    return true;
}

bool heads_last(const dlpack::View& out) {
    if (in_order(out, {0, 1, 2, 3})) return false;
    if (!in_order(out, {0, 2, 1, 3})) throw nb::value_error("an output that is not contiguous");
    return true;
}

}  // namespace qkv::python
