// Linear attention with a state of earlier keys, then keys and queries, against scores of all pairs.

#include "linear.h"

#include "scratch.h"
#include "softmax.h"
#include "target.h"

using namespace fuzz;
using qkv::Map;

namespace {

double feature(Map map, double x) {
    if (map == Map::elu1) return x > 0 ? x + 1 : std::exp(x);
    if (map == Map::relu) return x > 0 ? x : 0;
    return map == Map::squared ? x * x : x;
}

// sim(q, k), and the sum of the magnitudes of its terms.
struct Pair {
    double similarity = 0, size = 0;

    Pair(const qkv::FeatureRule& rule, const double* q, const double* k) {
        for (int64_t c = 0; c < rule.width; ++c) {
            const double product = feature(rule.map, q[c]) * feature(rule.map, k[c]);
            similarity += product;
            size += std::fabs(product);
        }
        if (rule.map != Map::power) return;
        similarity = std::pow(similarity + static_cast<double>(rule.offset), rule.degree);
        size = std::pow(size + std::fabs(static_cast<double>(rule.offset)), rule.degree);
    }
};

struct Case {
    qkv::FeatureRule rule;
    Dtype dtype;
    int64_t batch, heads_kv, group, value_width;
};

// Keys and values of one call, some of which are dropped and may have any contents.
struct Keys {
    Keys(Bytes& bytes, const Case& c, int64_t length, Random& random, Fill fill)
        : length(length),
          key(bytes, c.dtype, {c.batch, c.heads_kv, length, c.rule.width}, random, fill),
          value(bytes, c.dtype, {c.batch, c.heads_kv, length, c.value_width}, random, fill) {
        if (!bytes.seldom("has keep", 3)) return;
        const int64_t times = bytes.between("drops one of", 1, 4);
        for (int64_t n = 0; n < c.batch * length; ++n) {
            keep.push_back(random.below(times) != 0);
            for (int64_t h = 0; keep.back() == 0 && h < c.heads_kv; ++h) {
                if (alone(key)) key.set_row(n / length, h, n % length, kNan);
                if (alone(value)) value.set_row(n / length, h, n % length, random.below(2) == 0 ? kNan : kInfinity);
            }
        }
    }

    // Whether no two rows or positions share memory.
    static bool alone(const Strided& numbers) {
        return numbers.tensor().stride[0] != 0 && numbers.tensor().stride[2] != 0;
    }

    bool counts(int64_t b, int64_t j) const { return keep.empty() || keep[b * length + j] != 0; }

    const int64_t length;
    Strided key, value;
    std::vector<uint8_t> keep;
};

// Sums over keys, and sums of the magnitudes of their terms.
struct Sums {
    explicit Sums(int64_t width) : above(width, 0.0), above_size(width, 0.0) {}

    void add(const Pair& pair, const double* value) {
        below += pair.similarity;
        below_size += pair.size;
        ++keys;
        for (size_t n = 0; n < above.size(); ++n) {
            above[n] += pair.similarity * value[n];
            above_size[n] += pair.size * std::fabs(value[n]);
        }
    }

    std::vector<double> above, above_size;
    double below = 0, below_size = 0;
    int64_t keys = 0;
};

void check_row(const Sums& sums, const Case& c, bool normalize, const char* out) {
    // The most roundings of a term of a sum.
    const auto steps = static_cast<double>(sums.keys + c.rule.count() + c.rule.width + 8 * c.rule.degree + 64);
    const double digits = std::expm1(steps * kRound), flushed = 1e-36 * static_cast<double>(sums.keys);
    const double doubt = digits * sums.below_size + flushed;
    for (int64_t n = 0; n < c.value_width; ++n) {
        const double found = read_as(out + n * qkv::element_size(c.dtype), c.dtype);
        double wanted = sums.above[n], slack = digits * sums.above_size[n] + flushed;
        if (normalize && sums.keys > 0) {
            if (sums.below == 0 && sums.below_size == 0) {
                wanted = slack = 0;
            } else {
                const double least = std::fabs(sums.below) - doubt;
                if (!(least > doubt)) continue;  // a quotient of rounding errors
                wanted /= sums.below;
                slack = (slack + std::fabs(wanted) * doubt) / least;
            }
        }
        compare(found, wanted, slack, c.dtype, "out");
    }
}

}  // namespace

