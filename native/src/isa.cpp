#include "isa.h"

#include <limits>

#include "argmax.h"

#ifdef QKV_X86
#include <cpuid.h>
#endif

namespace qkv {

namespace {

#ifdef QKV_X86

struct CpuidAnswer {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidAnswer cpuid(unsigned leaf) {
    CpuidAnswer answer;
    __get_cpuid_count(leaf, 0, &answer.eax, &answer.ebx, &answer.ecx, &answer.edx);
    return answer;
}

bool has_all(unsigned word, unsigned bits) { return (word & bits) == bits; }

// The registers that the operating system saves when it switches threads.
unsigned saved_registers() {
    if (!has_all(cpuid(1).ecx, bit_OSXSAVE)) return 0;
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool runs_avx2() {
    constexpr unsigned ymm = 0x6;
    return has_all(saved_registers(), ymm) && has_all(cpuid(1).ecx, bit_AVX | bit_FMA | bit_F16C) &&
           has_all(cpuid(7).ebx, bit_AVX2);
}

bool runs_avx512() {
    constexpr unsigned zmm = 0xe6;
    constexpr unsigned parts = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return runs_avx2() && has_all(saved_registers(), zmm) && has_all(cpuid(7).ebx, parts);
}

#endif

int64_t digit(int64_t n) { return n * 7919 % 13 % 7 - 3; }

}  // namespace

std::vector<const KernelTable*> runnable_kernels() {
    std::vector<const KernelTable*> tables;
#ifdef QKV_X86
    if (runs_avx512()) tables.push_back(&avx512::table());
    if (runs_avx2()) tables.push_back(&avx2::table());
#endif
    tables.push_back(&portable::table());
    return tables;
}

std::string self_check(const KernelTable& kernels) {
    constexpr int64_t rows = 37, keys = 131, width = 19;
    std::vector<float> query(rows * width), key(keys * width);
    for (int64_t n = 0; n < rows * width; ++n) query[n] = static_cast<float>(digit(n + 3));
    for (int64_t n = 0; n < keys * width; ++n) key[n] = static_cast<float>(digit(n));
    std::vector<int64_t> starts(rows), stops(rows), found(rows);
    for (int64_t i = 0; i < rows; ++i) {
        starts[i] = i / 2;
        stops[i] = keys - 2 * i;
    }
    const ArgmaxProblem problem = {Dtype::float32, 1, 1, 1, rows, keys, width,
                                   {query.data(), {0, 0, width, 1}},
                                   {key.data(), {0, 0, width, 1}},
                                   starts.data(), stops.data(), found.data()};
    argmax_scores(kernels, problem, 1);
    for (int64_t i = 0; i < rows; ++i) {
        int64_t wanted = kNoKey, record = std::numeric_limits<int64_t>::min();
        for (int64_t j = starts[i]; j < stops[i]; ++j) {
            int64_t score = 0;
            for (int64_t c = 0; c < width; ++c) score += digit(i * width + c + 3) * digit(j * width + c);
            if (score > record) {
                record = score;
                wanted = j;
            }
        }
        if (found[i] != wanted) {
            return "query " + std::to_string(i) + " of the self-check chose key " + std::to_string(found[i]) +
                   " instead of " + std::to_string(wanted);
        }
    }
    query[rows * width - 1] = std::numeric_limits<float>::infinity();
    if (!kernels.all_finite(key.data(), keys * width, Dtype::float32)) return "finite numbers were called infinite";
    if (kernels.all_finite(query.data(), rows * width, Dtype::float32)) return "an infinity was overlooked";
    return "";
}

}  // namespace qkv
