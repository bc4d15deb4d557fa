// A page of a cache with a few query rows: scores from its keys, weighted sums of its values.

#include "formats.h"
#include "isa_kernels.h"
#include "vector_math.h"

namespace qkv::QKV_ISA {

namespace {

constexpr int kPageVectors = kPageTokens / kLanes;

// How many vectors of sums fit into the registers for each of `rows` rows: enough chains of additions to hide their
// latency, and a whole cache line if that fits.
constexpr int vectors_per_row(int rows) {
#if defined(__AVX512F__)
    return rows <= 2 ? 8 : 4;  // 32 registers
#elif defined(__aarch64__) && !defined(__AVX2__)
    return rows <= 2 ? 8 : 4;
#else
    return rows == 1 ? 8 : rows == 2 ? 4 : 2;  // 16 registers
#endif
}

template <Dtype storage>
constexpr int kPair = Format<storage>::pair;

// Channels that share a scale, for formats with several scales in a row.
template <Dtype storage>
constexpr int kGroup = Format<storage>::group > 0 ? Format<storage>::group : 0;

// Bytes of a vector of numbers, for formats whose numbers are not smaller than a byte.
template <Dtype storage>
constexpr int64_t kBytesOfLanes = kLanes * Format<storage>::bits / 8;

// Prefetches the next cache lines while this page is processed, so that memory is read all the time. Requests are
// spread evenly, since a core with too many of them pending stalls.
struct Prefetch {
    const char* at;
    uint32_t lines;  // whole lines in each step
    uint32_t pace;   // the fraction of a line in each step, in units of 2^-32
    bool near = false;
    uint32_t due = 0;

    QKV_INLINE void fetch_line() {
        if (near) {
            __builtin_prefetch(at, 0, 3);
        } else {
            __builtin_prefetch(at, 0, 2);
        }
        at += 64;
    }

    QKV_INLINE void step() {
        for (uint32_t l = 0; l < lines; ++l) fetch_line();
        due += pace;
        if (due < pace) fetch_line();
    }
};

// The part of the lines for pass `number` of several, each with the same number of steps.
QKV_INLINE Prefetch share_of(const NextRead& ahead, int64_t steps, int64_t number, int64_t of) {
    const uint64_t lines = ahead.bytes / 64, all = steps * of, whole = lines / all;
    const uint64_t pace = ((lines % all) << 32) / all;
    const uint64_t before = number * steps * whole + (number * steps * pace >> 32);
    return {ahead.at + before * 64, static_cast<uint32_t>(whole), static_cast<uint32_t>(pace), ahead.near};
}

// An address in the scratch for widened numbers; unused unless they are kept.
template <bool keeps>
QKV_INLINE float* kept_at(float* widened, int64_t place) {
    return keeps ? widened + place : nullptr;
}

// The n-th number of a group of int4 in the order of its words is that of this channel.
constexpr int channel_of_int4(int n) { return n / 8 * 4 + n % 8 / 2 + n % 2 * 16; }

// Adds the products of the next `pair` channels to the sums of each row and vector.
template <Dtype from, int rows, int vectors, bool keeps>
QKV_INLINE void add_products(Float (&sums)[rows][vectors], const float* queries, int64_t slots, const char* keys,
                             float* widened) {
    const auto add = [&](int n, int channel, const Float (&key)[vectors]) {
        QKV_UNROLL
        for (int v = 0; v < vectors && keeps; ++v) store(widened + n * kPageTokens + v * kLanes, key[v]);
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Float query = broadcast(queries + channel * slots + r);
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(query, key[v], sums[r][v]);
        }
    };
    Float key[vectors];
    if constexpr (from == Dtype::int4) {
        QKV_UNROLL
        for (int p = 0; p < kPair<from>; ++p) {
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) key[v] = widen_int4(load_words(keys + v * kVectorBytes), 4 * p);
            add(p, channel_of_int4(p), key);
        }
    } else if constexpr (from == Dtype::bfloat16) {
        Float odd[vectors];
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) widen_bfloat16_pairs(keys + v * kVectorBytes, key[v], odd[v]);
        add(0, 0, key);
        add(1, 1, odd);
    } else {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) key[v] = widen_vector<from>(keys + v * kBytesOfLanes<from>);
        add(0, 0, key);
    }
}

