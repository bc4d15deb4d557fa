#include <cstring>

#include "packed.h"
#include "problem.h"

// Weights by the definitions of GGUF, one at a time and in double.

using qkv::Activations;
using qkv::WeightFormat;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32,  WeightFormat::bf16, WeightFormat::f16,  WeightFormat::q8_0,
                                     WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1,
                                     WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};

double half_at(const uint8_t* at) {
    const int bits = at[0] | at[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

struct Weight {
    double step, number, least;  // step · number + least
    double value() const { return step * number + least; }
    double size() const { return std::fabs(step * number) + std::fabs(least); }
};

Weight small_block(WeightFormat format, const uint8_t* block, int i) {
    const bool least = format == WeightFormat::q4_1 || format == WeightFormat::q5_1;
    const bool five = format == WeightFormat::q5_0 || format == WeightFormat::q5_1;
    const double d = half_at(block), m = least ? half_at(block + 2) : 0.0;
    const uint8_t* rest = block + (least ? 4 : 2);
    if (format == WeightFormat::q8_0) return {d, static_cast<double>(static_cast<int8_t>(rest[i])), 0.0};
    int number = rest[(five ? 4 : 0) + i % 16];
    number = i < 16 ? number & 15 : number >> 4;
    if (five && (rest[i / 8] >> (i % 8) & 1)) number += 16;
    if (!least) number -= five ? 16 : 8;
    return {d, static_cast<double>(number), m};
}

Weight large_block(WeightFormat format, const uint8_t* block, int i) {
    if (format == WeightFormat::q6_k) {
        const int part = i / 128, within = i % 128, lane = within % 32;
        const int low = block[64 * part + within % 64], high = block[128 + 32 * part + lane];
        const int number = (within < 64 ? low & 15 : low >> 4) | (high >> (within / 32 * 2) & 3) << 4;
        return {half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]), number - 32.0, 0.0};
    }
    const bool five = format == WeightFormat::q5_k;
    const int j = i / 32;
    const uint8_t* packed = block + 4;
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    const int least = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    int number = block[(five ? 48 : 16) + i / 64 * 32 + i % 32];
    number = j % 2 == 0 ? number & 15 : number >> 4;
    if (five && (block[16 + i % 32] >> j & 1)) number += 16;
    return {half_at(block) * scale, static_cast<double>(number), -half_at(block + 2) * least};
}

struct Matrix {
    WeightFormat format;
    int64_t rows, columns, row_bytes;
    std::vector<uint8_t> bytes;

    // One byte after an aligned address, as in a file.
    Matrix(WeightFormat f, int64_t n, int64_t k, unsigned seed)
        : format(f), rows(n), columns(k), row_bytes(k / qkv::block_columns(f) * qkv::block_bytes(f)),
          bytes(1 + n * row_bytes) {
        std::mt19937 random(seed);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
        const int64_t block = qkv::block_bytes(f);
        for (int64_t at = 1; at < static_cast<int64_t>(bytes.size()); at += block) {
            uint8_t* b = bytes.data() + at;
            // Finite factors; some are subnormal.
            const auto half = [&](uint8_t* to) { to[1] = static_cast<uint8_t>(to[1] % 64 | (to[1] & 128)); };
            if (f == WeightFormat::f32 || f == WeightFormat::bf16) {
                const float x = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
                std::memcpy(b, reinterpret_cast<const char*>(&x) + 4 - block, block);
            } else if (f == WeightFormat::q6_k) {
                half(b + 208);
            } else {
                half(b);
                if (f != WeightFormat::f16 && f != WeightFormat::q8_0 && f != WeightFormat::q4_0 &&
                    f != WeightFormat::q5_0) {
                    half(b + 2);
                }
            }
        }
    }

    qkv::PackedMatrix view() const { return {bytes.data() + 1, format, rows, columns, row_bytes}; }

