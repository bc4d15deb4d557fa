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

namespace {
const KernelTable* sound;
}

TEST(isa, a_wrong_kernel_is_noticed) {
    for (const KernelTable* kernels : qkv::runnable_kernels()) {
        check::setting() = kernels->name;
        sound = kernels;
        KernelTable broken = *kernels;
        broken.sweep_tile = [](const float* queries, const float* panel, int64_t width, float* scores,
                               int64_t first_key, float* best, int64_t* index) {
            return sound->sweep_tile(queries, panel, width - 1, scores, first_key, best, index);
        };
        CHECK(!qkv::self_check(broken).empty());

        broken = *kernels;
        broken.score_tile = [](const float* queries, const float* panel, int64_t width, float* scores) {
            sound->score_tile(queries, panel, width - 1, scores);
        };
        CHECK(!qkv::self_check(broken).empty());

        broken = *kernels;
        broken.all_finite = [](const void*, int64_t, qkv::Dtype) { return true; };
        CHECK(!qkv::self_check(broken).empty());
    }
}
