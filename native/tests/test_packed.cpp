#include <cstring>

#include "isa.h"
#include "packed_problem.h"
#include "problem.h"

using namespace packed;
using qkv::Activations;

namespace {

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
    qkv::Scratch memory;
    qkv::packed_product(kernels, &view, 1, x.data(), count, ys, biases, activations, threads, memory);
    return y;
}

void check_product(const qkv::PackedKernels& kernels, const Matrix& matrix, int64_t count, Activations activations) {
    check::setting() = describe(kernels, matrix.format, activations, count, matrix.rows, matrix.columns);
    const int64_t columns = matrix.columns;
    const std::vector<float> x = random_rows(count * columns, 7), bias = random_rows(matrix.rows, 8);
    const std::vector<float> y = product(kernels, matrix, x, bias.data(), activations, 1);
    const std::vector<double> others = taken(x, columns, matrix.format, activations);
    std::vector<Weight> row(columns);
    for (int64_t i = 0; i < matrix.rows; ++i) {
        for (int64_t c = 0; c < columns; ++c) row[c] = matrix.weight(i, c);
        for (int64_t r = 0; r < count; ++r) {
            double wanted = bias[i], size = std::fabs(bias[i]);
            for (int64_t c = 0; c < columns; ++c) {
                wanted += row[c].value() * others[r * columns + c];
                size += row[c].size() * std::fabs(others[r * columns + c]);
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
    for (int threads : {2, 3}) {
        const std::vector<float> other = product(kernels, matrix, x, bias.data(), activations, threads);
        CHECK(std::memcmp(y.data(), other.data(), y.size() * sizeof(float)) == 0);
    }
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
            qkv::Scratch memory;
            for (const Matrix& matrix : matrices) {
                views.push_back(matrix.view());
                found.emplace_back(count * matrix.rows);
                ys.push_back(found.back().data());
            }
            qkv::packed_product(*kernels, views.data(), 3, x.data(), count, ys.data(), nullptr, Activations::int8, 1,
                                memory);
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

TEST(packed, the_self_check_finds_a_wrong_kernel) {
    for (const qkv::PackedKernels* kernels : qkv::packed_kernels()) {
        CHECK_EQUAL(qkv::self_check(*kernels), "");
        qkv::PackedKernels broken = *kernels;
        broken.few = [](const qkv::PackedPart& part, const qkv::PackedRows& rows, float* scratch) {
            qkv::portable::packed_table().few(part, rows, scratch);
            part.y[part.last - 1] *= 1.01f;
        };
        CHECK(!qkv::self_check(broken).empty());
        broken = *kernels;
        broken.many = [](const qkv::PackedPart& part, const qkv::PackedRows& rows, float*) {
            for (int64_t i = 0; i < rows.count * part.matrix->rows; ++i) part.y[i] = 0.0f;
        };
        CHECK(!qkv::self_check(broken).empty());
    }
}
