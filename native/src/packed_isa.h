#pragma once

// The functions behind a PackedKernels table (see there), declared once per instruction set.

#include "packed_table.h"

namespace qkv::QKV_ISA {

void round_row(const PackedRows& rows, int64_t row, bool few, int flip);
void packed_few(const PackedPart& part, const PackedRows& rows, float* scratch);
void packed_many(const PackedPart& part, const PackedRows& rows, float* scratch);
void unpack(const PackedMatrix& matrix, int64_t row, float* to, float* scratch);

}  // namespace qkv::QKV_ISA
