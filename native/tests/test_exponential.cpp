// The error of e^x and tanh as the kernels compute them. QKV_EVERY=1 tries every float between -87.33 and 0; the
// ordinary run takes one in 499. tanh takes one in 31 of those.

#include <cmath>
#include <cstdlib>

#include "check.h"
#include "isa.h"
#include "scalar.h"

namespace {

constexpr int kCount = 64;

double ulp_of(double wanted) {
    const float size = static_cast<float>(std::fabs(wanted));
    return static_cast<double>(std::nextafter(size, INFINITY)) - static_cast<double>(size);
}

uint32_t stride() {
    const char* every = std::getenv("QKV_EVERY");
    return every == nullptr ? 499 : static_cast<uint32_t>(std::atoi(every));
}

template <typename Compute, typename Wanted>
double worst_error(uint32_t first_bits, uint32_t last_bits, uint32_t stride, Compute compute, Wanted wanted) {
    double worst = 0;
    alignas(64) float x[kCount], y[kCount];
    for (uint64_t bits = first_bits; bits <= last_bits;) {
        for (int i = 0; i < kCount; ++i, bits += stride) {
            x[i] = y[i] = qkv::from_bits(static_cast<uint32_t>(std::min<uint64_t>(bits, last_bits)));
        }
        compute(y);
        for (int i = 0; i < kCount; ++i) {
            const double right = wanted(static_cast<double>(x[i]));
            worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - right) / ulp_of(right));
        }
    }
    return worst;
}

}  // namespace

TEST(exponential, within_two_ulp) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        const double worst = worst_error(
            0x80000000u, qkv::to_bits(-87.33f), stride(), [&](float* x) { table->exponentials(x, kCount, 1.0f, 0.0f); },
            [](double x) { return std::exp(x); });
        CHECK(worst <= 2.0);
    }
}

TEST(exponential, edges) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        alignas(64) float x[kCount] = {};
        x[1] = -INFINITY;
        x[2] = NAN;
        x[3] = -1e30f;
        x[4] = -87.34f;
        const float sum = table->exponentials(x, kCount, 1.0f, 0.0f);
        CHECK_EQUAL(x[0], 1.0f);
        CHECK_EQUAL(x[1], 0.0f);
        CHECK(std::isnan(x[2]));
        CHECK_EQUAL(x[3], 0.0f);
        CHECK_EQUAL(x[4], 0.0f);
        CHECK(std::isnan(sum));
    }
}

TEST(exponential, sums_and_scales) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        alignas(64) float x[2 * kCount];
        double wanted = 0;
        for (int i = 0; i < 2 * kCount; ++i) {
            x[i] = -0.25f * static_cast<float>(i % 37);
            wanted += std::exp(0.5 * (static_cast<double>(x[i]) - 2.0));
        }
        CHECK(std::fabs(static_cast<double>(table->exponentials(x, 2 * kCount, 0.5f, 2.0f)) - wanted) < 1e-5 * wanted);
    }
}

TEST(exponential, tangent_within_eight_ulp) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        for (const uint32_t sign : {0u, 0x80000000u}) {
            const double worst = worst_error(
                sign | 0x00800000u, sign | qkv::to_bits(30.0f), 31 * stride(),
                [&](float* x) { table->scale_scores(x, kCount, 1.0f, 1.0f); },
                [](double x) { return std::tanh(x); });
            CHECK(worst <= 8.0);
        }
        alignas(64) float x[kCount] = {};
        x[0] = INFINITY;
        x[1] = -INFINITY;
        x[2] = NAN;
        table->scale_scores(x, kCount, 1.0f, 5.0f);
        CHECK_EQUAL(x[0], 5.0f);
        CHECK_EQUAL(x[1], -5.0f);
        CHECK(std::isnan(x[2]));
        CHECK_EQUAL(x[3], 0.0f);
    }
}

TEST(exponential, sigmoid_within_four_ulp) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        for (const uint32_t sign : {0u, 0x80000000u}) {
            const double worst = worst_error(
                sign | 0x00800000u, sign | qkv::to_bits(87.0f), 31 * stride(), [&](float* x) { table->sigmoids(x, kCount, 0.0f); },
                [](double x) { return 1 / (1 + std::exp(-x)); });
            CHECK(worst <= 4.0);
        }
        alignas(64) float x[kCount] = {};
        x[0] = INFINITY;
        x[1] = -INFINITY;
        x[2] = NAN;
        CHECK(std::isnan(table->sigmoids(x, kCount, 1.0f)));
        CHECK_EQUAL(x[0], 1.0f);
        CHECK_EQUAL(x[1], 0.0f);
        CHECK(std::isnan(x[2]));
        CHECK(std::fabs(x[3] - 0.7310586f) < 1e-6f);
    }
}
