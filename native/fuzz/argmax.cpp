// The best key of every query, over keys in tensors.

#include "argmax.h"

#include "target.h"
#include "tensors.h"

using namespace fuzz;

TARGET(argmax) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    const Dtype dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float32, Dtype::float16, Dtype::bfloat16});
    const int64_t batch = bytes.between("batch", 0, 2), heads_kv = bytes.between("heads_kv", 1, 2);
    const int64_t group = bytes.one_of<int64_t>("group", {1, 1, 2, 3, 0});
    const int64_t width = bytes.one_of<int64_t>("width", {1, 2, 3, 5, 8, 17, 0});
    const int64_t len_k = bytes.one_of<int64_t>("keys", {0, 1, 2, 7, 8, 16, 17, 31, 33, 48, 49, 97, 150});
    int64_t len_q = bytes.one_of<int64_t>("queries", {0, 1, 2, 6, 7, 9, 17, 60, 140});
    len_q = std::min(len_q, 12000 / (batch * heads_kv * group * (len_k + 1) * (width + 1) + 1) + 1);
    const int64_t heads_q = heads_kv * group;

    Random random = bytes.random("numbers");
    const Fill fill = fill_of(bytes);
    Strided query(bytes, dtype, {batch, heads_q, len_q, width}, random, fill);
    Strided key(bytes, dtype, {batch, heads_kv, len_k, width}, random, fill);
    query.poison(bytes);
    key.poison(bytes);
    // Ranges that end near and far beyond the keys.
    std::vector<int64_t> starts, stops;
    const int64_t far[] = {INT64_MIN, -1, 0, len_k, len_k + 1, INT64_MAX};
    const auto bound = [&] { return random.below(4) == 0 ? far[random.below(6)] : random.below(len_k + 1); };
    if (bytes.flag("has starts")) {
        for (int64_t n = 0; n < batch * len_q; ++n) starts.push_back(bound() / 2);
    }
    if (bytes.flag("has stops")) {
        for (int64_t n = 0; n < batch * len_q; ++n) stops.push_back(bound());
    }

    const int64_t rows = batch * heads_q * len_q;
    Guarded found(rows * 8);
    qkv::argmax_scores(kernels,
                       {dtype, batch, heads_q, heads_kv, len_q, len_k, width, query.tensor(), key.tensor(),
                        starts.empty() ? nullptr : starts.data(), stops.empty() ? nullptr : stops.data(),
                        found.as<int64_t>()},
                       threads);
    found.check();

    const std::vector<double> q = query.numbers(), k = key.numbers();
    std::vector<double> scores(len_k), errors(len_k);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = row % len_q, h = row / len_q % heads_q, b = row / len_q / heads_q;
        const int64_t unit = b * heads_kv + h / group;
        const int64_t from = starts.empty() ? 0 : std::max<int64_t>(starts[b * len_q + i], 0);
        const int64_t to = stops.empty() ? len_k : std::min(stops[b * len_q + i], len_k);
        double best = -kInfinity;
        bool lost = false;
        for (int64_t j = from; j < to; ++j) {
            double dot = 0, size = 0;
            for (int64_t c = 0; c < width; ++c) {
                const double product = q[row * width + c] * k[(unit * len_k + j) * width + c];
                dot += product;
                size += std::fabs(product);
            }
            scores[j] = dot;
            // Integers are summed exactly, and products of tiny ones are 0.
            errors[j] = fill == Fill::whole ? 0.0 : static_cast<double>(width + 1) * 0x1p-24 * size + 0x1p-140;
            lost = lost || std::isnan(dot);
            best = std::max(best, dot);
        }
        const int64_t answer = found.as<int64_t>()[row];
        const std::string text = "row " + std::to_string(row) + ": key " + std::to_string(answer);
        if (lost || best == -kInfinity) {
            if (answer != (lost ? qkv::kNan : qkv::kNoKey)) fail(text + (lost ? ", wanted NaN" : ", wanted none"));
            continue;
        }
        if (answer < from || answer >= to) fail(text + " is out of range");
        for (int64_t j = from; j < to; ++j) {
            const double doubt = std::isinf(best) ? 0.0 : errors[j] + errors[answer];
            const double* one = k.data() + (unit * len_k + j) * width;
            const bool same = std::equal(one, one + width, k.data() + (unit * len_k + answer) * width);
            const bool ties = j < answer && scores[j] == scores[answer] && (same || doubt == 0);
            if (ties || scores[j] > scores[answer] + doubt) fail(text + ", wanted " + std::to_string(j));
        }
    }
}
