#include "program.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "parallel.h"

namespace qkv {

namespace {

// Numbers per row for which waking a second thread takes longer than the work.
constexpr int64_t kSerialFloats = 1 << 14;

}  // namespace

// One call of Program::run: its rows are the tokens.
class Run {
public:
    Run(const KernelTable& kernels, const PackedKernels& products, Program& program, const TokenStep& step, int threads)
        : kernels_(kernels), products_(products), p_(program), t_(program.transformer_), step_(step), threads_(threads),
          width_(t_.embedding.columns), rows_(std::accumulate(step.counts, step.counts + step.batch, int64_t{0})) {}

    void run() {
        number_rows();
        embed();
        rotate_angles();
        for (size_t n = 0; n < t_.layers.size(); ++n) {
            const TransformerLayer& layer = t_.layers[n];
            attend(layer, step_.caches[n]);
            if (n + 1 == t_.layers.size()) keep_wanted(layer.heads * layer.width);
            if (rows_ == 0) return;
            if (layer.parallel) expand(layer);
            add_product(layer.output, p_.attended_.get(), layer.attention_post_norm);
            if (!layer.parallel) expand(layer);
            add_product(layer.down, p_.gate_.get(), layer.feed_forward_post_norm);
        }
        write_logits();
    }

private:
    // body(row) for each row, on several threads if there is enough to do.
    template <typename Body>
    void for_rows(int64_t floats, Body body) {
        auto work = [&](int64_t row, int) { body(row); };
        for_each_job(rows_, rows_ * floats < kSerialFloats ? 1 : worker_limit(rows_, threads_), work);
    }

    void multiply(std::initializer_list<const Linear*> parts, const float* x, std::initializer_list<float*> ys) {
        constexpr int kMost = 3;
        PackedMatrix matrices[kMost];
        const float* biases[kMost];
        int count = 0;
        for (const Linear* part : parts) {
            matrices[count] = part->weight;
            biases[count++] = part->bias;
        }
        packed_product(products_, matrices, count, x, rows_, ys.begin(), biases, t_.activations, threads_,
                       p_.products_);
    }

    // The input of a product: a norm of x, or x.
    const float* normalized(const Norm& norm) {
        if (norm.weight == nullptr) return p_.x_.get();
        for_rows(width_, [&](int64_t row) {
            normalize(norm, p_.x_.get() + row * width_, p_.normed_.get() + row * width_);
        });
        return p_.normed_.get();
    }

    void normalize(const Norm& norm, const float* from, float* to) const {
        kernels_.normalize_row(from, norm.width, norm.weight, norm.bias, norm.eps, norm.centred, to);
    }

    void embed() {
        for_rows(width_, [&](int64_t row) {
            float* x = p_.x_.get() + row * width_;
            unpack_row(products_, t_.embedding, step_.tokens[row], x);
            for (int64_t c = 0; c < width_ && t_.embedding_scale != 1.0f; ++c) x[c] *= t_.embedding_scale;
            if (t_.positions == nullptr) return;
            const float* learned = t_.positions + p_.row_positions_[row] * width_;
            for (int64_t c = 0; c < width_; ++c) x[c] += learned[c];
        });
    }

    void number_rows() {
        for (int64_t b = 0, row = 0; b < step_.batch; ++b) {
            for (int64_t i = 0; i < step_.counts[b]; ++i) p_.row_positions_[row++] = step_.positions[b] + i;
        }
    }

    // Cosines, then sines, of each rotary at the positions of the rows.
    void rotate_angles() {
        for_rows(32 * p_.pairs_, [&](int64_t row) {
            float* to = p_.angles_.get() + row * 2 * p_.pairs_;
            for (const Rotary& rotary : t_.rotaries) {
                const auto pairs = static_cast<int64_t>(rotary.frequencies.size());
                for (int64_t i = 0; i < pairs; ++i) {
                    const double angle = static_cast<double>(p_.row_positions_[row]) * rotary.frequencies[i];
                    to[i] = static_cast<float>(std::cos(angle) * rotary.scale);
                    to[pairs + i] = static_cast<float>(std::sin(angle) * rotary.scale);
                }
                to += 2 * pairs;
            }
        });
    }

