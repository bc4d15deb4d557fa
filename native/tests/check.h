#pragma once

// A minimal test framework: TEST(part, name) { CHECK(...); CHECK_EQUAL(found, wanted); }

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Test {
    const char* part;
    const char* name;
    void (*body)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Register {
    Register(const char* part, const char* name, void (*body)()) { tests().push_back({part, name, body}); }
};

// Printed if a check fails: the instruction set, the shape, the number of threads.
inline std::string& setting() {
    static std::string text;
    return text;
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what + " [" + setting() + "]");
}

template <typename Found, typename Wanted>
void equal(const char* file, int line, const char* text, const Found& found, const Wanted& wanted) {
    if (found == wanted) return;
    std::ostringstream what;
    what << text << ": found " << found << ", wanted " << wanted;
    fail(file, line, what.str());
}

}  // namespace check

#define TEST(part, name)                                                           \
    static void part##_##name();                                                   \
    static const check::Register register_##part##_##name(#part, #name, part##_##name); \
    static void part##_##name()

#define CHECK(condition) \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQUAL(found, wanted) check::equal(__FILE__, __LINE__, #found, (found), (wanted))
