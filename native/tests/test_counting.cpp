// Counting does not change the kernels, and the counts follow from the sizes.

#include "counting.h"

#include "cache_problem.h"
#include "problem.h"

namespace {

qkv::Counts since(const qkv::Counts& before) {
    const qkv::Counts now = qkv::counts();
    return {now.score_flops - before.score_flops,     now.value_flops - before.value_flops,
            now.other_flops - before.other_flops,     now.feature_flops - before.feature_flops,
            now.exponentials - before.exponentials,   now.tiles - before.tiles};
}

}  // namespace

TEST(counting, the_same_tiles_and_the_same_bits) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        const qkv::KernelTable& counted = qkv::counting(*kernels);
        CHECK_EQUAL(counted.lanes, kernels->lanes);
        CHECK_EQUAL(counted.tile_rows, kernels->tile_rows);
        CHECK_EQUAL(counted.tile_keys, kernels->tile_keys);
        CHECK_EQUAL(qkv::self_check(counted), "");

        FilledCache cache({qkv::Dtype::int8, 2, 6, 3, 130, 3, 11, 17});
        cache.fill(60);
        const std::vector<float> wanted = cache.attend(*kernels);
        CHECK(cache.attend(counted) == wanted);
    }
}

TEST(counting, nothing_is_counted_without_counting) {
    const qkv::Counts before = qkv::counts();
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) CHECK_EQUAL(qkv::self_check(*kernels), "");
    const qkv::Counts work = since(before);
    CHECK_EQUAL(work.score_flops + work.value_flops + work.other_flops + work.feature_flops + work.exponentials, 0);
}

TEST(counting, every_tile_of_an_argmax) {
    for (const qkv::KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        Problem problem({2, 6, 3, 29, 131, 7});
        const WithThreads with_threads;
        for (const int threads : {1, 3}) {
            const qkv::Counts before = qkv::counts();
            CHECK(problem.run(qkv::counting(*kernels), threads) == problem.answer());
            const qkv::Counts work = since(before);
            const int64_t rows = kernels->tile_rows, keys = kernels->tile_keys;
            const int64_t tiles = 2 * 3 * ((2 * 29 + rows - 1) / rows) * ((131 + keys - 1) / keys);
            CHECK_EQUAL(work.tiles, tiles);
            CHECK_EQUAL(work.score_flops, 2 * tiles * rows * keys * 7);
            CHECK_EQUAL(work.value_flops + work.other_flops + work.exponentials, 0);
        }
    }
}

TEST(counting, an_unknown_table_is_refused) {
    const qkv::KernelTable copy = *qkv::runnable_kernels().front();
    bool refused = false;
    try {
        qkv::counting(copy);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused);
}
