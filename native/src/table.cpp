#include "isa_kernels.h"
#include "vector.h"

#define QKV_STRING(x) QKV_STRING_OF(x)
#define QKV_STRING_OF(x) #x

namespace qkv::QKV_ISA {

static_assert(kTileRows <= kMaxTileRows && kTileKeys <= kMaxTileKeys);

const KernelTable& table() {
    static constexpr KernelTable kernels = {
        QKV_STRING(QKV_ISA), kLanes,        kTileRows,     kTileKeys,   pack_rows,   widen_row,
        score_tile,          update_rows,   sweep_tile,    all_finite,  score_page,  score_latents, weigh_page,
        scale_scores,        largest_score, exponentials,  sigmoids,    multiply_rows, merge_row, multiply_matrix,
        map_row,             form_features, add_columns,   add_dots,    scale_row,   raise_row,
        normalize_row,       rotate_pairs,  activate_row,  advance_state, multiply_factors, scan_factors,
        mask_scores,         score_channels, multiply_pairs, correct_rows, solve_lower, find_odd_columns,
    };
    return kernels;
}

}  // namespace qkv::QKV_ISA
