#include <cstring>

#include "finite.h"
#include "problem.h"

using qkv::Dtype;

namespace {

struct Kind {
    Dtype dtype;
    uint64_t largest;  // finite
    uint64_t infinity;

    uint64_t sign() const { return infinity + (infinity & (~infinity + 1)); }
};

constexpr Kind kKinds[] = {{Dtype::float64, 0x7fefffffffffffff, 0x7ff0000000000000},
                           {Dtype::float32, 0x7f7fffff, 0x7f800000},
                           {Dtype::float16, 0x7bff, 0x7c00},
                           {Dtype::bfloat16, 0x7f7f, 0x7f80}};

// Starts one byte after an aligned address, as a tensor over foreign memory may.
struct Buffer {
    std::vector<char> bytes;
    const Kind kind;
    const int64_t count;

    Buffer(const Kind& k, int64_t n) : bytes(1 + n * qkv::element_size(k.dtype)), kind(k), count(n) {
        const uint64_t finite[] = {kind.largest, kind.sign() | kind.largest, 1};
        for (int64_t i = 0; i < n; ++i) set(i, finite[i % 3]);
    }

    void set(int64_t at, uint64_t bits) {
        const int64_t size = qkv::element_size(kind.dtype);
        std::memcpy(bytes.data() + 1 + at * size, &bits, size);
    }

    bool finite(const qkv::KernelTable& kernels, int threads = 1) const {
        return qkv::all_finite(kernels, bytes.data() + 1, count, kind.dtype, threads);
    }
};

}  // namespace

TEST(finite, finds_one_bad_element_at_any_place) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (const Kind& kind : kKinds) {
            for (int64_t count : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 521}) {
                check::setting() = std::string(kernels->name) + ", count " + std::to_string(count);
                Buffer buffer(kind, count);
                CHECK(buffer.finite(*kernels));
                for (int64_t at = 0; at < count; ++at) {
                    for (uint64_t bad : {kind.infinity, kind.infinity | 1, kind.sign() | kind.infinity}) {
                        Buffer poisoned = buffer;
                        poisoned.set(at, bad);
                        CHECK(!poisoned.finite(*kernels));
                    }
                }
            }
        }
    }
}

TEST(finite, scans_large_buffers_with_any_number_of_threads) {
    const WithThreads with;
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (const Kind& kind : kKinds) {
            const int64_t count = 3 * qkv::kFiniteParallelBytes / qkv::element_size(kind.dtype) + 5;
            Buffer buffer(kind, count);
            for (int threads = 1; threads <= 4; ++threads) {
                CHECK(buffer.finite(*kernels, threads));
                for (int64_t at : {int64_t{0}, count / 2, count - 1}) {
                    Buffer poisoned = buffer;
                    poisoned.set(at, kind.infinity);
                    CHECK(!poisoned.finite(*kernels, threads));
                }
            }
        }
    }
}
