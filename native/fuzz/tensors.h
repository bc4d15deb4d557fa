#pragma once

// Tensors of any layout in allocations that end with their last element; gaps are NaN. Results are surrounded by numbers
// that must not change.

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "bytes.h"
#include "scalar.h"
#include "tensor.h"

namespace fuzz {

using qkv::Dtype;
using Sizes = std::array<int64_t, 4>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline void write_as(char* to, Dtype dtype, double x) {
    const auto narrow = static_cast<float>(x);
    if (dtype == Dtype::float64) {
        std::memcpy(to, &x, sizeof x);
    } else if (dtype == Dtype::int8) {
        *to = static_cast<char>(x);
    } else {
        qkv::narrow_row(&narrow, 1, dtype, to);
    }
}

inline double read_as(const char* from, Dtype dtype) {
    return dtype == Dtype::float64 ? qkv::read<double>(from) : static_cast<double>(qkv::widen(from, dtype));
}

// The contents of tensors.
enum class Fill : int64_t {
    whole,   // -3 to 3: float32 sums their products exactly
    common,  // up to 2, with all their digits
    large,   // up to 64
    wide,    // from 2^-20 to 2^20
    tiny,    // subnormal in float32 and around
};

inline Fill fill_of(Bytes& bytes) {
    return bytes.one_of<Fill>("fill", {Fill::whole, Fill::common, Fill::common, Fill::large, Fill::wide, Fill::tiny});
}

inline double draw(Random& random, Fill fill) {
    const uint64_t bits = random.bits();
    const double fraction = static_cast<double>(bits >> 40) * 0x1p-23 - 1.0;  // -1 to 1
    const int exponent = static_cast<int>(bits % 41) - 20;
    switch (fill) {
        case Fill::whole: return static_cast<double>(bits % 7) - 3.0;
        case Fill::common: return 2.0 * fraction;
        case Fill::large: return 64.0 * fraction;
        case Fill::wide: return std::ldexp(fraction, exponent);
        case Fill::tiny: return std::ldexp(fraction, exponent - 126);
    }
    return 0.0;
}

class Strided {
public:
    // Axes in any order, with gaps, some of them expanded, beginning at any byte.
    Strided(Bytes& bytes, Dtype dtype, const Sizes& sizes, Random& random, Fill fill, bool any_byte = true)
        : dtype_(dtype), sizes_(sizes) {
        static constexpr int kOrders[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}};
        const int* order = kOrders[bytes.one_of<int64_t>("order", {0, 0, 1, 2, 3, 4})];
        const int64_t expanded = bytes.one_of<int64_t>("expanded", {0, 0, 0, 1, 2, 3, 4, 8});
        int64_t step = bytes.one_of<int64_t>("step", {1, 1, 1, 2, 3});
        const int64_t gap = bytes.one_of<int64_t>("gap", {0, 0, 1, 7});
        const int64_t shift = bytes.one_of<int64_t>("shift", {0, 0, 0, 1, 4}), element = qkv::element_size(dtype);
        int64_t last = 0;
        for (int place = 3; place >= 0; --place) {
            const int axis = order[place];
            tensor_.stride[axis] = (expanded >> axis & 1) != 0 ? 0 : step;
            last += tensor_.stride[axis] * std::max<int64_t>(sizes[axis] - 1, 0);
            if (tensor_.stride[axis] != 0) step = step * std::max<int64_t>(sizes[axis], 1) + gap;
        }
        const bool empty = sizes[0] * sizes[1] * sizes[2] * sizes[3] == 0;
        const int64_t begin = any_byte ? shift : shift / element * element;
        const int64_t count = begin + (empty ? 0 : (last + 1) * element);
        buffer_.reset(new char[static_cast<size_t>(count)]);
        std::memset(buffer_.get(), 0xff, static_cast<size_t>(count));
        start_ = buffer_.get() + begin;
        tensor_.data = start_;
        for_each([&](char* at) { write_as(at, dtype_, draw(random, fill)); });
    }

    const qkv::Tensor4& tensor() const { return tensor_; }

    void set(int64_t b, int64_t h, int64_t i, int64_t c, double x) { write_as(at(b, h, i, c), dtype_, x); }