// Every pair of a query and a token sums the channels in the same order, wherever it is in the block: equal keys get
// equal bits, and the scores of a query do not depend on other queries. `from` is the format that is read: `storage`, or
// float32 for numbers that were widened before.
template <Dtype from, Dtype storage, int rows, int vectors, bool keeps>
QKV_INLINE void score_block(const float* queries, int64_t slots, const char* keys, int64_t width_slots,
                            const char* scales, float* scores, int64_t stride, Prefetch prefetch, float* widened) {
    constexpr int group = kGroup<storage>;
    for (int64_t first = 0; first < width_slots; first += group) {
        Float sums[rows][vectors];
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) sums[r][v] = zero();
        }
        const int64_t end = group > 0 ? group : width_slots;
        for (int64_t c = 0; c < end; c += kPair<from>) {
            prefetch.step();
            const int64_t channel = first + (storage == Dtype::int4 ? channel_of_int4(static_cast<int>(c)) : c);
            add_products<from, rows, vectors, keeps>(sums, queries + channel * slots, slots, keys,
                                                     kept_at<keeps>(widened, (first + c) * kPageTokens));
            keys += kPageTokens * kPair<from> * Format<from>::bits / 8;
        }
        Float scale[vectors];
        if constexpr (kScaled<storage>) {
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) {
                scale[v] = widen_scales<storage>(scales + (first / (group > 0 ? group : 1) * kPageTokens + v * kLanes) *
                                                              scale_size(storage));
            }
        }
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) {
                float* const score = scores + r * stride + v * kLanes;
                if constexpr (!kScaled<storage>) {
                    store(score, sums[r][v]);
                } else if (first == 0) {
                    store(score, multiply(sums[r][v], scale[v]));
                } else {
                    store(score, multiply_add(sums[r][v], scale[v], load(score)));
                }
            }
        }
        if (group == 0) break;
    }
}

template <Dtype from, Dtype storage, int rows, bool keeps>
void score_rows(const float* queries, int64_t slots, const char* keys, int64_t width_slots, const char* scales,
                float* scores, int64_t stride, int tokens, const NextRead& ahead, int block, int blocks,
                float* widened) {
    constexpr int vectors = vectors_per_row(rows) < kPageVectors ? vectors_per_row(rows) : kPageVectors;
    constexpr int passes = kPageVectors / vectors;
    constexpr int64_t vector_bytes = kPair<from> * kLanes * Format<from>::bits / 8;
    const int wanted = (tokens + kLanes - 1) / kLanes;
    const auto scales_at = [&](int v) {
        return kScaled<storage> ? scales + v * kLanes * scale_size(storage) : nullptr;
    };
    int v = 0;
    for (; v + vectors <= wanted; v += vectors) {
        const Prefetch prefetch =
            share_of(ahead, width_slots / kPair<from>, block * passes + v / vectors, blocks * passes);
        score_block<from, storage, rows, vectors, keeps>(queries, slots, keys + v * vector_bytes, width_slots,
                                                         scales_at(v), scores + v * kLanes, stride, prefetch,
                                                         kept_at<keeps>(widened, v * kLanes));
    }
    // A page that is not full: memory behind its tokens is not read.
    for (; v < wanted; ++v) {
        score_block<from, storage, rows, 1, keeps>(queries, slots, keys + v * vector_bytes, width_slots, scales_at(v),
                                                   scores + v * kLanes, stride, {},
                                                   kept_at<keeps>(widened, v * kLanes));
    }
    for (; v < kPageVectors; ++v) {
        for (int r = 0; r < rows; ++r) store(scores + r * stride + v * kLanes, constant(-__builtin_inff()));
    }
}

