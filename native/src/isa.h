#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"
#include "packed_table.h"

namespace qkv {

// The kernels of this build that this machine can run, the fastest first; the portable ones are always last.
std::vector<const KernelTable*> runnable_kernels();

// Whether pages of caches are fetched into the fastest CPU cache: faster on AMD's processors; elsewhere not measured.
bool fetches_near();

// Runs the kernels on small problems and compares with known answers or with the portable kernels. Empty if they agree;
// otherwise what differs. With those of attention, the packed products that run with them are checked.
std::string self_check(const KernelTable& kernels);
std::string self_check(const PackedKernels& kernels);

}  // namespace qkv
