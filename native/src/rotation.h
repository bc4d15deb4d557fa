#pragma once

// The rotation of a row before it is rounded, for formats that ask for it. A width n·m, with n the largest power of two
// that divides it, is m blocks: in each, channel c is multiplied by a sign s(c), then the block by a Hadamard matrix H. The
// signs are those of Rudin and Shapiro, the parity of the number of adjacent ones in c: rows of equal numbers, and all
// rows of H, become rows of equal magnitudes.
//
// H·H = n, and every number of H·s·x / n is a mean of ±x: what is stored is at most the largest magnitude. With
// k' = H·s·k / n and q' = H·s·q / n, q·k = n·q'·k'; and x = s·H·x'.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace qkv {

inline int64_t rotated_block(int64_t width) { return width & -width; }

// The rows x[channel][row] of a block become H·x, in steps that add and subtract channels 1, 2, 4, … apart.
inline void multiply_hadamard(float* x, int64_t block, int64_t rows) {
    for (int64_t apart = rows; apart < block * rows; apart *= 2) {
        for (int64_t first = 0; first < block * rows; first += 2 * apart) {
            float* const one = x + first;
            float* const other = one + apart;
            for (int64_t i = 0; i < apart; ++i) {
                const float sum = one[i] + other[i], difference = one[i] - other[i];
                one[i] = sum;
                other[i] = difference;
            }
        }
    }
}

// Multiplies channel c of each block by s(c) · factor.
inline void multiply_signs(float* x, int64_t width, int64_t rows, float factor) {
    const int64_t block = rotated_block(width);
    for (int64_t c = 0; c < width; ++c) {
        const int64_t within = c & (block - 1);
        const bool negative = __builtin_popcountll(within & within >> 1) & 1;
        for (int64_t r = 0; r < rows; ++r) x[c * rows + r] *= negative ? -factor : factor;
    }
}

// Rows x[channel][row] with a number that is not finite become NaN as a whole: products with it would depend on signs.
inline void lose_odd_rows(float* x, int64_t width, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
        float odd = 0.0f;  // NaN after the first infinity or NaN
        for (int64_t c = 0; c < width; ++c) odd += x[c * rows + r] * 0.0f;
        for (int64_t c = 0; c < width && odd != 0.0f; ++c) x[c * rows + r] = odd;
    }
}

// x[channel][row] becomes H·s·x / n.
inline void rotate(float* x, int64_t width, int64_t rows) {
    const int64_t block = rotated_block(width);
    multiply_signs(x, width, rows, 1.0f / static_cast<float>(block));
    for (int64_t c = 0; c < width; c += block) multiply_hadamard(x + c * rows, block, rows);
}

// A row x becomes s·H·x. Finite rows stay finite: sums of numbers near the largest one may overflow before they cancel.
inline void rotate_back(float* x, int64_t width) {
    constexpr float large = 0x1p96f, shrink = 0x1p-32f, largest = std::numeric_limits<float>::max();
    const int64_t block = rotated_block(width);
    float most = 0.0f;
    bool finite = true;
    for (int64_t c = 0; c < width; ++c) {
        most = std::max(most, std::fabs(x[c]));
        finite = finite && std::fabs(x[c]) <= largest;
    }
    const bool shrinks = finite && most >= large;
    for (int64_t c = 0; c < width && shrinks; ++c) x[c] *= shrink;
    for (int64_t c = 0; c < width; c += block) multiply_hadamard(x + c, block, 1);
    multiply_signs(x, width, 1, 1.0f);
    for (int64_t c = 0; c < width && shrinks; ++c) x[c] = std::clamp(x[c] / shrink, -largest, largest);
}

}  // namespace qkv
