#include "problem.h"

using qkv::KernelTable;

TEST(isa, the_portable_kernels_are_always_there_and_last) {
    const std::vector<const KernelTable*> all = qkv::runnable_kernels();
    CHECK(!all.empty());
    CHECK_EQUAL(std::string(all.back()->name), "portable");
}

TEST(isa, every_one_passes_its_self_check) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) CHECK_EQUAL(qkv::self_check(*kernels), "");
}

TEST(isa, a_wrong_multiplication_is_noticed) {
    KernelTable broken = qkv::portable::table();
    broken.sweep_tile = [](const float* queries, const float* panel, int64_t width, float* scores, int64_t first_key,
                           float* best, int64_t* index) {
        return qkv::portable::table().sweep_tile(queries, panel, width - 1, scores, first_key, best, index);
    };
    CHECK(!qkv::self_check(broken).empty());
}

TEST(isa, a_wrong_scan_is_noticed) {
    KernelTable broken = qkv::portable::table();
    broken.all_finite = [](const void*, int64_t, qkv::Dtype) { return true; };
    CHECK(!qkv::self_check(broken).empty());
}
