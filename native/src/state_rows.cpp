// The parts of attention with a state that decays and is corrected (state.h): one token, and what chunks of tokens need
// in addition to products of matrices.

#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

static_assert(kGroupTokens % kLanes == 0);

#if defined(__AVX512F__)
constexpr int kStateVectors = 8;
#else
constexpr int kStateVectors = 4;
#endif
constexpr int64_t kAheadFloats = 64 * 65;
constexpr float kLeastNormal = 0x1p-126f;

QKV_INLINE Float without_subnormals(Float x) { return where_less(x, constant(kLeastNormal), zero(), x); }

// 1 in lane `lane`, 0 in all others.
QKV_INLINE Float unit(int lane) {
    static constexpr float kLine[2 * kGroupTokens] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return load_unaligned(kLine + kGroupTokens - 1 - lane);
}

// `vectors` vectors of columns; the last has `rest` lanes if that is not 0.
template <int vectors, bool some>
QKV_INLINE Float column(const float* from, int v, int64_t rest) {
    if (some && v == vectors - 1) return load_some(from + v * kLanes, rest);
    return load_unaligned(from + v * kLanes);
}

template <int vectors, bool some>
QKV_INLINE void put_column(float* to, Float x, int v, int64_t rest) {
    if (some && v == vectors - 1) return store_some(to + v * kLanes, x, rest);
    store_unaligned(to + v * kLanes, x);
}

template <int vectors, bool some>
QKV_INLINE void advance_columns(float* state, int64_t stride, const StateToken& token, int64_t first, int64_t rest) {
    Float u[vectors], sums[vectors];
    QKV_UNROLL
    for (int v = 0; v < vectors; ++v) {
        u[v] = column<vectors, some>(token.value + first, v, rest);
        sums[v] = zero();
    }
    state += first;
    if (token.delta) {
        for (int64_t c = 0; c < token.width; ++c) {
            const Float factor = broadcast(token.factors + c), key = broadcast(token.key + c);
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) {
                const Float decayed = multiply(column<vectors, some>(state + c * stride, v, rest), factor);
                sums[v] = multiply_add(key, decayed, sums[v]);
            }
        }
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) {
            u[v] = multiply(constant(token.beta), subtract(u[v], sums[v]));
            sums[v] = zero();
        }
    }
    // The first pass waits for memory, the second does not: it fetches the state of the next head, if that follows and
    // both fit into the first cache.
    const bool ahead = token.delta && token.width * stride <= kAheadFloats;
    for (int64_t c = 0; c < token.width; ++c) {
        const Float factor = broadcast(token.factors + c), key = broadcast(token.key + c);
        const Float query = broadcast(token.queries + c);
        float* row = state + c * stride;
        QKV_UNROLL
        for (int v = 0; v < vectors * kVectorBytes && ahead; v += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(row + token.width * stride) + v, 1, 2);
        }
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) {
            const Float decayed = multiply(column<vectors, some>(row, v, rest), factor);
            const Float x = multiply_add(key, u[v], decayed);
            put_column<vectors, some>(row, x, v, rest);
            sums[v] = multiply_add(query, x, sums[v]);
        }
    }
    for (int64_t n = 0; n < token.query_count; ++n) {
        if (n > 0) {
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) sums[v] = zero();
            for (int64_t c = 0; c < token.width; ++c) {
                const Float query = broadcast(token.queries + n * token.queries_stride + c);
                QKV_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    sums[v] = multiply_add(query, column<vectors, some>(state + c * stride, v, rest), sums[v]);
                }
            }
        }
        float* out = token.out + n * token.out_stride + first;
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) put_column<vectors, some>(out, sums[v], v, rest);
    }
}

template <int vectors>
void advance_vectors(float* state, int64_t stride, const StateToken& token, int64_t first, int64_t rest) {
    if (rest == 0) return advance_columns<vectors, false>(state, stride, token, first, rest);
    advance_columns<vectors, true>(state, stride, token, first, rest);
}

}  // namespace