// A vector of a row of values, `lanes` after the first column of a block that starts in that half of a group.
template <Dtype from, bool whole_groups, int half>
QKV_INLINE Float widen_value(const char* row, int lanes) {
    if constexpr (from == Dtype::int4) {
        if constexpr (!whole_groups) return widen_int4(load_bytes(row + lanes), 4 * half);
        return widen_int4(load_bytes(row + lanes / 32 * 16 + lanes % 16), lanes / 16 % 2 * 4);
    } else {
        return widen_vector<from>(row + lanes * Format<from>::bits / 8);
    }
}

template <Dtype from, Dtype storage, int rows, int vectors, bool keeps, int half>
QKV_INLINE void weigh_block(const float* weights, int64_t stride, int64_t group_stride, const char* values,
                            int64_t value_slots, int64_t row_slots, int tokens, float* sums_at, Prefetch prefetch,
                            float* widened) {
    constexpr bool whole_groups = vectors * kLanes >= kGroup<storage>;
    constexpr int group_vectors = kGroup<storage> > 0 && whole_groups ? kGroup<storage> / kLanes : vectors;
    Float sums[rows][vectors];
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) sums[r][v] = load(sums_at + r * value_slots + v * kLanes);
    }
    for (int t = 0; t < tokens; ++t) {
        prefetch.step();
        Float value[vectors];
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) {
            value[v] = widen_value<from, whole_groups, half>(values, v * kLanes);
            if constexpr (keeps) store(widened + t * value_slots + v * kLanes, value[v]);
        }
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            QKV_UNROLL
            for (int g = 0; g < vectors; g += group_vectors) {
                const Float weight = broadcast(weights + g / group_vectors * group_stride + r * stride + t);
                QKV_UNROLL
                for (int v = g; v < g + group_vectors; ++v) sums[r][v] = multiply_add(weight, value[v], sums[r][v]);
            }
        }
        values += stored_bytes(from, row_slots);
    }
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) store(sums_at + r * value_slots + v * kLanes, sums[r][v]);
    }
}

// to[g][r][t] = the weight of token t times its scale in group g.
template <Dtype storage, int rows>
QKV_INLINE void multiply_scales(const float* weights, int64_t stride, const char* scales, int groups, int tokens,
                                float* to) {
    for (int g = 0; g < groups; ++g, scales += kPageTokens * scale_size(storage)) {
        int t = 0;
        for (; t + kLanes <= tokens; t += kLanes) {
            const Float scale = widen_scales<storage>(scales + t * scale_size(storage));
            QKV_UNROLL
            for (int r = 0; r < rows; ++r) {
                store(to + (g * rows + r) * kPageTokens + t, multiply(load_unaligned(weights + r * stride + t), scale));
            }
        }
        for (; t < tokens; ++t) {
            const char* at = scales + t * scale_size(storage);
            const float scale = scale_size(storage) == 2 ? widen_one_bfloat16(read<uint16_t>(at)) : read<float>(at);
            for (int r = 0; r < rows; ++r) to[(g * rows + r) * kPageTokens + t] = weights[r * stride + t] * scale;
        }
    }
}

