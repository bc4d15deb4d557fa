// Products with many rows of x: a tile of weights is widened once into cache, then multiplied by all rows. Also what
// rounds a row of x and what widens a row of weights.

#include "packed_formats.h"
#include "packed_isa.h"
#if defined(__AVX512VNNI__)
#include "packed_stream.h"
#endif

#define QKV_STRING(x) QKV_STRING_OF(x)
#define QKV_STRING_OF(x) #x

namespace qkv::QKV_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kTileX = 6, kTileW = 4;  // 32 registers: 24 sums
#elif defined(__AVX2__)
constexpr int kTileX = 4, kTileW = 3;  // 16 registers: 12 sums
#else
constexpr int kTileX = 4, kTileW = 2;
#endif

// Columns [0, columns) of a row that begins with a block, as float32.
template <typename B>
QKV_INLINE void widen_blocks(const char* row, int64_t columns, float* to, float* scratch) {
    const int64_t slots = padded_blocks(columns), granules = slots * (32 / B::granule);
    float *scale = scratch, *least = scratch + granules;
    uint16_t* halves = reinterpret_cast<uint16_t*>(least + slots);
    for (float* at = scale; at < least + 2 * slots; at += kLanes) store(at, zero());
    collect_scales<B>(row, columns, halves);
    form_scales<B>(row, columns, halves, slots, scale, least);
    for_each_unit<B>(row, columns, [&](const char* at, int64_t column, int64_t next, bool whole) QKV_STEP {
        for_each_step<B::steps>([&](auto s) QKV_STEP {
            const Bytes weights = signed_weights<B, s()>(at, next);
            for_each_step<kParts>([&](auto p) QKV_STEP {
                const int64_t first = column + s() * kStep + p() * kLanes;
                if (p() * kLanes >= 32 && !whole) return;
                store_unaligned(to + first, scaled_part<B, p()>(weights, scale, least, first));
            });
        });
    });
}

template <Dtype storage>
QKV_INLINE void widen_plain(const char* row, int64_t columns, float* to) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
        store_unaligned(to + c, widen_vector<storage>(row + c * element_size(storage)));
    }
    for (; c < columns; ++c) to[c] = widen(row + c * element_size(storage), storage);
}

// Columns [first, first + columns) of a row; `first` is where a block begins.
void widen_columns(const PackedMatrix& matrix, int64_t row, int64_t first, int64_t columns, float* to, float* scratch) {
    const char* at = static_cast<const char*>(matrix.data) + row * matrix.row_bytes;
    switch (matrix.format) {
        case WeightFormat::f32: return widen_plain<Dtype::float32>(at + 4 * first, columns, to);
        case WeightFormat::bf16: return widen_plain<Dtype::bfloat16>(at + 2 * first, columns, to);
        case WeightFormat::f16: return widen_plain<Dtype::float16>(at + 2 * first, columns, to);
        default:
            with_blocks(matrix.format, [&](auto blocks) {
                using B = decltype(blocks);
                widen_blocks<B>(at + first / B::columns * B::bytes, columns, to, scratch);
            });
    }
}

struct FloatTile {
    const float* weights;
    int64_t stride, columns;
    const float* x;
    int64_t x_stride;
    float* y;
    int64_t y_stride;
    const float* bias;  // null: add to y
    bool onto;
};

template <int W, int X>
void multiply_tile(const FloatTile& t) {
    Float sums[W][X];
    QKV_UNROLL
    for (int w = 0; w < W; ++w) {
        QKV_UNROLL
        for (int x = 0; x < X; ++x) sums[w][x] = zero();
    }
    int64_t c = 0;
    for (; c + kLanes <= t.columns; c += kLanes) {
        Float weight[W];
        QKV_UNROLL
        for (int w = 0; w < W; ++w) weight[w] = load_unaligned(t.weights + w * t.stride + c);
        QKV_UNROLL
        for (int x = 0; x < X; ++x) {
            const Float other = load_unaligned(t.x + x * t.x_stride + c);
            QKV_UNROLL
            for (int w = 0; w < W; ++w) sums[w][x] = multiply_add(weight[w], other, sums[w][x]);
        }
    }
    for (int w = 0; w < W; ++w) {
        for (int x = 0; x < X; ++x) {
            float rest = 0.0f;
            for (int64_t i = c; i < t.columns; ++i) rest += t.weights[w * t.stride + i] * t.x[x * t.x_stride + i];
            float* y = t.y + x * t.y_stride + w;
            const float before = t.onto ? *y : t.bias == nullptr ? 0.0f : t.bias[w];
            *y = before + (sum_lanes(sums[w][x]) + rest);
        }
    }
}

