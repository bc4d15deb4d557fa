// Appends tokens to a cache in a few calls, then attends with the queries of the last call: softmax or argmax.

#include "cached_tokens.h"
#include "rules.h"
#include "target.h"

using namespace fuzz;

namespace {

struct Shape {
    Dtype dtype;  // of the queries
    qkv::PageLayout layout;
    int64_t batch, group, heads_q;

    Sizes of(int64_t tokens, int64_t width) const { return {batch, layout.heads, tokens, width}; }
};

Shape shape_of(Bytes& bytes) {
    Shape shape = {};
    shape.dtype = bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float32, Dtype::float16, Dtype::bfloat16});
    shape.layout.storage =
        qkv::kStorageFormats[bytes.between("storage", 0, static_cast<int64_t>(std::size(qkv::kStorageFormats)) - 1)];
    shape.batch = bytes.between("batch", 1, 3);
    shape.layout.heads = bytes.between("heads", 1, 3);
    shape.group = bytes.one_of<int64_t>("group", {1, 1, 2, 3, 4, 7, 13, 50});
    shape.layout.width = bytes.one_of<int64_t>("width", {1, 2, 3, 5, 7, 8, 16, 17, 33});
    shape.layout.value_width = bytes.one_of<int64_t>("value width", {1, 2, 3, 5, 15, 16, 17, 32, 33, 48, 65, 130});
    if (shape.layout.storage.latent) shape.layout.width = std::max(shape.layout.width, shape.layout.value_width);
    shape.heads_q = shape.layout.heads * shape.group;
    return shape;
}

// The tokens of one call.
struct Given {
    Given(Bytes& bytes, const Shape& shape, int64_t given, const std::vector<int64_t>& lengths, Random& random)
        : dtype(bytes.one_of<Dtype>("dtype", {Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::float64})),
          key(bytes, dtype, shape.of(given, shape.layout.width), random, fill_of(bytes)),
          value(bytes, dtype, shape.of(given, shape.layout.value_width), random, fill_of(bytes)),
          positions(lengths) {
        key.poison(bytes);
        value.poison(bytes);
        if (bytes.seldom("has counts", 3)) {
            for (int64_t b = 0; b < shape.batch; ++b) counts.push_back(bytes.between("count", 0, given));
        }
        tokens = {shape.batch, given, positions.data(), counts.empty() ? nullptr : counts.data(), bytes.flag("left")};
    }

    qkv::AppendProblem problem(const qkv::PagedCache& cache) const {
        return {cache, tokens, dtype, key.tensor(), value.tensor()};
    }

    Dtype dtype;
    Strided key, value;
    std::vector<int64_t> positions, counts;
    qkv::Tokens tokens;
};

struct Dot {
    double sum = 0, size = 0;

    // Rotated rows have products as large as those of their norms, and are NaN as a whole if a number is not finite.
    Dot(const double* q, const double* k, int64_t width, bool rotated) {
        double squares[2] = {0, 0};
        for (int64_t c = 0; c < width; ++c) {
            sum += q[c] * k[c];
            size += std::fabs(q[c] * k[c]);
            squares[0] += q[c] * q[c];
            squares[1] += k[c] * k[c];
            if (rotated && !std::isfinite(q[c])) sum = kNan;
        }
        if (rotated) size = std::max(size, std::sqrt(squares[0]) * std::sqrt(squares[1]));
    }
};