template <Dtype from, Dtype storage, int rows, bool keeps>
void weigh_rows(const float* weights, int64_t stride, const char* values, int64_t value_slots, int64_t row_slots,
                const char* scales, int tokens, float* sums, const NextRead& ahead, int block, int blocks,
                float* widened) {
    constexpr int vectors = vectors_per_row(rows), group = kGroup<storage>;
    constexpr int most_groups = group == 0 ? 1 : vectors * kLanes > group ? vectors * kLanes / group : 1;
    alignas(64) float scaled[kScaled<storage> ? most_groups * rows * kPageTokens : 16];
    const int64_t passes = (value_slots + vectors * kLanes - 1) / (vectors * kLanes);
    int64_t c = 0, scaled_from = -1;
    if constexpr (kScaled<storage> && group == 0) multiply_scales<storage, rows>(weights, stride, scales, 1, tokens, scaled);
    // The next columns, as many as there are vectors.
    const auto weigh_columns = [&](auto count, const Prefetch& prefetch) {
        constexpr int columns = count() * kLanes;
        if constexpr (group > 0) {
            if (c / group != scaled_from) {
                const char* first = scales + c / group * kPageTokens * scale_size(storage);
                multiply_scales<storage, rows>(weights, stride, first, columns > group ? columns / group : 1, tokens,
                                               scaled);
            }
            scaled_from = columns > group ? -1 : c / group;
        }
        const float* const factors = kScaled<storage> ? scaled : weights;
        const auto run = [&](auto half) {
            const int64_t bytes = from != Dtype::int4 ? stored_bytes(from, c) : c / 32 * 16 + c % 16;
            weigh_block<from, storage, rows, count(), keeps, half()>(
                factors, kScaled<storage> ? kPageTokens : stride, rows * kPageTokens, values + bytes, value_slots,
                row_slots, tokens, sums + c, prefetch, kept_at<keeps>(widened, c));
        };
        if (from == Dtype::int4 && columns < 32 && c / 16 % 2 == 1) {
            if constexpr (from == Dtype::int4 && columns < 32) run(std::integral_constant<int, 1>{});
        } else {
            run(std::integral_constant<int, 0>{});
        }
        c += columns;
    };
    for (int64_t pass = 0; c + vectors * kLanes <= value_slots; ++pass) {
        weigh_columns(std::integral_constant<int, vectors>{},
                      share_of(ahead, tokens, block * passes + pass, blocks * passes));
    }
    Prefetch prefetch = share_of(ahead, tokens, block * passes + passes - 1, blocks * passes);
    if constexpr (vectors >= 8) {
        if (c + 4 * kLanes <= value_slots) {
            weigh_columns(std::integral_constant<int, 4>{}, prefetch);
            prefetch = {};
        }
    }
    if constexpr (vectors >= 4) {
        if (c + 2 * kLanes <= value_slots) {
            weigh_columns(std::integral_constant<int, 2>{}, prefetch);
            prefetch = {};
        }
    }
    while (c < value_slots) {
        weigh_columns(std::integral_constant<int, 1>{}, prefetch);
        prefetch = {};
    }
}

#define QKV_FOR_ROWS(function, from, storage, keeps, rows, ...)        \
    switch (rows) {                                                    \
        case 1: return function<from, storage, 1, keeps>(__VA_ARGS__); \
        case 2: return function<from, storage, 2, keeps>(__VA_ARGS__); \
        case 3: return function<from, storage, 3, keeps>(__VA_ARGS__); \
        case 4: return function<from, storage, 4, keeps>(__VA_ARGS__); \
        case 5: return function<from, storage, 5, keeps>(__VA_ARGS__); \
        default: return function<from, storage, 6, keeps>(__VA_ARGS__); \
    }

// The first of several blocks of rows widens the stored numbers and keeps them for the others, which apply the scales
// themselves.
template <Dtype storage>
void score_few(const float* queries, int64_t slots, int rows, const char* keys, int64_t width_slots, const char* scales,
               float* scores, int64_t stride, int tokens, const NextRead& ahead, int block, int blocks,
               float* widened) {
    if constexpr (storage != Dtype::float32) {
        if (blocks > 1 && block == 0) {
            QKV_FOR_ROWS(score_rows, storage, storage, true, rows, queries, slots, keys, width_slots, scales, scores,
                         stride, tokens, ahead, block, blocks, widened)
        }
        if (block > 0) {
            constexpr Dtype scaled = kScaled<storage> ? storage : Dtype::float32;
            QKV_FOR_ROWS(score_rows, Dtype::float32, scaled, false, rows, queries, slots,
                         reinterpret_cast<const char*>(widened), width_slots, scales, scores, stride, tokens, ahead,
                         block, blocks, widened)
        }
    }
    QKV_FOR_ROWS(score_rows, storage, storage, false, rows, queries, slots, keys, width_slots, scales, scores, stride,
                 tokens, ahead, block, blocks, widened)
}

