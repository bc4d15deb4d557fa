// Attention with a state: chunks and single tokens of any layout against the recurrence, non-finite numbers included.

#include "state.h"

#include "target.h"
#include "tensors.h"

using namespace fuzz;

namespace {

struct Case {
    Dtype dtype;
    int64_t batch, heads_kv, group, length, width, value_width, gate_width;
    bool delta;
};

// The same bits, but any NaN: which of two an operation returns is up to the compiler.
bool same(Guarded& one, Guarded& other, int64_t bytes, Dtype dtype) {
    const int64_t element = qkv::element_size(dtype);
    for (int64_t at = 0; at < bytes; at += element) {
        const char *a = one.data() + at, *b = other.data() + at;
        const bool both_nan = std::isnan(read_as(a, dtype)) && std::isnan(read_as(b, dtype));
        if (!both_nan && std::memcmp(a, b, static_cast<size_t>(element)) != 0) return false;
    }
    return true;
}

}  // namespace

TARGET(state) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    Case c = {};
    c.dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float32, Dtype::float16, Dtype::bfloat16});
    c.batch = bytes.between("batch", 1, 2);
    c.heads_kv = bytes.one_of<int64_t>("heads_kv", {1, 1, 2, 3});
    c.group = bytes.between("group", 1, 2);
    c.width = bytes.one_of<int64_t>("width", {1, 2, 5, 16, 17});
    c.value_width = bytes.one_of<int64_t>("value width", {1, 3, 16, 17, 33, 80, 144});
    c.length = bytes.one_of<int64_t>("length", {0, 1, 2, 4, 5, 17, 64, 65, 130});
    c.length = std::min(c.length, 40000 / (c.batch * c.heads_kv * c.group * c.width * c.value_width) + 6);
    c.gate_width = bytes.one_of<int64_t>("gate", {0, 1, c.width});
    c.delta = bytes.flag("delta");
    const int64_t heads_q = c.heads_kv * c.group, tokens = c.batch * c.length;

    Random random = bytes.random("numbers");
    Strided query(bytes, c.dtype, {c.batch, heads_q, c.length, c.width}, random, Fill::common);
    Strided key(bytes, c.dtype, {c.batch, c.heads_kv, c.length, c.width}, random, Fill::common);
    Strided value(bytes, c.dtype, {c.batch, c.heads_kv, c.length, c.value_width}, random, Fill::common);
    Strided gate(bytes, c.dtype, {c.batch, c.heads_kv, c.length, c.gate_width}, random, Fill::common);
    Strided beta(bytes, c.dtype, {c.batch, c.heads_kv, c.length, 1}, random, Fill::common);
    const auto each = [&](const Strided& tensor, int64_t heads, int64_t width, auto change) {
        auto& numbers = const_cast<Strided&>(tensor);
        std::vector<double> before = tensor.numbers();
        for (int64_t n = 0; n < c.batch * heads * c.length * width; ++n) {
            const int64_t i = n % width, t = n / width % c.length, h = n / width / c.length % heads;
            numbers.set(n / width / c.length / heads, h, t, i, change(before[n]));
        }
    };
    each(gate, c.heads_kv, c.gate_width, [&](double g) {
        return random.below(17) == 0 ? -kInfinity : random.below(17) == 0 ? -95.0 : -std::fabs(g);
    });
    each(beta, c.heads_kv, 1, [](double b) { return std::fabs(b); });
    // Keys no longer than 1, as those of models: a correction then never lengthens the state.
    each(key, c.heads_kv, c.width, [&](double k) { return k / (2.0 * std::sqrt(static_cast<double>(c.width))); });
    value.poison(bytes);
    key.poison(bytes);
    std::vector<uint8_t> keep, resets;
    const bool has_keep = bytes.seldom("has keep", 3), has_resets = bytes.seldom("has resets", 3);
    for (int64_t n = 0; n < tokens; ++n) {
        keep.push_back(!has_keep || random.below(4) != 0);
        resets.push_back(has_resets && random.below(9) == 0);
    }
    const bool has_state = bytes.flag("has state");
    const int64_t cells = c.width * c.value_width, states = c.batch * c.heads_kv * cells;
    std::vector<float> initial;
    for (int64_t n = 0; n < states; ++n) initial.push_back(has_state ? static_cast<float>(draw(random, Fill::common)) : 0.0f);

    const int64_t out_bytes = c.batch * heads_q * c.length * c.value_width * qkv::element_size(c.dtype);
    const auto run = [&](int workers, Guarded& out, Guarded& held) {
        std::memcpy(held.data(), initial.data(), static_cast<size_t>(states) * 4);
        const int64_t row = c.value_width, head = c.length * row;
        const qkv::StateProblem problem = {c.dtype, c.batch, heads_q, c.heads_kv, c.length, c.width, c.value_width,
                                           query.tensor(), key.tensor(), value.tensor(), c.gate_width, c.dtype,
                                           gate.tensor(), c.delta, c.dtype, beta.tensor(),
                                           has_keep ? keep.data() : nullptr, has_resets ? resets.data() : nullptr,
                                           has_state ? held.as<float>() : nullptr, out.data(),
                                           {heads_q * head, head, row}};
        qkv::state_attention(kernels, problem, workers);
        out.check();
        held.check();
    };
    Guarded out(out_bytes), held(states * 4);
    run(threads, out, held);
    if (threads > 1) {
        Guarded again(out_bytes), also(states * 4);
        run(1, again, also);
        require(same(out, again, out_bytes, c.dtype) && same(held, also, states * 4, Dtype::float32),
                "other bits with another number of threads");
    }

    const std::vector<double> q = query.numbers(), k = key.numbers(), v = value.numbers(), g = gate.numbers(),
                              b = beta.numbers();
    // Twice the largest sum of magnitudes bounds every term; a reflection (β = 2) lets errors grow with the tokens.
    const double digits = (c.delta ? 40.0 : 1.0) * static_cast<double>(c.length + c.width + 16) * 0x1p-22;
    for (int64_t unit = 0; unit < c.batch * c.heads_kv; ++unit) {
        for (int64_t n = 0; n < c.value_width; ++n) {
            std::vector<double> now(static_cast<size_t>(c.width));
            double size = 1.0;
            for (int64_t i = 0; i < c.width; ++i) now[i] = initial[unit * cells + i * c.value_width + n];
            for (int64_t t = 0; t < c.length; ++t) {
                const int64_t token = unit * c.length + t, row = unit / c.heads_kv * c.length + t;
                if (resets[row] != 0) std::fill(now.begin(), now.end(), 0.0);
                double u = v[token * c.value_width + n];
                if (keep[row] != 0) {
                    for (int64_t i = 0; i < c.width && c.gate_width > 0; ++i) {
                        const double gate = g[token * c.gate_width + (c.gate_width > 1 ? i : 0)];
                        now[i] = gate == -kInfinity ? 0.0 : now[i] * std::exp(gate);
                    }
                    if (c.delta) {
                        for (int64_t i = 0; i < c.width; ++i) u -= k[token * c.width + i] * now[i];
                        u *= b[token];
                    }
                    for (int64_t i = 0; i < c.width; ++i) {
                        now[i] += k[token * c.width + i] * u;
                        if (std::isfinite(now[i])) size = std::fmax(size, std::fabs(now[i]));
                    }
                }
                for (int64_t h = 0; h < c.group; ++h) {
                    const int64_t at = (unit * c.group + h) * c.length + t;
                    double wanted = 0, sum = 0;
                    for (int64_t i = 0; i < c.width && keep[row] != 0; ++i) {
                        wanted += q[at * c.width + i] * now[i];
                        sum += std::fabs(q[at * c.width + i]);
                    }
                    const double found = read_as(out.data() + (at * c.value_width + n) * qkv::element_size(c.dtype), c.dtype);
                    compare(found, wanted, digits * size * sum, c.dtype, "out");
                }
            }
            for (int64_t i = 0; i < c.width && has_state; ++i) {
                const double found = static_cast<double>(held.as<float>()[unit * cells + i * c.value_width + n]);
                compare(found, now[i], digits * size, Dtype::float32, "state");
            }
        }
    }
}