    Weight weight(int64_t row, int64_t column) const {
        const int64_t inside = qkv::block_columns(format);
        const uint8_t* block = bytes.data() + 1 + row * row_bytes + column / inside * qkv::block_bytes(format);
        if (inside == 32) return small_block(format, block, static_cast<int>(column % 32));
        if (inside == 256) return large_block(format, block, static_cast<int>(column % 256));
        if (format == WeightFormat::f16) return {1.0, half_at(block), 0.0};
        float x = 0;
        const size_t size = format == WeightFormat::f32 ? 4 : 2;
        std::memcpy(reinterpret_cast<char*>(&x) + 4 - size, block, size);
        return {1.0, x, 0.0};
    }
};

std::vector<float> random_rows(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> rows(count);
    for (float& x : rows) x = normal(random);
    return rows;
}

// Rows of x with 8 bits in blocks of 32, as the kernels promise.
std::vector<double> rounded(const std::vector<float>& x, int64_t columns) {
    std::vector<double> result(x.size());
    for (size_t b = 0; b < x.size(); b += 32) {
        float most = 0;
        for (size_t i = b; i < b + 32; ++i) most = std::max(most, std::fabs(x[i]));
        const float inverse = most == 0 ? 0 : 127.0f / most;
        for (size_t i = b; i < b + 32; ++i) result[i] = std::nearbyint(x[i] * inverse) * static_cast<double>(most / 127.0f);
    }
    CHECK_EQUAL(columns % 32, 0);
    return result;
}

std::string describe(const qkv::PackedKernels& kernels, WeightFormat format, Activations activations, int64_t count,
                     int64_t rows, int64_t columns) {
    std::string text = kernels.name;
    for (int64_t n : {static_cast<int64_t>(format), static_cast<int64_t>(activations), count, rows, columns}) {
        text += ", " + std::to_string(n);
    }
    return text;
}

std::vector<float> product(const qkv::PackedKernels& kernels, const Matrix& matrix, const std::vector<float>& x,
                           const float* bias, Activations activations, int threads) {
    const int64_t count = static_cast<int64_t>(x.size()) / matrix.columns;
    std::vector<float> y(count * matrix.rows, std::nanf(""));
    const qkv::PackedMatrix view = matrix.view();
    float* ys[] = {y.data()};
    const float* biases[] = {bias};
    qkv::packed_product(kernels, &view, 1, x.data(), count, ys, biases, activations, threads);
    return y;
}

void check_product(const qkv::PackedKernels& kernels, const Matrix& matrix, int64_t count, Activations activations) {
    check::setting() = describe(kernels, matrix.format, activations, count, matrix.rows, matrix.columns);
    const int64_t columns = matrix.columns;
    const std::vector<float> x = random_rows(count * columns, 7), bias = random_rows(matrix.rows, 8);
    const std::vector<float> y = product(kernels, matrix, x, bias.data(), activations, 1);
    std::vector<double> taken(x.begin(), x.end());
    if (activations == Activations::int8 && qkv::is_quantised(matrix.format)) taken = rounded(x, columns);
    std::vector<Weight> row(columns);
    for (int64_t i = 0; i < matrix.rows; ++i) {
        for (int64_t c = 0; c < columns; ++c) row[c] = matrix.weight(i, c);
        for (int64_t r = 0; r < count; ++r) {
            double wanted = bias[i], size = std::fabs(bias[i]);
            for (int64_t c = 0; c < columns; ++c) {
                wanted += row[c].value() * taken[r * columns + c];
                size += row[c].size() * std::fabs(taken[r * columns + c]);
            }
            const double bound = size * 0x1p-24 * (8 + static_cast<double>(columns) / 4);
            const double found = y[r * matrix.rows + i];
            if (!(std::fabs(found - wanted) <= bound)) {
                check::fail(__FILE__, __LINE__, "row " + std::to_string(i) + " of x " + std::to_string(r) + ": found " +
                                                    std::to_string(found) + ", wanted " + std::to_string(wanted));
            }
        }
    }
    const WithThreads with;
    const std::vector<float> other = product(kernels, matrix, x, bias.data(), activations, 2);
    CHECK(std::memcmp(y.data(), other.data(), y.size() * sizeof(float)) == 0);
}

}  // namespace