template <int W>
void multiply_tile_by(int count, const FloatTile& t) {
    switch (count) {
        case 1: return multiply_tile<W, 1>(t);
        case 2: return multiply_tile<W, 2>(t);
        case 3: return multiply_tile<W, 3>(t);
        case 4: return multiply_tile<W, 4>(t);
#if defined(__AVX512F__)
        case 5: return multiply_tile<W, 5>(t);
        default: return multiply_tile<W, 6>(t);
#endif
    }
}

// body(first row of x, number of rows) for rows in even parts of at most kTileX.
template <typename Body>
QKV_INLINE void for_each_part(int64_t count, Body body) {
    const int64_t parts = (count + kTileX - 1) / kTileX;
    for (int64_t part = 0, first = 0; part < parts; ++part) {
        const int64_t take = (count - first + parts - part - 1) / (parts - part);
        body(first, static_cast<int>(take));
        first += take;
    }
}

void many_in_float32(const PackedPart& part, const PackedRows& rows, float* scratch) {
    const PackedMatrix& matrix = *part.matrix;
    const int64_t taken = part.last - part.first;
    float *tile = scratch, *more = scratch + kTileWeights * kTileColumns;
    for (int64_t c = 0; c < matrix.columns; c += kTileColumns) {
        const int64_t columns = matrix.columns - c < kTileColumns ? matrix.columns - c : kTileColumns;
        for (int64_t w = 0; w < taken; ++w) {
            widen_columns(matrix, part.first + w, c, columns, tile + w * kTileColumns, more);
        }
        for_each_part(rows.count, [&](int64_t first, int count) {
            FloatTile t = {nullptr, kTileColumns, columns, rows.x + first * rows.columns + c, rows.columns,
                           nullptr, matrix.rows, nullptr, c > 0};
            const auto at = [&](int64_t w) {
                t.weights = tile + w * kTileColumns;
                t.y = part.y + first * matrix.rows + part.first + w;
                t.bias = part.bias == nullptr ? nullptr : part.bias + part.first + w;
            };
            int64_t w = 0;
            for (; w + kTileW <= taken; w += kTileW) {
                at(w);
                multiply_tile_by<kTileW>(count, t);
            }
            for (; w < taken; ++w) {
                at(w);
                multiply_tile_by<1>(count, t);
            }
        });
    }
}

#if defined(__AVX512VNNI__)

#define QKV_BFLOAT16 __attribute__((target("avx512bf16")))

// W rows of weights times X rows of x in bfloat16, both as they lie in memory.
template <int W, int X>
QKV_BFLOAT16 void multiply_bfloat16(const char* weights, int64_t row_bytes, const uint16_t* x, int64_t x_stride,
                                    int64_t columns, const float* bias, float* y, int64_t y_stride) {
    __m512 sums[X][W];
    QKV_UNROLL
    for (int r = 0; r < X; ++r) {
        QKV_UNROLL
        for (int w = 0; w < W; ++w) sums[r][w] = _mm512_setzero_ps();
    }
    for (int64_t c = 0; c < columns; c += 32) {
        const __mmask32 valid = columns - c >= 32 ? ~__mmask32{0} : (__mmask32{1} << (columns - c)) - 1;
        __m512i own[W];
        QKV_UNROLL
        for (int w = 0; w < W; ++w) own[w] = _mm512_maskz_loadu_epi16(valid, weights + w * row_bytes + 2 * c);
        QKV_UNROLL
        for (int r = 0; r < X; ++r) {
            const __m512i other = _mm512_maskz_loadu_epi16(valid, x + r * x_stride + c);
            QKV_UNROLL
            for (int w = 0; w < W; ++w) {
                sums[r][w] = _mm512_dpbf16_ps(sums[r][w], reinterpret_cast<__m512bh>(own[w]),
                                              reinterpret_cast<__m512bh>(other));
            }
        }
    }
    QKV_UNROLL
    for (int r = 0; r < X; ++r) {
        QKV_UNROLL
        for (int w = 0; w < W; ++w) {
            y[r * y_stride + w] = _mm512_reduce_add_ps(sums[r][w]) + (bias == nullptr ? 0.0f : bias[w]);
        }
    }
}

