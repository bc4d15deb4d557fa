#include "unlocked.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace qkv::python {

namespace {

std::atomic<bool> leaving{false};
std::atomic<pthread_t> leaver{};
// Threads that are asking for the lock, that wait for the end, and that ever ran a kernel and are still there.
std::atomic<int> asking{0}, waiting{0}, users{0};

struct User {
    bool known = false;
    ~User() { users -= known; }
};
thread_local User user;

bool is_left_behind() { return leaving && !pthread_equal(pthread_self(), leaver); }

[[noreturn]] void wait_for_the_end() {
    ++waiting;
    --asking;
    for (;;) pause();
}

// Of all threads only the one that forked is in the child.
void start_again_in_child() {
    leaving = false;
    asking = waiting = 0;
    users = user.known;
}

const int registered = pthread_atfork(nullptr, nullptr, start_again_in_child);

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
    ++asking;
    if (is_left_behind()) wait_for_the_end();
    PyEval_RestoreThread(state_);
    if (is_left_behind()) {  // it had asked before
        PyEval_SaveThread();
        wait_for_the_end();
    }
    --asking;
}

void before_exit() {
    leaver = pthread_self();
    leaving = true;
    const int others = users - user.known;
    if (others == 0) return;
    PyThreadState* state = PyEval_SaveThread();
    // Whoever calls kernels again and again is soon here. Who does not come may be in torch, which has no such door.
    wait_until([&] { return waiting >= others; }, std::chrono::milliseconds(300));
    wait_until([] { return asking == 0; }, std::chrono::milliseconds(5000));
    PyEval_RestoreThread(state);
    // What threads hold that wait for ever is never given back: nanobind need not tell.
    nanobind::set_leak_warnings(false);
}

}  // namespace qkv::python
