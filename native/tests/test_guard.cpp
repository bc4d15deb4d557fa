#include "guard.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "check.h"

namespace {

constexpr size_t kPages = 5;
sigjmp_buf back;

void jump_back(int) { siglongjmp(back, 1); }

// A mapping of a file that ends after two of its pages.
struct CutOff {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    FILE* const file = std::tmpfile();
    volatile unsigned char* bytes = nullptr;

    CutOff() {
        if (ftruncate(fileno(file), static_cast<off_t>(kPages * page)) != 0) return;
        bytes = static_cast<unsigned char*>(mmap(nullptr, kPages * page, PROT_READ, MAP_SHARED, fileno(file), 0));
    }
    uintptr_t address() const { return reinterpret_cast<uintptr_t>(bytes); }
    void cut() const { CHECK_EQUAL(ftruncate(fileno(file), static_cast<off_t>(2 * page)), 0); }
    ~CutOff() {
        munmap(const_cast<unsigned char*>(bytes), kPages * page);
        std::fclose(file);
    }
};

}  // namespace

TEST(guard, what_was_cut_off_reads_as_255_and_other_faults_go_to_who_handled_them_before) {
    struct sigaction before {};
    before.sa_handler = jump_back;
    before.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &before, nullptr);

    const CutOff guarded, other;
    CHECK(qkv::guard_mapping(guarded.address(), kPages * guarded.page));
    guarded.cut();
    CHECK_EQUAL(int(guarded.bytes[2 * guarded.page - 1]), 0);
    CHECK_EQUAL(int(guarded.bytes[2 * guarded.page]), 255);
    CHECK_EQUAL(int(guarded.bytes[5 * guarded.page - 1]), 255);

    other.cut();
    volatile bool handled = true;
    if (sigsetjmp(back, 1) == 0) {
        handled = other.bytes[2 * other.page] == 1;
        CHECK(false);
    }
    CHECK(handled);
    qkv::unguard_mapping(guarded.address());
    signal(SIGBUS, SIG_DFL);
}

TEST(guard, there_is_place_for_many_mappings_and_not_for_any_number) {
    int placed = 0;
    while (placed < 5000 && qkv::guard_mapping(4096 * (1000 + placed), 4096)) ++placed;
    CHECK_EQUAL(placed, 1024);
    for (int i = 0; i < placed; ++i) qkv::unguard_mapping(4096 * (1000 + i));
    CHECK(qkv::guard_mapping(4096, 4096));
    qkv::unguard_mapping(4096);
}
