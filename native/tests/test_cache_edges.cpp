#include "cache_problem.h"

namespace {

using qkv::Dtype;

bool all_nan(const std::vector<float>& numbers) {
    for (const float x : numbers) {
        if (!std::isnan(x)) return false;
    }
    return true;
}

}  // namespace

// Masked keys and values have no influence; attended NaN and infinity are visible.
TEST(cache_edges, nan_and_infinity) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        for (const qkv::Storage storage : qkv::kStorageFormats) {
            for (const float poison : {NAN, INFINITY, -INFINITY}) {
                FilledCache cache({storage, 1, 3, 1, 70, 2, 5, 6});
                check::setting() = std::string(table->name) + " " + cache.shape.text();
                const std::vector<double> wanted =
                    cache.answer([](int64_t, int64_t p, int64_t j) { return j <= p && j > p - 40; });
                for (int64_t c = 0; c < 5; ++c) cache.key_row(0, 0, 3)[c] = poison;
                for (int64_t c = 0; c < 6; ++c) cache.value_row(0, 0, 31)[c] = poison;  // the first query's edge
                cache.fill(9);
                std::vector<float> out(cache.out_size());
                qkv::AttendProblem problem = cache.problem(out.data());
                problem.window = 40;
                std::vector<char> keep(72, 1);
                keep[31] = 0;
                problem.keep = {keep.data(), {0, 0, 0, 1}};
                qkv::attend(*table, problem, 1);
                const std::vector<double> without = cache.answer(
                    [](int64_t, int64_t p, int64_t j) { return j <= p && j > p - 40 && j != 31; });
                CHECK(largest_difference(out, without) < 3e-6);

                problem.keep = {};
                qkv::attend(*table, problem, 1);
                std::vector<float> second;
                for (int64_t h = 0; h < 3; ++h) {
                    CHECK(!std::isfinite(out[h * 12]));
                    for (int64_t c = 6; c < 12; ++c) second.push_back(out[h * 12 + c]);
                }
                for (size_t n = 0; n < second.size(); ++n) {
                    CHECK(std::fabs(second[n] - wanted[n / 6 * 12 + 6 + n % 6]) < 3e-6);
                }
            }
        }
    }
}

TEST(cache_edges, an_attended_nan_is_visible) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        FilledCache cache({Dtype::float32, 1, 1, 1, 600, 1, 4, 8});
        cache.key_row(0, 0, 2)[1] = NAN;
        cache.fill(300);
        CHECK(all_nan(cache.attend(*table)));
        std::vector<float> out(8);
        qkv::attend_argmax(*table, cache.problem(out.data()), 1);
        CHECK(all_nan(out));
        // Also where every other score is -inf.
        std::vector<float> bias(601, -INFINITY);
        bias[2] = 0;
        qkv::AttendProblem problem = cache.problem(out.data());
        problem.bias = {bias.data(), {0, 0, 0, 1}};
        qkv::attend(*table, problem, 1);
        CHECK(all_nan(out));
    }
}

TEST(cache_edges, fully_masked_and_padding_rows) {
    for (const qkv::KernelTable* table : qkv::runnable_kernels()) {
        check::setting() = table->name;
        FilledCache cache({Dtype::bfloat16, 2, 2, 1, 65, 3, 4, 5});
        cache.fill(1);
        for (float& x : cache.query) x = x;
        const std::vector<int64_t> counts = {1, 2}, stops = {0, 100};
        for (const bool left : {false, true}) {
            std::vector<float> out(cache.out_size(), 5.0f), lse(12, 5.0f), sink = {1.0f, 2.0f};
            qkv::AttendProblem problem = cache.problem(out.data());
            problem.tokens.counts = counts.data();
            problem.tokens.left = left;
            problem.stops = stops.data();
            problem.lse = lse.data();
            problem.sink = sink.data();
            qkv::attend(*table, problem, 1);
            for (int64_t b = 0; b < 2; ++b) {
                for (int64_t h = 0; h < 2; ++h) {
                    for (int64_t i = 0; i < 3; ++i) {
                        const bool sees = b == 1 && (left ? i > 0 : i < 2);
                        const int64_t row = (b * 2 + h) * 3 + i;
                        CHECK_EQUAL(lse[row] == -INFINITY, !sees);
                        CHECK_EQUAL(out[row * 5] == 0.0f, !sees);
                    }
                }
            }
        }
    }
}

TEST(cache_edges, append_counts_from_the_left_and_right) {
    for (const bool left : {false, true}) {
        FilledCache cache({Dtype::float32, 2, 1, 1, 0, 4, 2, 3});
        const std::vector<int64_t> counts = {2, 3}, at = {62, 5};
        FilledCache padded({Dtype::float32, 2, 1, 1, 64, 4, 2, 3});
        qkv::append({padded.cache, {2, 4, at.data(), counts.data(), left}, Dtype::float32,
                     plain(cache.key.data(), 1, 4, 2), plain(cache.value.data(), 1, 4, 3)},
                    1);
        for (int64_t b = 0; b < 2; ++b) {
            for (int64_t t = 0; t < counts[b]; ++t) {
                const int64_t position = at[b] + t, source = left ? 4 - counts[b] + t : t;
                const char* slab = padded.cache.slab(b, position / 64, 0);
                float x;
                std::memcpy(&x, slab + padded.cache.layout.keys_at() + (64 + position % 64) * 4, sizeof x);
                CHECK_EQUAL(x, cache.key_row(b, 0, source)[1]);
                std::memcpy(&x, slab + padded.cache.layout.values_at() + (position % 64 * 16 + 2) * 4, sizeof x);
                CHECK_EQUAL(x, cache.value_row(b, 0, source)[2]);
            }
        }
    }
}

TEST(cache_edges, half_precision_rounds_to_even) {
    CHECK_EQUAL(qkv::narrow_to_float16(65519.0f), 0x7bff);
    CHECK_EQUAL(qkv::narrow_to_float16(65520.0f), 0x7c00);
    CHECK_EQUAL(qkv::narrow_to_float16(0x1p-24f), 1);
    CHECK_EQUAL(qkv::narrow_to_float16(0x1p-25f), 0);
    CHECK_EQUAL(qkv::narrow_to_float16(0x1.8p-24f), 2);
    CHECK_EQUAL(qkv::narrow_to_float16(1.0f + 0x1p-11f), 0x3c00);
    CHECK_EQUAL(qkv::narrow_to_float16(1.0f + 0x1.8p-10f), 0x3c02);
    for (uint32_t half = 0; half < 0x7c00; ++half) {
        CHECK_EQUAL(qkv::narrow_to_float16(qkv::widen_one_float16(static_cast<uint16_t>(half))), half);
    }
    CHECK_EQUAL(qkv::narrow_to_bfloat16(1.0f + 0x1p-8f), 0x3f80);
    CHECK_EQUAL(qkv::narrow_to_bfloat16(1.0f + 0x1.8p-7f), 0x3f82);
    CHECK_EQUAL(qkv::narrow_to_bfloat16(3.4e38f), 0x7f80);
    CHECK((qkv::narrow_to_bfloat16(NAN) & 0x7f) != 0);
}
