#pragma once

// The kernels of packed products, one table for each instruction set.

#include <cstdint>

namespace qkv {

// The numbers are part of the bindings.
enum class WeightFormat : int {
    f32 = 0, bf16 = 1, f16 = 2, q8_0 = 3, q4_0 = 4, q4_1 = 5, q5_0 = 6, q5_1 = 7, q4_k = 8, q5_k = 9, q6_k = 10
};

constexpr bool is_quantised(WeightFormat format) { return format >= WeightFormat::q8_0; }

struct PackedMatrix {
    const void* data;
    WeightFormat format;
    int64_t rows, columns, row_bytes;
};

enum class Activations : int { float32 = 0, int8 = 1 };

constexpr int kFewRows = 3;       // of x, for which weights are widened in registers
constexpr int kGroupRows = 16;    // rows of a matrix whose scales are read together
constexpr int kTileWeights = 64;  // rows of a matrix in a job with many rows of x

// Few rows of x are rounded to 15 bits, in two parts: their products cost little while the memory is waited for. Of many
// rows, only blocks whose largest number is an outlier are: its square is more than kSplitAbove times the row's mean square
// (none, where the sum of squares overflows).
constexpr int kFineBits = 7, kFineSteps = 127 << kFineBits;
constexpr float kSplitAbove = 36.0f;

// The rows of x of a product, rounded in blocks of 32 columns: few rows are scale · (digits · 2^kFineBits + fine); many are
// scale · digits, or scale · (digits + fine / 2^kFineBits) in the blocks of `splits`.
// Arrays of blocks are padded with zeros to `slots`, a multiple of 16 and more than the blocks, and digits to 32 · slots.
struct PackedRows {
    const float* x;  // count × columns
    int64_t count, columns, slots;
    int8_t* digits;  // null: x is not rounded
    int8_t* fine;    // from -2^(kFineBits - 1) to 2^(kFineBits - 1)
    float* scales;   // [count][slots]
    float* pairs;    // [count][2 · slots]: the scales by 16 columns
    float* sums;     // [count][slots]: the rounded x, summed
    int32_t* splits;  // [count][slots]: of many rows, the blocks in two parts; then -1
    const uint16_t* halves;  // [count][padded_halves(columns)]: many rows in bfloat16; null: not rounded to it
};

// Rows [first, last) of a matrix, in a product whose result has `columns` columns.
struct PackedPart {
    const PackedMatrix* matrix;
    int64_t first, last;
    const float* bias;  // null: none
    float* y;
};

struct PackedKernels {
    const char* name;
    bool int8_tiles;  // whether `many` takes rounded rows, with 128 added to the digits
    bool bfloat16_tiles;  // whether `many` takes rows in bfloat16
    // Rounds row `row` of x as one of few, or of many; `flip` is applied to the bits of the digits.
    void (*round_row)(const PackedRows& rows, int64_t row, bool few, int flip);
    // Up to kFewRows rows of x; the scratch has few_floats(columns) floats.
    void (*few)(const PackedPart& part, const PackedRows& rows, float* scratch);
    // Any number of rows of x; the scratch has many_floats(columns) floats.
    void (*many)(const PackedPart& part, const PackedRows& rows, float* scratch);
    void (*unpack)(const PackedMatrix& matrix, int64_t row, float* to, float* scratch);
};

constexpr int64_t kTileColumns = 1024;  // columns of a tile of float32

constexpr int64_t padded_halves(int64_t columns) { return (columns + 31) / 32 * 32; }
constexpr int64_t padded_blocks(int64_t columns) { return (columns / 32 + 31) / 16 * 16; }
constexpr int64_t few_floats(int64_t columns) {
    return kGroupRows * (kFewRows * 16 + (2 * kFewRows + 4) * padded_blocks(columns));  // more than kFewRows · columns
}
constexpr int64_t many_floats(int64_t columns) {
    const int64_t floats = kTileWeights * kTileColumns, bytes = (8 + 96 + 8) * padded_blocks(columns) * 4;
    return (floats > bytes ? floats : bytes) + 6 * padded_blocks(columns) + 1024;
}

namespace portable {
const PackedKernels& packed_table();
}
#ifdef QKV_X86
namespace avx2 {
const PackedKernels& packed_table();
}
namespace avx512vnni {
const PackedKernels& packed_table();
}
#endif

}  // namespace qkv
