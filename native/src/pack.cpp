// Rows of any supported dtype and stride, widened to float32 and transposed so that the width is outermost.

#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

constexpr int64_t kChunk = 256;

}  // namespace

void widen_row(const char* from, int64_t stride, int64_t count, Dtype dtype, float* to) {
    int64_t done = 0;
    if (dtype == Dtype::float32 && stride == 4) {
        for (; done + kLanes <= count; done += kLanes) store_unaligned(to + done, load_unaligned(from + 4 * done));
    }
    if (dtype == Dtype::float16 && stride == 2) {
        for (; done + kLanes <= count; done += kLanes) store_unaligned(to + done, widen_float16(from + 2 * done));
    }
    if (dtype == Dtype::bfloat16 && stride == 2) {
        for (; done + kLanes <= count; done += kLanes) store_unaligned(to + done, widen_bfloat16(from + 2 * done));
    }
    for (; done < count; ++done) to[done] = widen(from + done * stride, dtype);
}

namespace {

typedef float Four __attribute__((vector_size(16)));

// to[i][r] = from[r][i] for four rows; lines of `to` are `slots` apart.
QKV_INLINE void transpose_four(const char* const from[4], int64_t count, int slots, float* to) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const Four a = read<Four>(from[0] + 4 * i), b = read<Four>(from[1] + 4 * i);
        const Four c = read<Four>(from[2] + 4 * i), d = read<Four>(from[3] + 4 * i);
        const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        const Four lines[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                               __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
        for (int64_t l = 0; l < 4; ++l) std::memcpy(to + (i + l) * slots, &lines[l], sizeof lines[l]);
    }
    for (; i < count; ++i) {
        for (int r = 0; r < 4; ++r) to[i * slots + r] = read<float>(from[r] + 4 * i);
    }
}

}  // namespace

void pack_rows(const void* const* rows, int count, int slots, Dtype dtype, int64_t width, int64_t stride_width,
               float* out) {
    const int64_t stride = stride_width * element_size(dtype);
    const bool ready = dtype == Dtype::float32 && stride_width == 1;
    float buffer[4][kChunk];
    const char* from[4];
    for (int r = 0; r < count; r += 4) {
        const int together = count - r < 4 ? count - r : 4;
        for (int64_t c = 0; c < width; c += kChunk) {
            const int64_t chunk = width - c < kChunk ? width - c : kChunk;
            for (int n = 0; n < together; ++n) {
                from[n] = static_cast<const char*>(rows[r + n]) + c * stride;
                if (ready) continue;
                widen_row(from[n], stride, chunk, dtype, buffer[n]);
                from[n] = reinterpret_cast<const char*>(buffer[n]);
            }
            float* to = out + c * slots + r;
            if (together == 4) {
                transpose_four(from, chunk, slots, to);
            } else {
                for (int n = 0; n < together; ++n) {
                    for (int64_t i = 0; i < chunk; ++i) to[i * slots + n] = read<float>(from[n] + 4 * i);
                }
            }
        }
    }
    for (int64_t c = 0; c < width && count < slots; ++c) {
        float* line = out + c * slots;
        for (int r = count; r < slots; ++r) line[r] = line[count - 1];
    }
}

}  // namespace qkv::QKV_ISA
