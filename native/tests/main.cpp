#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

// native_tests [part]
int main(int argc, char** argv) {
    int ran = 0, failed = 0;
    for (const check::Test& test : check::tests()) {
        if (argc > 1 && std::strcmp(argv[1], test.part) != 0) continue;
        ++ran;
        check::setting() = "";
        try {
            test.body();
        } catch (const std::exception& error) {
            ++failed;
            std::printf("FAILED %s.%s: %s\n", test.part, test.name, error.what());
        }
    }
    std::printf("%d tests, %d failed\n", ran, failed);
    return failed != 0 || ran == 0;
}
