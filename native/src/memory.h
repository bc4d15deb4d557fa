#pragma once

// Keys and values of the past, in pages. A page holds 64 tokens of one batch row, for all its key/value heads; the
// slab of one head is, each part aligned to 64 bytes:
//   header  64 bytes: the first is 1 when a value of the slab may not be finite
//   scales  int8 only: 64 floats for the keys, then 64 for the values
//   keys    [width / pair][64 tokens][pair]: tokens lie side by side, so that a vector holds as many scores
//   values  [64 tokens][value_slots]
// A table finds the page of a position: table[row][position / 64 modulo slots] is its address.

#include <cstdint>

#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

struct MemoryLayout {
    Dtype storage;  // float32, float16, bfloat16 or int8
    int64_t heads, width, value_width;

    // bfloat16 keeps two channels of a token together: one shift and one mask widen both.
    int64_t pair() const { return storage == Dtype::bfloat16 ? 2 : 1; }
    int64_t width_slots() const { return (width + pair() - 1) / pair() * pair(); }
    int64_t value_slots() const { return (value_width + 15) / 16 * 16; }
    int64_t scale_bytes() const { return storage == Dtype::int8 ? 2 * kPageTokens * 4 : 0; }
    int64_t keys_at() const { return kHeaderBytes + scale_bytes(); }
    int64_t values_at() const { return keys_at() + kPageTokens * width_slots() * element_size(storage); }
    int64_t head_bytes() const { return values_at() + kPageTokens * value_slots() * element_size(storage); }

    static constexpr int64_t kHeaderBytes = 64;
};

struct Memory {
    MemoryLayout layout;
    const int64_t* table;  // (batch, slots) addresses
    int64_t slots;         // a power of two

    char* slab(int64_t row, int64_t page, int64_t head) const {
        return reinterpret_cast<char*>(table[row * slots + (page & (slots - 1))]) + head * layout.head_bytes();
    }
};

// Which of the given tokens count, and where the first of them stands: row b's are the first counts[b] of `given`,
// or the last. No counts: all.
struct Tokens {
    int64_t batch, given;
    const int64_t* positions;
    const int64_t* counts;
    bool left;

    int64_t count(int64_t row) const { return counts == nullptr ? given : counts[row]; }
    int64_t first(int64_t row) const { return left ? given - count(row) : 0; }
};

struct AppendProblem {
    Memory memory;
    Tokens tokens;
    Dtype dtype;  // of key and value: float64, float32, float16 or bfloat16
    Tensor4 key, value;
};

// Writes the tokens that count, rounded to the storage. The pages are there.
void append(const AppendProblem& problem, int threads);

// The same for one row of the batch and one head.
using AppendRow = void (*)(const AppendProblem& problem, int64_t row, int64_t head);
AppendRow append_row(const AppendProblem& problem);

constexpr int64_t kNoBound = INT64_MAX;

// Fewer bytes of a memory than this are read faster than a second thread is woken.
constexpr int64_t kReadBytesPerThread = 96 << 10;

// Keys and values as tensors, instead of a memory's pages.
struct PlainPast {
    Dtype dtype;
    int64_t length;
    Tensor4 key, value;
};

struct AttendProblem {
    Memory memory;  // of a plain past: only sizes, with float32 as its storage
    Tokens tokens;  // the queries
    int64_t heads_q;
    Dtype dtype;  // of query and out: float32, float16 or bfloat16
    Tensor4 query;
    void* out;   // (batch, heads_q, given, value_width), contiguous; or as heads_last says
    float* lse;  // (batch, heads_q, given), contiguous; or nullptr
    // A query at position p of row b sees the keys j <= p with p - window < j, starts[b] <= j < stops[b] and
    // p + lower <= j < p + upper, as far as each is given (kNoBound and nullptr: not), and keep[b, h, i, j].
    int64_t window;
    const int64_t *starts, *stops;
    int64_t lower, upper;
    Tensor4 keep;  // bool; data may be nullptr
    Tensor4 bias;  // float32; data may be nullptr
    float scale, softcap;  // softcap 0: none
    const float* sink;     // (heads_q); or nullptr
    // Set: the keys are these, and nothing is causal but for the bounds above; positions count the queries.
    const PlainPast* plain;
    bool heads_last = false;  // out is (batch, given, heads_q, value_width), as models have their features
};

// out = Σ_j e^(s_j) v_j / Σ_j e^(s_j) over the keys that a query sees, s = scale·q·k, then softcap, then + bias; the
// sink adds to the lower sum only. Queries that see nothing, or do not count, get 0 and lse -inf. The same bits for
// any number of threads, any batch companions and any division of the tokens over calls. Throws std::bad_alloc.
void attend(const KernelTable& kernels, const AttendProblem& problem, int threads);

// append, then attend. A single token is written by whoever is about to read its page, which is on its way to the caches.
void append_and_attend(const KernelTable& kernels, const AppendProblem& tokens, const AttendProblem& problem,
                       int threads);

// out = the value of the key with the largest q·k, the first of equals; NaN where one of the scores is NaN.
void attend_hard(const KernelTable& kernels, const AttendProblem& problem, int threads);

}  // namespace qkv