void advance_state(float* state, int64_t stride, const StateToken& token) {
    for (int64_t first = 0; first < token.columns;) {
        const int64_t left = token.columns - first, rest = left % kLanes;
        if (left >= kStateVectors * kLanes) {
            advance_columns<kStateVectors, false>(state, stride, token, first, 0);
            first += kStateVectors * kLanes;
        } else if (left > 4 * kLanes) {
            advance_columns<4, false>(state, stride, token, first, 0);
            first += 4 * kLanes;
        } else {
            switch ((left + kLanes - 1) / kLanes) {
                case 1: advance_vectors<1>(state, stride, token, first, rest); break;
                case 2: advance_vectors<2>(state, stride, token, first, rest); break;
                case 3: advance_vectors<3>(state, stride, token, first, rest); break;
                default: advance_vectors<4>(state, stride, token, first, rest); break;
            }
            return;
        }
    }
}

void multiply_factors(const float* factors, int64_t rows, float* products, int64_t stride) {
    for (int64_t first = 0; first < rows; first += kLanes) {
        for (int64_t i = 0; i < first; ++i) store(products + i * stride + first, zero());
        Float line = zero();
        for (int64_t i = first; i < rows; ++i) {
            const Float other = i - first < kLanes ? unit(static_cast<int>(i - first)) : zero();
            line = multiply_add(without_subnormals(line), broadcast(factors + i), other);
            store(products + i * stride + first, line);
        }
    }
}

void scan_factors(const float* factors, int64_t stride, int64_t rows, int64_t width, float* before, float* after) {
    for (int64_t c = 0; c < width; c += kLanes) {
        Float product = constant(1.0f);
        for (int64_t i = 0; i < rows; ++i) {
            product = without_subnormals(multiply(product, load(factors + i * stride + c)));
            store(before + i * stride + c, product);
        }
        product = constant(1.0f);
        for (int64_t i = rows; i-- > 0;) {
            store(after + i * stride + c, product);
            product = without_subnormals(multiply(product, load(factors + i * stride + c)));
        }
    }
}

void mask_scores(float* scores, int64_t stride, int64_t first, int64_t rows, int strict, const float* weights,
                 const float* row_factors) {
    static constexpr float kPlaces[kGroupTokens] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t r = 0; r < rows; ++r, scores += stride) {
        const int64_t own = first + r + 1 - strict;
        const Float factor = row_factors == nullptr ? constant(1.0f) : broadcast(row_factors + r);
        for (int64_t j = 0; j < first + rows; j += kLanes) {
            Float x = multiply(load(scores + j), factor);
            if (weights != nullptr) x = multiply(x, load(weights + r * stride + j));
            if (j + kLanes > own) {
                x = where_less(load_unaligned(kPlaces), constant(static_cast<float>(own - j)), x, zero());
            }
            store(scores + j, x);
        }
    }
}

void score_channels(const float* left, int64_t left_stride, const float* keys, const float* factors,
                    int64_t factors_stride, int64_t rows, int64_t width, float* scores, int64_t stride) {
    for (int64_t first = 0; first < kGroupTokens; first += kLanes) {
        Float sums[kGroupTokens];
        QKV_UNROLL
        for (int i = 0; i < kGroupTokens; ++i) sums[i] = zero();
        for (int64_t c = 0; c < width && first < rows; ++c) {
            const Float line = load(keys + c * kGroupTokens + first);
            Float decayed = zero();
            if (rows == kGroupTokens) {
                QKV_UNROLL
                for (int i = 0; i < kGroupTokens; ++i) {
                    decayed = multiply(decayed, broadcast(factors + i * factors_stride + c));
                    if (i >= first && i < first + kLanes) {
                        decayed = multiply_add(line, unit(i - static_cast<int>(first)), decayed);
                    }
                    sums[i] = multiply_add(broadcast(left + i * left_stride + c), decayed, sums[i]);
                }
            } else {
                for (int i = static_cast<int>(first); i < rows; ++i) {
                    decayed = multiply(decayed, broadcast(factors + i * factors_stride + c));
                    if (i < first + kLanes) decayed = multiply_add(line, unit(i - static_cast<int>(first)), decayed);
                    sums[i] = multiply_add(broadcast(left + i * left_stride + c), decayed, sums[i]);
                }
            }
        }
        for (int64_t i = 0; i < rows; ++i) store(scores + i * stride + first, sums[i]);
    }
}