    // Normalizes and rotates the heads of a row.
    void place_heads(const TransformerLayer& layer, const Norm& norm, int64_t heads, int64_t row, float* vectors) const {
        const float* angles = p_.angles_.get() + row * 2 * p_.pairs_;
        for (int n = 0; n < layer.rotary; ++n) angles += 2 * t_.rotaries[n].frequencies.size();
        const bool whole = norm.width == heads * layer.width;
        if (norm.weight != nullptr && whole) normalize(norm, vectors, vectors);
        for (int64_t head = 0; head < heads; ++head, vectors += layer.width) {
            if (norm.weight != nullptr && !whole) normalize(norm, vectors, vectors);
            if (layer.rotary < 0) continue;
            const Rotary& rotary = t_.rotaries[layer.rotary];
            const auto pairs = static_cast<int64_t>(rotary.frequencies.size());
            kernels_.rotate_pairs(vectors, pairs, angles, angles + pairs, rotary.interleaved);
        }
    }

    void attend(const TransformerLayer& layer, const LayerCache& cache) {
        const int64_t query_width = layer.heads * layer.width, key_width = layer.kv_heads * layer.width;
        float *queries = p_.queries_.get(), *keys = p_.keys_.get(), *values = p_.values_.get();
        multiply({&layer.query, &layer.key, &layer.value}, normalized(layer.attention_norm), {queries, keys, values});
        for_rows(query_width + key_width, [&](int64_t row) {
            place_heads(layer, layer.query_norm, layer.heads, row, queries + row * query_width);
            place_heads(layer, layer.key_norm, layer.kv_heads, row, keys + row * key_width);
        });
        const auto heads_of = [&](const float* data, int64_t first, int64_t count, int64_t width) {
            return Tensor4{data + first * width, {count * width, layer.width, width, 1}};
        };
        int64_t* const stored = p_.stored_.data();  // before the step, of each batch row
        for (int64_t b = 0; b < step_.batch; ++b) stored[b] = step_.positions[b] - cache.evicted[b];
        // Batch rows with as many tokens as their neighbours are one call.
        for (int64_t b = 0, row = 0; b < step_.batch;) {
            const int64_t count = step_.counts[b];
            int64_t batch = 1;
            while (b + batch < step_.batch && step_.counts[b + batch] == count) ++batch;
            if (count > 0) {
                PagedCache pages = cache.pages;
                pages.table += b * pages.slots;
                const Tokens tokens = {batch, count, stored + b, nullptr, false};
                const AppendProblem append = {pages, tokens, Dtype::float32, heads_of(keys, row, count, key_width),
                                              heads_of(values, row, count, key_width)};
                AttendProblem attend = {pages, tokens, layer.heads, Dtype::float32,
                                              heads_of(queries, row, count, query_width),
                                              p_.attended_.get() + row * query_width, nullptr, cache.window, nullptr,
                                              nullptr, kNoBound, kNoBound, {}, {}, layer.scale, layer.softcap,
                                              layer.sinks, nullptr, true, cache.sinks};
                if (cache.importance != nullptr) {
                    attend.importance = cache.importance + b * layer.kv_heads * cache.importance_columns;
                    attend.importance_columns = cache.importance_columns;
                    attend.importance_from = cache.importance_from == nullptr ? nullptr : cache.importance_from + b;
                }
                append_and_attend(kernels_, append, attend, threads_);
            }
            row += batch * count;
            b += batch;
        }
    }