template <Dtype storage>
void weigh_few(const float* weights, int64_t stride, int rows, const char* values, int64_t value_slots,
               int64_t row_slots, const char* scales, int tokens, float* sums, const NextRead& ahead, int block,
               int blocks, float* widened) {
    if constexpr (storage != Dtype::float32) {
        if (blocks > 1 && block == 0) {
            QKV_FOR_ROWS(weigh_rows, storage, storage, true, rows, weights, stride, values, value_slots, row_slots,
                         scales, tokens, sums, ahead, block, blocks, widened)
        }
        if (block > 0) {
            constexpr Dtype scaled = kScaled<storage> ? storage : Dtype::float32;
            QKV_FOR_ROWS(weigh_rows, Dtype::float32, scaled, false, rows, weights, stride,
                         reinterpret_cast<const char*>(widened), value_slots, value_slots, scales, tokens, sums, ahead,
                         block, blocks, widened)
        }
    }
    QKV_FOR_ROWS(weigh_rows, storage, storage, false, rows, weights, stride, values, value_slots, row_slots, scales,
                 tokens, sums, ahead, block, blocks, widened)
}

// Rows are split evenly: 8 are 4 and 4, not 6 and 2.
template <typename Body>
QKV_INLINE void for_each_block(int rows, Body body) {
    const int blocks = (rows + kMaxBlockRows - 1) / kMaxBlockRows;
    int first = 0;
    for (int b = 0; b < blocks; ++b) {
        const int count = (rows - first + blocks - b - 1) / (blocks - b);
        body(first, count, b, blocks);
        first += count;
    }
}

}  // namespace

void score_page(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead, float* widened) {
    for_each_block(rows, [&](int first, int count, int block, int blocks) {
        with_format(storage, [&](auto format) {
            score_few<format()>(queries + first, rows, count, keys, width_slots, scales, scores + first * stride,
                                stride, tokens, ahead, block, blocks, widened);
        });
    });
}

void weigh_page(const float* weights, int64_t stride, int rows, const char* values, Dtype storage, int64_t value_slots,
                int64_t row_slots, const char* scales, int tokens, float* sums, const NextRead& ahead, float* widened) {
    for_each_block(rows, [&](int first, int count, int block, int blocks) {
        with_format(storage, [&](auto format) {
            weigh_few<format()>(weights + first * stride, stride, count, values, value_slots, row_slots, scales, tokens,
                                sums + first * value_slots, ahead, block, blocks, widened);
        });
    });
}

namespace {

// Tokens of latents that are scored together.
#if defined(__AVX512F__) || (defined(__aarch64__) && !defined(__AVX2__))
constexpr int kTokensAtOnce = 4;
#else
constexpr int kTokensAtOnce = 2;  // 16 registers
#endif

// to[n] = the sum of the lanes of sums[n], each in the same order.
QKV_INLINE void store_sums(float* to, const Float (&sums)[kTokensAtOnce]) {
#if defined(__AVX512F__)
    const auto halves = [](Float a, Float b) { return add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
    const Float one = halves(sums[0], sums[1]), other = halves(sums[2], sums[3]);
    const Float four = add(_mm512_shuffle_ps(one, other, 0x44), _mm512_shuffle_ps(one, other, 0xee));
    const Float two = add(four, _mm512_shuffle_f32x4(four, four, 0x4e));
    _mm_storeu_ps(to, _mm512_castps512_ps128(add(two, _mm512_shuffle_f32x4(two, two, 0xb1))));
#else
    QKV_UNROLL
    for (int n = 0; n < kTokensAtOnce; ++n) to[n] = sum_lanes(sums[n]);
#endif
}

// The rows of a few tokens.
struct TokenRows {
    const char* at[kTokensAtOnce];
};

template <Dtype from, int rows, bool keeps>
void score_tokens(const float* queries, const TokenRows& tokens, int64_t slots, float* scores, int64_t stride,
                  Prefetch& prefetch, float* widened) {
    Float sums[rows][kTokensAtOnce];
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int t = 0; t < kTokensAtOnce; ++t) sums[r][t] = zero();
    }
    Prefetch own = prefetch;
    for (int64_t c = 0; c < slots; c += kLanes) {
        own.step();
        Float key[kTokensAtOnce];
        QKV_UNROLL
        for (int t = 0; t < kTokensAtOnce; ++t) {
            key[t] = widen_vector<from>(tokens.at[t] + c * Format<from>::bits / 8);
            if constexpr (keeps) store(widened + t * slots + c, key[t]);
        }
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Float query = load(queries + r * slots + c);
            QKV_UNROLL
            for (int t = 0; t < kTokensAtOnce; ++t) sums[r][t] = multiply_add(query, key[t], sums[r][t]);
        }
    }
    prefetch = own;
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) store_sums(scores + r * stride, sums[r]);
}

