#include "isa.h"

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

// The registers that the operating system saves on a context switch.
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

bool fetches_near() {
#ifdef QKV_X86
    static const bool is_amd = cpuid(0).ebx == signature_AMD_ebx;
    return is_amd;
#else
    return false;
#endif
}

}  // namespace qkv
