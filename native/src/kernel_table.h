#pragma once

#include <cstdint>

#include "dtype.h"

namespace qkv {

// No instruction set's tile is larger than this.
constexpr int kMaxTileRows = 16;
constexpr int kMaxTileKeys = 64;

// What each instruction set brings. A tile is `tile_rows` queries against a panel of `tile_keys` keys; both are
// packed with the width outermost: queries[width][tile_rows], panel[width][tile_keys]. `scores` is scratch of
// tile_rows × tile_keys, aligned to 64 bytes like everything packed.
struct KernelTable {
    const char* name;
    int tile_rows;
    int tile_keys;

    // out[c][r] = rows[r][c] as float32 for r < count; the slots behind repeat the last row.
    void (*pack_rows)(const void* const* rows, int count, int slots, Dtype dtype, int64_t width,
                      int64_t stride_width, float* out);

    // scores[r][j] = Σ_c queries[c][r] · panel[c][j], summed over c in ascending order, for every r and j alike.
    void (*score_tile)(const float* queries, const float* panel, int64_t width, float* scores);

    // Where a row of scores holds something larger than best[r]: best[r] becomes the largest, index[r] becomes
    // first_key + its lowest position. Returns the rows that hold a NaN as bits, and leaves those rows alone.
    uint32_t (*update_rows)(const float* scores, int64_t first_key, float* best, int64_t* index);

    // score_tile, then update_rows where it can change anything.
    uint32_t (*sweep_tile)(const float* queries, const float* panel, int64_t width, float* scores,
                           int64_t first_key, float* best, int64_t* index);

    // No NaN and no infinity among `count` elements; needs no alignment.
    bool (*all_finite)(const void* data, int64_t count, Dtype dtype);
};

namespace portable {
const KernelTable& table();
}
#ifdef QKV_X86
namespace avx2 {
const KernelTable& table();
}
namespace avx512 {
const KernelTable& table();
}
#endif

}  // namespace qkv
