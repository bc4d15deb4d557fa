#include "unlocked.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace qkv::python {

namespace {

std::atomic<bool> exiting{false};
std::atomic<pthread_t> exiting_thread{};
// Threads that are acquiring the GIL, that wait for the process to end, and that exist and have run a kernel.
std::atomic<int> acquiring{0}, waiting{0}, users{0};

struct User {
    bool known = false;
    ~User() { users -= known; }
};
thread_local User user;

bool must_not_return() { return exiting && !pthread_equal(pthread_self(), exiting_thread); }

[[noreturn]] void wait_for_exit() {
    ++waiting;
    --acquiring;
    for (;;) pause();
}

// Only the thread that forked exists in the child.
void reset_in_child() {
    exiting = false;
    acquiring = waiting = 0;
    users = user.known;
}

const int registered = pthread_atfork(nullptr, nullptr, reset_in_child);

template <typename Done>
void wait_until(Done done, std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace

Unlocked::Unlocked() {
    if (!user.known) {
        user.known = true;
        ++users;
    }
    state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked() {
    ++acquiring;
    if (must_not_return()) wait_for_exit();
    PyEval_RestoreThread(state_);
    if (must_not_return()) {  // the exit began while it waited
        PyEval_SaveThread();
        wait_for_exit();
    }
    --acquiring;
}

void before_exit() {
    exiting_thread = pthread_self();
    exiting = true;
    const int others = users - user.known;
    if (others == 0) return;
    PyThreadState* state = PyEval_SaveThread();
    // Threads that keep calling kernels arrive here soon. Others may be in torch, which cannot be waited for.
    wait_until([&] { return waiting >= others; }, std::chrono::milliseconds(300));
    wait_until([] { return acquiring == 0; }, std::chrono::milliseconds(5000));
    PyEval_RestoreThread(state);
    // Objects of the waiting threads are never released: no warnings about them.
    nanobind::set_leak_warnings(false);
}

}  // namespace qkv::python
