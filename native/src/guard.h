#pragma once

// Mapped files that are cut off while they are read.

#include <cstddef>
#include <cstdint>

namespace qkv {

// From now on a read of these bytes of a mapping that the file no longer has finds bytes 255, NaN in every floating-point
// format, where it would otherwise end the process with SIGBUS. False if there is no place for one more mapping, or the
// system has no such signal.
bool guard_mapping(uintptr_t data, size_t size);

// To be called before the mapping is removed.
void unguard_mapping(uintptr_t data);

}  // namespace qkv
