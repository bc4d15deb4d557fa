#pragma once

// A decoder-only transformer as one call: from tokens to logits, with keys and values in the pages of a cache.
//   x = embedding_scale · embedding[token] (+ positions[position])
//   for each layer: x += post(attention(pre(x))), then x += post(feed_forward(pre(x))), or both of the same x
//   logits = product(norm(x))

#include <cstdint>
#include <mutex>
#include <vector>

#include "cache.h"
#include "kernel_table.h"
#include "packed.h"
#include "scratch.h"

namespace qkv {

struct Linear {
    PackedMatrix weight;
    const float* bias;  // or nullptr
};

// weight == nullptr: no norm.
struct Norm {
    const float* weight;
    const float* bias;  // or nullptr
    int64_t width;      // numbers that are normalized together
    float eps;
    bool centred;  // LayerNorm instead of RMSNorm
};

// Pair i of a head is rotated by position · frequencies[i].
struct Rotary {
    std::vector<double> frequencies;
    double scale;  // of cosine and sine
    bool interleaved;  // pairs are the features 2i and 2i + 1, otherwise i and i + pairs
};

struct TransformerLayer {
    Norm attention_norm, attention_post_norm;
    Norm query_norm, key_norm;  // of each head, or of all together
    Linear query, key, value, output;
    int64_t heads, kv_heads, width;  // width of a head
    float scale, softcap;            // softcap 0: none
    const float* sinks;              // (heads); or nullptr
    int rotary;                      // which of the program's; -1: none
    Norm feed_forward_norm, feed_forward_post_norm;
    Linear gate, up, down;  // gate.weight.data == nullptr: no gate
    Activation activation;
    bool parallel;  // attention and feed-forward have the same input
};

struct Transformer {
    PackedMatrix embedding;
    float embedding_scale;
    const float* positions;  // learned: a row for each position that a step may have; or nullptr
    std::vector<Rotary> rotaries;
    std::vector<TransformerLayer> layers;
    Norm norm;
    Linear logits;
    float logits_softcap;  // 0: none
    Activations activations;
};

// What a layer's cache stores, and of which tokens.
struct LayerCache {
    PagedCache pages;  // with pages for the tokens of the step
    const int64_t* evicted;  // the token at position p of batch row b is key p - evicted[b]
    int64_t window, sinks;   // AttendProblem
    float* importance;
    int64_t importance_columns;
    const int64_t* importance_from;
};

struct TokenStep {
    int64_t batch;
    const int64_t* tokens;      // the tokens of all batch rows, one row after the other
    const int64_t* counts;      // tokens of each batch row
    const int64_t* positions;   // of the first of them
    const LayerCache* caches;   // one for each layer
    const int64_t* wanted;      // which tokens need logits: indices into `tokens`, ascending
    int64_t wanted_count;
    float* logits;  // (wanted_count, vocabulary)
};

class Program {
public:
    explicit Program(Transformer transformer);

    // Appends the tokens to the caches (their lengths are the caller's) and writes logits. The same bits for any number
    // of threads. Calls from several threads wait for each other: they share the memory for activations, which is that
    // of the largest call. Throws std::bad_alloc.
    void run(const KernelTable& kernels, const PackedKernels& products, const TokenStep& step, int threads);

    const Transformer& transformer() const { return transformer_; }

private:
    void reserve(int64_t rows);

    const Transformer transformer_;
    int64_t pairs_ = 0;  // of all rotaries together
    int64_t reserved_ = 0;
    Floats x_, normed_, queries_, keys_, values_, attended_, gate_, up_, angles_;
    std::vector<int64_t> row_positions_, stored_;
    Scratch products_;
    std::mutex busy_;

    friend class Run;
};

}  // namespace qkv