    // After the last attention, only tokens whose logits are wanted go on.
    void keep_wanted(int64_t query_width) {
        rows_ = step_.wanted_count;
        for (int64_t row = 0; row < rows_; ++row) {
            const int64_t from = step_.wanted[row];
            if (from == row) continue;
            std::memcpy(p_.x_.get() + row * width_, p_.x_.get() + from * width_, width_ * sizeof(float));
            std::memcpy(p_.attended_.get() + row * query_width, p_.attended_.get() + from * query_width,
                        query_width * sizeof(float));
        }
    }

    // x += post(Wy).
    void add_product(const Linear& linear, const float* y, const Norm& post) {
        float* product = p_.normed_.get();
        multiply({&linear}, y, {product});
        for_rows(width_, [&](int64_t row) {
            float *x = p_.x_.get() + row * width_, *more = product + row * width_;
            if (post.weight != nullptr) normalize(post, more, more);
            for (int64_t c = 0; c < width_; ++c) x[c] += more[c];
        });
    }

    // The input of the feed-forward's last product.
    void expand(const TransformerLayer& layer) {
        const bool gated = layer.gate.weight.data != nullptr;
        const int64_t inner = layer.up.weight.rows;
        float *gate = p_.gate_.get(), *up = p_.up_.get();
        const float* x = normalized(layer.feed_forward_norm);
        if (gated) {
            multiply({&layer.gate, &layer.up}, x, {gate, up});
        } else {
            multiply({&layer.up}, x, {gate});
        }
        for_rows(4 * inner, [&](int64_t row) {
            float* inputs = gate + row * inner;
            kernels_.activate_row(inputs, gated ? up + row * inner : nullptr, inner, layer.activation);
        });
    }

    void write_logits() {
        const float* x = normalized(t_.norm);
        multiply({&t_.logits}, x, {step_.logits});
        const float cap = t_.logits_softcap;
        if (cap == 0.0f) return;
        const int64_t vocabulary = t_.logits.weight.rows;
        for_rows(32 * vocabulary, [&](int64_t row) {
            float* logits = step_.logits + row * vocabulary;
            for (int64_t i = 0; i < vocabulary; ++i) logits[i] = cap * std::tanh(logits[i] / cap);
        });
    }

    const KernelTable& kernels_;
    const PackedKernels& products_;
    Program& p_;
    const Transformer& t_;
    const TokenStep& step_;
    const int threads_;
    const int64_t width_;
    int64_t rows_;
};

Program::Program(Transformer transformer) : transformer_(std::move(transformer)) {
    for (const Rotary& rotary : transformer_.rotaries) pairs_ += static_cast<int64_t>(rotary.frequencies.size());
}

void Program::reserve(int64_t rows) {
    if (rows <= reserved_) return;
    reserved_ = 0;
    int64_t queries = 0, keys = 0, inner = 0;
    for (const TransformerLayer& layer : transformer_.layers) {
        queries = std::max(queries, layer.heads * layer.width);
        keys = std::max(keys, layer.kv_heads * layer.width);
        inner = std::max(inner, layer.up.weight.rows);
    }
    const auto floats = [&](int64_t width) { return allocate(checked_product(rows, width)); };
    x_ = floats(transformer_.embedding.columns);
    normed_ = floats(transformer_.embedding.columns);
    queries_ = floats(queries);
    attended_ = floats(queries);
    keys_ = floats(keys);
    values_ = floats(keys);
    gate_ = floats(inner);
    up_ = floats(inner);
    angles_ = floats(2 * pairs_);
    row_positions_.resize(rows);
    reserved_ = rows;
}

void Program::run(const KernelTable& kernels, const PackedKernels& products, const TokenStep& step, int threads) {
    const std::lock_guard<std::mutex> lock(busy_);
    reserve(std::accumulate(step.counts, step.counts + step.batch, int64_t{0}));
    stored_.resize(step.batch);
    Run run(kernels, products, *this, step, threads);
    with_team(threads, [&] { run.run(); });
}

}  // namespace qkv
