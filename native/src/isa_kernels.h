#pragma once

// The functions behind a KernelTable (see there), declared once per instruction set.

#include "kernel_table.h"

namespace qkv::QKV_ISA {

void pack_rows(const void* const* rows, int count, int slots, Dtype dtype, int64_t width, int64_t stride_width,
               float* out);
void score_tile(const float* queries, const float* panel, int64_t width, float* scores);
uint32_t update_rows(const float* scores, int64_t first_key, float* best, int64_t* index);
uint32_t sweep_tile(const float* queries, const float* panel, int64_t width, float* scores, int64_t first_key,
                    float* best, int64_t* index);
bool all_finite(const void* data, int64_t count, Dtype dtype);

}  // namespace qkv::QKV_ISA
