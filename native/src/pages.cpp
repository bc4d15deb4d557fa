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

// Prefetches the next cache lines while this page is processed, so that memory is read all the time. Requests are
// spread evenly, since a core with too many of them pending stalls.
struct Prefetch {
    const char* at;
    uint32_t lines;  // whole lines in each step
    uint32_t pace;   // the fraction of a line in each step, in units of 2^-32
    uint32_t due = 0;

    QKV_INLINE void step() {
        for (uint32_t l = 0; l < lines; ++l, at += 64) __builtin_prefetch(at, 0, 2);
        due += pace;
        if (due < pace) {
            __builtin_prefetch(at, 0, 2);
            at += 64;
        }
    }
};

// The part of the lines for pass `number` of several, each with the same number of steps.
QKV_INLINE Prefetch share_of(const NextRead& ahead, int64_t steps, int64_t number, int64_t of) {
    const uint64_t lines = ahead.bytes / 64, all = steps * of, whole = lines / all;
    const uint64_t pace = ((lines % all) << 32) / all;
    const uint64_t before = number * steps * whole + (number * steps * pace >> 32);
    return {ahead.at + before * 64, static_cast<uint32_t>(whole), static_cast<uint32_t>(pace)};
}

// An address in the scratch for widened numbers; unused unless they are kept.
template <bool keeps>
QKV_INLINE float* kept_at(float* widened, int64_t place) {
    return keeps ? widened + place : nullptr;
}

// Every pair of a query and a token sums the channels in ascending order, wherever it is in the block: equal keys get
// equal bits, and the scores of a query do not depend on other queries.
template <Dtype storage, int rows, int vectors, bool keeps>
QKV_INLINE void score_block(const float* queries, int64_t slots, const char* keys, int64_t width_slots, float* scores,
                            int64_t stride, Prefetch prefetch, float* widened) {
    constexpr int pair = kPair<storage>;
    constexpr int64_t element = element_size(storage);
    Float sums[rows][vectors];
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) sums[r][v] = zero();
    }
    for (int64_t c = 0; c < width_slots; c += pair) {
        prefetch.step();
        Float channel[vectors][pair];
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) {
            widen_keys_vector<storage>(keys + v * kLanes * pair * element, channel[v]);
            if constexpr (keeps) {
                for (int p = 0; p < pair; ++p) store(widened + (c + p) * kPageTokens + v * kLanes, channel[v][p]);
            }
        }
        QKV_UNROLL
        for (int p = 0; p < pair; ++p) {
            QKV_UNROLL
            for (int r = 0; r < rows; ++r) {
                const Float query = broadcast(queries + p * slots + r);
                QKV_UNROLL
                for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(query, channel[v][p], sums[r][v]);
            }
        }
        queries += pair * slots;
        keys += kPageTokens * pair * element;
    }
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) store(scores + r * stride + v * kLanes, sums[r][v]);
    }
}

template <Dtype storage, int rows, bool keeps>
void score_rows(const float* queries, int64_t slots, const char* keys, int64_t width_slots, float* scores,
                int64_t stride, int tokens, const NextRead& ahead, int block, int blocks, float* widened) {
    constexpr int vectors = vectors_per_row(rows) < kPageVectors ? vectors_per_row(rows) : kPageVectors;
    constexpr int passes = kPageVectors / vectors;
    const int wanted = (tokens + kLanes - 1) / kLanes;
    int v = 0;
    for (; v + vectors <= wanted; v += vectors) {
        const int64_t bytes = v * kLanes * kPair<storage> * element_size(storage);
        const Prefetch prefetch =
            share_of(ahead, width_slots / kPair<storage>, block * passes + v / vectors, blocks * passes);
        score_block<storage, rows, vectors, keeps>(queries, slots, keys + bytes, width_slots, scores + v * kLanes,
                                                   stride, prefetch, kept_at<keeps>(widened, v * kLanes));
    }
    // A page that is not full: memory behind its tokens is not read.
    for (; v < wanted; ++v) {
        const int64_t bytes = v * kLanes * kPair<storage> * element_size(storage);
        score_block<storage, rows, 1, keeps>(queries, slots, keys + bytes, width_slots, scores + v * kLanes, stride,
                                             {}, kept_at<keeps>(widened, v * kLanes));
    }
    for (; v < kPageVectors; ++v) {
        for (int r = 0; r < rows; ++r) store(scores + r * stride + v * kLanes, constant(-__builtin_inff()));
    }
}

template <Dtype storage, int rows, int vectors, bool keeps>
QKV_INLINE void weigh_block(const float* weights, int64_t stride, const char* values, int64_t value_slots, int tokens,
                            float* sums_at, Prefetch prefetch, float* widened) {
    constexpr int64_t element = element_size(storage);
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
            value[v] = widen_vector<storage>(values + v * kLanes * element);
            if constexpr (keeps) store(widened + t * value_slots + v * kLanes, value[v]);
        }
        QKV_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Float weight = broadcast(weights + r * stride + t);
            QKV_UNROLL
            for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(weight, value[v], sums[r][v]);
        }
        values += value_slots * element;
    }
    QKV_UNROLL
    for (int r = 0; r < rows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < vectors; ++v) store(sums_at + r * value_slots + v * kLanes, sums[r][v]);
    }
}