template <Dtype from, bool keeps>
void score_block(int rows, const float* queries, const TokenRows& tokens, int64_t slots, float* scores, int64_t stride,
                 Prefetch& prefetch, float* widened) {
    switch (rows) {
        case 1: return score_tokens<from, 1, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
        case 2: return score_tokens<from, 2, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
        case 3: return score_tokens<from, 3, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
        case 4: return score_tokens<from, 4, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
        case 5: return score_tokens<from, 5, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
        default: return score_tokens<from, 6, keeps>(queries, tokens, slots, scores, stride, prefetch, widened);
    }
}

// A few tokens at a time, which all rows read from the fastest CPU cache; the first block of rows widens them.
template <Dtype storage>
void score_page_of_latents(const float* queries, int rows, const char* keys, int64_t slots, float* scores,
                           int64_t stride, int tokens, const NextRead& ahead, float* widened) {
    const int64_t groups = (tokens + kTokensAtOnce - 1) / kTokensAtOnce, blocks = (rows + kMaxBlockRows - 1) / kMaxBlockRows;
    Prefetch prefetch = share_of(ahead, groups * blocks * (slots / kLanes), 0, 1);
    TokenRows wide = {};
    for (int t = 0; t < kTokensAtOnce && blocks > 1; ++t) wide.at[t] = reinterpret_cast<const char*>(widened) + t * slots * 4;
    for (int at = 0; at < tokens; at += kTokensAtOnce) {
        TokenRows stored;
        for (int t = 0; t < kTokensAtOnce; ++t) {
            stored.at[t] = keys + stored_bytes(storage, (at + t < tokens ? at + t : tokens - 1) * slots);
        }
        for_each_block(rows, [&](int first, int count, int block, int blocks) {
            const float* own = queries + first * slots;
            float* to = scores + first * stride + at;
            if constexpr (storage != Dtype::float32) {
                if (block > 0) {
                    return score_block<Dtype::float32, false>(count, own, wide, slots, to, stride, prefetch, nullptr);
                }
                if (blocks > 1) return score_block<storage, true>(count, own, stored, slots, to, stride, prefetch, widened);
            }
            score_block<storage, false>(count, own, stored, slots, to, stride, prefetch, nullptr);
        });
    }
}

}  // namespace

void score_latents(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                   const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead,
                   float* widened) {
    with_format(storage, [&](auto format) {
        if constexpr (format() != Dtype::int4) {
            score_page_of_latents<format()>(queries, rows, keys, width_slots, scores, stride, tokens, ahead, widened);
        }
    });
    for (int r = 0; r < rows; ++r, scores += stride) {
        for (int t = 0; t < tokens && scales != nullptr; t += kLanes) {
            store(scores + t, multiply(load(scores + t), load_unaligned(scales + t * 4)));
        }
        for (int t = tokens; t < kPageTokens; ++t) scores[t] = -__builtin_inff();
    }
}

}  // namespace qkv::QKV_ISA
