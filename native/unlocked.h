#pragma once

// Releases the GIL while a kernel runs.

#include <nanobind/nanobind.h>

namespace qkv::python {

// Like nanobind's gil_scoped_release, except at exit. Before Python 3.14, a daemon thread that acquires the GIL during
// interpreter shutdown is ended by unwinding its stack (pthread_exit), and the first noexcept frame of C++, such as this
// destructor, then aborts the process: a program that is done would end with SIGABRT because a thread that it does not
// need was inside a kernel. Such a thread waits here instead until the process ends, which is what Python does itself
// from 3.14 on; then this class can become gil_scoped_release.
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
