#pragma once

// Products y = W·x with weights as they lie in a GGUF or safetensors file.

#include <cstdint>
#include <string>
#include <vector>

#include "packed_table.h"
#include "scratch.h"

namespace qkv {

// Columns and bytes of a block; a row is columns / block_columns blocks without gaps.
int64_t block_columns(WeightFormat format);
int64_t block_bytes(WeightFormat format);

// y[r, i] = Σ_j W[i, j] x[r, j] (+ bias[i]) for `how_many` matrices with the same columns, which share x. x and the ys are
// contiguous rows of float32; `biases` and each of them may be null. With Activations::int8 the rows of x are rounded in
// blocks of 32 columns (not for weights in float32, bfloat16 and float16), up to kFewRows of them to 15 bits in two parts
// and more to 8 bits, except blocks with outliers, to 15; a block with a number that is not finite gives NaN, and one
// without a number above 1e-34 gives 0. For weights in bfloat16, more than kFewRows rows are rounded to bfloat16, finite
// numbers to finite ones.
// The bits depend on the kernels, the matrix and `count`, not on the number of threads or the other matrices.
void packed_product(const PackedKernels& kernels, const PackedMatrix* matrices, int how_many, const float* x,
                    int64_t count, float* const* ys, const float* const* biases, Activations activations, int threads,
                    Scratch& memory);

// A row of a matrix as float32: an embedding.
void unpack_row(const PackedKernels& kernels, const PackedMatrix& matrix, int64_t row, float* to);

// One product in parts, for callers that have a team of threads already: prepare each row of x once, then run the jobs,
// in any order, each worker with its own scratch. All scratch is aligned to 64 bytes. `threads` decides how many jobs
// there are, not what they compute.
class PackedProduct {
public:
    PackedProduct(const PackedKernels& kernels, const PackedMatrix* matrices, int how_many, int64_t count,
                  Activations activations, int threads);

    int64_t shared_floats() const { return shared_floats_; }
    int64_t worker_floats() const { return worker_floats_; }
    int64_t jobs() const { return first_job_.back(); }

    void prepare_row(int64_t row, const float* x, float* shared) const;
    void run(int64_t job, const float* x, float* shared, float* const* ys, const float* const* biases,
             float* scratch) const;

private:
    PackedRows rows(const float* x, float* shared) const;

    const PackedKernels& kernels_;
    const PackedMatrix* matrices_;
    const int64_t count_, columns_;
    bool rounded_ = false, widened_ = false;  // x as 8 bits; these as float32 again
    bool halved_ = false;                     // x in bfloat16, after these in the scratch; as float32 again without tiles
    bool few_;
    std::vector<int64_t> first_job_, job_rows_;
    int64_t shared_floats_ = 0, worker_floats_ = 0, halves_at_ = 0;
};

// The kernels of this build that this machine can run, the fastest first; the portable ones are always last.
std::vector<const PackedKernels*> packed_kernels();

// Those that run with an instruction set of runnable_kernels(): with AVX-512 they need VNNI, and without it run on AVX2.
const PackedKernels& products_of(const std::string& isa);

}  // namespace qkv
