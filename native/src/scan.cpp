// Scans for NaN and infinity.

#include "formats.h"
#include "isa_kernels.h"
#include "vector.h"

namespace qkv::QKV_ISA {

namespace {

constexpr int kStreams = 4;
constexpr int64_t kStride = kStreams * kVectorBytes;
constexpr int64_t kBlockStrides = 8192 / kStride;  // strides between checks for an early stop

// An exponent of ones is NaN or infinity. Adding the exponent's lowest bit to the exponent alone carries into
// the sign bit for these and for nothing else, so an `or` accumulates the result without comparisons.
template <typename Word>
struct Scan {
    typedef Word Words __attribute__((vector_size(kVectorBytes)));
    static constexpr int64_t kWords = kVectorBytes / sizeof(Word);
    static constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));

    const Word exponent;
    const Word lowest = exponent & static_cast<Word>(-exponent);

    QKV_INLINE Words carry(const char* from) const {
        Words words;
        std::memcpy(&words, from, sizeof words);
        return (words & exponent) + lowest;
    }

    QKV_INLINE bool fine(Words carries) const {
        Word all = 0;
        for (int64_t i = 0; i < kWords; ++i) all |= carries[i];
        return (all & kSign) == 0;
    }

    QKV_INLINE bool block(const char* from, int64_t strides) const {
        Words carries[kStreams] = {};
        for (; strides > 0; --strides, from += kStride) {
            QKV_UNROLL
            for (int s = 0; s < kStreams; ++s) carries[s] |= carry(from + s * kVectorBytes);
        }
        return fine((carries[0] | carries[1]) | (carries[2] | carries[3]));
    }

    bool operator()(const char* from, int64_t count) const {
        const char* const end = from + count * int64_t{sizeof(Word)};
        const bool overlap = end - from >= kVectorBytes;
        while (end - from >= kStride) {
            const int64_t left = (end - from) / kStride;
            const int64_t now = left < kBlockStrides ? left : kBlockStrides;
            if (!block(from, now)) return false;
            from += now * kStride;
        }
        Words carries = {};
        for (; end - from >= kVectorBytes; from += kVectorBytes) carries |= carry(from);
        if (overlap) {
            // Some elements are scanned twice, which is harmless.
            return fine(carries | carry(end - kVectorBytes));
        }
        Word rest = 0;
        for (; from != end; from += sizeof(Word)) {
            Word word;
            std::memcpy(&word, from, sizeof word);
            rest |= static_cast<Word>((word & exponent) + lowest);
        }
        return (rest & kSign) == 0;
    }
};

}  // namespace

bool all_finite(const void* data, int64_t count, Dtype dtype) {
    const char* from = static_cast<const char*>(data);
    if (dtype == Dtype::float64) return Scan<uint64_t>{0x7ff0000000000000u}(from, count);
    return with_format(dtype, [&](auto format) {
        using Storage = Format<format()>;
        if constexpr (Storage::group != 0) {
            return true;
        } else {
            return Scan<typename Storage::Bits>{Storage::exponent}(from, count);
        }
    });
}

}  // namespace qkv::QKV_ISA
