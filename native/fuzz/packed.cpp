// Packed products in every format, against the definitions of GGUF in double; and with blocks of any bytes.

#include "packed.h"

#include "../tests/packed_problem.h"
#include "target.h"

using namespace fuzz;
using qkv::Activations;

namespace {

std::vector<float> rows_of(Bytes& bytes, int64_t count, int64_t columns) {
    std::vector<float> x = packed::random_rows(count * columns, static_cast<unsigned>(bytes.between("x", 0, 65535)));
    const float size = std::ldexp(1.0f, static_cast<int>(bytes.one_of<int64_t>("exponent", {0, 0, 0, -60, -130, 60})));
    for (float& number : x) number *= size;
    if (bytes.seldom("zeros", 4)) std::fill(x.begin(), x.begin() + static_cast<int64_t>(x.size()) / 2, 0.0f);
    return x;
}

}  // namespace

TARGET(packed) {
    static const std::vector<const qkv::PackedKernels*> tables = qkv::packed_kernels();
    const qkv::PackedKernels& kernels = *tables[bytes.between("isa", 0, static_cast<int64_t>(tables.size()) - 1)];
    const int threads = threads_of(bytes);
    const auto format = static_cast<qkv::WeightFormat>(bytes.between("format", 0, 10));
    const auto activations = static_cast<Activations>(bytes.between("activations", 0, 1));
    const int64_t block = qkv::block_columns(format), rows = bytes.between("rows", 1, 40);
    const int64_t columns = block * bytes.between("blocks", 1, block == 1 ? 200 : block == 32 ? 19 : 2);
    const int64_t count = bytes.one_of<int64_t>("count", {1, 1, 2, 3, 4, 5, 8, 17});
    const unsigned seed = static_cast<unsigned>(bytes.between("weights", 0, 65535));
    packed::Matrix matrix(format, rows, columns, seed);
    const bool any = bytes.seldom("any", 6);
    if (any) {
        std::mt19937 random(seed);
        for (uint8_t& byte : matrix.bytes) byte = static_cast<uint8_t>(random());
    }
    std::vector<float> x = rows_of(bytes, count, columns);
    const int64_t odd = bytes.seldom("not finite", 5) ? bytes.between("which", 0, count * columns - 1) : -1;
    if (odd >= 0) x[odd] = bytes.flag("infinite") ? std::numeric_limits<float>::infinity() : std::nanf("");
    const std::vector<float> bias = packed::random_rows(rows, 1);
    const float* biases[] = {bytes.flag("bias") ? bias.data() : nullptr};
    const qkv::PackedMatrix view = matrix.view();
    const auto product = [&](int workers) {
        std::vector<float> y(count * rows, -1.0f);
        float* ys[] = {y.data()};
        qkv::Scratch memory;
        qkv::packed_product(kernels, &view, 1, x.data(), count, ys, biases, activations, workers, memory);
        return y;
    };
    const std::vector<float> y = product(threads);
    if (threads > 1) {
        const std::vector<float> alone = product(1);
        require(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)) == 0, "the bits of one thread");
    }
    if (any) return;
    const std::vector<double> taken = packed::taken(x, columns, format, activations);
    std::vector<packed::Weight> weights(columns);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < columns; ++c) weights[c] = matrix.weight(i, c);
        for (int64_t r = 0; r < count; ++r) {
            const float found = y[r * rows + i];
            if (odd >= 0 && odd / columns == r) {
                require(!std::isfinite(found), "a number that is not finite is not hidden");
                continue;
            }
            double wanted = biases[0] == nullptr ? 0.0 : bias[i], size = std::fabs(wanted);
            for (int64_t c = 0; c < columns; ++c) {
                wanted += weights[c].value() * taken[r * columns + c];
                size += weights[c].size() * std::fabs(taken[r * columns + c]);
            }
            // Rounding makes 0 of blocks whose largest number is below 1e-34; products may be subnormal.
            const double bound = size * 0x1p-24 * (8 + static_cast<double>(columns) / 4) + 1e-30;
            if (std::fabs(found - wanted) <= bound) continue;
            fail("row " + number(i) + " of x " + number(r) + " is " + number(found) + ", not " + number(wanted));
        }
    }
}
