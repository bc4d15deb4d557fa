#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace qkv {

// The kernels that this build holds and this machine can run, the fastest first; the portable ones are always last.
std::vector<const KernelTable*> runnable_kernels();

// Runs the kernels on small problems whose answers are known, or are the portable kernels'. Empty when they give
// them; else what differs.
std::string self_check(const KernelTable& kernels);

}  // namespace qkv