// The value of the first key with the largest score, within the error of float32.
void check_hard(const std::vector<int64_t>& seen, const std::vector<Dot>& dots, const Past& past, int64_t b, int64_t g,
                const Shape& shape, const char* out) {
    const int64_t width = shape.layout.width, value_width = shape.layout.value_width;
    double best = -kInfinity, doubt = 0;
    bool lost = false;
    for (const Dot& dot : dots) {
        lost = lost || std::isnan(dot.sum);
        if (dot.sum > best) {
            best = dot.sum;
            doubt = static_cast<double>(width + 3) * kRound * dot.size + 1e-37;
        }
    }
    const auto is_answer = [&](const double* value) {
        for (int64_t c = 0; c < value_width; ++c) {
            char wanted[4];
            const double number = lost ? kNan : value == nullptr ? 0.0 : value[c];
            write_as(wanted, shape.dtype, number);
            const double found = read_as(out + c * qkv::element_size(shape.dtype), shape.dtype);
            if (value != nullptr && !lost && std::isfinite(number) && is_rotated(shape.layout.storage.values)) {
                double most = 0;
                for (int64_t n = 0; n < value_width; ++n) most = std::max(most, std::fabs(value[n]));
                const double rounding = std::fabs(read_as(wanted, shape.dtype) - number);
                if (!(std::fabs(found - number) <= 1e-6 * most + 2 * rounding + 1e-37)) return false;
                continue;
            }
            if (std::isnan(number) ? !std::isnan(found) : found != read_as(wanted, shape.dtype)) return false;
        }
        return true;
    };
    if (lost || best == -kInfinity) return require(is_answer(nullptr), "out of a row without keys, or lost");
    for (size_t n = 0; n < seen.size(); ++n) {
        const double error = static_cast<double>(width + 3) * kRound * dots[n].size + 1e-37;
        if (std::isinf(best) ? dots[n].sum != best : dots[n].sum < best - doubt - error) continue;
        bool first = true;
        for (size_t m = 0; m < n && first; ++m) {
            const double *one = past.key(b, g, seen[m]), *other = past.key(b, g, seen[n]);
            first = !std::equal(one, one + width, other);
        }
        if (first && is_answer(past.value(b, g, seen[n]))) return;
    }
    fail("out is the value of none of the best keys");
}

}  // namespace