template <int W>
void multiply_bfloat16_by(int count, const char* weights, int64_t row_bytes, const uint16_t* x, int64_t x_stride,
                          int64_t columns, const float* bias, float* y, int64_t y_stride) {
    switch (count) {
        case 1: return multiply_bfloat16<W, 1>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
        case 2: return multiply_bfloat16<W, 2>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
        case 3: return multiply_bfloat16<W, 3>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
        case 4: return multiply_bfloat16<W, 4>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
        case 5: return multiply_bfloat16<W, 5>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
        default: return multiply_bfloat16<W, 6>(weights, row_bytes, x, x_stride, columns, bias, y, y_stride);
    }
}

void many_in_bfloat16(const PackedPart& part, const PackedRows& rows) {
    const PackedMatrix& matrix = *part.matrix;
    const int64_t stride = padded_halves(rows.columns);
    for_each_part(rows.count, [&](int64_t first, int count) {
        const auto multiply = [&](auto by, int64_t row) {
            by(count, static_cast<const char*>(matrix.data) + row * matrix.row_bytes, matrix.row_bytes,
               rows.halves + first * stride, stride, rows.columns, part.bias == nullptr ? nullptr : part.bias + row,
               part.y + first * matrix.rows + row, matrix.rows);
        };
        int64_t row = part.first;
        for (; row + kTileW <= part.last; row += kTileW) multiply(multiply_bfloat16_by<kTileW>, row);
        for (; row < part.last; ++row) multiply(multiply_bfloat16_by<1>, row);
    });
}

// 32 rows of the matrix with four columns of 16 rows in a vector: digits[quad][panel], and for every granule the scales,
// the minimums and -128 · Σ digits, which takes back what was added to x.
struct Int8Tile {
    int8_t* digits;
    float *scale, *least;
    int32_t* less;
};
constexpr int kPanels = 2, kPanelRows = 16;

// Lane i of to[j] = lane j of from[i], of 16 vectors.
QKV_INLINE void transpose(__m512i (&v)[16]) {
    __m512i t[16];
    QKV_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    QKV_UNROLL
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    QKV_UNROLL
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    }
    QKV_UNROLL
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Vectors of 16 granules of 16 rows, as vectors of the rows for every granule; `taken` of them are stored.
QKV_INLINE void store_granules(__m512i (&v)[16], int64_t first, int64_t taken, int p, float* to) {
    transpose(v);
    for (int64_t i = 0; i < taken; ++i) {
        _mm512_store_si512(to + ((first + i) * kPanels + p) * kPanelRows, v[i]);
    }
}

template <typename B>
QKV_INLINE void fill_scales(const char* const* at, int64_t columns, int p, const Int8Tile& tile) {
    __m512i scale[16], least[16];
    if constexpr (B::columns == 32) {
        for (int64_t b = 0; b < columns / 32; b += 16) {
            const int64_t taken = columns / 32 - b < 16 ? columns / 32 - b : 16;
            const Windows<B> windows(taken);
            for (int r = 0; r < kPanelRows; ++r) {
                Float own, minimum;
                load_scales<B>(at[r] + b * B::bytes, windows, taken, own, minimum);
                scale[r] = _mm512_castps_si512(own);
                least[r] = _mm512_castps_si512(minimum);
            }
            store_granules(scale, b, taken, p, tile.scale);
            if constexpr (B::minimum) store_granules(least, b, taken, p, tile.least);
        }
    } else {
        for (int64_t b = 0; b < columns / 256; ++b) {
            for (int r = 0; r < kPanelRows; ++r) {
                Float own = load_block_scales<B>(at[r] + b * B::bytes);
                if constexpr (B::minimum) own = _mm512_mask_sub_ps(own, 0xff00, zero(), own);
                scale[r] = _mm512_castps_si512(own);
            }
            store_granules(scale, 256 / B::granule * b, 256 / B::granule, p, tile.scale);
            if constexpr (B::minimum) {
                for (int i = 0; i < 8; ++i) {
                    _mm512_store_si512(tile.least + ((8 * b + i) * kPanels + p) * kPanelRows, scale[8 + i]);
                }
            }
        }
    }
}

