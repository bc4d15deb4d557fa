#pragma once

// The functions behind a PackedKernels table (see there), declared once per instruction set.

#include "packed_table.h"

namespace qkv::QKV_ISA {

void round_row(const float* x, int64_t columns, int64_t slots, int flip, int8_t* digits, int8_t* fine, float* scales,
               float* pairs, float* sums);
void packed_few(const PackedPart& part, const PackedRows& rows, float* scratch);
void packed_many(const PackedPart& part, const PackedRows& rows, float* scratch);
void unpack(const PackedMatrix& matrix, int64_t row, float* to, float* scratch);

}  // namespace qkv::QKV_ISA
