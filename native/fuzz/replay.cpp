// Runs every target without libFuzzer, for any compiler:
//   fuzz_replay name count    over that many byte strings, the same every time
//   fuzz_replay name path...  over files of libFuzzer

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "target.h"

// Defined by sanitizers: the function that is called before the process ends.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

std::string running;

void say_what_ran() { std::fprintf(stderr, "while trying %s\n", running.c_str()); }

void run(const fuzz::Target& target, const std::vector<uint8_t>& input, const std::string& name) {
    running = name;
    fuzz::Bytes bytes(input.data(), input.size());
    target.body(bytes);
}

std::vector<uint8_t> drawn(uint64_t seed) {
    fuzz::Random random(seed);
    std::vector<uint8_t> input(static_cast<size_t>(20 + random.below(100)));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random.bits());
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGABRT, [](int) { say_what_ran(); });
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_what_ran);
    for (const fuzz::Target& target : fuzz::targets()) {
        if (argc < 3 || std::strcmp(argv[1], target.name) != 0) continue;
        char* end;
        const unsigned long long count = std::strtoull(argv[2], &end, 10);
        if (*end == 0 && argc == 3) {
            for (uint64_t n = 0; n < count; ++n) run(target, drawn(n), "string " + std::to_string(n));
        } else {
            for (int n = 2; n < argc; ++n) {
                std::ifstream file(argv[n], std::ios::binary);
                run(target, {std::istreambuf_iterator<char>(file), {}}, argv[n]);
            }
        }
        std::printf("%s: done\n", target.name);
        return 0;
    }
    std::printf("fuzz_replay name count, or fuzz_replay name path..., with one of:");
    for (const fuzz::Target& target : fuzz::targets()) std::printf(" %s", target.name);
    std::printf("\n");
    return 2;
}