// Panel p of a tile from 16 rows of the matrix, of which the last is repeated if there are fewer.
template <typename B>
QKV_INLINE void fill_panel(const PackedMatrix& matrix, int64_t first, int64_t last, int p, const Int8Tile& tile) {
    const int64_t columns = matrix.columns;
    const char* at[kPanelRows];
    for (int r = 0; r < kPanelRows; ++r) {
        const int64_t row = first + r < last ? first + r : last - 1;
        at[r] = static_cast<const char*>(matrix.data) + row * matrix.row_bytes;
    }
    fill_scales<B>(at, columns, p, tile);
    for_each_unit<B>(at[0], columns, [&](const char* unit, int64_t column, int64_t next, bool) QKV_STEP {
        for_each_step<B::steps>([&](auto s) QKV_STEP {
            __m512i v[16];
            QKV_UNROLL
            for (int r = 0; r < kPanelRows; ++r) {
                const char* own = at[r] + (unit - at[0]);
                v[r] = signed_weights<B, s()>(own, next);
                // The next panel.
                _mm_prefetch(own + s() * (B::bytes / B::steps) + kPanelRows * matrix.row_bytes, _MM_HINT_T1);
            }
            transpose(v);
            const int64_t quad = (column + s() * kStep) / 4;
            QKV_UNROLL
            for (int q = 0; q < 16; ++q) {
                _mm512_store_si512(tile.digits + ((quad + q) * kPanels + p) * 64, v[q]);
            }
            constexpr int together = B::granule / 4;
            QKV_UNROLL
            for (int q = 0; q < 16; q += together) {
                __m512i sum = _mm512_setzero_si512();
                QKV_UNROLL
                for (int i = 0; i < together; ++i) {
                    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), v[q + i]);
                }
                _mm512_store_si512(tile.less + ((quad + q) / together * kPanels + p) * kPanelRows,
                                   _mm512_sub_epi32(_mm512_setzero_si512(), sum));
            }
        });
    });
}

// What the fine digits of a row of x add to its sums.
template <typename B>
QKV_INLINE void add_fine(const Int8Tile& tile, const PackedRows& rows, int64_t row, Float (&sums)[kPanels]) {
    constexpr int quads = B::granule / 4, granules = 32 / B::granule;
    const int8_t* fine = rows.fine + row * 32 * rows.slots;
    for (const int32_t* split = rows.splits + row * rows.slots; *split >= 0; ++split) {
        const Float scale = constant(rows.scales[row * rows.slots + *split] / (1 << kFineBits));
        for (int64_t g = *split * granules; g < (*split + 1) * granules; ++g) {
            __m512i whole[kPanels];
            QKV_UNROLL
            for (int p = 0; p < kPanels; ++p) whole[p] = _mm512_load_si512(tile.less + (g * kPanels + p) * kPanelRows);
            QKV_UNROLL
            for (int q = 0; q < quads; ++q) {
                const __m512i four = _mm512_set1_epi32(read<int32_t>(reinterpret_cast<const char*>(fine + g * B::granule + 4 * q)));
                QKV_UNROLL
                for (int p = 0; p < kPanels; ++p) {
                    const int8_t* weights = tile.digits + ((g * quads + q) * kPanels + p) * 64;
                    whole[p] = _mm512_dpbusd_epi32(whole[p], four, _mm512_load_si512(weights));
                }
            }
            QKV_UNROLL
            for (int p = 0; p < kPanels; ++p) {
                const Float own = load(tile.scale + (g * kPanels + p) * kPanelRows);
                sums[p] = multiply_add(to_float(whole[p]), multiply(own, scale), sums[p]);
            }
        }
    }
}

