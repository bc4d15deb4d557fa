// Scores of a tile of queries against a panel of keys, and the best key of each row so far.

#include "isa_kernels.h"
#include "vector.h"

namespace qkv::QKV_ISA {

namespace {

struct Tile {
    Float sum[kTileRows][kTileVectors];
};

// Every pair is summed by this loop, wherever it is in the tile: equal keys get equal bits, so ties are exact.
QKV_INLINE void multiply(Tile& tile, const float* queries, const float* panel, int64_t width) {
    QKV_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) tile.sum[r][v] = zero();
    }
    for (int64_t c = 0; c < width; ++c) {
        Float keys[kTileVectors];
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) keys[v] = load(panel + v * kLanes);
        QKV_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
            const Float query = broadcast(queries + r);
            QKV_UNROLL
            for (int v = 0; v < kTileVectors; ++v) tile.sum[r][v] = multiply_add(query, keys[v], tile.sum[r][v]);
        }
        queries += kTileRows;
        panel += kTileKeys;
    }
}

QKV_INLINE void store_tile(const Tile& tile, float* scores) {
    QKV_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) store(scores + r * kTileKeys + v * kLanes, tile.sum[r][v]);
    }
}

// False if a score is greater than the best of its row, or NaN.
QKV_INLINE bool nothing_beats(const Tile& tile, const float* best) {
    Mask within[kMaskChains];
    QKV_UNROLL
    for (int i = 0; i < kMaskChains; ++i) within[i] = every_lane();
    QKV_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
        const Float bound = broadcast(best + r);
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) {
            Mask& chain = within[(r * kTileVectors + v) % kMaskChains];
            chain = and_less_equal(chain, tile.sum[r][v], bound);
        }
    }
    QKV_UNROLL
    for (int i = 1; i < kMaskChains; ++i) within[0] = both(within[0], within[i]);
    return all(within[0]);
}

}  // namespace

void score_tile(const float* queries, const float* panel, int64_t width, float* scores) {
    Tile tile;
    multiply(tile, queries, panel, width);
    store_tile(tile, scores);
}

// The slow path stays out of line, so that it takes no registers from the loop above.
__attribute__((noinline)) uint32_t update_rows(const float* scores, int64_t first_key, float* best, int64_t* index) {
    uint32_t nan_rows = 0;
    for (int r = 0; r < kTileRows; ++r) {
        const float* row = scores + r * kTileKeys;
        Float score[kTileVectors];
        Mask within = every_lane();
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) {
            score[v] = load(row + v * kLanes);
            within = and_less_equal(within, score[v], broadcast(best + r));
        }
        if (all(within)) continue;

        uint32_t nans = 0;
        Float largest = score[0];
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) {
            nans |= nan_bits(score[v]);
            largest = max(largest, score[v]);
        }
        if (nans != 0) {
            nan_rows |= uint32_t{1} << r;
            continue;
        }
        const float record = max_lane(largest);
        uint64_t where = 0;
        QKV_UNROLL
        for (int v = 0; v < kTileVectors; ++v) {
            where |= uint64_t{equal_bits(score[v], broadcast(&record))} << (v * kLanes);
        }
        best[r] = record;
        index[r] = first_key + __builtin_ctzll(where);
    }
    return nan_rows;
}

uint32_t sweep_tile(const float* queries, const float* panel, int64_t width, float* scores, int64_t first_key,
                    float* best, int64_t* index) {
    Tile tile;
    multiply(tile, queries, panel, width);
    if (__builtin_expect(nothing_beats(tile, best), 1)) return 0;
    store_tile(tile, scores);
    return update_rows(scores, first_key, best, index);
}

}  // namespace qkv::QKV_ISA
