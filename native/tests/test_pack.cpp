#include <algorithm>
#include <cstring>

#include "problem.h"

using qkv::Dtype;

namespace {

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// By the definition of the formats, in float64.
double value_of(uint16_t half, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = half >> fraction_bits & ((1 << exponent_bits) - 1);
    const double fraction = half & ((1 << fraction_bits) - 1), sign = half & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

}  // namespace

TEST(pack, widens_every_half_exactly) {
    constexpr int64_t width = 1 << 16;
    std::vector<uint16_t> halves(width);
    for (int64_t n = 0; n < width; ++n) halves[n] = static_cast<uint16_t>(n);
    std::vector<float> widened(width);
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
            const void* row = halves.data();
            kernels->pack_rows(&row, 1, 1, dtype, width, 1, widened.data());
            for (int64_t n = 0; n < width; ++n) {
                check::setting() = std::string(kernels->name) + ", half " + std::to_string(n);
                const double wanted = value_of(halves[n], dtype == Dtype::float16 ? 5 : 8);
                if (std::isnan(wanted)) {
                    CHECK(std::isnan(widened[n]));
                } else {
                    CHECK_EQUAL(bits_of(widened[n]), bits_of(static_cast<float>(wanted)));
                }
            }
        }
    }
}

namespace {

constexpr int kCount = 3, kSlots = 5;

float number(int64_t row, int64_t column) { return static_cast<float>(1 + (7 * row + column) % 100); }

// Integers up to 100, which are exact in every format.
void write(char* to, Dtype dtype, float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t float16 = ((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff);
    const uint16_t half = static_cast<uint16_t>(dtype == Dtype::bfloat16 ? bits >> 16 : float16);
    if (dtype == Dtype::float32) {
        std::memcpy(to, &x, sizeof x);
    } else {
        std::memcpy(to, &half, sizeof half);
    }
}

void check_packing(const qkv::KernelTable& kernels, Dtype dtype, int64_t width, int64_t stride) {
    const int64_t size = qkv::element_size(dtype), span = width * (stride + 1);
    std::vector<char> buffer(1 + kCount * span * size);  // rows begin one byte off any alignment
    const void* rows[kCount];
    for (int r = 0; r < kCount; ++r) {
        char* row = buffer.data() + 1 + r * span * size;
        rows[r] = row;
        for (int64_t c = 0; c < width; ++c) write(row + c * stride * size, dtype, number(r, c));
    }
    std::vector<float> out(width * kSlots, -1);
    kernels.pack_rows(rows, kCount, kSlots, dtype, width, stride, out.data());
    for (int64_t c = 0; c < width; ++c) {
        for (int r = 0; r < kSlots; ++r) {
            CHECK_EQUAL(out[c * kSlots + r], number(std::min(r, kCount - 1), stride == 0 ? width - 1 : c));
        }
    }
}

}  // namespace

TEST(pack, transposes_rows_of_any_stride_and_repeats_the_last) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        for (Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
            for (int64_t width : {1, 7, 16, 255, 256, 257, 601}) {
                check::setting() = std::string(kernels->name) + ", width " + std::to_string(width);
                for (int64_t stride : {0, 1, 2, 3}) check_packing(*kernels, dtype, width, stride);
            }
        }
    }
}