// Up to X rows of x from `first` on, times the tile.
template <typename B, int X>
void multiply_int8(const Int8Tile& tile, const PackedPart& part, const PackedRows& rows, int64_t first, int64_t from) {
    constexpr int quads = B::granule / 4;
    const int64_t stride = 32 * rows.slots, per_row = rows.slots * (32 / B::granule);
    const int8_t* digits = rows.digits + first * stride;
    const float* scales = (B::granule == 16 ? rows.pairs : rows.scales) + first * per_row;
    const float* with_least = rows.sums + first * rows.slots;
    Float sums[X][kPanels];
    QKV_UNROLL
    for (int x = 0; x < X; ++x) {
        QKV_UNROLL
        for (int p = 0; p < kPanels; ++p) sums[x][p] = zero();
    }
    const int8_t* weights = tile.digits;
    for (int64_t g = 0; g < rows.columns / B::granule; ++g) {
        __m512i whole[X][kPanels];
        QKV_UNROLL
        for (int p = 0; p < kPanels; ++p) {
            const __m512i less = _mm512_load_si512(tile.less + (g * kPanels + p) * kPanelRows);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) whole[x][p] = less;
        }
        QKV_UNROLL
        for (int q = 0; q < quads; ++q, weights += kPanels * 64) {
            const __m512i one = _mm512_load_si512(weights), other = _mm512_load_si512(weights + 64);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                const char* at = reinterpret_cast<const char*>(digits + x * stride + g * B::granule + 4 * q);
                const __m512i four = _mm512_set1_epi32(read<int32_t>(at));
                whole[x][0] = _mm512_dpbusd_epi32(whole[x][0], four, one);
                whole[x][1] = _mm512_dpbusd_epi32(whole[x][1], four, other);
            }
        }
        QKV_UNROLL
        for (int p = 0; p < kPanels; ++p) {
            const Float scale = load(tile.scale + (g * kPanels + p) * kPanelRows);
            QKV_UNROLL
            for (int x = 0; x < X; ++x) {
                const Float factor = multiply(scale, broadcast(scales + x * per_row + g));
                sums[x][p] = multiply_add(to_float(whole[x][p]), factor, sums[x][p]);
            }
            if constexpr (B::minimum) {
                const Float least = load(tile.least + (g * kPanels + p) * kPanelRows);
                QKV_UNROLL
                for (int x = 0; x < X; ++x) {
                    sums[x][p] = multiply_add(least, broadcast(with_least + x * rows.slots + g), sums[x][p]);
                }
            }
        }
    }
    QKV_UNROLL
    for (int x = 0; x < X; ++x) add_fine<B>(tile, rows, first + x, sums[x]);
    QKV_UNROLL
    for (int p = 0; p < kPanels; ++p) {
        const int64_t row = from + p * kPanelRows, left = part.last - row;
        if (left <= 0) break;
        const __mmask16 valid = left >= kPanelRows ? 0xffff : static_cast<__mmask16>((1 << left) - 1);
        Float bias = zero();
        if (part.bias != nullptr) bias = _mm512_maskz_loadu_ps(valid, part.bias + row);
        QKV_UNROLL
        for (int x = 0; x < X; ++x) {
            _mm512_mask_storeu_ps(part.y + (first + x) * part.matrix->rows + row, valid, add(sums[x][p], bias));
        }
    }
}

template <typename B>
void many_in_int8(const PackedPart& part, const PackedRows& rows, float* scratch) {
    const int64_t slots = padded_blocks(rows.columns), granules = slots * (32 / B::granule);
    constexpr int lanes = kPanels * kPanelRows;
    Int8Tile tile;
    tile.digits = reinterpret_cast<int8_t*>(scratch);
    tile.scale = scratch + 8 * lanes * slots;
    tile.least = tile.scale + lanes * granules;
    tile.less = reinterpret_cast<int32_t*>(tile.least + lanes * slots);
    for (int64_t from = part.first; from < part.last; from += lanes) {
        for (int p = 0; p < kPanels; ++p) {
            if (from + p * kPanelRows < part.last || p == 0) {
                fill_panel<B>(*part.matrix, from + p * kPanelRows, part.last, p, tile);
            }
        }
        for_each_part(rows.count, [&](int64_t first, int count) {
            switch (count) {
                case 1: return multiply_int8<B, 1>(tile, part, rows, first, from);
                case 2: return multiply_int8<B, 2>(tile, part, rows, first, from);
                case 3: return multiply_int8<B, 3>(tile, part, rows, first, from);
                case 4: return multiply_int8<B, 4>(tile, part, rows, first, from);
                case 5: return multiply_int8<B, 5>(tile, part, rows, first, from);
                default: return multiply_int8<B, 6>(tile, part, rows, first, from);
            }
        });
    }
}

