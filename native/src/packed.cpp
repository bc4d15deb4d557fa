#include "packed.h"

#include <algorithm>
#include <cmath>

#ifdef QKV_X86
#include <cpuid.h>
#endif

#include "isa.h"
#include "parallel.h"
#include "scalar.h"

namespace qkv {

namespace {

struct BlockSize {
    int64_t columns, bytes;
};

constexpr BlockSize kBlockSizes[] = {{1, 4},   {1, 2},   {1, 2},    {32, 34},  {32, 18}, {32, 20},
                                     {32, 22}, {32, 24}, {256, 144}, {256, 176}, {256, 210}};

// Every row of a matrix is computed alone, so jobs may depend on the number of threads. Long jobs read long stretches:
// with 16 kB each, two threads read at little more than the rate of one.
constexpr int64_t kJobsPerThread = 8, kLeastJobBytes = 1 << 14;

constexpr int64_t kRoundedFloats = 21;  // for a block of 32 columns

int64_t few_job_rows(const PackedMatrix& matrix, int threads) {
    const int64_t share = ceil_div(matrix.rows, kJobsPerThread * std::max(threads, 1));
    const int64_t least = kLeastJobBytes / std::max<int64_t>(matrix.row_bytes, 1);
    return round_up(std::max<int64_t>({share, least, 1}), kGroupRows);
}

}  // namespace

int64_t block_columns(WeightFormat format) { return kBlockSizes[static_cast<int>(format)].columns; }

int64_t block_bytes(WeightFormat format) { return kBlockSizes[static_cast<int>(format)].bytes; }

PackedProduct::PackedProduct(const PackedKernels& kernels, const PackedMatrix* matrices, int how_many, int64_t count,
                             Activations activations, int threads)
    : kernels_(kernels), matrices_(matrices), count_(count), columns_(matrices[0].columns), few_(count <= kFewRows) {
    first_job_.push_back(0);
    for (int m = 0; m < how_many; ++m) {
        job_rows_.push_back(few_ ? few_job_rows(matrices[m], threads) : kTileWeights);
        first_job_.push_back(first_job_.back() + (count_ == 0 ? 0 : ceil_div(matrices[m].rows, job_rows_.back())));
        if (activations == Activations::int8 && is_quantised(matrices[m].format)) rounded_ = true;
        if (activations == Activations::int8 && matrices[m].format == WeightFormat::bf16) halved_ = !few_;
    }
    widened_ = rounded_ && !few_ && !kernels.int8_tiles;
    if (rounded_) {
        const int64_t floats = kRoundedFloats * padded_blocks(columns_) + (widened_ ? round_up(columns_, 16) : 0);
        shared_floats_ = checked_product(count_, floats);
    }
    halves_at_ = shared_floats_;
    if (halved_) {
        shared_floats_ += checked_product(count_, padded_halves(columns_) / (kernels.bfloat16_tiles ? 2 : 1));
    }
    worker_floats_ = round_up(few_ ? few_floats(columns_) : many_floats(columns_), 16);
}

// The arrays of the shared scratch: digits, fine digits, scales, pairs, sums, splits; then widened rows.
PackedRows PackedProduct::rows(const float* x, float* shared) const {
    const int64_t slots = padded_blocks(columns_), all = count_ * slots;
    auto* digits = reinterpret_cast<int8_t*>(shared);
    float* scales = shared + 16 * all;
    return {x,      count_,       columns_,         slots, digits, digits + 32 * all,
            scales, scales + all, scales + 3 * all, reinterpret_cast<int32_t*>(scales + 4 * all), nullptr};
}

void PackedProduct::prepare_row(int64_t row, const float* x, float* shared) const {
    if (halved_) {
        auto* halves = reinterpret_cast<uint16_t*>(shared + halves_at_) + row * padded_halves(columns_);
        float* widened = shared + halves_at_ + row * columns_;
        constexpr float most = 0x1.fep127f;  // of bfloat16
        for (int64_t c = 0; c < columns_; ++c) {
            const float number = x[row * columns_ + c];
            const uint16_t half = narrow_to_bfloat16(std::isfinite(number) ? std::clamp(number, -most, most) : number);
            if (kernels_.bfloat16_tiles) {
                halves[c] = half;
            } else {
                widened[c] = widen_one_bfloat16(half);
            }
        }
    }
    if (!rounded_) return;
    const PackedRows all = rows(x, shared);
    kernels_.round_row(all, row, few_, few_ || widened_ ? 0 : 0x80);
    if (!widened_) return;
    const int64_t slots = all.slots;
    const float* scales = all.scales + row * slots;
    float* to = shared + count_ * kRoundedFloats * slots + row * columns_;
    for (int64_t c = 0; c < columns_; ++c) to[c] = static_cast<float>(all.digits[32 * row * slots + c]) * scales[c / 32];
    for (const int32_t* split = all.splits + row * slots; *split >= 0; ++split) {
        const float scale = scales[*split] / (1 << kFineBits);
        for (int64_t c = 32 * *split; c < 32 * (*split + 1); ++c) {
            to[c] += static_cast<float>(all.fine[32 * row * slots + c]) * scale;
        }
    }
}

void PackedProduct::run(int64_t job, const float* x, float* shared, float* const* ys, const float* const* biases,
                        float* scratch) const {
    const int64_t m = std::upper_bound(first_job_.begin(), first_job_.end(), job) - first_job_.begin() - 1;
    const PackedMatrix& matrix = matrices_[m];
    const int64_t first = (job - first_job_[m]) * job_rows_[m];
    const PackedPart part = {&matrix, first, std::min(matrix.rows, first + job_rows_[m]),
                             biases == nullptr ? nullptr : biases[m], ys[m]};
    PackedRows taken = {x, count_, columns_, padded_blocks(columns_), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    if (halved_ && matrix.format == WeightFormat::bf16) {
        if (kernels_.bfloat16_tiles) {
            taken.halves = reinterpret_cast<const uint16_t*>(shared + halves_at_);
        } else {
            taken.x = shared + halves_at_;
        }
    } else if (rounded_ && is_quantised(matrix.format)) {
        if (widened_) {
            taken.x = shared + count_ * kRoundedFloats * taken.slots;
        } else {
            taken = rows(x, shared);
        }
    }
    (few_ ? kernels_.few : kernels_.many)(part, taken, scratch);
}

void packed_product(const PackedKernels& kernels, const PackedMatrix* matrices, int how_many, const float* x,
                    int64_t count, float* const* ys, const float* const* biases, Activations activations, int threads,
                    Scratch& memory) {
    const PackedProduct product(kernels, matrices, how_many, count, activations, threads);
    const int workers = worker_limit(product.jobs(), threads);
    const int64_t own = round_up(product.shared_floats(), 16);
    float* const shared = memory.reserve(own + checked_product(product.worker_floats(), workers));
    auto prepare = [&](int64_t row, int) { product.prepare_row(row, x, shared); };
    for_each_job(count, count <= kFewRows ? 1 : std::min<int64_t>(workers, count), prepare);
    auto work = [&](int64_t job, int worker) {
        product.run(job, x, shared, ys, biases, shared + own + worker * product.worker_floats());
    };
    for_each_job(product.jobs(), workers, work);
}

void unpack_row(const PackedKernels& kernels, const PackedMatrix& matrix, int64_t row, float* to) {
    const Floats scratch = allocate(6 * padded_blocks(matrix.columns) + 64);
    kernels.unpack(matrix, row, to, scratch.get());
}

std::vector<const PackedKernels*> packed_kernels() {
    std::vector<const PackedKernels*> tables;
#ifdef QKV_X86
    bool avx2 = false, avx512 = false;
    for (const KernelTable* table : runnable_kernels()) {
        avx2 = avx2 || table == &avx2::table();
        avx512 = avx512 || table == &avx512::table();
    }
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ecx & bit_AVX512VNNI)) {
        tables.push_back(&avx512vnni::packed_table());
    }
    if (avx2) tables.push_back(&avx2::packed_table());
#endif
    tables.push_back(&portable::packed_table());
    return tables;
}

const PackedKernels& products_of(const std::string& isa) {
    static const std::vector<const PackedKernels*> runnable = packed_kernels();
    for (const PackedKernels* table : runnable) {
        if (isa == table->name) return *table;
    }
    return isa == "avx512" ? *runnable.front() : *runnable.back();
}

}  // namespace qkv
