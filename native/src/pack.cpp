// Rows of any supported dtype and stride, widened to float32 and turned so that the width is outermost.

#include "isa_kernels.h"
#include "vector.h"

namespace qkv::QKV_ISA {

namespace {

constexpr int64_t kChunk = 256;

// Loads go through memcpy: a tensor over foreign memory may start at any byte.
template <typename Word>
QKV_INLINE Word read(const char* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

QKV_INLINE float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

QKV_INLINE float widen_one_bfloat16(uint16_t half) { return from_bits(uint32_t{half} << 16); }

QKV_INLINE float widen_one_float16(uint16_t half) {
    const uint32_t sign = uint32_t{half & 0x8000u} << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
}

QKV_INLINE float widen(const char* from, Dtype dtype) {
    if (dtype == Dtype::float32) return read<float>(from);
    if (dtype == Dtype::bfloat16) return widen_one_bfloat16(read<uint16_t>(from));
    return widen_one_float16(read<uint16_t>(from));
}

// `count` elements, each `stride` bytes behind the one before.
void widen_chunk(const char* from, int64_t stride, int64_t count, Dtype dtype, float* to) {
    int64_t done = 0;
#ifdef QKV_WIDENS_FLOAT16
    if (dtype == Dtype::float16 && stride == 2) {
        for (; done + kLanes <= count; done += kLanes) store_unaligned(to + done, widen_float16(from + 2 * done));
    }
#endif
    for (; done < count; ++done) to[done] = widen(from + done * stride, dtype);
}

}  // namespace

void pack_rows(const void* const* rows, int count, int slots, Dtype dtype, int64_t width, int64_t stride_width,
               float* out) {
    const int64_t stride = stride_width * element_size(dtype);
    const bool ready = dtype == Dtype::float32 && stride_width == 1;
    float buffer[kChunk];
    for (int r = 0; r < count; ++r) {
        const char* row = static_cast<const char*>(rows[r]);
        for (int64_t c = 0; c < width; c += kChunk) {
            const int64_t chunk = width - c < kChunk ? width - c : kChunk;
            const char* from = row + c * stride;
            if (!ready) {
                widen_chunk(from, stride, chunk, dtype, buffer);
                from = reinterpret_cast<const char*>(buffer);
            }
            float* to = out + c * slots + r;
            for (int64_t i = 0; i < chunk; ++i) to[i * slots] = read<float>(from + 4 * i);
        }
    }
    for (int64_t c = 0; c < width && count < slots; ++c) {
        float* line = out + c * slots;
        for (int r = count; r < slots; ++r) line[r] = line[count - 1];
    }
}

}  // namespace qkv::QKV_ISA
