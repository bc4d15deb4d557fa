// Products with few rows of x: weights are widened in registers.

#include "packed_formats.h"
#include "packed_isa.h"
#if defined(__AVX512VNNI__)
#include "packed_stream.h"
#endif

namespace qkv::QKV_ISA {

namespace {

// to[r] = the sum of the lanes of sums[r · stride].
QKV_INLINE void sum_group(const float* sums, int64_t stride, int count, float* to) {
#if defined(__AVX512F__)
    if (count == 16) {
        Float eight[8], four[4], two[2];
        QKV_UNROLL
        for (int i = 0; i < 8; ++i) {
            const Float a = load(sums + i * stride), b = load(sums + (i + 8) * stride);
            eight[i] = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        }
        QKV_UNROLL
        for (int i = 0; i < 4; ++i) {
            four[i] = add(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                          _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xdd));
        }
        for (int i = 0; i < 2; ++i) {
            two[i] = add(_mm512_shuffle_ps(four[i], four[i + 2], 0x44), _mm512_shuffle_ps(four[i], four[i + 2], 0xee));
        }
        const Float one = add(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
        const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
        store_unaligned(to, _mm512_permutexvar_ps(order, one));
        return;
    }
#endif
    for (int r = 0; r < count; ++r) to[r] = sum_lanes(load(sums + r * stride));
}

template <int X>
QKV_INLINE void finish_group(const PackedPart& part, const float* sums, int64_t first, int count) {
    for (int x = 0; x < X; ++x) {
        float* y = part.y + x * part.matrix->rows + first;
        sum_group(sums + x * kLanes, X * kLanes, count, y);
        if (part.bias == nullptr) continue;
        for (int i = 0; i < count; ++i) y[i] += part.bias[first + i];
    }
}

#if defined(__AVX512VNNI__)

template <typename B, int X>
void few_quantised(const PackedPart& part, const PackedRows& rows, float* scratch) {
    StreamRows<B> stream = {};
    if (rows.digits != nullptr) stream = prepare_stream<B>(rows, scratch + kGroupRows * X * kLanes);
    for (int64_t first = part.first; first < part.last; first += kGroupRows) {
        const int count = part.last - first < kGroupRows ? static_cast<int>(part.last - first) : kGroupRows;
        const char* at = static_cast<const char*>(part.matrix->data) + first * part.matrix->row_bytes;
        for (int r = 0; r < count; ++r, at += part.matrix->row_bytes) {
            float* sums = scratch + r * X * kLanes;
            rows.digits != nullptr ? stream_row<B, X>(at, rows, stream, sums) : stream_row_float32<B, X>(at, rows, sums);
        }
        finish_group<X>(part, scratch, first, count);
    }
}

#else

struct Group {
    const char* rows;  // of the matrix
    int64_t row_bytes, columns;
    int count;
    float* scale;        // [row][row of x][granules] if x is rounded; else [row][granules]
    float* least;        // [row][blocks]
    int64_t granules, slots, ahead;
    float* sums;  // [row][row of x][lanes]
};

// Rounded x: sums[r][x] += to_float(dot) · scale.
template <typename B, int R, int X>
QKV_INLINE void add_dots_of(const Group& g, int row, const PackedRows& rows) {
    Float sums[R][X];
    const int64_t stride = 32 * rows.slots;
    QKV_UNROLL
    for (int r = 0; r < R; ++r) {
        QKV_UNROLL
        for (int x = 0; x < X; ++x) sums[r][x] = load(g.sums + ((row + r) * X + x) * kLanes);
    }
    const float* scale = g.scale + row * X * g.granules;
    const auto step = [&](auto s, const char* at, int64_t column, int64_t next) QKV_STEP {
        Bytes digits[X], fine[X];
        Whole less[X];
        QKV_UNROLL
        for (int x = 0; x < X; ++x) {
            digits[x] = load_digits(rows.digits + x * stride + column);
            fine[x] = load_digits(rows.fine + x * stride + column);
            if constexpr (B::offset != 0) {
                less[x] = unite_parts(times(B::offset, digits[x]), times(B::offset, fine[x]), kFineBits);
            }
        }
        QKV_UNROLL
        for (int r = 0; r < R; ++r) {
            const Bytes weights = B::template weights<s()>(at + r * g.row_bytes, next);
            __builtin_prefetch(at + s() * (B::bytes / B::steps) + r * g.row_bytes + g.ahead, 0, 2);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                Whole product;
                if constexpr (B::is_signed) {
                    product = unite_parts(dot_signed(weights, digits[x]), dot_signed(weights, fine[x]), kFineBits);
                } else {
                    product = unite_parts(dot(weights, digits[x]), dot(weights, fine[x]), kFineBits);
                    if constexpr (B::offset != 0) product = minus(product, less[x]);
                }
                const float* factors = scale + (r * X + x) * g.granules + column / B::granule;
                sums[r][x] = multiply_add(to_float(product), spread<B::granule>(factors), sums[r][x]);
            }
        }
    };
    for_each_unit<B>(g.rows, g.columns, [&](const char* at, int64_t column, int64_t next, bool) QKV_STEP {
        for_each_step<B::steps>([&](auto s) QKV_STEP { step(s, at, column + s() * kStep, next); });
    });
    QKV_UNROLL
    for (int r = 0; r < R; ++r) {
        QKV_UNROLL
        for (int x = 0; x < X; ++x) store(g.sums + ((row + r) * X + x) * kLanes, sums[r][x]);
    }
}

// x in float32: sums[r][x] += (scale · weight + least) · x.
template <typename B, int R, int X>
QKV_INLINE void add_products_of(const Group& g, int row, const PackedRows& rows) {
    Float sums[R][X];
    QKV_UNROLL
    for (int r = 0; r < R; ++r) {
        QKV_UNROLL
        for (int x = 0; x < X; ++x) sums[r][x] = zero();
    }
    const auto step = [&](auto s, const char* at, int64_t column, int64_t next, bool whole) QKV_STEP {
        Bytes weights[R];
        QKV_UNROLL
        for (int r = 0; r < R; ++r) weights[r] = signed_weights<B, s()>(at + r * g.row_bytes, next);
        for_each_step<kParts>([&](auto p) QKV_STEP {
            const int64_t first = column + p() * kLanes;
            if (p() * kLanes >= 32 && !whole) return;
            QKV_UNROLL
            for (int r = 0; r < R; ++r) {
                const Float weight = scaled_part<B, p()>(weights[r], g.scale + (row + r) * g.granules,
                                                         g.least + (row + r) * g.slots, first);
                QKV_UNROLL
                for (int x = 0; x < X; ++x) {
                    sums[r][x] = multiply_add(weight, load_unaligned(rows.x + x * rows.columns + first), sums[r][x]);
                }
            }
        });
    };
    for_each_unit<B>(g.rows, g.columns, [&](const char* at, int64_t column, int64_t next, bool whole) QKV_STEP {
        for_each_step<B::steps>([&](auto s) QKV_STEP { step(s, at, column + s() * kStep, next, whole); });
    });
    QKV_UNROLL
    for (int r = 0; r < R; ++r) {
        QKV_UNROLL
        for (int x = 0; x < X; ++x) store(g.sums + ((row + r) * X + x) * kLanes, sums[r][x]);
    }
}

// Scales of the group times those of x; the minimums' part of the result is what the sums begin with.
template <typename B, int X>
QKV_INLINE void begin_group(const Group& g, const PackedRows& rows, uint16_t* halves, float* scale) {
    for (int r = 0; r < g.count; ++r) {
        collect_scales<B>(g.rows + r * g.row_bytes, g.columns, halves + 2 * r * g.slots);
    }
    for (int r = 0; r < g.count; ++r) {
        float* own = rows.digits == nullptr ? g.scale + r * g.granules : scale;
        float* least = g.least + (rows.digits == nullptr ? r * g.slots : 0);
        form_scales<B>(g.rows + r * g.row_bytes, g.columns, halves + 2 * r * g.slots, g.slots, own, least);
        if (rows.digits == nullptr) continue;
        for (int x = 0; x < X; ++x) {
            const float* others = B::granule == 16 ? rows.pairs + 2 * x * rows.slots : rows.scales + x * rows.slots;
            float* to = g.scale + (r * X + x) * g.granules;
            for (int64_t i = 0; i < g.granules; i += kLanes) store(to + i, multiply(load(own + i), load(others + i)));
            Float sum = zero();
            if constexpr (B::minimum) {
                const float* sums = rows.sums + x * rows.slots;
                for (int64_t i = 0; i < g.slots; i += kLanes) sum = multiply_add(load(least + i), load(sums + i), sum);
            }
            store(g.sums + (r * X + x) * kLanes, sum);
        }
    }
}

template <typename B, int X>
void few_quantised(const PackedPart& part, const PackedRows& rows, float* scratch) {
    const PackedMatrix& matrix = *part.matrix;
    Group g = {};
    g.row_bytes = matrix.row_bytes;
    g.columns = matrix.columns;
    g.slots = padded_blocks(matrix.columns);
    g.granules = g.slots * (32 / B::granule);
    g.sums = scratch;
    g.ahead = kGroupRows * matrix.row_bytes;
    g.scale = g.sums + kGroupRows * X * kLanes;
    g.least = g.scale + kGroupRows * X * g.granules;
    float* scale = g.least + kGroupRows * g.slots;
    uint16_t* halves = reinterpret_cast<uint16_t*>(scale + g.granules);
    float* const end = reinterpret_cast<float*>(halves + 2 * kGroupRows * g.slots);
    for (float* at = g.scale; at < end; at += kLanes) store(at, zero());  // what follows the last block stays zero
    for (int64_t first = part.first; first < part.last; first += kGroupRows) {
        g.rows = static_cast<const char*>(matrix.data) + first * g.row_bytes;
        g.count = part.last - first < kGroupRows ? static_cast<int>(part.last - first) : kGroupRows;
        begin_group<B, X>(g, rows, halves, scale);
        // Two rows at a time; the last of an odd number is read twice, and what it adds to the next is not used.
        const auto pair = [&](int r) {
            Group taken = g;
            taken.rows += r * g.row_bytes;
            if (r + 1 == g.count) taken.row_bytes = 0;
            return taken;
        };
        int r = 0;
        if (rows.digits != nullptr) {
            for (; r < g.count; r += 2) add_dots_of<B, 2, X>(pair(r), r, rows);
        } else {
            for (; r < g.count; r += 2) add_products_of<B, 2, X>(pair(r), r, rows);
        }
        finish_group<X>(part, g.sums, first, g.count);
    }
}

#endif

// The n-th vector of a step. One shift and one mask widen two vectors of bfloat16, of the even columns and of the odd.
template <Dtype storage, int n>
QKV_INLINE Float plain_part(const char* step) {
    if constexpr (storage == Dtype::bfloat16) {
        Float parts[2];
        widen_bfloat16_pairs(step + n / 2 * kVectorBytes, parts[0], parts[1]);
        return parts[n % 2];
    } else {
        return widen_vector<storage>(step + n * kLanes * element_size(storage));
    }
}

// Weights that are numbers. Four sums for each row of x, so that additions do not wait for each other.
template <Dtype storage, int X>
void few_plain(const PackedPart& part, const PackedRows& rows, [[maybe_unused]] float* scratch) {
    const PackedMatrix& matrix = *part.matrix;
    constexpr int64_t size = element_size(storage), step = 4 * kLanes;
    const float* x_rows = rows.x;
    if constexpr (storage == Dtype::bfloat16) {
        x_rows = scratch;
        for (int64_t x = 0; x < X; ++x) {
            const float* from = rows.x + x * rows.columns;
            float* to = scratch + x * rows.columns;
            for (int64_t c = 0; c < rows.columns / step * step; c += 2 * kLanes) {
                for (int i = 0; i < kLanes; ++i) to[c + i] = from[c + 2 * i];
                for (int i = 0; i < kLanes; ++i) to[c + kLanes + i] = from[c + 2 * i + 1];
            }
        }
    }
    for (int64_t row = part.first; row < part.last; ++row) {
        const char* at = static_cast<const char*>(matrix.data) + row * matrix.row_bytes;
        Float sums[4][X];
        QKV_UNROLL
        for (int n = 0; n < 4; ++n) {
            QKV_UNROLL
            for (int x = 0; x < X; ++x) sums[n][x] = zero();
        }
        int64_t c = 0;
        for (; c + step <= matrix.columns; c += step) {
            for (int64_t line = 0; line < step * size; line += 64) __builtin_prefetch(at + c * size + line + kAhead);
            for_each_step<4>([&](auto n) QKV_STEP {
                const Float weight = plain_part<storage, n()>(at + c * size);
                QKV_UNROLL
                for (int x = 0; x < X; ++x) {
                    const Float other = load_unaligned(x_rows + x * rows.columns + c + n() * kLanes);
                    sums[n()][x] = multiply_add(weight, other, sums[n()][x]);
                }
            });
        }
        const float bias = part.bias == nullptr ? 0.0f : part.bias[row];
        for (int x = 0; x < X; ++x) {
            float rest = 0.0f;
            for (int64_t i = c; i < matrix.columns; ++i) {
                rest += widen(at + i * size, storage) * rows.x[x * rows.columns + i];
            }
            const Float sum = add(add(sums[0][x], sums[1][x]), add(sums[2][x], sums[3][x]));
            part.y[x * matrix.rows + row] = sum_lanes(sum) + rest + bias;
        }
    }
}

template <int X>
QKV_INLINE void few_of(const PackedPart& part, const PackedRows& rows, float* scratch) {
    switch (part.matrix->format) {
        case WeightFormat::f32: return few_plain<Dtype::float32, X>(part, rows, scratch);
        case WeightFormat::bf16: return few_plain<Dtype::bfloat16, X>(part, rows, scratch);
        case WeightFormat::f16: return few_plain<Dtype::float16, X>(part, rows, scratch);
        default:
            return with_blocks(part.matrix->format, [&](auto blocks) {
                few_quantised<decltype(blocks), X>(part, rows, scratch);
            });
    }
}

}  // namespace

void packed_few(const PackedPart& part, const PackedRows& rows, float* scratch) {
    switch (rows.count) {
        case 1: return few_of<1>(part, rows, scratch);
        case 2: return few_of<2>(part, rows, scratch);
        default: return few_of<3>(part, rows, scratch);
    }
}

}  // namespace qkv::QKV_ISA
