#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace qkv {

// The kernels of this build that this machine can run, the fastest first; the portable ones are always last.
std::vector<const KernelTable*> runnable_kernels();

// Runs the kernels on small problems and compares with known answers or with the portable kernels. Empty if they agree;
// otherwise what differs.
std::string self_check(const KernelTable& kernels);

}  // namespace qkv
