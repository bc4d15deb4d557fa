// Products of small matrices and features of vectors; rows of matrices are aligned and padded with zeros.

#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

#if defined(__AVX512F__) || (defined(__aarch64__) && !defined(__AVX2__))
constexpr int kBlockVectors = 4;  // 32 registers: 24 sums
#else
constexpr int kBlockVectors = 2;  // 16 registers: 12 sums
#endif

// c[r][v] (+)= Σ_t a[r][t] · b[t][v], over t in ascending order for every element.
template <int rows, int vectors>
QKV_INLINE void block(const Factor& a, const float* b, int64_t b_stride, int64_t inner, float* c, int64_t c_stride,
                      bool onto) {
    Float sums[rows][vectors];
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) sums[r][v] = onto ? load(c + r * c_stride + v * kLanes) : zero();
    }
    const float* from = a.at;
    for (int64_t t = 0; t < inner; ++t, from += a.inner_stride, b += b_stride) {
        Float line[vectors];
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) line[v] = load_unaligned(b + v * kLanes);
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Float factor = broadcast(from + r * a.row_stride);
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(factor, line[v], sums[r][v]);
        }
    }
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
    }
}

template <int vectors>
void rows_of(const Factor& a, int rows, const float* b, int64_t b_stride, int64_t inner, float* c, int64_t c_stride,
             bool onto) {
    switch (rows) {
        case 1: return block<1, vectors>(a, b, b_stride, inner, c, c_stride, onto);
        case 2: return block<2, vectors>(a, b, b_stride, inner, c, c_stride, onto);
        case 3: return block<3, vectors>(a, b, b_stride, inner, c, c_stride, onto);
        case 4: return block<4, vectors>(a, b, b_stride, inner, c, c_stride, onto);
        case 5: return block<5, vectors>(a, b, b_stride, inner, c, c_stride, onto);
        default: return block<6, vectors>(a, b, b_stride, inner, c, c_stride, onto);
    }
}

}  // namespace

void multiply_matrix(const Factor& a, int64_t rows, const float* b, int64_t b_stride, int64_t inner, float* c,
                     int64_t c_stride, int64_t columns, bool onto) {
    const int64_t vectors = columns / kLanes, passes = (vectors + kBlockVectors - 1) / kBlockVectors;
    int64_t first_vector = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
        // Split evenly: 5 vectors are 3 and 2.
        const int64_t count = (vectors - first_vector + passes - pass - 1) / (passes - pass);
        const float* panel = b + first_vector * kLanes;
        for (int64_t r = 0; r < rows; r += kMaxBlockRows) {
            const int together = rows - r < kMaxBlockRows ? static_cast<int>(rows - r) : kMaxBlockRows;
            const Factor part = {a.at + r * a.row_stride, a.row_stride, a.inner_stride};
            float* to = c + r * c_stride + first_vector * kLanes;
            switch (count) {
                case 1: rows_of<1>(part, together, panel, b_stride, inner, to, c_stride, onto); break;
                case 2: rows_of<2>(part, together, panel, b_stride, inner, to, c_stride, onto); break;
#if defined(__AVX512F__) || (defined(__aarch64__) && !defined(__AVX2__))
                case 3: rows_of<3>(part, together, panel, b_stride, inner, to, c_stride, onto); break;
                case 4: rows_of<4>(part, together, panel, b_stride, inner, to, c_stride, onto); break;
#endif
            }
        }
        first_vector += count;
    }
}

void map_row(const float* from, int64_t count, Map map, float* to) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const Float x = load_unaligned(from + i);
        Float y = x;
        // Each of these propagates a NaN.
        if (map == Map::elu1) y = where_less(zero(), x, add(x, constant(1.0f)), exponential(x));
        if (map == Map::relu) y = where_less(x, zero(), zero(), x);
        if (map == Map::squared) y = multiply(x, x);
        store(to + i, y);
    }
}

void form_features(const float* x, int64_t stride, int64_t rows, int64_t count, const float* prefix,
                   const float* weights, float* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const Float factor = broadcast(prefix + r);
        for (int64_t i = 0; i < count; i += kLanes) {
            Float y = multiply(factor, load_unaligned(x + r * stride + i));
            if (weights != nullptr) y = multiply(y, load_unaligned(weights + i));
            store(to + r * to_stride + i, y);
        }
    }
}

void add_columns(const float* matrix, int64_t stride, int64_t rows, int64_t count, float* sums) {
    for (int64_t i = 0; i < count; i += kLanes) {
        Float sum = zero();
        for (int64_t r = 0; r < rows; ++r) sum = add(sum, load(matrix + r * stride + i));
        // The last vector would write beyond the block.
        float lane[kLanes];
        store_unaligned(lane, sum);
        for (int n = 0; n < kLanes && i + n < count; ++n) sums[i + n] += lane[n];
    }
}

void add_dots(const float* matrix, int64_t stride, int64_t rows, int64_t count, const float* vector, float* sums) {
    for (int64_t r = 0; r < rows; ++r) {
        Float one = zero(), other = zero();
        int64_t i = 0;
        for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
            one = multiply_add(load(matrix + r * stride + i), load_unaligned(vector + i), one);
            other = multiply_add(load(matrix + r * stride + i + kLanes), load_unaligned(vector + i + kLanes), other);
        }
        if (i + kLanes <= count) {
            one = multiply_add(load(matrix + r * stride + i), load_unaligned(vector + i), one);
            i += kLanes;
        }
        float rest = 0.0f;
        for (; i < count; ++i) rest += matrix[r * stride + i] * vector[i];
        sums[r] += sum_lanes(add(one, other)) + rest;
    }
}

void scale_row(const float* from, int64_t count, float factor, float* to) {
    const Float times = constant(factor);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store_unaligned(to + i, multiply(load(from + i), times));
    for (; i < count; ++i) to[i] = from[i] * factor;
}

void raise_row(float* row, int64_t count, float offset, int degree) {
    const Float shift = constant(offset);
    for (int64_t i = 0; i < count; i += kLanes) {
        const Float x = add(load(row + i), shift);
        Float y = x;
        for (int n = 1; n < degree; ++n) y = multiply(y, x);
        store(row + i, y);
    }
}

}  // namespace qkv::QKV_ISA