#endif

}  // namespace

void packed_many(const PackedPart& part, const PackedRows& rows, float* scratch) {
#if defined(__AVX512VNNI__)
    if (rows.halves != nullptr) return many_in_bfloat16(part, rows);
    if (rows.digits != nullptr) {
        return with_blocks(part.matrix->format, [&](auto blocks) { many_in_int8<decltype(blocks)>(part, rows, scratch); });
    }
#endif
    many_in_float32(part, rows, scratch);
}

void round_row(const PackedRows& rows, int64_t row, bool few, int flip) {
    const float* x = rows.x + row * rows.columns;
    const int64_t slots = rows.slots, blocks = rows.columns / 32;
    int8_t *digits = rows.digits + row * 32 * slots, *fine = rows.fine + row * 32 * slots;
    float *scales = rows.scales + row * slots, *pairs = rows.pairs + 2 * row * slots, *sums = rows.sums + row * slots;
    int32_t* splits = rows.splits + row * slots;
    Float squares = zero();
    for (int64_t c = 0; c < 32 * blocks && !few; c += kLanes) {
        squares = multiply_add(load_unaligned(x + c), load_unaligned(x + c), squares);
    }
    const double outlier = static_cast<double>(kSplitAbove) * sum_lanes(squares) / static_cast<double>(rows.columns);
    for (int64_t b = 0; b < blocks; ++b) {
        const float* block = x + 32 * b;
        Float largest = zero(), odd = zero();
        for (int i = 0; i < 32; i += kLanes) {
            const Float part = load_unaligned(block + i);
            largest = max(magnitude(part), largest);
            odd = multiply_add(part, zero(), odd);  // NaN if a number is not finite
        }
        const float most = max_lane(largest), none = sum_lanes(odd);
        // Below this, steps / most would overflow.
        const bool some = most > 1e-34f && none == 0.0f, split = few || static_cast<double>(most) * most > outlier;
        const float steps = split ? static_cast<float>(kFineSteps) : 127.0f, inverse = some ? steps / most : 0.0f;
        int32_t sum = 0;
        for (int i = 0; i < 32; ++i) {
            // The sum has the nearest integer in its low bits.
            const float nearest = some ? block[i] * inverse + kToWhole : kToWhole;
            const int32_t whole = static_cast<int32_t>(to_bits(nearest)) - 0x4b400000;
            const int32_t digit = split ? (whole + (1 << (kFineBits - 1))) >> kFineBits : whole;
            sum += whole;
            digits[32 * b + i] = static_cast<int8_t>(digit ^ flip);
            if (split) fine[32 * b + i] = static_cast<int8_t>((whole - digit * (1 << kFineBits)) ^ flip);
        }
        const float scale = none != 0.0f || none != none ? none : some ? most / steps : 0.0f;
        sums[b] = scale * static_cast<float>(sum);
        scales[b] = pairs[2 * b] = pairs[2 * b + 1] = split && !few ? scale * static_cast<float>(1 << kFineBits) : scale;
        if (split && !few) *splits++ = static_cast<int32_t>(b);
    }
    for (int64_t b = blocks; b < slots; ++b) {
        scales[b] = pairs[2 * b] = pairs[2 * b + 1] = sums[b] = 0.0f;
        for (int i = 0; i < 32; ++i) digits[32 * b + i] = fine[32 * b + i] = 0;
    }
    *splits = -1;
}

void unpack(const PackedMatrix& matrix, int64_t row, float* to, float* scratch) {
    widen_columns(matrix, row, 0, matrix.columns, to, scratch);
}

const PackedKernels& packed_table() {
#if defined(__AVX512VNNI__)
    constexpr bool int8_tiles = true;
    static const bool bfloat16_tiles = __builtin_cpu_supports("avx512bf16");
#else
    constexpr bool int8_tiles = false, bfloat16_tiles = false;
#endif
    static const PackedKernels kernels = {QKV_STRING(QKV_ISA), int8_tiles,  bfloat16_tiles, round_row,
                                          packed_few,          packed_many, unpack};
    return kernels;
}

}  // namespace qkv::QKV_ISA