template <Dtype storage, int rows, bool keeps>
void weigh_rows(const float* weights, int64_t stride, const char* values, int64_t value_slots, int tokens,
                float* sums, const NextRead& ahead, int block, int blocks, float* widened) {
    constexpr int vectors = vectors_per_row(rows);
    constexpr int64_t element = element_size(storage);
    const int64_t passes = (value_slots + vectors * kLanes - 1) / (vectors * kLanes);
    int64_t c = 0;
    for (int64_t pass = 0; c + vectors * kLanes <= value_slots; c += vectors * kLanes, ++pass) {
        weigh_block<storage, rows, vectors, keeps>(weights, stride, values + c * element, value_slots, tokens, sums + c,
                                            share_of(ahead, tokens, block * passes + pass, blocks * passes),
                                                   kept_at<keeps>(widened, c));
    }
    Prefetch prefetch = share_of(ahead, tokens, block * passes + passes - 1, blocks * passes);
    if constexpr (vectors >= 8) {
        if (c + 4 * kLanes <= value_slots) {
            weigh_block<storage, rows, 4, keeps>(weights, stride, values + c * element, value_slots, tokens, sums + c,
                                          prefetch, kept_at<keeps>(widened, c));
            prefetch = {};
            c += 4 * kLanes;
        }
    }
    if constexpr (vectors >= 4) {
        if (c + 2 * kLanes <= value_slots) {
            weigh_block<storage, rows, 2, keeps>(weights, stride, values + c * element, value_slots, tokens, sums + c,
                                          prefetch, kept_at<keeps>(widened, c));
            prefetch = {};
            c += 2 * kLanes;
        }
    }
    for (; c < value_slots; c += kLanes) {
        weigh_block<storage, rows, 1, keeps>(weights, stride, values + c * element, value_slots, tokens, sums + c, prefetch,
                                             kept_at<keeps>(widened, c));
        prefetch = {};
    }
}

#define QKV_FOR_ROWS(function, keeps, rows, ...)                 \
    switch (rows) {                                              \
        case 1: return function<storage, 1, keeps>(__VA_ARGS__); \
        case 2: return function<storage, 2, keeps>(__VA_ARGS__); \
        case 3: return function<storage, 3, keeps>(__VA_ARGS__); \
        case 4: return function<storage, 4, keeps>(__VA_ARGS__); \
        case 5: return function<storage, 5, keeps>(__VA_ARGS__); \
        default: return function<storage, 6, keeps>(__VA_ARGS__); \
    }

template <Dtype storage>
void score_few(const float* queries, int64_t slots, int rows, const char* keys, int64_t width_slots, float* scores,
               int64_t stride, int tokens, const NextRead& ahead, int block, int blocks, float* widened) {
    if constexpr (storage != Dtype::float32) {
        if (blocks > 1) {
            QKV_FOR_ROWS(score_rows, true, rows, queries, slots, keys, width_slots, scores, stride, tokens, ahead,
                         block, blocks, widened)
        }
    }
    QKV_FOR_ROWS(score_rows, false, rows, queries, slots, keys, width_slots, scores, stride, tokens, ahead, block,
                 blocks, widened)
}

template <Dtype storage>
void weigh_few(const float* weights, int64_t stride, int rows, const char* values, int64_t value_slots, int tokens,
               float* sums, const NextRead& ahead, int block, int blocks, float* widened) {
    if constexpr (storage != Dtype::float32) {
        if (blocks > 1) {
            QKV_FOR_ROWS(weigh_rows, true, rows, weights, stride, values, value_slots, tokens, sums, ahead, block,
                         blocks, widened)
        }
    }
    QKV_FOR_ROWS(weigh_rows, false, rows, weights, stride, values, value_slots, tokens, sums, ahead, block, blocks,
                 widened)
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

// The first of several blocks of rows widens the stored numbers and keeps them for the others.
void score_page(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots, float* scores,
                int64_t stride, int tokens, const NextRead& ahead, float* widened) {
    for_each_block(rows, [&](int first, int count, int block, int blocks) {
        const bool kept = block > 0 && storage != Dtype::float32;
        with_format(kept ? Dtype::float32 : storage, [&](auto format) {
            score_few<format()>(queries + first, rows, count, kept ? reinterpret_cast<const char*>(widened) : keys,
                                width_slots, scores + first * stride, stride, tokens, ahead, block, blocks, widened);
        });
    });
}

void weigh_page(const float* weights, int64_t stride, int rows, const char* values, Dtype storage, int64_t value_slots,
                int tokens, float* sums, const NextRead& ahead, float* widened) {
    for_each_block(rows, [&](int first, int count, int block, int blocks) {
        const bool kept = block > 0 && storage != Dtype::float32;
        with_format(kept ? Dtype::float32 : storage, [&](auto format) {
            weigh_few<format()>(weights + first * stride, stride, count,
                                kept ? reinterpret_cast<const char*>(widened) : values, value_slots, tokens,
                                sums + first * value_slots, ahead, block, blocks, widened);
        });
    });
}

}  // namespace qkv::QKV_ISA