TARGET(linear) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    Case c = {};
    c.rule.map = bytes.one_of<Map>("map", {Map::identity, Map::elu1, Map::relu, Map::squared, Map::power, Map::power});
    // Rarely enough keys for several segments; otherwise few.
    const bool many = bytes.seldom("segments", 32);
    c.rule.width = bytes.one_of<int64_t>("width", {1, 2, 3, 4, 5, 16, 17});
    if (many) c.rule.width = std::min<int64_t>(c.rule.width, 3);
    c.rule.degree = 1;
    if (c.rule.map == Map::power) {
        c.rule.degree = static_cast<int>(bytes.between("degree", 1, c.rule.width > 5 ? 2 : 4));
        c.rule.offset = std::array<float, 4>{0, 1, -0.5f, 0.25f}[bytes.between("power offset", 0, 3)];
    }
    c.dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float32, Dtype::float16, Dtype::bfloat16});
    c.batch = many ? 1 : bytes.between("batch", 1, 2);
    c.heads_kv = bytes.one_of<int64_t>("heads_kv", {1, 1, 2, 4});
    c.group = bytes.between("group", 1, 2);
    c.value_width = bytes.one_of<int64_t>("value width", {1, 2, 5, 16, 17, 32, 33});
    if (many) c.value_width = std::min<int64_t>(c.value_width, 2);
    const int64_t heads_q = c.heads_kv * c.group;
    int64_t len_k = bytes.one_of<int64_t>("keys", {0, 1, 2, 5, 63, 64, 65, 130});
    len_k = many ? 1100 : std::min(len_k, 20000 / (c.batch * c.heads_kv * (c.rule.width + c.value_width)));
    int64_t len_q = bytes.one_of<int64_t>("queries", {0, 1, 2, 3, 7, 64, 65, 130});
    const int64_t work = c.batch * heads_q * (len_k + 1) * (c.rule.width + c.value_width + 8);
    len_q = std::min(len_q, std::max<int64_t>((many ? 300000 : 25000) / work, 1));
    const bool has_state = bytes.seldom("state", 3), direct = bytes.seldom("direct", 4);
    const bool normalize = bytes.flag("normalize"), causal = bytes.flag("causal");
    const int64_t near = bytes.between("offset", -70, 70);
    const int64_t offsets[] = {0, near, len_k - len_q, len_k / 2 + near / 2, INT64_MIN, INT64_MAX};
    const int64_t offset = offsets[bytes.between("kind of offset", 0, 5)];

    Random random = bytes.random("numbers");
    const Fill fill = bytes.one_of<Fill>("fill", {Fill::common, Fill::whole, Fill::large});
    const Keys earlier(bytes, c, has_state ? bytes.one_of<int64_t>("earlier keys", {0, 1, 3, 65}) : 0, random, fill);
    const Keys keys(bytes, c, len_k, random, fill);
    const Strided query(bytes, c.dtype, {c.batch, heads_q, len_q, c.rule.width}, random, fill);

    const auto problem_of = [&](const Keys& some, void* out, float* state) {
        const int64_t queries = out == nullptr ? 0 : len_q;
        return qkv::LinearProblem{c.rule, c.dtype, c.batch, heads_q, c.heads_kv, queries, some.length, c.value_width,
                                  query.tensor(), some.key.tensor(), some.value.tensor(),
                                  some.keep.empty() ? nullptr : some.keep.data(), causal, offset, normalize, out, state,
                                  direct && out != nullptr};
    };
    const int64_t floats = qkv::linear_state_size(c.rule, c.value_width) * c.batch * c.heads_kv;
    const int64_t rows = c.batch * heads_q * len_q, row_bytes = c.value_width * qkv::element_size(c.dtype);
    qkv::Floats state(nullptr);
    const auto run = [&](int workers, Guarded& out) {
        if (has_state) {
            state = qkv::allocate(floats);
            std::fill(state.get(), state.get() + floats, 0.0f);
            qkv::linear(kernels, problem_of(earlier, nullptr, state.get()), workers);
        }
        const std::vector<float> before(state.get(), state.get() + (has_state ? floats : 0));
        qkv::linear(kernels, problem_of(keys, out.data(), state.get()), workers);
        out.check();
        if (has_state && direct) {
            const bool same = std::memcmp(before.data(), state.get(), before.size() * 4) == 0;
            require(same, "a state that is only read was written");
        }
    };
    Guarded out(rows * row_bytes);
    run(threads, out);
    if (threads > 1) {
        Guarded again(rows * row_bytes);
        run(1, again);
        require(out == again, "other bits with another number of threads");
    }

    const std::vector<double> q = query.numbers(), k = keys.key.numbers(), v = keys.value.numbers();
    const std::vector<double> past_key = earlier.key.numbers(), past_value = earlier.value.numbers();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = row % len_q, h = row / len_q % heads_q, b = row / len_q / heads_q;
        const int64_t unit = b * c.heads_kv + h / c.group;
        Sums sums(c.value_width);
        const auto take = [&](const Keys& some, const double* key, const double* value, __int128 last) {
            for (int64_t j = 0; j < some.length && j <= last; ++j) {
                if (!some.counts(b, j)) continue;
                const int64_t token = unit * some.length + j;
                const Pair pair(c.rule, q.data() + row * c.rule.width, key + token * c.rule.width);
                sums.add(pair, value + token * c.value_width);
            }
        };
        take(earlier, past_key.data(), past_value.data(), INT64_MAX);
        take(keys, k.data(), v.data(), causal ? static_cast<__int128>(i) + offset : static_cast<__int128>(INT64_MAX));
        check_row(sums, c, normalize, out.data() + row * row_bytes);
    }
}
