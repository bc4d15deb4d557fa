#pragma once

// A cache of keys and values in pages. A page holds 64 tokens of one batch row, for all its key/value heads. The slab
// of one head consists of these parts, each aligned to 64 bytes:
//   header  64 bytes: the first has marks, kNonfinite if a value of the slab may be non-finite, kLarge if the magnitude of
//           a finite one may be kLargeValue or more
//   scales  formats with scales only: [groups][64 tokens] for the keys, then for the values
//   keys    [slots / pair][64 tokens][pair]: tokens are adjacent, so that a vector computes as many scores
//   values  [64 tokens][slots]
// Latents have neither keys nor their scales: the values part holds whole keys, and their first channels are the values.
// table[row][position / 64 modulo slots] is the address of the page of a position.

#include <cstdint>

#include "formats.h"
#include "kernel_table.h"
#include "tensor.h"

namespace qkv {

constexpr char kNonfinite = 1, kLarge = 2;

struct PageLayout {
    Storage storage;
    int64_t heads, width, value_width;

    int64_t width_slots() const { return storage.latent ? row_slots() : key_slots_of(storage.keys, width); }
    int64_t value_slots() const { return value_slots_of(storage.values, value_width); }
    // What the values part holds of a token.
    int64_t row_width() const { return storage.latent ? width : value_width; }
    int64_t row_slots() const { return value_slots_of(storage.values, row_width()); }
    int64_t row_bytes() const { return stored_bytes(storage.values, row_slots()); }
    int64_t value_scales_at() const {
        if (storage.latent) return kHeaderBytes;
        return kHeaderBytes + kPageTokens * scale_size(storage.keys) * scales_of(storage.keys, width);
    }
    int64_t keys_at() const {
        return value_scales_at() + kPageTokens * scale_size(storage.values) * scales_of(storage.values, row_width());
    }
    int64_t values_at() const {
        return storage.latent ? keys_at() : keys_at() + kPageTokens * stored_bytes(storage.keys, width_slots());
    }
    int64_t keys_end() const { return storage.latent ? head_bytes() : values_at(); }
    int64_t head_bytes() const { return values_at() + kPageTokens * row_bytes(); }

    // The scales of the keys or values of a slab, from a token on; nullptr for formats without.
    const char* key_scales(const char* slab) const { return is_scaled(storage.keys) ? slab + kHeaderBytes : nullptr; }
    const char* value_scales(const char* slab, int64_t token) const {
        if (!is_scaled(storage.values)) return nullptr;
        return slab + value_scales_at() + token * scale_size(storage.values);
    }

    static constexpr int64_t kHeaderBytes = 64;
};

struct PagedCache {
    PageLayout layout;
    const int64_t* table;  // (batch, slots) addresses
    int64_t slots;         // a power of two

    char* slab(int64_t row, int64_t page, int64_t head) const {
        return reinterpret_cast<char*>(table[row * slots + (page & (slots - 1))]) + head * layout.head_bytes();
    }
};

// Which of the given tokens of a batch row are real, and the position of the first: the first counts[b] of `given`, or
// the last with `left` padding. counts == nullptr: all.
struct Tokens {
    int64_t batch, given;
    const int64_t* positions;
    const int64_t* counts;
    bool left;

    int64_t count(int64_t row) const { return counts == nullptr ? given : counts[row]; }
    int64_t first(int64_t row) const { return left ? given - count(row) : 0; }
};

struct AppendProblem {
    PagedCache cache;
    Tokens tokens;
    Dtype dtype;  // of key and value: float64, float32, float16 or bfloat16
    Tensor4 key, value;
};

// Writes the real tokens, rounded to the storage format, into pages that exist.
void append(const AppendProblem& problem, int threads);

// The same for one batch row and one head.
using AppendRow = void (*)(const AppendProblem& problem, int64_t row, int64_t head);
AppendRow append_row(const AppendProblem& problem);

constexpr int64_t kNoBound = INT64_MAX;

// Waking a second thread takes longer than reading this many bytes.
constexpr int64_t kReadBytesPerThread = 96 << 10;

// Keys and values as tensors instead of pages.
struct PlainKeyValues {
    Dtype dtype;
    int64_t length;
    Tensor4 key, value;
};

struct AttendProblem {
    PagedCache cache;  // with plain tensors: sizes only, and float32 as storage
    Tokens tokens;  // the queries
    int64_t heads_q;
    Dtype dtype;  // of query and out: float32, float16 or bfloat16
    Tensor4 query;
    void* out;   // (batch, heads_q, given, value_width), contiguous; see heads_last
    float* lse;  // (batch, heads_q, given), contiguous; or nullptr
    // A query at position p of row b attends to the keys j <= p with p - window < j, starts[b] <= j < stops[b],
    // p + lower <= j < p + upper and keep[b, h, i, j]. kNoBound and nullptr: no such condition.
    int64_t window;
    const int64_t *starts, *stops;
    int64_t lower, upper;
    Tensor4 keep;  // bool; data may be nullptr
    Tensor4 bias;  // float32; data may be nullptr
    float scale, softcap;  // softcap 0: none
    const float* sink;     // (heads_q); or nullptr
    // If set, these are the keys; only the bounds above apply (not j <= p), and p is the index of the query.
    const PlainKeyValues* plain;
    bool heads_last = false;  // out is (batch, given, heads_q, value_width), the layout of models
    int64_t sinks = 0;        // the first keys, which a query attends to although they are before its window
    // The queries are no tokens of the cache: positions[b] is the number of keys, of which a query attends to all in the
    // window of the last one; lower and upper are relative to the index of the query.
    bool cross = false;
    // e^(s_j) / Σ e^(s_j), (batch, heads_q, given, weight_columns), contiguous and 0 before; or nullptr.
    float* weights = nullptr;
    int64_t weight_columns = 0;
    // (batch, heads_kv, importance_columns), to which the weights of the queries that read a key are added, from
    // position importance_from[b] on (nullptr: of all); or nullptr. Aligned, with columns for whole pages.
    float* importance = nullptr;
    int64_t importance_columns = 0;
    const int64_t* importance_from = nullptr;
    // out = Σ_j v_j / (1 + e^-(s_j + offset)) instead, without softcap, sink and lse.
    bool sigmoid = false;
    float offset = 0.0f;
    // Forgetting: decay_query[b, h, i] - decay_key[b, h, j] is added to a score, and keys before decay_starts[b, h, i] are
    // masked; contiguous, over `given` queries and `decay_columns` keys; nullptr: none.
    const double *decay_query = nullptr, *decay_key = nullptr;
    const int64_t* decay_starts = nullptr;
    int64_t decay_columns = 0;
};

// out = Σ_j e^(s_j) v_j / Σ_j e^(s_j) over the attended keys, s = scale·q·k, then softcap, then + bias; the sink is
// added to the denominator only. Fully masked and padding queries get 0 and lse -inf. The same bits for any number of
// threads, any other batch rows and any division of the tokens into calls. Throws std::bad_alloc.
void attend(const KernelTable& kernels, const AttendProblem& problem, int threads);

// append, then attend. A single token is written by the job that reads its page next, while the page is in the CPU
// cache.
void append_and_attend(const KernelTable& kernels, const AppendProblem& tokens, const AttendProblem& problem,
                       int threads);

// out = the value of the key with the largest q·k, the first of equal ones; NaN if one of the scores is NaN.
void attend_argmax(const KernelTable& kernels, const AttendProblem& problem, int threads);

}  // namespace qkv
