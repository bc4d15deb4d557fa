#pragma once

// Reads a call from bytes. What was read is kept by name, for the report of a failure.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>

namespace fuzz {

// Pseudo-random numbers from one seed.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

    int64_t below(int64_t count) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(count)); }

private:
    uint64_t state_;
};

class Bytes {
public:
    Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) { reading() = this; }
    ~Bytes() { reading() = nullptr; }

    // An integer from `least` to `most`; `least` after the last byte.
    int64_t between(const char* name, int64_t least, int64_t most) {
        const uint64_t choices = static_cast<uint64_t>(most - least) + 1;
        const uint64_t drawn = choices > 256 ? 256 * next() + next() : next();
        return remember(name, least + static_cast<int64_t>(drawn % choices));
    }

    bool flag(const char* name) { return between(name, 0, 1) == 1; }

    // True once in this many times.
    bool seldom(const char* name, int64_t times) { return between(name, 0, times - 1) == times - 1; }

    template <typename Value>
    Value one_of(const char* name, std::initializer_list<Value> values) {
        const auto place = static_cast<int64_t>(next() % values.size());
        const Value value = values.begin()[place];
        remember(name, static_cast<int64_t>(value));
        return value;
    }

    Random random(const char* name) { return Random(static_cast<uint64_t>(between(name, 0, 65535))); }

    size_t left() const { return static_cast<size_t>(end_ - at_); }
    const uint8_t* rest() const { return at_; }

    void print() const {
        for (int n = 0; n < count_; ++n) {
            std::fprintf(stderr, "%s%s %lld", n == 0 ? "" : ", ", names_[n], static_cast<long long>(values_[n]));
        }
        std::fprintf(stderr, "\n");
    }

    static Bytes*& reading() {
        static Bytes* bytes = nullptr;
        return bytes;
    }

private:
    uint64_t next() { return at_ == end_ ? 0 : *at_++; }

    int64_t remember(const char* name, int64_t value) {
        if (count_ < kMost) {
            names_[count_] = name;
            values_[count_++] = value;
        }
        return value;
    }

    static constexpr int kMost = 160;
    const uint8_t *at_, *end_;
    const char* names_[kMost];
    int64_t values_[kMost];
    int count_ = 0;
};

// Reports a wrong result and the call, and aborts.
[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "BROKEN: %s\n", what.c_str());
    if (Bytes::reading() != nullptr) Bytes::reading()->print();
    std::abort();
}

inline void require(bool holds, const char* what) {
    if (!holds) fail(what);
}

inline std::string number(double x) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", x);
    return text;
}

}  // namespace fuzz
