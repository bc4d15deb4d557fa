// The scan for NaN and infinity, in any bytes.

#include "finite.h"

#include "target.h"
#include "tensors.h"

using namespace fuzz;

TARGET(finite) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    const Dtype dtype =
        bytes.one_of<Dtype>("dtype", {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::int8});
    const int64_t element = qkv::element_size(dtype), shift = bytes.between("shift", 0, 15);
    // The rest of the bytes, repeated, at any alignment, in an allocation that ends with the last one.
    const int64_t count = bytes.between("count", 0, 700);
    const std::vector<uint8_t> pattern(bytes.rest(), bytes.rest() + bytes.left());
    const std::unique_ptr<char[]> memory(new char[static_cast<size_t>(shift + count * element)]);
    char* data = memory.get() + shift;
    bool wanted = true;
    for (int64_t n = 0; n < count * element; ++n) {
        data[n] = pattern.empty() ? 0 : static_cast<char>(pattern[static_cast<size_t>(n) % pattern.size()]);
    }
    for (int64_t n = 0; n < count; ++n) wanted = wanted && std::isfinite(read_as(data + n * element, dtype));
    require(qkv::all_finite(kernels, data, count, dtype, threads) == wanted, "what is finite, and what is not");
}
