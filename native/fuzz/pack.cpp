// Rows of any format and stride to float32 and back: transposed, widened and rounded.

#include "scalar.h"

#include "target.h"
#include "tensors.h"

using namespace fuzz;

namespace {

// The number of a bit pattern, by the definition of the formats.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    const double fraction = bits & ((1u << fraction_bits) - 1);
    const double sign = (bits >> (exponent_bits + fraction_bits) & 1) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? kNan : sign * kInfinity;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp(fraction + static_cast<double>(1 << fraction_bits), exponent - bias - fraction_bits);
}

double value_at(const char* from, Dtype dtype) {
    if (dtype == Dtype::float32) return value_of(qkv::read<uint32_t>(from), 8, 23);
    const auto half = qkv::read<uint16_t>(from);
    return dtype == Dtype::float16 ? value_of(half, 5, 10) : value_of(half, 8, 7);
}

void require_same(double found, double wanted, const char* what) {
    const bool right = std::isnan(wanted) ? std::isnan(found)
                                          : found == wanted && std::signbit(found) == std::signbit(wanted);
    if (!right) fail(std::string(what) + ": " + number(found) + ", wanted " + number(wanted));
}

// Whether no other number of the format is nearer; ties go to the even last bit.
void check_rounding(float x, uint16_t half, int exponent_bits, int fraction_bits) {
    const double rounded = value_of(half, exponent_bits, fraction_bits);
    if (std::isnan(x)) return require(std::isnan(rounded), "NaN was rounded away");
    require(std::signbit(x) == std::signbit(rounded), "a sign was lost");
    // Infinity counts as the next number after the largest.
    const uint32_t endless = ((1u << exponent_bits) - 1) << fraction_bits;
    const auto size_of = [&](uint32_t bits) {
        if (bits == endless) return std::ldexp(1.0, 1 << (exponent_bits - 1));
        return value_of(bits, exponent_bits, fraction_bits);
    };
    const uint32_t magnitude = half & 0x7fff;
    const double size = std::fabs(static_cast<double>(x));
    require(magnitude <= endless, "a number became NaN");
    if (std::isinf(x)) return require(magnitude == endless, "infinity was rounded away");
    const double distance = std::fabs(size_of(magnitude) - size);
    for (const uint32_t other : {magnitude - 1, magnitude + 1}) {
        if (other > endless) continue;  // below 0, or beyond infinity
        const double others = std::fabs(size_of(other) - size);
        const bool loses = others < distance || (others == distance && magnitude % 2 != 0);
        if (loses) fail("rounded " + number(x) + " to " + number(rounded));
    }
}

}  // namespace

TARGET(pack) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const Dtype dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float16, Dtype::bfloat16});
    const auto count = static_cast<int>(bytes.between("rows", 1, 20));
    const int slots = count + static_cast<int>(bytes.one_of<int64_t>("slots more", {0, 0, 1, 2, 5, 44}));
    const int64_t width = bytes.one_of<int64_t>("width", {0, 1, 2, 3, 4, 5, 7, 15, 16, 17, 33, 255, 256, 257});
    const int64_t stride = bytes.between("stride", 0, 3), shift = bytes.between("shift", 0, 3);
    const int64_t element = qkv::element_size(dtype);
    Random random = bytes.random("numbers");

    // Each row is an allocation that ends with its last element; any bits are a number.
    std::vector<std::unique_ptr<char[]>> memory;
    std::vector<const void*> rows;
    const int64_t row_bytes = width == 0 ? 0 : ((width - 1) * stride + 1) * element;
    for (int r = 0; r < count; ++r) {
        memory.emplace_back(new char[static_cast<size_t>(shift + row_bytes)]);
        for (int64_t n = 0; n < shift + row_bytes; ++n) memory.back()[n] = static_cast<char>(random.bits());
        rows.push_back(memory.back().get() + shift);
    }
    const auto at = [&](int64_t r, int64_t c) { return static_cast<const char*>(rows[r]) + c * stride * element; };

    Guarded turned(width * slots * 4);
    kernels.pack_rows(rows.data(), count, slots, dtype, width, stride, turned.as<float>());
    turned.check();
    for (int64_t c = 0; c < width; ++c) {
        for (int64_t r = 0; r < slots; ++r) {
            const double wanted = value_at(at(std::min<int64_t>(r, count - 1), c), dtype);
            require_same(turned.as<float>()[c * slots + r], wanted, "turned");
        }
    }
    Guarded widened(width * 4);
    kernels.widen_row(static_cast<const char*>(rows[0]), stride * element, width, dtype, widened.as<float>());
    widened.check();
    for (int64_t c = 0; c < width; ++c) require_same(widened.as<float>()[c], value_at(at(0, c), dtype), "widened");

    // Bit patterns at the limits of the half-precision formats are more frequent than by chance.
    for (int n = 0; n < 8; ++n) {
        uint32_t word = static_cast<uint32_t>(random.bits());
        const uint32_t edge = random.bits() % 2 != 0 ? 0x7fffffu >> random.below(24) : 1u << random.below(23);
        if (n % 2 == 1) word = (word & 0xff800000u) | edge;
        if (n % 4 >= 2) word = (word & 0x807fffffu) | static_cast<uint32_t>(96 + random.below(50)) << 23;
        const float x = qkv::from_bits(word);
        check_rounding(x, qkv::narrow_to_float16(x), 5, 10);
        check_rounding(x, qkv::narrow_to_bfloat16(x), 8, 7);
    }
}
