#pragma once

// The functions behind a KernelTable (see there), declared once per instruction set.

#include "kernel_table.h"

namespace qkv::QKV_ISA {

void pack_rows(const void* const* rows, int count, int slots, Dtype dtype, int64_t width, int64_t stride_width,
               float* out);
void widen_row(const char* from, int64_t stride, int64_t count, Dtype dtype, float* to);
void score_tile(const float* queries, const float* panel, int64_t width, float* scores);
uint32_t update_rows(const float* scores, int64_t first_key, float* best, int64_t* index);
uint32_t sweep_tile(const float* queries, const float* panel, int64_t width, float* scores, int64_t first_key,
                    float* best, int64_t* index);
bool all_finite(const void* data, int64_t count, Dtype dtype);
void score_page(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead, float* widened);
void score_latents(const float* queries, int rows, const char* keys, Dtype storage, int64_t width_slots,
                   const char* scales, float* scores, int64_t stride, int tokens, const NextRead& ahead, float* widened);
void weigh_page(const float* weights, int64_t stride, int rows, const char* values, Dtype storage, int64_t value_slots,
                int64_t row_slots, const char* scales, int tokens, float* sums, const NextRead& ahead, float* widened);
void scale_scores(float* scores, int64_t count, float scale, float softcap);
float largest_score(const float* scores, int64_t count);
float exponentials(float* scores, int64_t count, float scale, float highest);
float sigmoids(float* scores, int64_t count, float offset);
void multiply_rows(float* rows, int64_t count, const float* factors);
void merge_row(float* total, float kept, const float* part, float taken, int64_t count);
void multiply_matrix(const Factor& a, int64_t rows, const float* b, int64_t b_stride, int64_t inner, float* c,
                     int64_t c_stride, int64_t columns, bool onto);
void map_row(const float* from, int64_t count, Map map, float* to);
void form_features(const float* x, int64_t stride, int64_t rows, int64_t count, const float* prefix,
                   const float* weights, float* to, int64_t to_stride);
void add_columns(const float* matrix, int64_t stride, int64_t rows, int64_t count, float* sums);
void add_dots(const float* matrix, int64_t stride, int64_t rows, int64_t count, const float* vector, float* sums);
void scale_row(const float* from, int64_t count, float factor, float* to);
void raise_row(float* row, int64_t count, float offset, int degree);
void normalize_row(const float* x, int64_t count, const float* weight, const float* bias, float eps, bool centred,
                   float* to);
void rotate_pairs(float* vector, int64_t pairs, const float* cosines, const float* sines, bool interleaved);
void activate_row(float* x, const float* factors, int64_t count, Activation activation);
void advance_state(float* state, int64_t stride, const StateToken& token);
void multiply_factors(const float* factors, int64_t rows, float* products, int64_t stride);
void scan_factors(const float* factors, int64_t stride, int64_t rows, int64_t width, float* before, float* after);
void mask_scores(float* scores, int64_t stride, int64_t first, int64_t rows, int strict, const float* weights,
                 const float* row_factors);
void score_channels(const float* left, int64_t left_stride, const float* keys, const float* factors,
                    int64_t factors_stride, int64_t rows, int64_t width, float* scores, int64_t stride);
void multiply_pairs(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t count,
                    float* to, int64_t to_stride);
void correct_rows(const float* values, int64_t values_stride, const float* factors, int64_t rows, int64_t count,
                  float* sums, int64_t stride);
void solve_lower(const float* lower, int64_t lower_stride, int64_t rows, float* u, int64_t stride, int64_t count);
bool find_odd_columns(const float* matrix, int64_t stride, int64_t rows, int64_t count, uint8_t* odd);

}  // namespace qkv::QKV_ISA
