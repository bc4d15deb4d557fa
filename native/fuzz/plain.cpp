// Softmax attention over keys and values in tensors.

#include "rules.h"
#include "target.h"

using namespace fuzz;

TARGET(plain) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    const Dtype dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float32, Dtype::float16, Dtype::bfloat16});
    const int64_t batch = bytes.between("batch", 1, 2), heads_kv = bytes.between("heads_kv", 1, 3);
    const int64_t group = bytes.one_of<int64_t>("group", {1, 1, 2, 3, 7});
    const int64_t width = bytes.one_of<int64_t>("width", {1, 2, 3, 5, 8, 16, 17, 33});
    const int64_t value_width = bytes.one_of<int64_t>("value width", {1, 2, 5, 16, 17, 32, 48, 130});
    const int64_t heads_q = heads_kv * group;
    int64_t len_q = bytes.one_of<int64_t>("queries", {1, 1, 2, 3, 5, 13, 49});
    int64_t len_k = bytes.one_of<int64_t>("keys", {0, 1, 2, 15, 16, 17, 63, 64, 65, 130, 257, 300});
    len_k = std::min(len_k, 12000 / (batch * heads_kv * (width + value_width)));
    len_q = std::clamp<int64_t>(8000 / (batch * heads_q * (len_k + 1) * (width + value_width) / 8 + 1), 1, len_q);

    Random random = bytes.random("numbers");
    const Fill fill = fill_of(bytes), value_fill = fill_of(bytes);
    Strided query(bytes, dtype, {batch, heads_q, len_q, width}, random, fill);
    Strided key(bytes, dtype, {batch, heads_kv, len_k, width}, random, fill);
    Strided value(bytes, dtype, {batch, heads_kv, len_k, value_width}, random, value_fill);
    for (Strided* tensor : {&query, &key, &value}) tensor->poison(bytes);
    const std::vector<int64_t> none(batch, 0);
    const Rules rules(bytes, {batch, heads_q, len_q, width}, len_k, none, random);
    const bool heads_last = bytes.flag("heads last"), wants_lse = bytes.flag("lse");

    const int64_t rows = batch * heads_q * len_q, row_bytes = value_width * qkv::element_size(dtype);
    const qkv::PlainKeyValues past = {dtype, len_k, key.tensor(), value.tensor()};
    const auto run = [&](Guarded& out, Guarded& lse, int workers) {
        qkv::AttendProblem problem = {};
        problem.cache = {{Dtype::float32, heads_kv, width, value_width}, nullptr, 0};
        problem.tokens = {batch, len_q, none.data(), nullptr, false};
        problem.heads_q = heads_q;
        problem.dtype = dtype;
        problem.query = query.tensor();
        problem.out = out.data();
        problem.lse = wants_lse ? lse.as<float>() : nullptr;
        rules.apply(problem);
        problem.plain = &past;
        problem.heads_last = heads_last;
        qkv::attend(kernels, problem, workers);
        out.check();
        lse.check();
    };
    Guarded out(rows * row_bytes), lse(rows * 4);
    run(out, lse, threads);
    if (threads > 1) {
        Guarded again(rows * row_bytes), lse_again(rows * 4);
        run(again, lse_again, 1);
        require(out == again && lse == lse_again, "other bits with another number of threads");
    }

    const std::vector<double> q = query.numbers(), k = key.numbers(), v = value.numbers();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = row % len_q, h = row / len_q % heads_q, b = row / len_q / heads_q;
        const int64_t unit = b * heads_kv + h / group;
        SoftmaxRow wanted(rules.rule_of(h), value_width);
        for (int64_t j = 0; j < len_k; ++j) {
            if (!rules.sees(b, h, i, i, j)) continue;
            double dot = 0, size = 0;
            for (int64_t c = 0; c < width; ++c) {
                const double product = q[row * width + c] * k[(unit * len_k + j) * width + c];
                dot += product;
                size += std::fabs(product);
            }
            wanted.see(dot, size, width, rules.bias_of(b, h, i, j), v.data() + (unit * len_k + j) * value_width);
        }
        const int64_t place = heads_last ? (b * len_q + i) * heads_q + h : row;
        wanted.check(out.data() + place * row_bytes, dtype, wants_lse ? lse.as<float>() + row : nullptr);
    }
}