void multiply_pairs(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t count,
                    float* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < count; i += kLanes) {
            const Float x = load_unaligned(a + r * a_stride + i), y = load_unaligned(b + r * b_stride + i);
            store(to + r * to_stride + i, multiply(x, y));
        }
    }
}

void correct_rows(const float* values, int64_t values_stride, const float* factors, int64_t rows, int64_t count,
                  float* sums, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r) {
        const Float factor = broadcast(factors + r);
        for (int64_t i = 0; i < count; i += kLanes) {
            const Float rest = subtract(load_unaligned(values + r * values_stride + i), load(sums + r * stride + i));
            store(sums + r * stride + i, multiply(factor, rest));
        }
    }
}

void solve_lower(const float* lower, int64_t lower_stride, int64_t rows, float* u, int64_t stride, int64_t count) {
    for (int64_t c = 0; c < count; c += kLanes) {
        if (rows == kGroupTokens) {
            Float x[kGroupTokens];
            QKV_UNROLL
            for (int i = 0; i < kGroupTokens; ++i) x[i] = load(u + i * stride + c);
            QKV_UNROLL
            for (int j = 0; j < kGroupTokens; ++j) {
                QKV_UNROLL
                for (int i = j + 1; i < kGroupTokens; ++i) {
                    x[i] = multiply_add(broadcast(lower + i * lower_stride + j), x[j], x[i]);
                }
            }
            QKV_UNROLL
            for (int i = 1; i < kGroupTokens; ++i) store(u + i * stride + c, x[i]);
            continue;
        }
        for (int64_t i = 1; i < rows; ++i) {
            Float x = load(u + i * stride + c);
            for (int64_t j = 0; j < i; ++j) {
                x = multiply_add(broadcast(lower + i * lower_stride + j), load(u + j * stride + c), x);
            }
            store(u + i * stride + c, x);
        }
    }
}

bool find_odd_columns(const float* matrix, int64_t stride, int64_t rows, int64_t count, uint8_t* odd) {
    constexpr int kVectors = kGroupTokens / kLanes, kGroups = 4;
    bool any = false;
    for (int64_t c = 0; c < count; c += kGroups * kGroupTokens) {
        const int64_t groups = count - c < kGroups * kGroupTokens ? (count - c) / kGroupTokens : kGroups;
        Float sums[kGroups * kVectors];
        QKV_UNROLL
        for (int v = 0; v < kGroups * kVectors; ++v) sums[v] = zero();
        for (int64_t r = 0; r < rows; ++r) {
            const float* row = matrix + r * stride + c;
            if (groups == kGroups) {
                QKV_UNROLL
                for (int v = 0; v < kGroups * kVectors; ++v) sums[v] = add(sums[v], load_unaligned(row + v * kLanes));
            } else {
                for (int64_t v = 0; v < groups * kVectors; ++v) sums[v] = add(sums[v], load_unaligned(row + v * kLanes));
            }
        }
        for (int64_t g = 0; g < groups; ++g) {
            uint32_t bits = 0;
            for (int v = 0; v < kVectors; ++v) bits |= nan_bits(multiply(sums[g * kVectors + v], zero()));
            odd[c / kGroupTokens + g] = bits != 0;
            any = any || bits != 0;
        }
    }
    return any;
}

}  // namespace qkv::QKV_ISA
