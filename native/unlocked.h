#pragma once

// Python's lock, let go while a kernel runs and taken back after it.

#include <nanobind/nanobind.h>

namespace qkv::python {

// Like nanobind's gil_scoped_release, but for the end of the process. A daemon thread that asks for the lock while the
// interpreter goes down is ended by Python, by unwinding: the first frame of C++ that may not be unwound then ends the
// process with an abort. Such a thread waits here instead, until the process is gone.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

// Python calls it on its way out, while other threads may still run. Afterwards no kernel comes back to any thread but
// the one that called.
void before_exit();

}  // namespace qkv::python
