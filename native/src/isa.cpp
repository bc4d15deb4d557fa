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

// Whole numbers from -3 to 3 without a pattern.
int64_t digit(int64_t n) { return static_cast<int64_t>(static_cast<uint32_t>(n) * 2654435761u >> 13) % 7 - 3; }

constexpr int64_t kRows = 37, kKeys = 389, kWidth = 19;

int64_t query_digit(int64_t row, int64_t c) { return digit(1000 * row + c); }

int64_t key_digit(int64_t key, int64_t c) { return digit(1000 * key + c + 500); }

int64_t right_key(int64_t row, int64_t start, int64_t stop) {
    int64_t key = kNoKey, record = std::numeric_limits<int64_t>::min();
    for (int64_t j = start; j < stop; ++j) {
        int64_t score = 0;
        for (int64_t c = 0; c < kWidth; ++c) score += query_digit(row, c) * key_digit(j, c);
        if (score > record) {
            record = score;
            key = j;
        }
    }
    return key;
}

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
    std::vector<float> query, key;
    for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t c = 0; c < kWidth; ++c) query.push_back(static_cast<float>(query_digit(i, c)));
    }
    for (int64_t j = 0; j < kKeys; ++j) {
        for (int64_t c = 0; c < kWidth; ++c) key.push_back(static_cast<float>(key_digit(j, c)));
    }
    // Wide ranges cover whole panels, narrow ones only parts: these are different kernels.
    for (int64_t narrow = 0; narrow < 2; ++narrow) {
        std::vector<int64_t> starts, stops, found(kRows);
        for (int64_t i = 0; i < kRows; ++i) {
            starts.push_back(narrow ? 9 * i : i / 2);
            stops.push_back(narrow ? 9 * i + 29 : kKeys - 2 * i);
        }
        const ArgmaxProblem problem = {Dtype::float32, 1, 1, 1, kRows, kKeys, kWidth,
                                       {query.data(), {0, 0, kWidth, 1}},
                                       {key.data(), {0, 0, kWidth, 1}},
                                       starts.data(), stops.data(), found.data()};
        argmax_scores(kernels, problem, 1);
        for (int64_t i = 0; i < kRows; ++i) {
            const int64_t wanted = right_key(i, starts[i], stops[i]);
            if (found[i] == wanted) continue;
            return "query " + std::to_string(i) + " of the self-check chose key " + std::to_string(found[i]) +
                   " instead of " + std::to_string(wanted);
        }
    }
    if (!kernels.all_finite(key.data(), kKeys * kWidth, Dtype::float32)) return "finite numbers were called infinite";
    query.back() = std::numeric_limits<float>::infinity();
    if (kernels.all_finite(query.data(), kRows * kWidth, Dtype::float32)) return "an infinity was overlooked";
    return "";
}

}  // namespace qkv