TEST(packed, equals_the_definition_in_every_format) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (WeightFormat format : kFormats) {
            for (Activations activations : {Activations::float32, Activations::int8}) {
                for (int64_t count : {1, 2, 3, 4, 7, 16, 33}) {
                    const int64_t block = qkv::block_columns(format);
                    const int64_t columns = block == 1 ? 77 : block == 32 ? 32 * (count % 2 == 0 ? 18 : 5) : 768;
                    check_product(*kernels, Matrix(format, count == 16 ? 131 : 37, columns, 3), count, activations);
                }
            }
        }
    }
}

TEST(packed, splits_long_rows) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (WeightFormat format : kFormats) {
            for (Activations activations : {Activations::float32, Activations::int8}) {
                for (int64_t count : {1, 5}) check_product(*kernels, Matrix(format, 19, 2304, 4), count, activations);
            }
        }
    }
}

TEST(packed, fused_matrices_give_the_bits_of_each) {
    const Matrix matrices[] = {Matrix(WeightFormat::q4_k, 70, 512, 1), Matrix(WeightFormat::q6_k, 33, 512, 2),
                               Matrix(WeightFormat::bf16, 40, 512, 3)};
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (int64_t count : {1, 9}) {
            const std::vector<float> x = random_rows(count * 512, 5);
            std::vector<qkv::PackedMatrix> views;
            std::vector<std::vector<float>> found;
            std::vector<float*> ys;
            for (const Matrix& matrix : matrices) {
                views.push_back(matrix.view());
                found.emplace_back(count * matrix.rows);
                ys.push_back(found.back().data());
            }
            qkv::packed_product(*kernels, views.data(), 3, x.data(), count, ys.data(), nullptr, Activations::int8, 1);
            for (int m = 0; m < 3; ++m) {
                check::setting() = std::string(kernels->name) + ", matrix " + std::to_string(m);
                const std::vector<float> alone = product(*kernels, matrices[m], x, nullptr, Activations::int8, 1);
                CHECK(std::memcmp(alone.data(), found[m].data(), alone.size() * sizeof(float)) == 0);
            }
        }
    }
}

TEST(packed, unpacks_rows) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (WeightFormat format : kFormats) {
            const Matrix matrix(format, 3, qkv::block_columns(format) == 1 ? 77 : 1280, 6);
            std::vector<float> row(matrix.columns);
            check::setting() = describe(*kernels, format, Activations::float32, 0, 3, matrix.columns);
            qkv::unpack_row(*kernels, matrix.view(), 2, row.data());
            for (int64_t c = 0; c < matrix.columns; ++c) {
                const Weight weight = matrix.weight(2, c);
                CHECK(std::fabs(row[c] - weight.value()) <= 0x1p-23 * weight.size());
            }
        }
    }
}

TEST(packed, numbers_that_are_not_finite_give_nan_in_their_row_alone) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (WeightFormat format : kFormats) {
            for (float odd : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
                for (int64_t count : {2, 8}) {
                    const Matrix matrix(format, 20, 512, 9);
                    std::vector<float> x = random_rows(count * 512, 10);
                    x[512 + 300] = odd;
                    check::setting() = describe(*kernels, format, Activations::int8, count, 20, 512);
                    const std::vector<float> y = product(*kernels, matrix, x, nullptr, Activations::int8, 1);
                    for (int64_t i = 0; i < count * 20; ++i) CHECK(std::isfinite(y[i]) == (i / 20 != 1));
                }
            }
        }
    }
}

TEST(packed, zeros_and_tiny_numbers) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        for (WeightFormat format : kFormats) {
            const Matrix matrix(format, 20, 512, 9);
            for (float x : {0.0f, 1e-40f}) {
                const std::vector<float> y =
                    product(*kernels, matrix, std::vector<float>(512, x), nullptr, Activations::int8, 1);
                for (float found : y) CHECK(std::fabs(found) < 1e-30f);
            }
        }
    }
}