    void set_row(int64_t b, int64_t h, int64_t i, double x) {
        for (int64_t c = 0; c < sizes_[3]; ++c) set(b, h, i, c, x);
    }

    // NaN or an infinity in a few places, one number or a whole row.
    void poison(Bytes& bytes) {
        if (sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3] == 0) return;
        for (int64_t n = bytes.one_of<int64_t>("poisons", {0, 0, 0, 0, 1, 2}); n > 0; --n) {
            const double x = std::array<double, 3>{kNan, kInfinity, -kInfinity}[bytes.between("poison", 0, 2)];
            const int64_t b = bytes.between("at batch", 0, sizes_[0] - 1);
            const int64_t h = bytes.between("at head", 0, sizes_[1] - 1);
            const int64_t i = bytes.between("at position", 0, sizes_[2] - 1);
            const int64_t c = bytes.between("at channel, or all", 0, sizes_[3]);
            if (c == sizes_[3]) {
                set_row(b, h, i, x);
            } else {
                set(b, h, i, c, x);
            }
        }
    }

    double get(int64_t b, int64_t h, int64_t i, int64_t c) const { return read_as(at(b, h, i, c), dtype_); }

    // A contiguous copy.
    std::vector<double> numbers() const {
        std::vector<double> all;
        all.reserve(static_cast<size_t>(sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3]));
        for_each([&](const char* at) { all.push_back(read_as(at, dtype_)); });
        return all;
    }

private:
    char* at(int64_t b, int64_t h, int64_t i, int64_t c) const {
        const int64_t* s = tensor_.stride;
        return start_ + (b * s[0] + h * s[1] + i * s[2] + c * s[3]) * qkv::element_size(dtype_);
    }

    template <typename Body>
    void for_each(Body body) const {
        for (int64_t b = 0; b < sizes_[0]; ++b) {
            for (int64_t h = 0; h < sizes_[1]; ++h) {
                for (int64_t i = 0; i < sizes_[2]; ++i) {
                    for (int64_t c = 0; c < sizes_[3]; ++c) body(at(b, h, i, c));
                }
            }
        }
    }

    const Dtype dtype_;
    const Sizes sizes_;
    std::unique_ptr<char[]> buffer_;
    char* start_ = nullptr;
    qkv::Tensor4 tensor_ = {};
};

// Memory for a result, between bytes that must not change.
class Guarded {
public:
    explicit Guarded(int64_t bytes) : bytes_(bytes), buffer_(static_cast<size_t>(bytes + 2 * kGuard), kMark) {}

    char* data() { return buffer_.data() + kGuard; }
    template <typename Number>
    Number* as() {
        return reinterpret_cast<Number*>(data());
    }

    void check() const {
        for (int64_t n = 0; n < kGuard; ++n) {
            require(buffer_[n] == kMark && buffer_[kGuard + bytes_ + n] == kMark, "written outside the result");
        }
    }

    bool operator==(const Guarded& other) const { return buffer_ == other.buffer_; }

private:
    static constexpr int64_t kGuard = 64;
    static constexpr char kMark = '\xa5';
    int64_t bytes_;
    std::vector<char> buffer_;
};

// A number of the result: within `slack` of `wanted` before rounding to the dtype, or equally non-finite.
inline void compare(double found, double wanted, double slack, Dtype dtype, const char* what) {
    bool right;
    if (!std::isfinite(wanted)) {
        right = !std::isfinite(found);
    } else {
        const double size = std::fabs(wanted) + slack;
        const double digits = dtype == Dtype::float16 ? 0x1p-11 : dtype == Dtype::bfloat16 ? 0x1p-8 : 0x1p-23;
        const double least = dtype == Dtype::float16 ? 0x1p-24 : 0x1p-126;
        right = std::fabs(found - wanted) <= slack + size * digits + least;
        const double most = dtype == Dtype::float16 ? 65504.0 : 3.38e38;
        if (std::isinf(found) && size >= most) right = wanted * found > 0 || std::fabs(wanted) <= slack;
    }
    if (right) return;
    fail(std::string(what) + " " + number(found) + ", wanted " + number(wanted) + " within " + number(slack));
}

}  // namespace fuzz
