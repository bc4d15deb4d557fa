// Small problems with answers that are known or come from the portable kernels: an instruction set that disagrees is
// refused when the library is loaded.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "argmax.h"
#include "isa.h"
#include "linear.h"
#include "cache.h"
#include "packed.h"
#include "scratch.h"
#include "state.h"

namespace qkv {

namespace {

// Pseudo-random integers from -3 to 3.
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

std::string check_argmax(const KernelTable& kernels, const std::vector<float>& query, const std::vector<float>& key) {
    // Wide ranges cover whole panels, narrow ones only parts: they use different kernels.
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
    return "";
}

std::string check_finite(const KernelTable& kernels, const std::vector<float>& key) {
    if (!kernels.all_finite(key.data(), kKeys * kWidth, Dtype::float32)) return "finite numbers were called infinite";
    std::vector<float> odd = key;
    odd.back() = std::numeric_limits<float>::infinity();
    if (kernels.all_finite(odd.data(), kKeys * kWidth, Dtype::float32)) return "an infinity was overlooked";
    return "";
}

// Groups of every size, so that every size of a block of rows is tested.
std::string check_memory(const KernelTable& kernels, const std::vector<float>& query, const std::vector<float>& key) {
    constexpr int64_t tokens = 150;
    for (const Storage storage : kStorageFormats) {
        const PageLayout layout = {storage, 1, kWidth, kWidth};
        const int64_t pages = ceil_div(tokens, kPageTokens), floats = layout.head_bytes() / 4;
        const Floats storage_of_pages = allocate(pages * floats);
        int64_t table[4] = {};
        for (int64_t p = 0; p < pages; ++p) table[p] = reinterpret_cast<int64_t>(storage_of_pages.get() + p * floats);
        const PagedCache cache = {layout, table, 4};
        const int64_t start = 0, last = tokens - 1;
        const Tensor4 given = {key.data(), {0, 0, kWidth, 1}};
        append({cache, {1, tokens, &start, nullptr, false}, Dtype::float32, given, given}, 1);
        for (const int64_t heads : {1, 2, 3, 4, 5, 6, 13}) {
            for (const float softcap : {0.0f, 3.0f, -1.0f}) {  // -1: sigmoid
                std::vector<float> found(heads * kWidth), wanted(heads * kWidth);
                AttendProblem problem = {cache, {1, 1, &last, nullptr, false}, heads, Dtype::float32,
                                         {query.data(), {0, kWidth, kWidth, 1}}, found.data(), nullptr, 140, nullptr,
                                         nullptr, kNoBound, kNoBound, {}, {}, 0.1f, std::max(softcap, 0.0f), nullptr, nullptr};
                problem.sigmoid = softcap < 0.0f;
                problem.offset = -3.0f;
                attend(kernels, problem, 1);
                problem.out = wanted.data();
                attend(portable::table(), problem, 1);
                for (size_t i = 0; i < found.size(); ++i) {
                    if (std::fabs(found[i] - wanted[i]) <= 1e-5f * std::max(1.0f, std::fabs(wanted[i]))) continue;
                    return "attention over a cache of format " + std::to_string(static_cast<int>(storage.keys)) + "/" +
                           std::to_string(static_cast<int>(storage.values)) + " gave " + std::to_string(found[i]) + " instead of " +
                           std::to_string(wanted[i]);
                }
            }
        }
    }
    return "";
}

// State and scores, every map, and widths that are no multiple of a vector.
std::string check_linear(const KernelTable& kernels, const std::vector<float>& query, const std::vector<float>& key) {
    for (const Map map : {Map::identity, Map::elu1, Map::relu, Map::squared, Map::power}) {
        for (const bool direct : {false, true}) {
            std::vector<float> found(kRows * kWidth), wanted(kRows * kWidth);
            const Tensor4 keys = {key.data(), {0, 0, kWidth, 1}};
            LinearProblem problem = {{map, kWidth, 2, 1.0f}, Dtype::float32, 1, 1, 1, kRows, kKeys, kWidth,
                                     {query.data(), {0, 0, kWidth, 1}}, keys, keys, nullptr, true, 200, true,
                                     found.data(), nullptr, direct};
            linear(kernels, problem, 1);
            problem.out = wanted.data();
            linear(portable::table(), problem, 1);
            for (size_t i = 0; i < found.size(); ++i) {
                // For maps with signs the denominator may be close to 0.
                if (std::fabs(found[i] - wanted[i]) <= 1e-3f * std::fmax(1.0f, std::fabs(wanted[i]))) continue;
                return "linear attention gave " + std::to_string(found[i]) + " instead of " + std::to_string(wanted[i]);
            }
        }
    }
    return "";
}

// Chunks and single tokens, both rules and every kind of gate.
std::string check_state(const KernelTable& kernels, const std::vector<float>& query, const std::vector<float>& key) {
    std::vector<float> gates, small(key);
    for (int64_t i = 0; i < kRows * kWidth; ++i) gates.push_back(0.1f * static_cast<float>(digit(i) - 3));
    for (float& x : small) x *= 0.1f;
    for (const int64_t length : {int64_t{1}, kRows}) {
        for (const int64_t gate_width : {int64_t{0}, int64_t{1}, kWidth}) {
            for (const bool delta : {false, true}) {
                const auto run = [&](const KernelTable& table, std::vector<float>& out) {
                    std::vector<float> state(kWidth * kWidth, 0.5f);
                    const Tensor4 keys = {small.data(), {0, 0, kWidth, 1}};
                    const StateProblem problem = {Dtype::float32, 1, 1, 1, length, kWidth, kWidth,
                                                  {query.data(), {0, 0, kWidth, 1}}, keys, keys, gate_width,
                                                  Dtype::float32, {gates.data(), {0, 0, kWidth, 1}}, delta,
                                                  Dtype::float32, keys, nullptr, nullptr, state.data(), out.data(),
                                                  {0, 0, kWidth}};
                    state_attention(table, problem, 1);
                    out.insert(out.end(), state.begin(), state.end());
                };
                std::vector<float> found(length * kWidth), wanted(length * kWidth);
                run(kernels, found);
                run(portable::table(), wanted);
                for (size_t i = 0; i < found.size(); ++i) {
                    if (std::fabs(found[i] - wanted[i]) <= 1e-4f * std::fmax(1.0f, std::fabs(wanted[i]))) continue;
                    return "attention with a state gave " + std::to_string(found[i]) + " instead of " +
                           std::to_string(wanted[i]);
                }
            }
        }
    }
    return "";
}

// A matrix of pseudo-random bytes whose half-precision factors are finite and of moderate size.
std::vector<uint8_t> packed_bytes(WeightFormat format, int64_t bytes) {
    std::vector<uint8_t> made(bytes);
    for (int64_t n = 0; n < bytes; ++n) made[n] = static_cast<uint8_t>(static_cast<uint32_t>(n) * 2654435761u >> 19);
    const int64_t block = block_bytes(format), factor = format == WeightFormat::q6_k ? 208 : 0;
    for (int64_t at = 0; at < bytes; at += block) {
        // The high byte of a number, or of a block's two factors (the second may be part of the weights).
        const int64_t high = at + (block <= 4 ? block - 1 : factor + 1);
        made[high] = static_cast<uint8_t>(0x2c | (made[high] & 0x83));
        if (block > 4 && factor == 0) made[high + 2] = static_cast<uint8_t>(0x2c | (made[high + 2] & 0x83));
    }
    return made;
}

}  // namespace

// Every format with x in float32 and rounded, few rows of x and many, and a last group and step that are not whole.
std::string self_check(const PackedKernels& kernels) {
    constexpr int64_t rows = 19, most = 7;
    for (int f = 0; f <= static_cast<int>(WeightFormat::q6_k); ++f) {
        const auto format = static_cast<WeightFormat>(f);
        const int64_t columns = block_columns(format) == 256 ? 512 : 17 * 32;
        const int64_t row_bytes = columns / block_columns(format) * block_bytes(format);
        const std::vector<uint8_t> bytes = packed_bytes(format, rows * row_bytes);
        const PackedMatrix matrix = {bytes.data(), format, rows, columns, row_bytes};
        std::vector<float> x(most * columns), weights(columns), found(most * rows), wanted(most * rows);
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(digit(static_cast<int64_t>(i)));
        for (size_t i = 5; i < x.size(); i += 97) x[i] *= 40;  // outliers
        float size = 0.0f;
        for (int64_t r = 0; r < rows; ++r) {
            unpack_row(portable::packed_table(), matrix, r, weights.data());
            for (float weight : weights) size = std::fmax(size, std::fabs(weight));
        }
        for (const Activations activations : {Activations::float32, Activations::int8}) {
            for (const int64_t count : {int64_t{1}, int64_t{2}, most}) {
                const auto run = [&](const PackedKernels& table, std::vector<float>& y) {
                    float* ys[] = {y.data()};
                    Scratch memory;
                    packed_product(table, &matrix, 1, x.data(), count, ys, nullptr, activations, 1, memory);
                };
                run(kernels, found);
                run(portable::packed_table(), wanted);
                for (int64_t i = 0; i < count * rows; ++i) {
                    if (std::fabs(found[i] - wanted[i]) <= 1e-4f * size * static_cast<float>(columns)) continue;
                    return "a product with weights of format " + std::to_string(f) + " gave " +
                           std::to_string(found[i]) + " instead of " + std::to_string(wanted[i]);
                }
            }
        }
    }
    return "";
}

std::string self_check(const KernelTable& kernels) {
    std::vector<float> query, key;
    for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t c = 0; c < kWidth; ++c) query.push_back(static_cast<float>(query_digit(i, c)));
    }
    for (int64_t j = 0; j < kKeys; ++j) {
        for (int64_t c = 0; c < kWidth; ++c) key.push_back(static_cast<float>(key_digit(j, c)));
    }
    std::string fault = check_argmax(kernels, query, key);
    if (fault.empty()) fault = check_finite(kernels, key);
    if (fault.empty()) fault = check_memory(kernels, query, key);
    if (fault.empty()) fault = check_linear(kernels, query, key);
    if (fault.empty()) fault = check_state(kernels, query, key);
    if (fault.empty()) fault = self_check(products_of(kernels.name));
    return fault;
}

}  // namespace qkv
