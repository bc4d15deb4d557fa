#pragma once

// The part of DLPack 1 that a decode step reads: the address, shape, strides and dtype of a Python tensor.

#include <cstdint>

namespace qkv::dlpack {

constexpr char kCapsule[] = "dlpack_exchange_api";
constexpr uint32_t kMajor = 1;
constexpr int32_t kCpu = 1;
constexpr uint8_t kFloat = 2, kBfloat = 4;

struct Device {
    int32_t type, number;
};

struct Kind {
    uint8_t code, bits;
    uint16_t lanes;
};

struct View {
    void* data;
    Device device;
    int32_t rank;
    Kind kind;
    const int64_t* shape;
    const int64_t* strides;  // in elements
    uint64_t byte_offset;
};

struct ExchangeApi {
    uint32_t major, minor;
    const void* earlier;
    void* allocate;
    void* take;
    void* give;
    int (*view_tensor)(void* object, View* out);  // -1 and a Python error without data; may be null
    void* stream;
};

}  // namespace qkv::dlpack