TARGET(memory) {
    const qkv::KernelTable& kernels = kernels_of(bytes);
    const int threads = threads_of(bytes);
    const Shape shape = shape_of(bytes);
    const qkv::PageLayout& layout = shape.layout;
    Random random = bytes.random("numbers");

    // A few calls, rarely a long one.
    const int64_t token_numbers = shape.batch * layout.heads * (layout.width + layout.value_width);
    const int64_t budget = (bytes.seldom("long", 32) ? 16000 : 1800) / token_numbers;
    const bool ring = bytes.seldom("ring", 4);
    int64_t slots = bytes.one_of<int64_t>("slots", {2, 4}), total = 0;
    std::vector<int64_t> lengths_of_calls;
    for (int64_t n = bytes.between("calls", 1, 3); n > 0; --n) {
        int64_t given = bytes.one_of<int64_t>("given", {1, 0, 1, 2, 3, 17, 63, 64, 65, 130, 260, 600});
        given = std::min(given, ring ? std::min(budget, (slots - 1) * qkv::kPageTokens) : budget - total);
        total += given = std::max<int64_t>(given, 0);
        lengths_of_calls.push_back(given);
    }
    std::vector<int64_t> first;
    const bool late = bytes.seldom("late", 4);
    for (int64_t b = 0; b < shape.batch; ++b) {
        first.push_back(late ? bytes.one_of<int64_t>("first", {1, 63, 64, 300, 5000}) : 0);
    }
    if (!ring) {
        const int64_t pages = total / qkv::kPageTokens + 2;
        for (slots = 1; slots < pages;) slots *= 2;
    }
    Past past(layout, first, slots);
    for (size_t n = 0; n + 1 < lengths_of_calls.size(); ++n) {
        const Given given(bytes, shape, lengths_of_calls[n], past.lengths(), random);
        qkv::append(given.problem(past.cache()), threads);
        past.enter(given.tokens, given.key, given.value);
    }

    // The last call has queries too; only the last rows are compared if there are many.
    const Given given(bytes, shape, lengths_of_calls.back(), past.lengths(), random);
    const qkv::AppendProblem append = given.problem(past.cache());
    past.enter(given.tokens, given.key, given.value);
    const bool argmax = bytes.seldom("argmax", 4);
    const int64_t work = total * (layout.width + layout.value_width + 16) * shape.batch * shape.heads_q / 32 + 1;
    const int64_t most = std::max<int64_t>((argmax ? 1000 : 2000) / work, 1);
    const bool takes_all = given.tokens.given <= most || given.tokens.counts != nullptr;
    const int64_t len_q = std::min(given.tokens.given, most);
    std::vector<int64_t> positions, counts;
    for (int64_t b = 0; b < shape.batch; ++b) {
        const int64_t count = std::min(Counted(given.tokens, b).count, len_q);
        counts.push_back(count);
        positions.push_back(past.lengths()[b] - count);
    }
    const int64_t* some = given.tokens.counts == nullptr ? nullptr : counts.data();
    const qkv::Tokens tokens = {shape.batch, len_q, positions.data(), some, given.tokens.left};
    const Sizes query_shape = {shape.batch, shape.heads_q, len_q, layout.width};
    Strided query(bytes, shape.dtype, query_shape, random, fill_of(bytes));
    query.poison(bytes);
    const int64_t end = *std::max_element(past.lengths().begin(), past.lengths().end());
    Rules rules(bytes, query_shape, end, first, random);
    if (ring || bytes.flag("has window")) {
        rules.window = bytes.one_of<int64_t>("window", {1, 2, 63, 64, 65, 100, INT64_MAX - 1});
        for (int64_t b = 0; b < shape.batch; ++b) {
            const int64_t oldest = past.oldest(b);
            if (oldest > first[b]) rules.window = std::min(rules.window, positions[b] + 1 - oldest);
        }
    }
    const bool heads_last = bytes.flag("heads last"), wants_lse = !argmax && bytes.flag("lse");
    // A decode step does both at once, with no mask but a window.
    const bool steps = !argmax && takes_all && !rules.is_bounded() && bytes.flag("step");

    const int64_t rows = shape.batch * shape.heads_q * len_q;
    const int64_t row_bytes = layout.value_width * qkv::element_size(shape.dtype);
    const auto run = [&](Guarded& out, Guarded& lse, int workers, bool appends) {
        qkv::AttendProblem problem = {};
        problem.cache = past.cache();
        problem.tokens = tokens;
        problem.heads_q = shape.heads_q;
        problem.dtype = shape.dtype;
        problem.query = query.tensor();
        problem.out = out.data();
        problem.lse = wants_lse ? lse.as<float>() : nullptr;
        rules.apply(problem);
        problem.heads_last = heads_last;
        if (steps && appends) {
            qkv::append_and_attend(kernels, append, problem, workers);
        } else {
            if (appends) qkv::append(append, workers);
            (argmax ? qkv::attend_argmax : qkv::attend)(kernels, problem, workers);
        }
        out.check();
        lse.check();
    };
    Guarded out(rows * row_bytes), lse(rows * 4);
    run(out, lse, threads, true);
    past.check();
    if (threads > 1 || steps) {
        Guarded again(rows * row_bytes), lse_again(rows * 4);
        run(again, lse_again, 1, false);
        require(out == again && lse == lse_again, "other bits with other threads, or in two calls");
    }

    const std::vector<double> q = query.numbers();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = row % len_q, h = row / len_q % shape.heads_q, b = row / len_q / shape.heads_q;
        const int64_t g = h / shape.group;
        const Counted counted(tokens, b);
        const int64_t position = positions[b] + i - counted.first;
        const bool counts_at_all = i >= counted.first && i < counted.first + counted.count;
        SoftmaxRow wanted(rules.rule_of(h), layout.value_width, is_rotated(layout.storage.values));
        std::vector<int64_t> seen;
        std::vector<Dot> dots;
        for (int64_t j = past.oldest(b); counts_at_all && j <= position; ++j) {
            if (!rules.sees(b, h, i, position, j)) continue;
            const Dot dot(q.data() + row * layout.width, past.key(b, g, j), layout.width, is_rotated(layout.storage.keys));
            if (argmax) {
                seen.push_back(j);
                dots.push_back(dot);
            } else {
                wanted.see(dot.sum, dot.size, layout.width, rules.bias_of(b, h, i, j), past.value(b, g, j));
            }
        }
        const int64_t place = heads_last ? (b * len_q + i) * shape.heads_q + h : row;
        const char* found = out.data() + place * row_bytes;
        if (argmax) {
            check_hard(seen, dots, past, b, g, shape, found);
        } else {
            wanted.check(found, shape.dtype, wants_lse ? lse.as<float>() + row : nullptr);
        }
    }
}
