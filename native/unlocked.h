#pragma once

// Releases the GIL while a kernel runs.

#include <nanobind/nanobind.h>

namespace qkv::python {

// Like nanobind's gil_scoped_release, except at exit. Python ends a daemon thread that acquires the GIL during
// interpreter shutdown by unwinding its stack, and the first noexcept frame of C++ then aborts the process. Such a
// thread waits here instead until the process ends.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

// Registered with atexit. After it, no kernel returns to Python in any thread but the calling one.
void before_exit();

}  // namespace qkv::python
